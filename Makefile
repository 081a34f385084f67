# Two environments' worth of needs in one folder: `run` installs the handler only (no torch), `test` adds the rest.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: run test check check-full bench train-reader pr format clean help

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.run: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13; say which with PYTHON=…" >&2; exit 1; }
	@echo "installing into $(VENV) …" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing torch, exporters and test tools into $(VENV) …" >&2
	@$(PIP) -e '.[export,synth,heic,dev]'
	@touch $@

run: $(VENV)/.run ## Parse the sample page with the bundled model and print the Markdown
	@$(BIN)/python -m handler examples/page.png

test: $(VENV)/.dev ## All tests but the slow proofs
	@$(BIN)/python -m pytest -q -m 'not full'

check: $(VENV)/.dev ## Lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check-full: $(VENV)/.dev ## The slow proofs: the full-size architecture, exported and run
	@$(BIN)/python -m pytest -q -m full

bench: $(VENV)/.dev ## Seconds and memory of an artifact: make bench ARTIFACT=path
	@$(BIN)/python infra/bench.py $(or $(ARTIFACT),models/reader)

train-reader: $(VENV)/.dev ## Train the small model from nothing, hours; goes on where it stopped (START=file begins from weights)
	@nice -n 19 $(BIN)/python -m export.reader train --out build/reader --steps 40000 --hours 24 $(if $(START),--start $(START))

pr: check test ## What a change must pass before it lands

format: $(VENV)/.dev ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove what was installed and built
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

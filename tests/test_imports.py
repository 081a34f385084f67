"""What the entry points import, seen from a fresh interpreter: cold start pays for every module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEVER = {"torch", "transformers", "onnx", "optimum"}
LATER = {"mineru_vl_utils", "onnxruntime", "tokenizers", "pypdfium2", "boto3"}
WEB = {"fastapi", "pydantic", "mangum", "starlette"}


def modules_after(code: str, **environ: str) -> set[str]:
    """Top-level modules of an interpreter that ran `code`, from a folder that is not the repository."""
    code += "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MINERU_", "AWS_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env={**kept, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: Any = json.loads(done.stdout.splitlines()[-1])
    return set(found)


def test_entry_point_is_light() -> None:
    assert modules_after("import handler.app") & (NEVER | LATER) == set()


def test_loading_at_init_stays_without_torch(tmp_path: Path) -> None:
    """In Lambda the model is loaded at init; an artifact that is not there must not crash the import."""
    code = "import handler.app as app; assert app.handler({'warmup': True}, None)['statusCode'] == 503"
    modules = modules_after(code, AWS_LAMBDA_FUNCTION_NAME="fn", MINERU_ARTIFACT=str(tmp_path))
    assert modules & NEVER == set()


def test_bad_setting_does_not_crash_init() -> None:
    code = "import handler.app as app; assert app.handler({'warmup': True}, None)['statusCode'] == 503"
    modules_after(code, AWS_LAMBDA_FUNCTION_NAME="fn", MINERU_THREADS="four")


@pytest.mark.parametrize("name", ["answer", "cli", "events", "logs", "parse", "pipeline", "request", "runtime"])
def test_only_the_http_edge_knows_the_web(name: str) -> None:
    assert modules_after(f"import handler.{name}") & (NEVER | LATER | WEB) == set()


def test_help_imports_next_to_nothing() -> None:
    code = "import handler.cli\ntry: handler.cli.main(['--help'])\nexcept SystemExit: pass"
    assert modules_after(code) & (NEVER | LATER | WEB | {"numpy", "PIL"}) == set()

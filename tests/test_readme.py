"""The README's tables against the code: settings, error codes, exit codes, commands."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from handler import cli
from handler.config import BUNDLED_ARTIFACT, Settings, variable
from handler.errors import MineruError
from handler.request import OPTIONS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.partition(f"### {title}\n")[2].partition("\n#")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_settings() -> None:
    defaults: dict[str, Any] = {spec.name: spec.default for spec in fields(Settings)}
    defaults["artifact"] = f"`{BUNDLED_ARTIFACT.relative_to(ROOT)}`"
    expected = [[f"`{variable(name)}`", str(value)] for name, value in defaults.items()]
    assert [row[:2] for row in rows("Settings")] == expected


def all_errors(kind: type[MineruError] = MineruError) -> list[type[MineruError]]:
    return [kind, *(error for child in kind.__subclasses__() for error in all_errors(child))]


def test_errors() -> None:
    project = [error for error in all_errors() if error.__module__.startswith("handler.")]
    assert [row[:2] for row in rows("Errors")] == [[f"`{error.code}`", str(error.status)] for error in project]


def test_options_and_exit_codes() -> None:
    use = README.partition("## Use")[2].partition("### Settings")[0]
    assert not [name for name in OPTIONS if f"`{name}`" not in use]
    codes = re.findall(r"(\d+)\s(?:done|model|wrong|interrupted|nobody)", use)
    constants = (cli.OK, cli.FAILED, cli.WRONG_INPUT, cli.INCOMPLETE, cli.INTERRUPTED, cli.BROKEN_PIPE)
    assert [int(code) for code in codes] == list(constants)


def test_the_first_commands_are_targets_and_every_file_named_is_there() -> None:
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)[:2]
    assert commands == ["run", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in re.findall(r"`make ([a-z-]+)", README))
    tree = README.partition("```\nhandler/")[2].partition("```")[0]
    handler_part, _, export_part = tree.partition("\nexport/")
    for folder, part in (("handler", handler_part), ("export", export_part)):
        for name in re.findall(r"\b(\w+\*?\.py)\b", part):
            assert list((ROOT / folder).glob(name)), f"{folder}/{name}"
        listed = {path.name for name in re.findall(r"\b(\w+\*?\.py)\b", part) for path in (ROOT / folder).glob(name)}
        plain = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py", "timing.py", "upstream_log.py"}
        assert plain - listed <= {"progress.py"}

"""What mineru-vl-utils logs, as warnings. Knows its message templates; touches nothing else of it.

Upstream logs with loguru, whose default sink prints to stderr, and puts text of the document into its lines. Its
modules get a stand-in for that logger: what they say inside `collected` is kept without its arguments and comes out
as warnings; what they say to anybody else goes where it always went.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

_LEVELS = frozenset({"trace", "debug", "info", "success", "warning", "error", "exception", "critical"})
_REPORTED = frozenset({"warning", "error", "exception", "critical"})
# How upstream's message templates begin, and what we call them. An empty code: told elsewhere, or no loss.
_CODES = (
    ("Invalid bbox", "layout_invalid_bbox: boxes outside the page or without area were left out"),
    ("Unknown block type", "layout_unknown_type: blocks of an unknown type were left out"),
    ("No angle found", ""),
    ("Layout output does not match", ""),
    ("Cropped block image has invalid size", "crop_empty: blocks without a pixel were not read"),
    ("Failed to convert OTSL", "table_unconverted: the answer was kept as it came"),
    ("Failed to process equation", "equation_unprocessed: the answer was kept as it came"),
    ("Failed to process text", "text_unprocessed: the answer was kept as it came"),
    ("Failed to process image/chart", "image_answer_lost: the answer about a picture could not be read"),
    ("Failed to process bbox", "markdown_incomplete: a block could not be put into the Markdown"),
)
_OTHER = "upstream_warning: mineru-vl-utils had something to say that has no code here"
_templates: ContextVar[list[str] | None] = ContextVar("_templates", default=None)


class _Logger:
    """Stands in for loguru's logger in upstream's modules."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        templates = _templates.get()
        if templates is None or name not in _LEVELS:
            return getattr(self._logger, name)

        def collect(template: object, *_args: object, **_kwargs: object) -> None:
            if name in _REPORTED:
                templates.append(str(template))

        return collect


def stand_in(modules: Iterable[ModuleType]) -> None:
    """Put the stand-in into upstream's modules, those that log."""
    for module in modules:
        logger = vars(module).get("logger")
        if logger is not None and not isinstance(logger, _Logger):
            vars(module)["logger"] = _Logger(logger)


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect what upstream says in the block; at its end the list has `code: text` lines, equal ones counted."""
    warnings: list[str] = []
    templates: list[str] = []
    token = _templates.set(templates)
    try:
        yield warnings
    finally:
        _templates.reset(token)
        codes = Counter(filter(None, map(_code, templates)))
        warnings += [f"{code} ({n})" if n > 1 else code for code, n in codes.items()]


def _code(template: str) -> str:
    return next((code for beginning, code in _CODES if template.startswith(beginning)), _OTHER)

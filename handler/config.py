"""Settings: read once from the environment, frozen, checked at start.

Explicit argument beats environment beats default. Knows nothing about requests or models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from handler.errors import ConfigError

PREFIX = "MINERU_"
BUNDLED_ARTIFACT = Path(__file__).resolve().parent.parent / "models" / "reader"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _setting(default: Any, parse: Callable[[str], Any], allowed: str, what: str) -> Any:
    return field(default=default, metadata={"parse": parse, "allowed": allowed, "what": what})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; the environment variable of a field is `MINERU_` + its name in capitals.

    Source: the names and limits are ours; 3,500 px and 200 dpi are what MinerU renders pages at.
    """

    artifact: Path = _setting(BUNDLED_ARTIFACT, Path, "a folder", "the exported model")
    threads: int = _setting(0, int, "0 (all that this process may use) or more", "threads of the model")
    max_document_bytes: int = _setting(
        50_000_000, _positive, "a whole number of bytes from 1", "largest file that is opened"
    )
    max_document_pixels: int = _setting(
        60_000_000, _positive, "a whole number of pixels from 1", "largest image that is decoded"
    )
    max_pages: int = _setting(1000, _positive, "a whole number from 1", "most pages of one request")
    page_dpi: int = _setting(200, _positive, "dots per inch from 1", "resolution PDF pages are rendered at")
    max_page_px: int = _setting(3500, _positive, "pixels from 1", "longest side of a rendered PDF page")
    max_image_px: int = _setting(960, _positive, "pixels from 1", "longest side of the image of a single-step task")
    max_new_tokens: int = _setting(0, int, "0 (as many as the model has room for) or more", "most tokens of one answer")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings.

        Parameters
        ----------
        environ : mapping of str to str, optional
            Default: the process environment.

        Raises
        ------
        ConfigError
            A value is not allowed; the message names the variable.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for spec in fields(cls):
            name = variable(spec.name)
            text = environ.get(name, "").strip()
            if not text:
                continue
            try:
                value = spec.metadata["parse"](text)
                if isinstance(value, int) and value < 0:
                    raise ValueError
            except ValueError as exc:
                raise ConfigError(f"{name} is not allowed as set: it takes {spec.metadata['allowed']}.") from exc
            values[spec.name] = value
        return cls(**values)


def variable(field_name: str) -> str:
    """Name of the environment variable of a settings field."""
    return PREFIX + field_name.upper()


def threads_available() -> int:
    """Number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1

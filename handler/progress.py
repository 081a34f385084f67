"""The progress of the command line: one line that updates itself on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from handler.pipeline import Progress

# Elsewhere than on a terminal, in a log say, a line a block would bury everything else.
PLAIN_EVERY_S = 10.0


class ProgressLine:
    """Writes progress to a stream; nothing at all when `quiet`. `label` stands before every line."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self.label = ""
        self._stream = stream
        self._quiet = quiet
        self._updates = stream.isatty()
        self._stage: tuple[int, str] | None = None
        self._told_s = 0.0

    def show(self, progress: Progress) -> None:
        """Tell how far the document is."""
        stage = (progress.page, progress.stage)
        is_due = stage != self._stage or time.monotonic() - self._told_s >= PLAIN_EVERY_S
        if self._updates or is_due:
            self._stage, self._told_s = stage, time.monotonic()
            self.say(f"page {progress.page + 1}: {progress.stage} {progress.done}/{progress.total}")

    def say(self, text: str) -> None:
        """Tell one thing."""
        if self._quiet:
            return
        text = f"{self.label}: {text}" if self.label else text
        # \r and "erase to the end of the line": the next text takes this one's place.
        self._stream.write(f"\r\x1b[K{text}" if self._updates else f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other text."""
        self._stage = None
        if self._updates and not self._quiet:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

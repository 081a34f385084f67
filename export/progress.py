"""Progress of long build steps on stderr, a line that is redrawn on a terminal and a few lines in a log."""

from __future__ import annotations

import sys
import time


class Progress:
    """Count steps of a known total.

    Parameters
    ----------
    what : str
        What is counted.
    total : int
        Number of steps.
    quiet : bool
        Print nothing.
    """

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        self._what, self._total, self._quiet = what, total, quiet
        self._done = 0
        self._start_s = time.monotonic()
        self._shown_s = float("-inf")

    def step(self) -> None:
        """One step more is done."""
        self._done += 1
        now_s = time.monotonic()
        interval_s = 0.2 if sys.stderr.isatty() else 10.0
        if now_s - self._shown_s >= interval_s:
            self._shown_s = now_s
            self._show()

    def close(self) -> None:
        """Show the final state."""
        self._show(end="\n")

    def _show(self, end: str = "") -> None:
        if self._quiet:
            return
        tty = sys.stderr.isatty()
        elapsed_s = time.monotonic() - self._start_s
        text = f"{self._what}: {self._done}/{self._total}, {elapsed_s:.0f} s"
        print(("\r\x1b[K" if tty else "") + text, end=end if tty else "\n", file=sys.stderr, flush=True)


def say(text: str, *, quiet: bool = False) -> None:
    """One line about what begins now."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)

"""Laps of a request in milliseconds."""

from __future__ import annotations

import time


class Stopwatch:
    """Measures consecutive phases; `laps_ms` maps their names to milliseconds."""

    def __init__(self) -> None:
        self.laps_ms: dict[str, float] = {}
        self._last_s = time.perf_counter()

    def lap(self, name: str) -> None:
        """End the phase that has run since the last lap, and add it to its name."""
        now_s = time.perf_counter()
        self.laps_ms[name] = self.laps_ms.get(name, 0.0) + (now_s - self._last_s) * 1000.0
        self._last_s = now_s

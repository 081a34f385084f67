"""The process: its settings, its one loaded engine, one request at a time, and how it is doing.

Knows nothing about HTTP or Lambda events.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from handler import __version__, logs
from handler.artifact import Artifact
from handler.config import Settings
from handler.engine import Engine, load
from handler.errors import ArtifactError, BusyError, MineruError
from handler.parse import DocumentResult, describe, parse_document

if TYPE_CHECKING:
    from handler.pipeline import Progress
    from handler.request import ParseRequest

# Left of a Lambda invocation for building and sending the answer after the deadline has cut the reading.
RESERVE_S = 3.0


class Runtime:
    """Everything that lives as long as the process.

    Parameters
    ----------
    settings : Settings, optional
        Default: read from the environment at first use, so that a bad value is an answer and not a crash at import.
    """

    def __init__(self, settings: Settings | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.timings_ms: dict[str, float] = {}
        self.n_requests = 0
        self._settings = settings
        self._environ = environ
        self._engine: Engine | None = None
        self._error: MineruError | None = None
        self._loading = threading.Lock()
        self._busy = threading.Lock()

    @property
    def settings(self) -> Settings:
        """The settings.

        Raises
        ------
        ConfigError
        """
        if self._settings is None:
            self._settings = Settings.from_env(self._environ)
        return self._settings

    def load(self) -> Engine:
        """Load the engine once; a load that failed is tried again, since what was in its way may be gone.

        Raises
        ------
        ConfigError, ArtifactError
        """
        with self._loading:
            if self._engine is None:
                try:
                    self._engine = self._load()
                except MineruError as exc:
                    # A copy: the exception itself would keep alive what the frames of the failed load hold.
                    self._error = type(exc)(exc.detail, hint=exc.hint)
                    raise
                self._error = None
            return self._engine

    def note_start(self) -> None:
        """Take down how long the process took to get here: interpreter, imports, reading files on a cold disk."""
        age_s = process_age_s()
        if age_s is not None:
            self.timings_ms["start"] = round(age_s * 1000, 1)

    def start(self) -> None:
        """Load the engine ahead of the first request. What goes wrong is logged and told by `health`, not raised."""
        try:
            self.load()
        except MineruError as exc:
            logs.error(exc)

    def run(
        self,
        request: ParseRequest,
        *,
        deadline_s: float | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> DocumentResult:
        """Parse one document.

        Raises
        ------
        BusyError
            Another document is being parsed: the engine takes one at a time, and waiting would only hide it.
        MineruError
        """
        with self._exclusive():
            engine = self.load()
            self.n_requests += 1
            return parse_document(
                request.document,
                engine,
                request.options,
                self.settings,
                pages=request.pages,
                dpi=request.dpi,
                deadline_s=deadline_s,
                progress=progress,
            )

    def health(self) -> dict[str, Any]:
        """Tell how the process is doing, without waiting for a load or a request.

        `status` is `ok`, `loading` (the model is being loaded, or will be by the first request) or `error`.
        """
        engine, error = self._engine, self._error
        return {
            "status": "ok" if engine else "error" if error else "loading",
            "version": __version__,
            "model": describe(engine) if engine else None,
            "artifact_format": engine.manifest.format_version if engine else None,
            "error": {"code": error.code, "detail": error.detail, "hint": error.hint} if error else None,
            "busy": self._busy.locked(),
            "n_requests": self.n_requests,
            "timings_ms": self.timings_ms,
            "peak_rss_mb": logs.peak_rss_mb(),
        }

    def _load(self) -> Engine:
        begun = time.perf_counter()
        artifact = Artifact.open(self.settings.artifact)
        try:
            engine = load(artifact, self.settings)
        except MineruError:
            raise
        except Exception as exc:
            raise ArtifactError("The model of the artifact can't be started.") from exc
        self.timings_ms["load"] = round((time.perf_counter() - begun) * 1000, 1)
        return engine

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise BusyError("Another document is being parsed.")
        try:
            yield
        finally:
            self._busy.release()


def deadline_s(context: Any, wait_s: float | None = None) -> float | None:
    """Monotonic time at which reading must stop, so that the answer still gets out.

    Parameters
    ----------
    context : Lambda context or None
    wait_s : float, optional
        Longest time that the front door waits, seconds.

    Returns
    -------
    float or None
        A `time.monotonic()` value; None outside Lambda.
    """
    if not hasattr(context, "get_remaining_time_in_millis"):
        return None
    left_s: float = context.get_remaining_time_in_millis() / 1000
    return time.monotonic() + max(0.0, min(left_s, wait_s or left_s) - RESERVE_S)


def process_age_s() -> float | None:
    """Seconds since this process began, to a hundredth; None where the system does not tell (only Linux does)."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # Field 22, counted behind the program's name, which may hold blanks.
            begun_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None

"""The log: one JSON line a request, one more for an exception. Never text of the document.

Lines go to standard error, which Lambda sends to CloudWatch as it is.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handler.parse import DocumentResult
    from handler.request import ParseRequest


def write(record: dict[str, Any]) -> None:
    """Write one line."""
    print(json.dumps(record, ensure_ascii=False, default=str), file=sys.stderr, flush=True)


def error(exc: BaseException, request_id: str | None = None) -> None:
    """Write an exception with its causes; whoever sent the request sees only the request id."""
    write({"level": "ERROR", "request_id": request_id, "error": traceback.format_exception(exc)})


def finish(record: dict[str, Any], begun: float) -> None:
    """Write the line of a request; `begun` is the `time.perf_counter()` of its start."""
    write({**record, "duration_ms": round((time.perf_counter() - begun) * 1000, 1), "peak_rss_mb": peak_rss_mb()})


def peak_rss_mb() -> float:
    """Highest resident memory of this process so far, MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1_000_000, 1)


def facts(request: ParseRequest, result: DocumentResult) -> dict[str, Any]:
    """Pick what the request's line says about a finished document."""
    return {
        "task": request.options.task,
        "n_bytes": len(request.document),
        "n_pages": len(result.pages),
        "n_tokens": sum(page.n_tokens for page in result.pages),
        "complete": result.complete,
        "timings_ms": {phase: round(ms, 1) for phase, ms in result.timings_ms.items()},
    }

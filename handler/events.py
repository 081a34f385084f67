"""Tells Lambda events apart, and what the front door behind one allows. Reads events only; answers nothing.

Source: the event shapes of AWS's Lambda guide, kept whole in `tests/events/`.
"""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["http", "invoke", "warmup", "s3", "eventbridge", "unknown"]

# Lambda's limit for a synchronous answer, as its error message states it, and an ALB's (1 MB).
MAX_ANSWER_BYTES = 6_291_556
MAX_ALB_ANSWER_BYTES = 1_000_000
# An HTTP API gives up after 30 s, and this can't be raised. (A REST API's 29 s can: its function's time-out rules.)
HTTP_API_WAIT_S = 30.0


def kind_of(event: Any) -> Kind:
    """Tell what an event is."""
    if not isinstance(event, dict):
        return "unknown"
    context = event.get("requestContext")
    if isinstance(context, dict):
        is_http = "elb" in context or "http" in context or "httpMethod" in event
        return "http" if is_http else "unknown"
    if event.get("warmup") is True or event.get("detail-type") == "Scheduled Event":
        return "warmup"
    records = event.get("Records")
    if isinstance(records, list) and records and isinstance(records[0], dict):
        return "s3" if records[0].get("eventSource") == "aws:s3" else "unknown"
    if "detail-type" in event and "source" in event:
        return "eventbridge"
    return "invoke" if "image" in event or "s3_uri" in event or "task" in event else "unknown"


def base_path(event: dict[str, Any]) -> str:
    """Part of an HTTP event's path that is not the route: a named stage of an HTTP API stands in its paths."""
    context = event["requestContext"]
    stage = context.get("stage", "$default")
    prefix = f"/{stage}"
    path = context.get("http", {}).get("path", "")
    return prefix if stage != "$default" and f"{path}/".startswith(f"{prefix}/") else "/"


def wait_s(event: Any) -> float | None:
    """Longest time that the front door waits, where it is fixed and shorter than Lambda's own."""
    context = event.get("requestContext") if isinstance(event, dict) else None
    if not isinstance(context, dict) or "http" not in context:
        return None
    # A function URL sends the same event as an HTTP API but waits as long as the function may run.
    return None if ".lambda-url." in context.get("domainName", "") else HTTP_API_WAIT_S


def max_answer_bytes(event: Any) -> int:
    """Largest answer that the front door passes on, as JSON."""
    context = event.get("requestContext") if isinstance(event, dict) else None
    is_alb = isinstance(context, dict) and "elb" in context
    return MAX_ALB_ANSWER_BYTES if is_alb else MAX_ANSWER_BYTES

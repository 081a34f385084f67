"""The Lambda entry point: an event in, an answer out. Locally the same thing is an ASGI app: `handler.app:web`."""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from uuid import uuid4

from mangum import Mangum
from mangum.adapter import DEFAULT_TEXT_MIME_TYPES

from handler import answer, events, logs
from handler.errors import RequestError
from handler.http import create_app
from handler.invoke import invoke
from handler.runtime import Runtime

UNDERSTOOD = (
    "HTTP events (API Gateway, function URL, load balancer), "
    'a direct invoke with {"image": "<base64>"}, and a warm-up with {"warmup": true}'
)
runtime = Runtime()
runtime.note_start()
web = create_app(runtime)
if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    runtime.start()


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Answer one Lambda event.

    Returns
    -------
    dict
        A proxy answer (`statusCode`, `headers`, `body`, `isBase64Encoded`) for every kind of event, errors included.
    """
    request_id = getattr(context, "aws_request_id", None) or str(uuid4())
    kind = events.kind_of(event)
    try:
        match kind:
            case "http":
                response = gateway(events.base_path(event))(event, context)
            case "invoke":
                response = invoke(event, context, runtime, request_id)
            case "warmup":
                response = warm_up(request_id)
            case _:
                response = refuse(kind, request_id)
    except Exception as exc:  # of a malformed HTTP event, or a fault of ours: never a traceback to the caller
        logs.error(exc, request_id)
        response = answer.proxy_problem(answer.unknown(), request_id)
    return answer.fit(response, events.max_answer_bytes(event), request_id)


@cache
def gateway(base_path: str) -> Any:
    """Return the bridge from HTTP events to the ASGI app."""
    text_types = [*DEFAULT_TEXT_MIME_TYPES, answer.PROBLEM]
    return Mangum(web, lifespan="off", api_gateway_base_path=base_path, text_mime_types=text_types)


def warm_up(request_id: str) -> dict[str, Any]:
    """Answer a ping that keeps the process alive: how it is doing, and nothing read."""
    state = runtime.health()
    return answer.proxy(503 if state["error"] else 200, answer.JSON, answer.dumps(state), request_id)


def refuse(kind: events.Kind, request_id: str) -> dict[str, Any]:
    """Answer an event that is not worked on here."""
    code, detail = "event_unknown", "This event is not understood."
    if kind != "unknown":
        code, detail = "event_unsupported", f"Events of {kind} are not supported yet."
    logs.write({"level": "ERROR", "request_id": request_id, "event": kind, "error": code, "status": 400})
    return answer.proxy_problem(RequestError(detail, hint=f"Send one of: {UNDERSTOOD}."), request_id, code=code)

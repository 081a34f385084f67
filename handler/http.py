"""The HTTP edge: `POST /parse` and `GET /health`, content negotiation, problems, the request's log line.

The only place, with `http_body` and `app`, that knows FastAPI, Starlette or Mangum.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handler import __version__, answer, events, logs, openapi
from handler.errors import MineruError, RequestError
from handler.http_body import read_request
from handler.request import Format
from handler.runtime import Runtime, deadline_s

ACCEPTED: dict[str, Format] = {"application/json": "json", "text/markdown": "md", "image/png": "layout"}
# What only this edge can say: status → code, detail, hint.
PROBLEMS = {
    404: ("not_found", "There is nothing at this address.", "Use POST /parse or GET /health."),
    405: ("method_not_allowed", "This address does not take that method.", "The Allow header names those it takes."),
    406: (
        "not_acceptable",
        "The answer can't be given in a format that the Accept header allows.",
        "Accept application/json, text/markdown, or image/png for a picture of the pages with their boxes.",
    ),
}


def create_app(runtime: Runtime) -> FastAPI:
    """Build the application around one runtime."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # For a local server. In Lambda the lifespan is off and the model is loaded at init.
        threading.Thread(target=runtime.start, name="load", daemon=True).start()
        yield

    app = FastAPI(
        title="mineru-lambda",
        summary="Document pages in, Markdown and blocks out.",
        version=__version__,
        docs_url=None,  # the page loads its script from a CDN
        redoc_url=None,
        redirect_slashes=False,  # the Location would lack an API stage
        lifespan=lifespan,
    )
    app.state.runtime = runtime
    app.add_middleware(Edge)
    app.add_exception_handler(MineruError, _on_mineru_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_api_route("/parse", parse, methods=["POST"], response_class=Response, **openapi.PARSE)
    app.add_api_route("/health", health, methods=["GET"], response_class=Response, **openapi.HEALTH)
    return app


async def parse(request: Request) -> Response:
    """Read one document and answer with its content."""
    runtime: Runtime = request.app.state.runtime
    asked = await read_request(request, runtime.settings.max_document_bytes)
    format = asked.format or negotiate(request.headers.get("accept"))
    deadline = deadline_s(request.scope.get("aws.context"), events.wait_s(request.scope.get("aws.event")))
    # In a thread, so that a local server answers /health meanwhile.
    result = await run_in_threadpool(runtime.run, asked, deadline_s=deadline)
    request.state.record.update(logs.facts(asked, result))
    content_type, body = await run_in_threadpool(answer.render, result, format, asked, runtime.settings)
    return Response(body, headers={"content-type": content_type, "vary": "accept"})


async def health(request: Request) -> Response:
    """Tell whether the process can read documents; 503 when it can't."""
    state = request.app.state.runtime.health()
    status = 503 if state["status"] == "error" else 200
    return Response(answer.dumps(state), status, headers={"content-type": answer.JSON, "cache-control": "no-store"})


def negotiate(accept: str | None) -> Format:
    """Format that an Accept header likes best; JSON when it has no wish.

    Raises
    ------
    HTTPException
        406, nothing that is offered is accepted.

    Source: RFC 9110, 12.5.1; between equal weights the more exactly named one wins, so that `text/markdown, */*`
    gets Markdown.
    """
    ranges: dict[str, float] = {}
    for part in (accept or "*/*").lower().split(","):
        media, _, parameters = part.strip().partition(";")
        weight = re.search(r"(?:^|;)\s*q=(\d(?:\.\d*)?)\s*(?:;|$)", parameters)
        ranges[media.strip()] = float(weight[1]) if weight else 1.0
    best: tuple[float, int] = (0.0, 0)
    chosen: Format | None = None
    for media, format in ACCEPTED.items():
        levels = [media, media.partition("/")[0] + "/*", "*/*"]
        level, name = next(((3 - i, name) for i, name in enumerate(levels) if name in ranges), (0, ""))
        if name and ranges[name] > 0 and (ranges[name], level) > best:
            best, chosen = (ranges[name], level), format
    if chosen is None:
        raise HTTPException(406)
    return chosen


class Edge:
    """Around everything: request id, one log line, and the fixed text for exceptions that nobody foresaw."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Request(scope))
        record: dict[str, Any] = {
            "level": "INFO",
            "request_id": request_id,
            "event": "http",
            "route": f"{scope['method']} {scope['path'][:100]}",
        }
        scope.setdefault("state", {}).update(request_id=request_id, record=record)
        begun = time.perf_counter()

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                record["status"] = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, tell)
        except ClientDisconnect:
            record["status"] = 499  # nobody is left to answer
        except Exception as exc:
            logs.error(exc, request_id)
            if "status" in record:
                raise
            await _problem(request_id, answer.unknown())(scope, receive, tell)
        finally:
            logs.finish(record, begun)


def _request_id(request: Request) -> str:
    """Lambda's id of this invocation, else the front door's, else a new one. A client's own text is not trusted."""
    context = request.scope.get("aws.context")
    sent = getattr(context, "aws_request_id", None) or request.headers.get("x-amzn-request-id", "")
    return sent if re.fullmatch(r"[A-Za-z0-9-]{1,64}", str(sent)) else str(uuid4())


def _problem(request_id: str, error: MineruError, headers: dict[str, str] | None = None, **own: Any) -> Response:
    body = answer.problem(error, request_id, **own)
    headers = {**(headers or {}), **answer.problem_headers(error), "content-type": answer.PROBLEM}
    return Response(answer.dumps(body), body["status"], headers=headers)


async def _on_mineru_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, MineruError)
    request.state.record["error"] = exc.code
    if exc.status >= 500:
        logs.error(exc, request.state.request_id)
    return _problem(request.state.request_id, exc)


async def _on_validation_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    # The names of the fields only: the messages quote what was sent.
    names = sorted({".".join(str(part) for part in found["loc"][1:])[:100] for found in exc.errors()})
    return await _on_mineru_error(request, RequestError(f"These fields are missing or wrong: {', '.join(names)}."))


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    phrase = HTTPStatus(exc.status_code).phrase
    code, detail, hint = PROBLEMS.get(exc.status_code, (RequestError.code, f"{phrase}.", RequestError.default_hint))
    request.state.record["error"] = code
    headers = dict(exc.headers or {})
    return _problem(
        request.state.request_id, RequestError(detail, hint=hint), headers, code=code, status=exc.status_code
    )

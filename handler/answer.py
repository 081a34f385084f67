"""What goes back: a result in the format asked for, or a problem, and the one shape of a Lambda proxy answer.

Knows nothing about HTTP frameworks or models.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from handler import output
from handler.errors import BusyError, DocumentTooLarge, MineruError

if TYPE_CHECKING:
    from handler.config import Settings
    from handler.parse import DocumentResult
    from handler.request import Format, ParseRequest

JSON = "application/json"
MARKDOWN = "text/markdown; charset=utf-8"
PROBLEM = "application/problem+json"
PNG = "image/png"
RETRY_AFTER_S = 5


def render(
    result: DocumentResult, format: Format, asked: ParseRequest, settings: Settings, *, indent: int | None = None
) -> tuple[str, str | bytes]:
    """Render a result; returns its content type, and its text or a picture's bytes.

    Parameters
    ----------
    asked : ParseRequest
        What was parsed: pictures of its pages are decoded anew, none is kept while the model works.
    """
    if format == "layout":
        from handler.picture import layout_png  # here, since few ask for it

        return PNG, layout_png(asked.document, result, settings, dpi=asked.dpi)
    if format == "md":
        return MARKDOWN, output.to_markdown(result)
    value = output.to_content_list(result) if format == "content-list" else output.to_json(result)
    return JSON, dumps(value, indent=indent)


def dumps(value: object, *, indent: int | None = None) -> str:
    """Serialise as JSON that keeps every script readable; compact unless indented."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":"))


def unknown() -> MineruError:
    """What is said about an exception nobody foresaw: nothing of it, the log has it."""
    return MineruError("Something went wrong on this side.")


def problem(
    error: MineruError, request_id: str, *, code: str | None = None, status: int | None = None
) -> dict[str, Any]:
    """Problem object of an error.

    Parameters
    ----------
    code, status : optional
        For what only a front door knows (no such route, unknown event); default: the error's own.

    Source: RFC 9457; `code`, `hint` and `request_id` are extension members.
    """
    code = code or error.code
    return {
        "type": f"urn:problem-type:mineru-lambda:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status or error.status,
        "code": code,
        "detail": error.detail,
        "hint": error.hint,
        "request_id": request_id,
    }


def problem_headers(error: MineruError) -> dict[str, str]:
    """Headers that go with a problem, besides its content type."""
    return {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, BusyError) else {}


def proxy(status: int, content_type: str, body: str | bytes, request_id: str, **headers: str) -> dict[str, Any]:
    """Build the answer of a Lambda proxy integration; direct invokes get the same shape.

    Returns
    -------
    dict
        `statusCode`, `headers`, `body`, `isBase64Encoded` (true for a picture only).
    """
    return {
        "statusCode": status,
        "headers": {"content-type": content_type, "x-request-id": request_id, **headers},
        "body": body if isinstance(body, str) else base64.b64encode(body).decode("ascii"),
        "isBase64Encoded": not isinstance(body, str),
    }


def proxy_problem(error: MineruError, request_id: str, *, code: str | None = None) -> dict[str, Any]:
    """Build the answer of a Lambda proxy integration for an error."""
    found = problem(error, request_id, code=code)
    return proxy(found["status"], PROBLEM, dumps(found), request_id, **problem_headers(error))


def fit(response: dict[str, Any], limit_bytes: int, request_id: str) -> dict[str, Any]:
    """Replace an answer that the front door would refuse by a problem that says so.

    Lambda turns an answer over the limit into an error without words, after all the work. The size that counts is
    that of the answer as JSON, in which a letter outside ASCII can take 12 bytes.
    """
    if 12 * len(response["body"]) < limit_bytes:
        return response
    size = len(json.dumps(response))
    if size <= limit_bytes:
        return response
    error = DocumentTooLarge(
        f"The result takes {size:,} bytes; this front door passes {limit_bytes:,}.",
        hint="Ask for fewer pages (option pages), or for Markdown alone.",
    )
    replaced = proxy_problem(error, request_id)
    if "multiValueHeaders" in response:  # REST and multi-value ALB answers have it; an ALB reads nothing else
        replaced["multiValueHeaders"] = {name: [value] for name, value in replaced["headers"].items()}
    return replaced

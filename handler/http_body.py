"""Reads the body of `POST /parse`, in the three ways it may be sent, into a `ParseRequest`. Bounded while it reads.

Source: Starlette's form parser; read here by hand since `request.form()` has no limit on the whole body.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from handler import request as requests
from handler.errors import RequestError, UnsupportedDocument
from handler.request import ParseRequest

# Room for boundaries, headers and option fields around the document.
ENVELOPE_BYTES = 65_536
MAX_FIELDS = 20


async def read_request(request: Request, max_document_bytes: int) -> ParseRequest:
    """Read body and query string.

    Raises
    ------
    RequestError, EmptyDocument, DocumentTooLarge, UnsupportedDocument
    """
    media = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
    query = _unique(request.query_params.multi_items())
    if media == "multipart/form-data":
        body = await _read(request, max_document_bytes, max_document_bytes + ENVELOPE_BYTES)
        document, values = await _form(request, body)
        if len(document) > max_document_bytes:
            raise requests.too_large(max_document_bytes)
        return requests.build(document, _unique([*query.items(), *values]))
    if media == "application/json":
        # Base64 makes four bytes of three, and escaped line breaks may add to that.
        body = await _read(request, max_document_bytes, max_document_bytes * 3 // 2 + ENVELOPE_BYTES)
        return requests.from_json(_unique([*query.items(), *_json(body).items()]), max_document_bytes)
    if media.startswith("image/") or media in ("application/pdf", "application/octet-stream"):
        return requests.build(await _read(request, max_document_bytes, max_document_bytes), query)
    raise UnsupportedDocument(
        f"A body of content type {media[:80]!r} is not read here.",
        hint="Send multipart/form-data with the field file, JSON with the field image, or the bytes of the file as "
        "image/*, application/pdf or application/octet-stream.",
    )


async def _read(request: Request, max_document_bytes: int, limit_bytes: int) -> bytes:
    """Whole body; stops at the limit, before reading when the client says the length."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise requests.too_large(max_document_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise requests.too_large(max_document_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def _form(request: Request, body: bytes) -> tuple[bytes, list[tuple[str, object]]]:
    """Bytes of the field `file`, and the other fields."""

    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(request.headers, whole(), max_files=1, max_fields=MAX_FIELDS).parse()
    except MultiPartException as exc:
        raise RequestError(
            "The multipart body can't be read.",
            hint="Send one document, as the field file, and the options as fields.",
        ) from exc
    try:
        upload = next((value for value in form.getlist("file") if isinstance(value, UploadFile)), None)
        if upload is None:
            raise RequestError(
                "The form has no uploaded file in the field file.",
                hint="Send the document as the field file, with a file name: curl -F file=@page.pdf",
            )
        return await upload.read(), [(name, value) for name, value in form.multi_items() if value is not upload]
    finally:
        await form.close()


def _json(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RequestError("The body is not valid JSON.") from exc
    if not isinstance(fields, dict):
        raise RequestError("The body is JSON but not an object.")
    return fields


def _unique(items: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Fields as a mapping; an option given twice has no right value."""
    values: dict[str, object] = {}
    for name, value in items:
        if name in values:
            raise RequestError(f"The option {name[:40]!r} is given more than once.")
        values[name] = value
    return values

"""What `/openapi.json` says about the routes. The bodies are read by hand, so FastAPI can't derive it."""

from __future__ import annotations

from typing import Any

from handler.answer import PROBLEM
from handler.request import OPTIONS

_DOCUMENT = {"type": "string", "format": "binary", "description": "PDF, PNG, JPEG, WebP, TIFF, GIF or BMP"}
_OPTIONS = {name: {**spec.schema, "description": f"{spec.what} ({spec.allowed})"} for name, spec in OPTIONS.items()}
_TEXT = {"type": "string"}
_PROBLEM = {
    "description": "What is wrong and what to do about it, as RFC 9457 problem JSON.",
    "content": {
        PROBLEM: {
            "schema": {
                "type": "object",
                "properties": {
                    **dict.fromkeys(("type", "title", "code", "detail", "hint", "request_id"), _TEXT),
                    "status": {"type": "integer"},
                },
            }
        }
    },
}

PARSE: dict[str, Any] = {
    "summary": "Parse a document",
    "description": "Send an image or a PDF; every option can stand in the query string or beside the document.",
    "responses": {
        200: {
            "description": "What was read, in the format that `format` or the Accept header asks for.",
            "content": {"application/json": {"schema": {}}, "text/markdown": {"schema": _TEXT}, "image/png": {}},
        },
        "default": _PROBLEM,
    },
    "openapi_extra": {
        "parameters": [
            {"name": name, "in": "query", "schema": spec.schema, "description": _OPTIONS[name]["description"]}
            for name, spec in OPTIONS.items()
        ],
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {"type": "object", "required": ["file"], "properties": {"file": _DOCUMENT, **_OPTIONS}}
                },
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["image"],
                        "properties": {
                            "image": {**_TEXT, "description": "the document in base64, or as a base64 data URL"},
                            **_OPTIONS,
                        },
                    }
                },
                **{key: {"schema": _DOCUMENT} for key in ("application/pdf", "image/*", "application/octet-stream")},
            },
        },
    },
}

HEALTH: dict[str, Any] = {
    "summary": "How the process is doing",
    "description": "`status` is `ok`, `loading` or `error`; the model, start-up timings and memory. Never waits.",
    "responses": {
        200: {"description": "It reads documents, or soon will.", "content": {"application/json": {}}},
        503: {"description": "The model can't be loaded; `error` says why.", "content": {"application/json": {}}},
    },
}

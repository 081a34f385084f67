"""A client of the HTTP edge around the fake model, and what a problem must look like."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from handler.config import Settings
from handler.http import create_app
from handler.runtime import Runtime
from tests.edge_fakes import FakeEngine

PROBLEM = "application/problem+json"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def make_runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A runtime with a loaded model and a small size cap."""
    runtime = Runtime(Settings(max_document_bytes=2000))
    monkeypatch.setattr(runtime, "_engine", FakeEngine())
    return runtime


def make_client(runtime: Runtime) -> TestClient:
    return TestClient(create_app(runtime))


def post(client: TestClient, query: str = "", **headers: str) -> Any:
    """Parse a page with these options."""
    return client.post(f"/parse?{query}", content=PNG, headers={"content-type": "image/png", **headers})


def check_problem(response: Any, status: int, code: str, detail: str, hint: str | None = None) -> None:
    """The whole problem, and that it is told in the same way everywhere."""
    body = response.json()
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM)
    assert response.headers["x-request-id"] == body["request_id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", body.pop("request_id"))
    told = body.pop("hint")
    assert told if hint is None else told == hint
    assert body == {
        "type": f"urn:problem-type:mineru-lambda:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": detail,
    }

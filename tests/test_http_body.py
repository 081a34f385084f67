"""Bodies of `POST /parse`: the ways to send a document, the size cap, the options."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from handler import http
from handler.pipeline import Options
from handler.request import OPTIONS
from handler.runtime import Runtime
from tests.edge_fakes import RESULT_JSON, FakeParse
from tests.http_fakes import PNG, check_problem, make_client, make_runtime, post


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> FakeParse:
    fake = FakeParse()
    monkeypatch.setattr("handler.runtime.parse_document", fake)
    return fake


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    return make_runtime(monkeypatch)


@pytest.fixture
def client(runtime: Runtime, parse: FakeParse) -> TestClient:
    return make_client(runtime)


# Bodies.


@pytest.mark.parametrize("media", ["image/png", "IMAGE/JPEG", "application/pdf; x=y", "application/octet-stream", None])
def test_raw_body(client: TestClient, parse: FakeParse, media: str | None) -> None:
    response = client.post("/parse", content=PNG, headers={"content-type": media} if media else {})
    assert (response.status_code, response.json()) == (200, RESULT_JSON)
    assert parse.calls[0]["data"] == PNG
    assert parse.calls[0]["options"] == Options()


def test_multipart(client: TestClient, parse: FakeParse) -> None:
    fields = {"task": "ask", "instruction": "Größe?", "pages": "2", "dpi": ""}
    response = client.post("/parse?max_image_px=500", files={"file": ("a.pdf", PNG)}, data=fields)
    assert (response.status_code, response.json()) == (200, RESULT_JSON)
    (call,) = parse.calls
    assert (call["data"], call["pages"], call["dpi"]) == (PNG, "2", None)
    assert call["options"] == Options("ask", "Größe?", 500)


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,", "data:;charset=x;BASE64,"])
def test_json_body(client: TestClient, parse: FakeParse, prefix: str) -> None:
    wrapped = base64.encodebytes(PNG).decode()  # with line breaks, as base64(1) writes it
    fields = {"image": prefix + wrapped, "max_new_tokens": 5, "image_analysis": True, "pages": 3, "task": None}
    response = client.post("/parse", json=fields)
    assert (response.status_code, response.json()) == (200, RESULT_JSON)
    (call,) = parse.calls
    assert (call["data"], call["pages"]) == (PNG, "3")
    assert call["options"] == Options(max_new_tokens=5, image_analysis=True)


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, "The body is not valid JSON."),
        ({"content": b"[" * 10_000, "headers": {"content-type": "application/json"}}, None),
        ({"content": b"\xff", "headers": {"content-type": "application/json"}}, "The body is not valid JSON."),
        ({"json": []}, "The body is JSON but not an object."),
        ({"json": {}}, "The field image is missing."),
        ({"json": {"image": 3}}, "The field image is not base64."),
        ({"json": {"image": "abc"}}, "The field image is not base64."),
        ({"json": {"image": "ü"}}, "The field image is not base64."),
        ({"json": {"image": "data:image/png,abcd"}}, "The field image is not base64."),
        ({"json": {"image": "https://example.org/a.png"}}, "The field image is not base64."),
        ({"json": {"image": "AAAA", "s3_uri": "s3://a/b"}}, "Reading from S3 (s3_uri) is not supported yet."),
        ({"data": {"file": "x"}, "files": {"other": b"x"}}, "The form has no uploaded file in the field file."),
        ({"files": [("file", b"a"), ("file", b"b")]}, "The multipart body can't be read."),
        ({"files": {"file": b"a"}, "data": {"file": "b"}}, "There is no option 'file'."),
        ({"files": {"file": b"a"}, "data": {"task": ["page", "text"]}}, "The option 'task' is given more than once."),
        (
            {"content": b"--x\r\ncut", "headers": {"content-type": "multipart/form-data"}},
            "The multipart body can't be read.",
        ),
        (
            {
                "content": b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ncut',
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            None,
        ),
    ],
)
def test_bodies_that_are_refused(client: TestClient, parse: FakeParse, sent: Any, detail: str | None) -> None:
    response = client.post("/parse", **sent)
    check_problem(response, 400, "request_invalid", detail or response.json()["detail"])
    assert parse.calls == []


def test_content_type_that_is_not_read(client: TestClient) -> None:
    """`curl --data-binary` sends a form's content type: the hint must say what to send instead."""
    response = client.post("/parse", content=PNG, headers={"content-type": "application/x-www-form-urlencoded"})
    detail = "A body of content type 'application/x-www-form-urlencoded' is not read here."
    check_problem(response, 415, "document_unsupported", detail)
    assert "application/pdf" in response.json()["hint"]


@pytest.mark.parametrize("sent", [{"content": b""}, {"files": {"file": ("a.png", b"")}}, {"json": {"image": ""}}])
def test_empty_document(client: TestClient, sent: Any) -> None:
    check_problem(client.post("/parse", **sent), 422, "document_empty", "The document has no bytes.")


# The size cap.


class Counting:
    """A body of which it is known how much was read."""

    def __init__(self, n_chunks: int) -> None:
        self.n_left = n_chunks

    def __iter__(self) -> Iterator[bytes]:
        while self.n_left:
            self.n_left -= 1
            yield b"x" * 1000


@pytest.mark.parametrize(
    "sent",
    [
        {"content": b"x" * 2001},
        {"content": Counting(200)},
        {"files": {"file": ("a", b"x" * 2001)}},
        {"files": {"file": ("a", b"x" * 200_000)}},
        {"json": {"image": base64.b64encode(b"x" * 2001).decode()}},
        {"json": {"image": base64.b64encode(b"x" * 200_000).decode()}},
    ],
)
def test_size_cap(client: TestClient, parse: FakeParse, sent: Any) -> None:
    response = client.post("/parse", **sent)
    detail = "The document is larger than 2,000 bytes; MINERU_MAX_DOCUMENT_BYTES sets this limit."
    check_problem(response, 413, "document_too_large", detail)
    assert parse.calls == []


@pytest.mark.parametrize(
    "sent",
    [
        {"content": b"x" * 2000},
        {"files": {"file": ("a", b"x" * 2000)}},
        {"json": {"image": base64.b64encode(b"x" * 2000).decode()}},
    ],
)
def test_size_cap_is_exact(client: TestClient, sent: Any) -> None:
    assert client.post("/parse", **sent).status_code == 200


def test_no_more_than_the_cap_is_read(runtime: Runtime, parse: FakeParse) -> None:
    """A body without Content-Length must not be buffered whole before it is refused."""
    chunks = [b"x" * 1000] * 200
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(), "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/parse", "query_string": b"", "headers": [], "root_path": ""}
    asyncio.run(http.create_app(runtime)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(chunks) == 197


# Options.


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("task=tabel", "The option task takes page | text | table | formula | layout | ask."),
        ("format=html", "The option format takes json | md | content-list | layout."),
        ("image_analysis=1", "The option image_analysis takes true | false."),
        ("instruction=%20&task=ask", "The option instruction takes text of 1 to 4,000 characters."),
        ("task=ask", "The task ask and the option instruction go together: give both or neither."),
        ("instruction=x", "The task ask and the option instruction go together: give both or neither."),
        ("colour=red", "There is no option 'colour'."),
        ("Task=page", "There is no option 'Task'."),
        ("dpi=1&dpi=1", "The option 'dpi' is given more than once."),
        *(
            (f"{name}={value}", f"The option {name} takes a whole number from 1.")
            for name in ("dpi", "max_image_px", "max_new_tokens")
            for value in ("0", "-1", "1.5", "1_0", "%201", "x", "9999999999", "٣")
        ),
    ],
)
def test_options_that_are_refused(client: TestClient, parse: FakeParse, query: str, detail: str) -> None:
    check_problem(post(client, query), 400, "request_invalid", detail)
    assert parse.calls == []


@pytest.mark.parametrize(
    ("name", "value"), [("dpi", True), ("dpi", 1.0), ("dpi", [1]), ("pages", [1]), ("pages", True), ("task", {})]
)
def test_json_values_that_are_refused(client: TestClient, name: str, value: object) -> None:
    response = client.post("/parse", json={"image": "AAAA", name: value})
    check_problem(response, 400, "request_invalid", f"The option {name} takes {OPTIONS[name].allowed}.")


def test_unknown_option_lists_those_there_are(client: TestClient) -> None:
    hint = "Options are task, instruction, pages, max_image_px, max_new_tokens, dpi, image_analysis, format."
    assert post(client, "colour=red").json()["hint"] == hint


def test_option_in_query_and_body(client: TestClient) -> None:
    response = client.post("/parse?task=text", json={"image": "AAAA", "task": "table"})
    check_problem(response, 400, "request_invalid", "The option 'task' is given more than once.")

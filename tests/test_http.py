"""The HTTP edge: Accept, problems, health, the one-at-a-time rule."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from fastapi import Query
from starlette.testclient import TestClient

from handler import errors, http
from handler.config import Settings
from handler.errors import MineruError
from handler.request import OPTIONS
from handler.runtime import Runtime
from tests.edge_fakes import CONTENT_LIST, RESULT_JSON, FakeEngine, FakeParse
from tests.http_fakes import check_problem, make_client, make_runtime, post

TREE = re.findall(r"(\w+) +([a-z_]+) +(\d{3})$", errors.__doc__ or "", re.MULTILINE)


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


# Accept.


@pytest.mark.parametrize(
    ("accept", "format"),
    [
        ("*/*", "json"),
        ("", "json"),
        ("application/json", "json"),
        ("application/*", "json"),
        ("text/markdown", "md"),
        ("text/*", "md"),
        ("TEXT/Markdown; charset=utf-8", "md"),
        ("text/markdown, */*", "md"),
        ("text/markdown;q=0.5, application/json", "json"),
        ("text/markdown;q=0.5, application/json;q=0.4", "md"),
        ("application/json;q=0, */*", "md"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
        ("application/json;q=x", "json"),
        ("image/webp, text/markdown;q=0.1", "md"),
    ],
)
def test_accept(client: TestClient, accept: str, format: str) -> None:
    response = post(client, accept=accept)
    assert (response.status_code, response.headers["vary"]) == (200, "accept")
    if format == "md":
        assert response.headers["content-type"] == "text/markdown; charset=utf-8"
        assert response.text == "Größe 漢字"
    else:
        assert response.headers["content-type"] == "application/json"
        assert response.json() == RESULT_JSON


@pytest.mark.parametrize("accept", ["image/webp", "text/html", "*/*;q=0", "application/json;q=0.0"])
def test_not_acceptable(client: TestClient, parse: FakeParse, accept: str) -> None:
    detail = "The answer can't be given in a format that the Accept header allows."
    hint = "Accept application/json, text/markdown, or image/png for a picture of the pages with their boxes."
    check_problem(post(client, accept=accept), 406, "not_acceptable", detail, hint)
    assert parse.calls == []


def test_format_goes_before_accept(client: TestClient) -> None:
    assert post(client, "format=content-list", accept="text/markdown").json() == CONTENT_LIST
    assert post(client, "format=md", accept="image/webp").text == "Größe 漢字"


# Problems.


def subclasses(kind: type[MineruError]) -> list[type[MineruError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in subclasses(child))]


def test_error_tree_is_the_one_that_is_drawn() -> None:
    assert [(kind.__name__, kind.code, str(kind.status)) for kind in subclasses(MineruError)] == TREE
    assert len({code for _, code, _ in TREE}) == len(TREE)


@pytest.mark.parametrize(("name", "code", "status"), TREE)
def test_every_error_is_a_problem(
    client: TestClient, parse: FakeParse, name: str, code: str, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = getattr(errors, name)
    parse.error = kind("What is wrong.")
    response = post(client)
    check_problem(response, int(status), code, "What is wrong.", kind.default_hint)
    assert response.headers.get("retry-after") == ("5" if name == "BusyError" else None)
    # The log has a traceback where the fault is ours, and only there.
    assert ("Traceback" in capsys.readouterr().err) is (int(status) >= 500)


def test_unknown_exception_gives_fixed_text(
    client: TestClient, parse: FakeParse, capsys: pytest.CaptureFixture[str]
) -> None:
    parse.error = OSError("can't open /var/task/secret.bin of AKIAEXAMPLE")
    response = post(client)
    check_problem(response, 500, "internal_error", "Something went wrong on this side.", MineruError.default_hint)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "secret.bin" in "".join(lines[0]["error"])
    assert {line["request_id"] for line in lines} == {response.json()["request_id"]}
    assert lines[1]["status"] == 500


def test_not_found_and_wrong_method(client: TestClient) -> None:
    for path in ("/nothing", "/parse/", "/docs"):
        response = client.get(path, follow_redirects=False)
        check_problem(
            response, 404, "not_found", "There is nothing at this address.", "Use POST /parse or GET /health."
        )
    response = client.get("/parse")
    check_problem(response, 405, "method_not_allowed", "This address does not take that method.")
    assert response.headers["allow"] == "POST"


def test_validation_error_of_a_later_route(runtime: Runtime) -> None:
    """FastAPI's own 422 quotes what was sent; ours names the fields only."""
    app = http.create_app(runtime)

    @app.get("/count")
    def count(n: int = Query()) -> int:
        return n

    response = TestClient(app).get("/count?n=secret")
    check_problem(response, 400, "request_invalid", "These fields are missing or wrong: n.")


def test_request_id(client: TestClient) -> None:
    sent = "1a2b3c4d-0000-4000-8000-000000000000"
    assert client.get("/health", headers={"x-amzn-request-id": sent}).headers["x-request-id"] == sent
    forged = client.get("/health", headers={"x-amzn-request-id": 'x" onload="'}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", forged)


# Health, and one request at a time.


def test_health_before_the_model_is_loaded(parse: FakeParse) -> None:
    response = make_client(Runtime(Settings())).get("/health")
    body = response.json()
    assert (response.status_code, body["status"], body["model"], body["error"]) == (200, "loading", None, None)


def test_bad_setting_is_answered(parse: FakeParse, capsys: pytest.CaptureFixture[str]) -> None:
    runtime = Runtime(environ={"MINERU_THREADS": "four"})
    client = make_client(runtime)
    detail = "MINERU_THREADS is not allowed as set: it takes 0 (all that this process may use) or more."
    runtime.start()
    response = client.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "error")
    assert response.json()["error"]["detail"] == detail
    check_problem(post(client), 500, "config_invalid", detail)


def test_foreign_exception_at_load_is_an_artifact_error(monkeypatch: pytest.MonkeyPatch, parse: FakeParse) -> None:
    def fail(*_: object) -> None:
        raise ImportError("libsecret.so not found in /opt")

    monkeypatch.setattr("handler.runtime.Artifact.open", lambda path: None)
    monkeypatch.setattr("handler.runtime.load", fail)
    runtime = Runtime(Settings())
    client = make_client(runtime)
    check_problem(post(client), 503, "artifact_invalid", "The model of the artifact can't be started.")
    assert client.get("/health").status_code == 503
    # What was in the way may be gone: the next request tries again.
    monkeypatch.setattr("handler.runtime.load", lambda *_: FakeEngine())
    assert post(client).status_code == 200
    assert client.get("/health").json()["status"] == "ok"


def test_second_request_is_told_to_wait(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document at a time; the second is told so at once, and /health answers meanwhile."""
    begun, go_on = threading.Event(), threading.Event()
    fake = FakeParse()

    def slow(*positional: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return fake(*positional, **named)

    monkeypatch.setattr("handler.runtime.parse_document", slow)
    answers: list[Any] = []
    with client:
        thread = threading.Thread(target=lambda: answers.append(post(client)))
        thread.start()
        assert begun.wait(10)
        assert client.get("/health").json()["busy"] is True
        second = post(client)
        go_on.set()
        thread.join(10)
    check_problem(second, 429, "busy", "Another document is being parsed.", errors.BusyError.default_hint)
    assert second.headers["retry-after"] == "5"
    assert answers[0].status_code == 200
    health = client.get("/health").json()
    assert (health["busy"], health["n_requests"]) == (False, 1)


def test_lock_is_released_after_an_error(client: TestClient, parse: FakeParse) -> None:
    parse.error = RuntimeError()
    assert post(client).status_code == 500
    parse.error = None
    assert post(client).status_code == 200


def test_openapi_names_every_option_and_body(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/parse"]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == list(OPTIONS)
    assert list(operation["requestBody"]["content"]) == [
        "multipart/form-data",
        "application/json",
        "application/pdf",
        "image/*",
        "application/octet-stream",
    ]
    assert set(operation["responses"]) == {"200", "default"}

"""The entry point: a whole event in, the whole answer out, for every kind of event in `tests/events/`."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handler import app, events, logs
from handler.config import Settings
from handler.errors import ArtifactError, DamagedDocument
from handler.parse import parse_document
from handler.pipeline import Options
from tests.edge_fakes import MODEL, RESULT_JSON, FakeEngine, FakeParse

EVENTS = Path(__file__).parent / "events"
ID = "8f3c1d2e-0000-4000-8000-1234567890ab"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAFUlEQVR4nGM8wcXFwMDAwMDAxAADABByAOAp6i43AAAAAElFTkSuQmCC"
)
JSON_HEADERS = {"content-type": "application/json", "x-request-id": ID}
PROBLEM_HEADERS = {"content-type": "application/problem+json", "x-request-id": ID}
PARSED_HEADERS = {"content-type": "application/json", "vary": "accept", "x-request-id": ID}
HEALTH = {
    "status": "ok",
    "version": "0.1.0",
    "model": MODEL,
    "artifact_format": 1,
    "error": None,
    "busy": False,
    "n_requests": 0,
    "timings_ms": {"start": 400.0, "load": 900.0},
    "peak_rss_mb": 123.4,
}
UNDERSTOOD = (
    "Send one of: HTTP events (API Gateway, function URL, load balancer), "
    'a direct invoke with {"image": "<base64>"}, and a warm-up with {"warmup": true}.'
)


def context(remaining_ms: int = 60_000) -> Any:
    return SimpleNamespace(aws_request_id=ID, get_remaining_time_in_millis=lambda: remaining_ms)


def event(name: str) -> Any:
    return json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def problem(code: str, title: str, status: int, detail: str, hint: str) -> str:
    kind = f"urn:problem-type:mineru-lambda:{code}"
    found = {"type": kind, "title": title, "status": status, "code": code, "detail": detail, "hint": hint}
    return compact({**found, "request_id": ID})


@pytest.fixture(autouse=True)
def parse(monkeypatch: pytest.MonkeyPatch) -> FakeParse:
    """A loaded model and a fake parser; what they were asked is in `calls`."""
    fake = FakeParse()
    monkeypatch.setattr("handler.runtime.parse_document", fake)
    monkeypatch.setattr(app.runtime, "_engine", FakeEngine())
    monkeypatch.setattr(app.runtime, "_error", None)
    monkeypatch.setattr(app.runtime, "n_requests", 0)
    monkeypatch.setattr(app.runtime, "timings_ms", {"start": 400.0, "load": 900.0})
    monkeypatch.setattr(logs, "peak_rss_mb", lambda: 123.4)
    return fake


def test_every_event_file_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in EVENTS.glob("*.json") if f'"{path.stem}"' not in source] == []


def test_http_api_multipart(parse: FakeParse) -> None:
    assert app.handler(event("http_api_v2_multipart"), context()) == {
        "statusCode": 200,
        "headers": {**PARSED_HEADERS, "content-length": str(len(compact(RESULT_JSON).encode()))},
        "body": compact(RESULT_JSON),
        "isBase64Encoded": False,
    }
    (call,) = parse.calls
    assert call["data"] == PNG
    assert call["options"] == Options(task="text")


def test_http_api_named_stage() -> None:
    """HTTP APIs put a named stage into the path; Mangum alone would answer 404."""
    assert app.handler(event("http_api_v2_named_stage"), context()) == {
        "statusCode": 200,
        "headers": {
            "content-type": "application/json",
            "cache-control": "no-store",
            "content-length": str(len(compact(HEALTH))),
            "x-request-id": ID,
        },
        "body": compact(HEALTH),
        "isBase64Encoded": False,
    }


def test_function_url_image(parse: FakeParse) -> None:
    assert app.handler(event("function_url_image"), context()) == {
        "statusCode": 200,
        "headers": {
            "content-type": "text/markdown; charset=utf-8",
            "vary": "accept",
            "content-length": "14",
            "x-request-id": ID,
        },
        "body": "Größe 漢字",
        "isBase64Encoded": False,
    }
    (call,) = parse.calls
    assert call["data"] == PNG
    assert call["options"] == Options(task="text", max_new_tokens=64)


def test_rest_json(parse: FakeParse) -> None:
    assert app.handler(event("rest_v1_json"), context()) == {
        "statusCode": 200,
        "headers": {**PARSED_HEADERS, "content-length": str(len(compact(RESULT_JSON).encode()))},
        "multiValueHeaders": {},
        "body": compact(RESULT_JSON),
        "isBase64Encoded": False,
    }
    (call,) = parse.calls
    assert (call["data"], call["options"], call["dpi"]) == (PNG, Options(task="table"), 300)


def test_rest_without_binary_media_types(parse: FakeParse) -> None:
    """A REST API without BinaryMediaTypes decodes an image as UTF-8: say so, not "damaged file" (mangum #207)."""
    body = problem(
        "request_invalid",
        "Request invalid",
        400,
        "The document was decoded as text on its way here and can't be read any more.",
        "The API's binary media types are not set: add multipart/form-data, image/*, application/pdf and "
        "application/octet-stream to them, or send JSON with the document in base64.",
    )
    assert app.handler(event("rest_v1_mangled"), context()) == {
        "statusCode": 400,
        "headers": {**PROBLEM_HEADERS, "content-length": str(len(body))},
        "multiValueHeaders": {},
        "body": body,
        "isBase64Encoded": False,
    }
    assert parse.calls == []


def test_alb_health() -> None:
    assert app.handler(event("alb_health"), context()) == {
        "statusCode": 200,
        "headers": {
            "content-type": "application/json",
            "cache-control": "no-store",
            "content-length": str(len(compact(HEALTH))),
            "x-request-id": ID,
        },
        "body": compact(HEALTH),
        "isBase64Encoded": False,
    }


def test_alb_multi_value_image(parse: FakeParse) -> None:
    assert app.handler(event("alb_multi_value_image"), context()) == {
        "statusCode": 200,
        "multiValueHeaders": {
            "content-type": ["application/json"],
            "vary": ["accept"],
            "content-length": [str(len(compact(RESULT_JSON).encode()))],
            "x-request-id": [ID],
        },
        "body": compact(RESULT_JSON),
        "isBase64Encoded": False,
    }
    (call,) = parse.calls
    assert (call["data"], call["pages"]) == (PNG, "1-3,7")


def test_direct_invoke(parse: FakeParse) -> None:
    before = time.monotonic()
    assert app.handler(event("direct_invoke"), context()) == {
        "statusCode": 200,
        "headers": {"content-type": "text/markdown; charset=utf-8", "x-request-id": ID},
        "body": "Größe 漢字",
        "isBase64Encoded": False,
    }
    (call,) = parse.calls
    assert 56 < call.pop("deadline_s") - before < 58  # 60 s less the reserve of 3 s
    assert call == {
        "data": PNG,
        "options": Options("ask", "What is the total?", max_image_px=800, max_new_tokens=32),
        "pages": "1",
        "dpi": 150,
        "progress": None,
    }


def test_direct_invoke_answers_json_by_default() -> None:
    assert app.handler({"image": event("direct_invoke")["image"]}, context()) == {
        "statusCode": 200,
        "headers": JSON_HEADERS,
        "body": compact(RESULT_JSON),
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (
            {"task": "page"},
            problem(
                "request_invalid",
                "Request invalid",
                400,
                "The field image is missing.",
                "Send the document (image or PDF) in base64 as image.",
            ),
        ),
        (
            {"s3_uri": "s3://documents/in/page.pdf"},
            problem(
                "request_invalid",
                "Request invalid",
                400,
                "Reading from S3 (s3_uri) is not supported yet.",
                "Send the document itself, in base64, as image.",
            ),
        ),
        (
            {"image": "/etc/passwd.png"},
            problem(
                "request_invalid",
                "Request invalid",
                400,
                "The field image is not base64.",
                "Send the bytes of the file in base64, bare or as a data URL; paths and web addresses are not fetched.",
            ),
        ),
    ],
)
def test_direct_invoke_refused(payload: dict[str, Any], body: str) -> None:
    assert app.handler(payload, context()) == {
        "statusCode": 400,
        "headers": PROBLEM_HEADERS,
        "body": body,
        "isBase64Encoded": False,
    }


def test_direct_invoke_document_error(parse: FakeParse) -> None:
    parse.error = DamagedDocument("The image can't be decoded.")
    hint = "Open the file in a viewer; if it shows, save it anew and send that."
    body = problem("document_damaged", "Document damaged", 422, "The image can't be decoded.", hint)
    assert app.handler(event("direct_invoke"), context()) == {
        "statusCode": 422,
        "headers": PROBLEM_HEADERS,
        "body": body,
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize("name", ["warmup", "warmup_schedule"])
def test_warm_up(name: str, parse: FakeParse) -> None:
    assert app.handler(event(name), context()) == {
        "statusCode": 200,
        "headers": JSON_HEADERS,
        "body": compact(HEALTH),
        "isBase64Encoded": False,
    }
    assert parse.calls == []


@pytest.mark.parametrize(
    ("name", "code", "title", "detail"),
    [
        ("s3_notification", "event_unsupported", "Event unsupported", "Events of s3 are not supported yet."),
        ("s3_eventbridge", "event_unsupported", "Event unsupported", "Events of eventbridge are not supported yet."),
        ("unknown", "event_unknown", "Event unknown", "This event is not understood."),
    ],
)
def test_events_that_are_refused(name: str, code: str, title: str, detail: str) -> None:
    assert app.handler(event(name), context()) == {
        "statusCode": 400,
        "headers": PROBLEM_HEADERS,
        "body": problem(code, title, 400, detail, UNDERSTOOD),
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    "payload",
    [None, "text", 3, [], {}, {"Records": []}, {"warmup": "yes"}, {"requestContext": {"connectionId": "x"}}],
)
def test_anything_else_is_unknown(payload: Any) -> None:
    answer = app.handler(payload, context())
    assert answer["statusCode"] == 400
    assert json.loads(answer["body"])["code"] == "event_unknown"


def test_fault_of_ours_gives_fixed_text(parse: FakeParse, capsys: pytest.CaptureFixture[str]) -> None:
    parse.error = RuntimeError("secret /var/task/model.bin")
    answer = app.handler(event("direct_invoke"), context())
    assert answer == {
        "statusCode": 500,
        "headers": PROBLEM_HEADERS,
        "body": problem(
            "internal_error",
            "Internal error",
            500,
            "Something went wrong on this side.",
            "Try again; if it happens again, report the request id.",
        ),
        "isBase64Encoded": False,
    }
    assert "secret" in capsys.readouterr().err


def test_malformed_http_event_is_answered() -> None:
    """Mangum reads the event before our app runs; its KeyError must not reach the caller with a traceback."""
    answer = app.handler({"version": "2.0", "requestContext": {"http": {}}}, context())
    assert answer["statusCode"] == 500
    assert json.loads(answer["body"])["code"] == "internal_error"


def test_broken_artifact_is_answered_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(app.runtime, "_engine", None)
    monkeypatch.setattr(app.runtime, "_settings", Settings(artifact=tmp_path))
    app.runtime.start()
    answer = app.handler(event("function_url_image"), context())
    assert answer["statusCode"] == 503
    assert json.loads(answer["body"]) == {
        "type": "urn:problem-type:mineru-lambda:artifact_invalid",
        "title": "Artifact invalid",
        "status": 503,
        "code": "artifact_invalid",
        "detail": "There is no readable manifest.json in the artifact's folder.",
        "hint": ArtifactError.default_hint,
        "request_id": ID,
    }
    answer = app.handler(event("alb_health"), context())
    assert answer["statusCode"] == 503
    assert str(tmp_path) not in answer["body"]
    assert json.loads(answer["body"]) == {
        **HEALTH,
        "status": "error",
        "model": None,
        "artifact_format": None,
        "error": {
            "code": "artifact_invalid",
            "detail": "There is no readable manifest.json in the artifact's folder.",
            "hint": ArtifactError.default_hint,
        },
    }


@pytest.mark.parametrize(("name", "limit"), [("direct_invoke", 6_291_556), ("alb_multi_value_image", 1_000_000)])
def test_answer_over_the_front_doors_limit(
    name: str, limit: int, parse: FakeParse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda turns an answer over 6,291,556 bytes into an error without words; an ALB one over 1 MB."""
    monkeypatch.setattr("handler.output.to_markdown", lambda result: "漢" * (limit // 6 + 1))
    sent = event(name)
    if "multiValueHeaders" in sent:
        sent["multiValueHeaders"]["accept"] = ["text/markdown"]
    answer = app.handler(sent, context())
    assert answer["statusCode"] == 413
    assert f"this front door passes {limit:,}" in json.loads(answer["body"])["detail"]
    assert len(json.dumps(answer)) < 2000
    headers = answer["multiValueHeaders"] if "multiValueHeaders" in sent else answer["headers"]
    assert headers["content-type"] in ("application/problem+json", ["application/problem+json"])


def test_deadline_knows_the_front_door(parse: FakeParse) -> None:
    """An HTTP API hangs up after 30 s whatever the function's time-out; a function URL does not."""
    before = time.monotonic()
    app.handler(event("http_api_v2_multipart"), context(900_000))
    app.handler(event("function_url_image"), context(900_000))
    app.handler(event("function_url_image"), context(1_000))
    http_api_s, url_s, late_s = [call["deadline_s"] - before for call in parse.calls]
    assert 26 < http_api_s < 28
    assert 896 < url_s < 898
    assert 0 <= late_s < 1  # never in the past: what can be answered at once still is


def test_one_log_line_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("function_url_image", "direct_invoke"):
        app.handler(event(name), context())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    durations = [line.pop("duration_ms") for line in lines]
    assert all(duration >= 0 for duration in durations)
    common = {"level": "INFO", "request_id": ID, "n_bytes": 78, "n_pages": 1, "n_tokens": 7, "complete": True}
    common |= {"timings_ms": {"total": 12.3}, "status": 200, "peak_rss_mb": 123.4}
    assert lines == [
        {**common, "event": "http", "route": "POST /parse", "task": "text"},
        {**common, "event": "invoke", "task": "ask"},
    ]


def test_real_pipeline_through_the_front_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handler.runtime.parse_document", parse_document)
    answer = app.handler({"image": event("direct_invoke")["image"]}, context())
    body = json.loads(answer["body"])
    assert (answer["statusCode"], body["markdown"], body["complete"]) == (200, "Größe 漢字", True)
    (block,) = body["pages"][0]["blocks"]
    assert (block["type"], block["bbox"], block["content"]) == ("text", [0.1, 0.1, 0.9, 0.3], "Größe 漢字")


@pytest.mark.parametrize(
    ("path", "stage", "expected"),
    [
        ("/prod/health", "prod", "/prod"),
        ("/prod", "prod", "/prod"),
        ("/production", "prod", "/"),
        ("/health", "$default", "/"),
    ],
)
def test_base_path(path: str, stage: str, expected: str) -> None:
    assert events.base_path({"requestContext": {"http": {"path": path}, "stage": stage}}) == expected

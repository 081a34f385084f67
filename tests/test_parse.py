"""Documents of several pages: order, failures, the deadline, and what the whole says."""

from __future__ import annotations

import time
from dataclasses import replace
from io import BytesIO
from typing import Any, Self

import pytest
from PIL import Image

from handler.config import Settings
from handler.documents import Document
from handler.errors import DamagedDocument, EngineError, MineruError, PageOutOfRange, RequestError
from handler.parse import DocumentResult, parse_document
from handler.pipeline import Options, Progress
from tests.test_pipeline import LAYOUT, TEXT, FakeEngine, block, boxes, manifest

MODEL = {"id": "test/model", "revision": "1234", "backend": "onnx", "dtype": "int8", "trained": True}
BLOCK = block("text", [0.1, 0.1, 0.9, 0.2], "hello")
ANSWERS = {LAYOUT: boxes("100 100 900 200 text"), TEXT: "hello"}


def png(size_px: tuple[int, int] = (100, 200)) -> bytes:
    file = BytesIO()
    Image.new("RGB", size_px, (255, 255, 255)).save(file, "PNG")
    return file.getvalue()


def tiff(n_pages: int) -> bytes:
    file = BytesIO()
    first, *rest = [Image.new("RGB", (100 + index, 200), (255, 255, 255)) for index in range(n_pages)]
    first.save(file, "TIFF", save_all=True, append_images=rest)
    return file.getvalue()


def parse(data: bytes, engine: FakeEngine | None = None, **more: Any) -> DocumentResult:
    return parse_document(data, engine or FakeEngine(dict(ANSWERS)), more.pop("options", Options()), Settings(), **more)


def damage(monkeypatch: pytest.MonkeyPatch, *damaged: int) -> None:
    """Make pages of every document impossible to decode."""
    theirs = Document.page

    def page(self: Document, index: int) -> Image.Image:
        if index in damaged:
            raise DamagedDocument("The image can't be decoded: it is damaged or cut off.")
        return theirs(self, index)

    monkeypatch.setattr(Document, "page", page)


def test_one_page() -> None:
    result = parse(png())
    assert [(p.index, p.size_px, p.blocks) for p in result.pages] == [(0, (100, 200), [BLOCK])]
    assert (result.n_document_pages, result.markdown, result.warnings, result.complete) == (1, "hello", [], True)
    assert result.model == MODEL
    phases = {"layout", "crops", "post_process", "decode_pages", "total", "vision", "prefill", "decode"}
    assert set(result.timings_ms) == phases
    assert result.timings_ms["vision"] == 6.0


def test_pages_are_read_in_order_and_joined() -> None:
    told: list[Progress] = []
    result = parse(tiff(4), pages="2-3", progress=told.append)
    assert [(p.index, p.size_px) for p in result.pages] == [(1, (101, 200)), (2, (102, 200))]
    assert (result.n_document_pages, result.markdown) == (4, "hello\n\nhello")
    assert {progress.page for progress in told} == {1, 2}
    assert result.timings_ms["vision"] == 12.0


def test_empty_pages_leave_no_gap() -> None:
    result = parse(tiff(2), FakeEngine({LAYOUT: ""}))
    assert (result.markdown, result.complete, len(result.pages)) == ("", True, 2)


def test_a_damaged_page_is_recorded_when_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch, 1)
    result = parse(tiff(3))
    assert [(p.index, p.size_px, p.blocks, p.complete) for p in result.pages] == [
        (0, (100, 200), [BLOCK], True), (1, (0, 0), [], False), (2, (102, 200), [BLOCK], True),
    ]  # fmt: skip
    assert (result.markdown, result.complete) == ("hello\n\nhello", False)
    failed = "page_failed: The image can't be decoded: it is damaged or cut off. (document_damaged)"
    assert result.pages[1].warnings == [failed]
    assert result.warnings == [f"{failed} (page 2)"]


@pytest.mark.parametrize("n_pages", [1, 2])
def test_nothing_but_damaged_pages_is_an_error(monkeypatch: pytest.MonkeyPatch, n_pages: int) -> None:
    damage(monkeypatch, 0, 1)
    with pytest.raises(DamagedDocument):
        parse(tiff(n_pages))


def test_a_page_that_the_model_fails_on_is_recorded() -> None:
    def fail(n_asked: int) -> None:
        if n_asked == 2:
            raise EngineError("The model's output is not a number.")

    engine = FakeEngine(dict(ANSWERS), before=fail)
    result = parse(tiff(2), engine)
    assert [p.complete for p in result.pages] == [True, False]
    assert result.warnings == ["page_failed: The model's output is not a number. (engine_failed) (page 2)"]


def test_pages_after_the_deadline_are_listed_and_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch, 0, 1)
    result = parse(tiff(2), deadline_s=time.monotonic() - 1)
    assert [(p.index, p.size_px, p.warnings) for p in result.pages] == [
        (0, (0, 0), ["deadline: the page was not begun"]),
        (1, (0, 0), ["deadline: the page was not begun"]),
    ]
    assert not result.complete


def test_random_weights_are_told() -> None:
    random_model = replace(manifest().model, trained=False)
    engine = FakeEngine(dict(ANSWERS), manifest(model=random_model))
    result = parse(png(), engine)
    assert result.warnings == ["model_untrained: the weights are random; the output is noise"]
    assert result.model == {**MODEL, "trained": False}


@pytest.mark.parametrize(
    ("options", "pages", "error"),
    [(Options("ask"), None, RequestError), (Options(), "2", PageOutOfRange), (Options(), "x", RequestError)],
)
def test_wrong_requests_reach_no_model(options: Options, pages: str | None, error: type[MineruError]) -> None:
    engine = FakeEngine({})
    with pytest.raises(error):
        parse(png(), engine, options=options, pages=pages)
    assert engine.asked == []


def test_dpi_and_settings_reach_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Opened:
        n_pages = 1

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def page(self, index: int) -> Image.Image:
            return Image.new("RGB", (100, 200))

    def opened(data: bytes, settings: Settings, *, dpi: int | None = None) -> Opened:
        asked.append((data, settings, dpi))
        return Opened()

    monkeypatch.setattr("handler.parse.open_document", opened)
    parse(b"data", dpi=72)
    assert asked == [(b"data", Settings(), 72)]

"""Pages with their boxes drawn: where the colour is, how pages are put together, through every front door."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from handler import app, cli
from handler.config import BUNDLED_ARTIFACT, Settings
from handler.http import create_app
from handler.parse import DocumentResult
from handler.picture import COLOURS, GAP_PX, MAX_SIDE_PX, OTHER, draw_boxes, layout_png
from handler.pipeline import PageResult
from handler.runtime import Runtime

BLOCKS = [
    {"type": "title", "bbox": [0.1, 0.1, 0.5, 0.2]},
    {"type": "table", "bbox": [0.2, 0.4, 0.8, 0.9]},
    {"type": "footer", "bbox": [0.0, 0.95, 1.0, 1.0]},
]


def png(*sizes: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    first, *rest = [Image.new("RGB", size, "white") for size in sizes]
    first.save(file, "TIFF" if rest else "PNG", **({"save_all": True, "append_images": rest} if rest else {}))
    return file.getvalue()


def result(*pages: PageResult) -> DocumentResult:
    return DocumentResult(list(pages), len(pages), model={"trained": True})


def test_boxes_have_their_types_colour_on_their_edges_and_a_tint_inside() -> None:
    drawn = np.asarray(draw_boxes(Image.new("RGB", (400, 500), "white"), BLOCKS)).astype(int)
    for block, colour in zip(BLOCKS, (COLOURS["title"], COLOURS["table"], OTHER)):
        x1, y1, x2, y2 = block["bbox"]
        assert tuple(drawn[round(y2 * 499), round((x1 + x2) / 2 * 399)]) == colour
        inside = drawn[round((y1 + y2) / 2 * 499), round((x1 + x2) / 2 * 399)]
        assert np.abs(inside - (255 - 0.12 * (255 - np.array(colour)))).max() <= 2
    assert tuple(drawn[250, 20]) == (255, 255, 255)


def test_the_page_itself_is_not_changed() -> None:
    page = Image.new("RGB", (100, 100), "white")
    draw_boxes(page, BLOCKS)
    assert page.getcolors() == [(10000, (255, 255, 255))]


def test_one_page_keeps_its_size_and_several_stand_under_each_other() -> None:
    page = PageResult(0, (30, 40), blocks=BLOCKS)
    assert Image.open(io.BytesIO(layout_png(png((30, 40)), result(page), Settings()))).size == (30, 40)
    pages = [PageResult(0, (30, 40)), PageResult(1, (50, 20)), PageResult(2, (0, 0), complete=False)]
    sheet = Image.open(io.BytesIO(layout_png(png((30, 40), (50, 20), (9, 9)), result(*pages), Settings())))
    assert sheet.size == (50, 40 + GAP_PX + 20)


def test_large_pages_are_capped() -> None:
    page = PageResult(0, (10, 5000))
    assert Image.open(io.BytesIO(layout_png(png((10, 5000)), result(page), Settings()))).size == (4, MAX_SIDE_PX)


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(Settings(artifact=BUNDLED_ARTIFACT))


@pytest.fixture
def client(runtime: Runtime) -> Iterator[TestClient]:
    with TestClient(create_app(runtime)) as client:
        yield client


def test_over_http(client: TestClient) -> None:
    headers = {"content-type": "image/png", "accept": "image/png"}
    answer = client.post("/parse?max_new_tokens=8", content=png((60, 80)), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert Image.open(io.BytesIO(answer.content)).size == (60, 80)


def test_direct_invoke(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "runtime", runtime)
    event: dict[str, Any] = {"image": base64.b64encode(png((60, 80))).decode(), "format": "layout", "max_new_tokens": 8}
    answer = app.handler(event, None)
    assert (answer["statusCode"], answer["isBase64Encoded"]) == (200, True)
    assert answer["headers"]["content-type"] == "image/png"
    assert Image.open(io.BytesIO(base64.b64decode(answer["body"]))).size == (60, 80)
    json.dumps(answer)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.png").write_bytes(png((60, 80)))
    arguments = [str(tmp_path / "page.png"), "--format", "layout", "--max-new-tokens", "8"]
    assert cli.main([*arguments, "--output", str(tmp_path / "out.png")]) == 0
    assert Image.open(tmp_path / "out.png").size == (60, 80)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(arguments) == 2
    assert "--output" in capsys.readouterr().err

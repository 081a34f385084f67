"""Our steps against recorded outputs of mineru-vl-utils 2.0.7, and the wrapper's own promises."""

from __future__ import annotations

import hashlib
import inspect
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handler import upstream
from handler.engine import Sampling
from handler.repair import finish
from handler.upstream import Upstream

ORACLE = Path(__file__).resolve().parents[2] / "shared" / "oracle"
BBOX = [0.1, 0.1, 0.9, 0.2]


def read_rows() -> list[dict[str, Any]]:
    path = ORACLE / "oracle.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


ROWS = read_rows()
needs_oracle = pytest.mark.skipif(not ROWS, reason="needs ../shared, which a plain clone does not have")


def content_row(kind: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"blocks": [{"type": kind, "bbox": BBOX, "angle": 0, "content": content, **more}]}


ARRAY = r"\left[ \begin{array}{lll}1 & 0 & 0\\ \ell & 1 & 0\\ m & 0 & 1 \end{array} \right]"
LAST_ARRAY = r"\left[ \begin{array}{lll}1 & 0 & 0\\ \ell & 1 & 0\\ 0 & m & 1 \end{array} \right]"
TWO_LINES = {
    "type": "equation",
    "bbox": [0.1, 0.1, 0.9, 0.3],
    "angle": 0,
    "content": "\\[\n\\begin{array}{l} a = b \\\\  \\\\ \\end{array}\n\\]",
}
HEADER_TABLE = "otsl-real-docling-fcel"  # the same table in MinerU's own tokens
THIN_CALLS = [
    (
        0,
        "text",
        "\nText Recognition:",
        (28, 1280),
        "3806d3446068bd4aa718513c1acc748daaa3d13e9b55abf4d52e9993cb0d9a9c",
    ),
    (1, "text", "\nText Recognition:", (28, 28), "a0eb91f917755b763e5328a6579cc758a5408752041907e7f82f9cdc7a76eb00"),
]

# Where our output is not 2.0.7's, on purpose: oracle id -> our output.
IMPROVED: dict[str, Any] = {
    # docling's header cells are cells: upstream loses every text of the table
    "otsl-real-docling-ched": HEADER_TABLE,
    # text of the rows after an empty row is kept
    "otsl-empty-rows": {"html": "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>"},
    # text before the first cell becomes the caption, and the cells keep theirs
    "otsl-text-first": {
        "html": "<table><caption>Table 1: results</caption>"
        "<tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>"
    },
    # plain text is kept, a row for each line
    "otsl-no-token": {"html": "<table><tr><td>Name Age</td></tr><tr><td>Ann 31</td></tr></table>"},
    "content-table-plain-text": content_row("table", "<table><tr><td>no tokens here</td></tr></table>"),
    # a token cut in half is not text
    "otsl-truncated-token": {"html": "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td></td></tr></table>"},
    # tokens in capitals are tokens when there are no others
    "otsl-capital": {"html": "<table><tr><td>a</td><td>b</td></tr></table>"},
    # delimiters inside \[ \] are errors in LaTeX, KaTeX and MathJax
    "content-eq-real-array": content_row(
        "equation", rf"\[~{ARRAY}^n, {ARRAY}^{{-1}}, {LAST_ARRAY}^{{-1}}.~\]".replace("~", "\n")
    ),
    "content-eq-dollar": content_row("equation", "\\[\nx = 1\n\\]"),
    # both subscripts are kept
    "content-eq-double-subscript": content_row("equation", "\\[\nx _ {1} {} _ {2} = y\n\\]"),
    # the placeholder for nothing to read is no content
    "content-eq-nontext": content_row("equation", None),
    "content-table-nontext": content_row("table", None),
    # an answer about a picture that has no tags is kept
    "content-image-garbage": content_row("image", "hello", sub_type=""),
    # a missing line leaves a gap in its equation, not the page without post-processing
    "page-equation-block-missing-content": {
        "parsed_types": ["equation_block", "equation", "equation"],
        "blocks": [TWO_LINES],
        "markdown": TWO_LINES["content"],
    },
    # tokens that end an answer are not text
    "page-trailing-im-end": {
        "parsed_types": ["text", "table"],
        "blocks": [
            {"type": "text", "bbox": [0.1, 0.1, 0.9, 0.2], "angle": 0, "content": "hello", "merge_prev": False},
            {
                "type": "table",
                "bbox": [0.1, 0.21, 0.9, 0.3],
                "angle": 0,
                "content": "<table><tr><td>a</td></tr></table>",
            },
        ],
        "markdown": "hello\n\n<table><tr><td>a</td></tr></table>",
    },
    # blocks thinner than half a pixel are read
    "plan-thin-small-page": {"block_types_after": ["text", "text"], "calls": THIN_CALLS},
}
# Quirks that stay: nothing is lost by them.
KEPT = {"otsl-span-clash"}


def page_image(size_px: list[int]) -> Image.Image:
    """The oracle's page image, found by trying; its hashes are of raw pixels."""
    x, y = np.arange(size_px[0])[None, :], np.arange(size_px[1])[:, None]
    return Image.fromarray(np.stack([(7 * x + 3 * y) & 255, (x + 5 * y) & 255, x ^ y & 255], axis=-1).astype(np.uint8))


def finished(steps: Upstream, blocks: list[upstream.Block]) -> list[dict[str, Any]]:
    return [dict(item.block) for item in finish(steps, blocks)[0]]


def our_layout(row: dict[str, Any]) -> dict[str, Any]:
    return {"blocks": [dict(block) for block in Upstream().parse_layout_output(row["raw"])[0]]}


def our_otsl(row: dict[str, Any]) -> dict[str, Any]:
    return {"html": finished(Upstream(), [upstream.block("table", BBOX, row["raw"])])[0]["content"]}


def our_content(row: dict[str, Any]) -> dict[str, Any]:
    block = upstream.block(row["type"], BBOX, row["raw"])
    block["angle"] = row["angle"]
    return {"blocks": finished(Upstream(**row["options"]), [block])}


def our_page(row: dict[str, Any]) -> dict[str, Any]:
    steps = Upstream(**row["options"])
    blocks, _ = steps.parse_layout_output(row["raw"])
    types = [block["type"] for block in blocks]
    for index, content in row["contents"].items():
        blocks[int(index)]["content"] = content
    done = finished(steps, blocks)
    return {"parsed_types": types, "blocks": done, "markdown": steps.json2md(done)[0]}


def our_plan(row: dict[str, Any]) -> dict[str, Any]:
    options = dict(row["options"])
    not_extract = options.pop("not_extract_list", None)
    steps = Upstream(**options)
    blocks, _ = steps.parse_layout_output(row["raw"])
    crops, _ = steps.prepare_for_extract(page_image(row["page_size"]), blocks, not_extract)
    calls = []
    for crop in crops:
        assert crop.image is not None
        kind = blocks[crop.index]["type"]
        assert crop.sampling == steps.sampling(kind)
        digest = hashlib.sha256(crop.image.tobytes()).hexdigest()
        calls.append((crop.index, kind, crop.prompt, crop.image.size, digest))
    return {"block_types_after": [block["type"] for block in blocks], "calls": calls}


def our_json2md(row: dict[str, Any]) -> dict[str, Any]:
    return {"markdown": Upstream().json2md(row["blocks"])[0]}


OURS = {
    "layout": our_layout,
    "otsl": our_otsl,
    "content": our_content,
    "page": our_page,
    "plan": our_plan,
    "json2md": our_json2md,
}


def theirs(row: dict[str, Any]) -> dict[str, Any]:
    output = {name: value for name, value in row["output"]["2.0.7"].items() if not name.startswith("warning")}
    if "calls" in output:
        names = ("index", "type", "prompt", "crop_size", "crop_sha256")
        calls = [tuple(call[name] for name in names) for call in output["calls"]]
        output["calls"] = [(*call[:3], tuple(call[3]), call[4]) for call in calls]
    return output


@needs_oracle
@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_equals_upstream_or_is_a_named_improvement(row: dict[str, Any]) -> None:
    expected = IMPROVED.get(row["id"], theirs(row))
    if isinstance(expected, str):
        expected = theirs(next(other for other in ROWS if other["id"] == expected))
    assert OURS[row["kind"]](row) == expected


@needs_oracle
def test_the_oracle_is_whole_and_every_quirk_is_judged() -> None:
    assert Counter(row["kind"] for row in ROWS) == {
        "layout": 22, "otsl": 27, "content": 39, "page": 18, "plan": 6, "json2md": 5,
    }  # fmt: skip
    by_id = {row["id"]: row for row in ROWS}
    assert {id for id, row in by_id.items() if "upstream_quirk" in row} <= IMPROVED.keys() | KEPT
    for id, ours in IMPROVED.items():
        assert ours != theirs(by_id[id]), f"{id} is no improvement any more"


@needs_oracle
def test_defaults_are_upstreams() -> None:
    defaults = json.loads((ORACLE / "defaults-2.0.7.json").read_text(encoding="utf-8"))
    steps = Upstream()
    for kind, prompt in defaults["prompts"].items():
        assert not prompt or steps.prompt(kind) == prompt
    for kind, params in defaults["sampling"].items():
        ours = {spec: getattr(steps.sampling(kind), spec) for spec in Sampling.__dataclass_fields__}
        assert ours == {spec: params[spec] for spec in ours}
    layout = steps.prepare_for_layout(Image.new("RGB", (300, 500)))
    assert list(layout.size) == defaults["layout_image_size"]


def test_prompts_and_sampling_of_a_block_type() -> None:
    steps = Upstream()
    assert (steps.prompt("title"), steps.prompt("table")) == ("\nText Recognition:", "\nTable Recognition:")
    assert steps.sampling("table") == Sampling(None, 1.0, 0.005, 1.0, 100)
    assert steps.sampling("title") == steps.sampling("[default]") == Sampling(None, 1.0, 0.05, 1.0, 100)


def test_skipped_layout_lines_are_counted() -> None:
    """Upstream passes over a line that it can't read without a word, and logs the others with their text."""
    good = "<|box_start|>100 100 900 200<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"
    bad = [
        good.replace("900", "1001"), good.replace("900", "100"),  # outside, without area
        good.replace("text", "poem"), good.replace("100 100", "-5 100"), good[:30],
    ]  # fmt: skip
    blocks, warnings = Upstream().parse_layout_output(good + "".join(bad))
    assert len(blocks) == 1
    assert warnings == [
        "layout_invalid_bbox: boxes outside the page or without area were left out (2)",
        "layout_unknown_type: blocks of an unknown type were left out",
        "layout_line_unreadable: lines that are cut or garbled were left out (2)",
    ]


def test_layout_without_angle_is_no_warning() -> None:
    layout = "<|box_start|>100 100 900 200<|box_end|><|ref_start|>text<|ref_end|>"
    blocks, warnings = Upstream().parse_layout_output(layout)
    assert blocks == [{"type": "text", "bbox": BBOX, "angle": None, "content": None, "merge_prev": False}]
    assert warnings == []


def test_thin_blocks_are_read_and_keep_their_box() -> None:
    """Upstream never reads a block that rounds to no pixel, at the far edge of the page in particular."""
    boxes = [[0.1, 0.1, 0.101, 0.9], [0.999, 0.999, 1.0, 1.0], [0.1, 0.2, 0.9, 0.4]]
    blocks = [upstream.block("text", list(bbox)) for bbox in boxes]
    crops, warnings = Upstream().prepare_for_extract(Image.new("RGB", (300, 400)), blocks)
    assert [crop.image and crop.image.size for crop in crops] == [(28, 1280), (28, 28), (240, 80)]
    assert [dict(block) for block in blocks] == [
        {"type": "text", "bbox": bbox, "angle": None, "content": None, "merge_prev": False} for bbox in boxes
    ]
    assert warnings == ["crop_widened: blocks thinner than a pixel were read from a crop of one pixel"]


def test_caption_inside_a_picture_is_told() -> None:
    blocks = [upstream.block("image", [0.1, 0.1, 0.9, 0.9]), upstream.block("image_caption", [0.2, 0.2, 0.8, 0.3])]
    crops, warnings = Upstream().prepare_for_extract(Image.new("RGB", (300, 400)), blocks)
    assert (crops, len(blocks)) == ([], 1)
    assert warnings == ["caption_inside_picture: captions inside a picture were not read (1)"]


def test_pictures_inside_tables_get_the_same_codes_in_every_run() -> None:
    """Upstream draws the codes at random, so that one page would give two results."""
    found = []
    for _ in range(2):
        blocks = [upstream.block("table", [0.1, 0.1, 0.9, 0.9]), upstream.block("image", [0.2, 0.2, 0.6, 0.6])]
        crops, _ = Upstream().prepare_for_extract(Image.new("RGB", (300, 400)), blocks)
        assert crops[0].image is not None
        found.append((crops[0].image.tobytes(), list(blocks[0]["_table_image_token_map"])))
    assert found[0] == found[1]


def test_upstreams_log_lines_become_warnings_and_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """loguru prints to stderr by default, and upstream logs the whole layout answer and the contents."""
    from loguru import logger

    lines: list[str] = []
    sink = logger.add(lines.append, level="TRACE")
    try:
        _, warnings = Upstream().parse_layout_output(
            "<|box_start|>0 0 1 1<|box_end|><|ref_start|>secret<|ref_end|><|rotate_up|>"
        )
        Upstream().parse_layout_output("secret prose")
        Upstream().post_process([upstream.block("image", BBOX, "secret answer")])
        Upstream().json2md([{"type": "text", "note": "secret"}])
    finally:
        logger.remove(sink)
    assert warnings == ["layout_unknown_type: blocks of an unknown type were left out"]
    assert lines == []
    assert capfd.readouterr() == ("", "")


def test_what_others_have_upstream_log_goes_where_it_went() -> None:
    from loguru import logger
    from mineru_vl_utils.mineru_client import MinerUClient, MinerUClientHelper

    Upstream()
    theirs = inspect.signature(MinerUClient.__init__).parameters
    wanted = inspect.signature(MinerUClientHelper.__init__).parameters
    values = {name: theirs[name].default for name in wanted if name not in ("self", "backend")}
    records: list[Any] = []
    sink = logger.add(lambda message: records.append(message.record), level="WARNING")
    try:
        MinerUClientHelper(backend="transformers", **values).parse_layout_output("prose")
    finally:
        logger.remove(sink)
    assert [(record["name"], record["message"]) for record in records] == [
        ("mineru_vl_utils.mineru_client", "Layout output does not match expected format: prose")
    ]


def test_the_library_is_imported_on_first_use_only() -> None:
    program = (
        "import sys, handler.pipeline, handler.parse, handler.output\n"
        "assert 'mineru_vl_utils' not in sys.modules and 'loguru' not in sys.modules\n"
        "from handler.upstream import Upstream\n"
        "Upstream()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)

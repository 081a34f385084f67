"""Whole pages with an engine that answers by prompt: what it is asked, in which order, and what comes back."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from handler.artifact import ChatInfo, ImageInfo, Manifest, ModelInfo, TextInfo, TokenInfo
from handler.config import Settings
from handler.engine import FinishReason, Generation, Sampling
from handler.errors import RequestError
from handler.pipeline import Options, PageResult, Progress, parse_page

RECORDING = Path(__file__).resolve().parents[2] / "shared" / "oracle" / "http_two_step-2.0.7.json"
LAYOUT, TABLE, FORMULA, TEXT, PICTURE = (
    f"\n{name}:"
    for name in ("Layout Detection", "Table Recognition", "Formula Recognition", "Text Recognition", "Image Analysis")
)
READING = Sampling(None, 1.0, 0.05, 1.0, 100)
OF_TABLES = Sampling(None, 1.0, 0.005, 1.0, 100)
OF_LAYOUT = Sampling(None, 0.0, 0.0, 1.0, 100)


def manifest(**changes: Any) -> Manifest:
    mean = [0.5, 0.5, 0.5]
    return replace(
        Manifest(
            backend="onnx",
            dtype="int8",
            target_cpu="any",
            model=ModelInfo("test/model", "1234", "apache-2.0", "qwen2_vl", 5, True),
            image=ImageInfo(14, 2, 2, 3136, 1_605_632, mean, mean, 1 / 255, [1036, 1036]),
            text=TextInfo(8, 1, 1, 8, 100, 16_384),
            tokens=TokenInfo(1, [2]),
            chat=ChatInfo("", ""),
            files={},
        ),
        **changes,
    )


@dataclass(slots=True)
class FakeEngine:
    """Answers by prompt, and records what it was asked. An answer is text, or text and why it ended."""

    answers: dict[str, str | tuple[str, FinishReason]]
    manifest: Manifest = field(default_factory=manifest)
    asked: list[tuple[str, tuple[int, int], Sampling]] = field(default_factory=list)
    deadlines: set[float | None] = field(default_factory=set)
    before: Callable[[int], None] | None = None

    def generate(
        self, image: Image.Image, prompt: str, sampling: Sampling, *, deadline_s: float | None = None
    ) -> Generation:
        assert image.mode == "RGB"
        if self.before:
            self.before(len(self.asked))
        self.asked.append((prompt, image.size, sampling))
        self.deadlines.add(deadline_s)
        answer = self.answers[prompt]
        text, reason = answer if isinstance(answer, tuple) else (answer, "stop")
        return Generation(text, [7, 8, 2], reason, 10, 4, {"vision": 3.0, "prefill": 2.0, "decode": 1.0})


def boxes(*lines: str) -> str:
    """Layout answer of lines such as "100 200 900 400 text"."""
    made = []
    for line in lines:
        box, kind = line.rsplit(" ", 1)
        made.append(f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_up|>")
    return "\n".join(made)


def page(size_px: tuple[int, int] = (1240, 1754)) -> Image.Image:
    return Image.new("RGB", size_px, (255, 255, 255))


def parse(
    engine: FakeEngine, options: Options | None = None, size_px: tuple[int, int] = (1240, 1754), **more: Any
) -> PageResult:
    return parse_page(page(size_px), engine, options or Options(), more.pop("settings", Settings()), **more)


def whole(result: PageResult) -> dict[str, Any]:
    """The result but for timings, of which only the names can be told beforehand."""
    assert all(ms >= 0 for ms in result.timings_ms.values())
    names = [spec for spec in PageResult.__dataclass_fields__ if spec != "timings_ms"]
    return {**{name: getattr(result, name) for name in names}, "timings_ms": set(result.timings_ms)}


def block(kind: str, bbox: list[float], content: str | None, status: str = "done", **more: Any) -> dict[str, Any]:
    extra = {"merge_prev": False} if kind == "text" else {}
    return {"type": kind, "bbox": bbox, "angle": 0, "content": content, "status": status, **extra, **more}


PAGE_TIMINGS = {"layout", "crops", "post_process", "total", "vision", "prefill", "decode"}
STEP_TIMINGS = PAGE_TIMINGS - {"layout"}
TWO_TEXTS = boxes("100 100 900 200 text", "100 300 900 400 text")
FIRST, SECOND = [0.1, 0.1, 0.9, 0.2], [0.1, 0.3, 0.9, 0.4]


@pytest.mark.skipif(not RECORDING.is_file(), reason="needs ../shared, which a plain clone does not have")
def test_same_requests_and_blocks_as_upstreams_client() -> None:
    """`two_step_extract` of mineru-vl-utils 2.0.7, recorded over HTTP.

    The client sends a page's crops concurrently, and the recording has them by size, smallest first: no order that
    could be kept. Ours is the order of `prepare_for_extract`, which is that of the layout.
    """
    recording = json.loads(RECORDING.read_text(encoding="utf-8"))
    engine = FakeEngine(recording["canned_answers"])
    result = parse(engine, size_px=tuple(recording["page_size"]))
    theirs = []
    for request in (entry["body"] for entry in recording["requests"]):
        picture, text = request["messages"][1]["content"]
        width, height = map(int, re.findall(r"RGB (\d+)x(\d+)", picture["image_url"]["url"])[0])
        ngram = request["vllm_xargs"]["no_repeat_ngram_size"]
        presence, frequency, repetition = (
            request[f"{kind}_penalty"] for kind in ("presence", "frequency", "repetition")
        )
        theirs.append((text["text"], (width, height), Sampling(None, presence, frequency, repetition, ngram)))
    assert engine.asked[0] == theirs[0]
    assert Counter(engine.asked) == Counter(theirs)
    in_layout_order = [(992, 175), (992, 351), (992, 263), (992, 123), (50, 52)]
    assert [size_px for _, size_px, _ in engine.asked[1:]] == in_layout_order
    assert [{name: b[name] for name in b if name != "status"} for b in result.blocks] == recording["result"]


def test_page() -> None:
    layout = boxes(
        "100 050 900 150 title", "100 200 900 400 text", "100 450 900 600 table",
        "100 650 900 720 equation", "100 750 400 950 image", "480 960 520 990 page_number",
    )  # fmt: skip
    engine = FakeEngine({LAYOUT: layout, TEXT: "some text", TABLE: "<fcel>a<nl>", FORMULA: r"\[ a<b \]"})
    assert whole(parse(engine, index=4)) == {
        "index": 4,
        "size_px": (1240, 1754),
        "blocks": [
            block("title", [0.1, 0.05, 0.9, 0.15], "some text"),
            block("text", [0.1, 0.2, 0.9, 0.4], "some text"),
            block("table", [0.1, 0.45, 0.9, 0.6], "<table><tr><td>a</td></tr></table>"),
            block("equation", [0.1, 0.65, 0.9, 0.72], "\\[\na< b\n\\]"),
            block("image", [0.1, 0.75, 0.4, 0.95], None),
            block("page_number", [0.48, 0.96, 0.52, 0.99], "some text"),
        ],
        "markdown": "some text\n\nsome text\n\n<table><tr><td>a</td></tr></table>\n\n\\[\na< b\n\\]\n\nsome text",
        "warnings": [],
        "complete": True,
        "timings_ms": PAGE_TIMINGS,
        "n_tokens": 18,
    }
    assert engine.asked == [
        (LAYOUT, (1036, 1036), OF_LAYOUT),
        (TEXT, (992, 175), READING),
        (TEXT, (992, 351), READING),
        (TABLE, (992, 263), OF_TABLES),
        (FORMULA, (992, 123), READING),
        (TEXT, (50, 52), READING),
    ]


def test_image_analysis_reads_pictures() -> None:
    tags = "<|class_start|>{0}<|class_end|><|sub_class_start|>{0}<|sub_class_end|><|caption_start|>A dog<|caption_end|>"
    engine = FakeEngine({LAYOUT: boxes("100 100 900 800 image"), PICTURE: tags.format("natural_image")})
    result = parse(engine, Options(image_analysis=True))
    assert result.blocks == [block("image", [0.1, 0.1, 0.9, 0.8], "A dog", sub_type="natural_image")]


@pytest.mark.parametrize(
    ("task", "prompt", "sampling", "answer", "kind", "content"),
    [
        ("text", TEXT, READING, r"so \[ x \]", "text", r"so \( x \)"),
        ("table", TABLE, OF_TABLES, "<fcel>a<nl>", "table", "<table><tr><td>a</td></tr></table>"),
        ("formula", FORMULA, READING, "a<b", "equation", "\\[\na< b\n\\]"),
    ],
)
def test_single_step(task: Any, prompt: str, sampling: Sampling, answer: str, kind: str, content: str) -> None:
    engine = FakeEngine({prompt: answer})
    assert whole(parse(engine, Options(task))) == {
        "index": 0,
        "size_px": (1240, 1754),
        "blocks": [block(kind, [0, 0, 1, 1], content, angle=None)],
        "markdown": content,
        "warnings": [],
        "complete": True,
        "timings_ms": STEP_TIMINGS,
        "n_tokens": 3,
    }
    assert engine.asked == [(prompt, (679, 960), sampling)]


def test_ask_answers_as_it_is() -> None:
    engine = FakeEngine({"What is it? ": r"It is \[ x \]."})
    result = parse(engine, Options("ask", "What is it? "))
    assert result.blocks == [block("text", [0, 0, 1, 1], r"It is \[ x \].", angle=None)]
    assert result.markdown == r"It is \[ x \]."
    assert engine.asked == [("What is it? ", (679, 960), replace(READING, max_new_tokens=256))]


def test_layout() -> None:
    engine = FakeEngine({LAYOUT: TWO_TEXTS})
    result = parse(engine, Options("layout"))
    assert result.blocks == [block("text", FIRST, None), block("text", SECOND, None)]
    assert (result.markdown, result.warnings, result.complete) == ("", [], True)
    assert set(result.timings_ms) == PAGE_TIMINGS - {"crops", "post_process"}
    assert [prompt for prompt, _, _ in engine.asked] == [LAYOUT]


@pytest.mark.parametrize(
    "options",
    [
        Options("ask"),
        Options("ask", "  "),
        Options("poem"),  # type: ignore[arg-type]
        Options(max_image_px=0),
        Options(max_new_tokens=-1),
    ],
)
def test_options_that_cannot_be_followed(options: Options) -> None:
    engine = FakeEngine({})
    with pytest.raises(RequestError):
        parse(engine, options)
    assert engine.asked == []


@pytest.mark.parametrize(("options_px", "settings_px", "asked_px"), [(None, 960, (679, 960)), (480, 960, (339, 480))])
def test_cap_of_a_single_step(options_px: int | None, settings_px: int, asked_px: tuple[int, int]) -> None:
    engine = FakeEngine({TEXT: ""})
    parse(engine, Options("text", max_image_px=options_px), settings=Settings(max_image_px=settings_px))
    assert engine.asked[0][1] == asked_px


def test_cap_of_a_page_comes_before_the_crops() -> None:
    engine = FakeEngine({LAYOUT: boxes("000 000 500 500 text"), TEXT: ""})
    result = parse(engine, Options(max_image_px=877))
    assert [size_px for _, size_px, _ in engine.asked] == [(1036, 1036), (310, 438)]
    assert result.size_px == (1240, 1754)


def test_tiny_image_is_padded_and_enlarged() -> None:
    engine = FakeEngine({TEXT: ""})
    parse(engine, Options("text"), size_px=(900, 1))
    assert engine.asked[0][1] == (1400, 28)


def test_prompts_sampling_and_layout_size_of_the_model() -> None:
    image = replace(manifest().image, layout_size_px=[504, 700])
    sampling = {"[layout]": {"repetition_penalty": 1.5}, "text": {"no_repeat_ngram_size": 9.0}}
    own = manifest(image=image, prompts={"[layout]": "Where?", "text": "What?"}, sampling=sampling)
    engine = FakeEngine({"Where?": boxes("0 0 500 500 text"), "What?": "x"}, own)
    parse(engine)
    assert engine.asked == [
        ("Where?", (504, 700), Sampling(repetition_penalty=1.5)),
        ("What?", (620, 877), Sampling(no_repeat_ngram_size=9)),
    ]


@pytest.mark.parametrize(
    ("options", "settings", "model", "limit"), [(5, 6, 7, 5), (None, 6, 7, 6), (None, 0, 7, 7), (None, 0, None, None)]
)
def test_whose_token_limit_holds(options: int | None, settings: int, model: int | None, limit: int | None) -> None:
    engine = FakeEngine({LAYOUT: TWO_TEXTS, TEXT: ""}, manifest(max_new_tokens=model))
    parse(engine, Options(max_new_tokens=options), settings=Settings(max_new_tokens=settings))
    assert {sampling.max_new_tokens for _, _, sampling in engine.asked} == {limit}


def test_token_limit_of_ask() -> None:
    engine = FakeEngine({"Q": ""}, manifest(max_new_tokens=7))
    for options, settings in ((None, 0), (None, 6), (5, 6)):
        parse(engine, Options("ask", "Q", max_new_tokens=options), settings=Settings(max_new_tokens=settings))
    assert [sampling.max_new_tokens for _, _, sampling in engine.asked] == [256, 6, 5]


def test_cut_by_the_token_limit() -> None:
    result = parse(FakeEngine({LAYOUT: (TWO_TEXTS, "length"), TEXT: ("so fa", "length")}))
    assert result.blocks == [block("text", FIRST, "so fa", "truncated"), block("text", SECOND, "so fa", "truncated")]
    assert result.complete
    assert result.warnings == [
        "layout_truncated: the token limit cut the layout, and blocks may be missing",
        "truncated: the token limit cut the answer (block 0, text)",
        "truncated: the token limit cut the answer (block 1, text)",
    ]


def test_cut_by_the_deadline() -> None:
    deadline_s = time.monotonic() + 60
    engine = FakeEngine({LAYOUT: boxes("100 100 900 200 text"), TEXT: ("so fa", "deadline")})
    result = parse(engine, deadline_s=deadline_s)
    assert result.blocks == [block("text", FIRST, "so fa", "truncated")]
    assert (result.markdown, result.complete) == ("so fa", False)
    assert result.warnings == ["deadline: blocks not read: 0, cut: 1"]
    assert engine.deadlines == {deadline_s}


def test_nothing_is_begun_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("handler.pipeline.time.monotonic", lambda: now_s)

    def pass_time(n_asked: int) -> None:
        nonlocal now_s
        now_s = 100.0 + 10 * n_asked

    engine = FakeEngine({LAYOUT: TWO_TEXTS, TEXT: "read"}, before=pass_time)
    result = parse(engine, deadline_s=110.0)
    assert result.blocks == [block("text", FIRST, "read"), block("text", SECOND, None, "skipped")]
    assert (result.markdown, result.complete) == ("read", False)
    assert result.warnings == ["deadline: blocks not read: 1, cut: 0"]


@pytest.mark.parametrize("task", ["page", "layout", "text", "ask"])
def test_deadline_before_anything(task: Any) -> None:
    engine = FakeEngine({})
    result = parse(engine, Options(task, "Q"), deadline_s=time.monotonic() - 1)
    assert (engine.asked, result.complete, result.markdown) == ([], False, "")
    assert [b["status"] for b in result.blocks] == ([] if task in ("page", "layout") else ["skipped"])
    assert [warning.split(":")[0] for warning in result.warnings] == ["deadline"]


def test_lines_of_one_equation_share_the_worst_status(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("handler.pipeline.time.monotonic", lambda: now_s)

    def pass_time(n_asked: int) -> None:
        nonlocal now_s
        now_s = float(n_asked)

    lines = boxes(
        "100 100 900 300 equation_block", "110 110 890 150 equation", "110 160 890 200 equation", "1 1 9 9 text"
    )
    result = parse(FakeEngine({LAYOUT: lines, FORMULA: "a"}, before=pass_time), deadline_s=1.0)
    content = "\\[\n\\begin{array}{l} a \\\\  \\\\ \\end{array}\n\\]"
    assert result.blocks == [
        block("equation", [0.1, 0.1, 0.9, 0.3], content, "skipped"),
        block("text", [0.001, 0.001, 0.009, 0.009], None, "skipped"),
    ]
    assert result.warnings == [
        "deadline: blocks not read: 2, cut: 0",
        "equation_line_missing: a line of the equation was not read (block 0, equation)",
    ]


@pytest.mark.parametrize("layout", ["The page shows a title.", "100 100 900 200text", boxes("100 100 100 200 text")])
def test_unparsed_layout_makes_the_page_one_text_block(layout: str) -> None:
    engine = FakeEngine({LAYOUT: layout, TEXT: "all of it"})
    result = parse(engine)
    assert result.blocks == [block("text", [0, 0, 1, 1], "all of it", angle=None)]
    assert engine.asked[1] == (TEXT, (1240, 1754), READING)
    assert result.warnings[-1] == "layout_unparsed: no block can be told from the layout"
    assert result.complete


def test_unparsed_layout_of_the_layout_task_has_no_blocks() -> None:
    result = parse(FakeEngine({LAYOUT: "prose"}), Options("layout"))
    assert (result.blocks, len(result.warnings)) == ([], 1)


@pytest.mark.parametrize("layout", ["", " \n", "<|im_end|>"])
def test_empty_page(layout: str) -> None:
    assert whole(parse(FakeEngine({LAYOUT: layout}))) == {
        "index": 0,
        "size_px": (1240, 1754),
        "blocks": [],
        "markdown": "",
        "warnings": [],
        "complete": True,
        "timings_ms": PAGE_TIMINGS,
        "n_tokens": 3,
    }


def test_garbage_is_kept_and_told() -> None:
    lines = ("100 100 900 200 table", "100 300 900 400 equation", "100 500 900 600 poem", "100 700 900 800 text")
    answers = {TABLE: "no cells<|im_end|>", FORMULA: "$$x_{1}_{2}$$", TEXT: "[Non-Text]<|im_end|>"}
    result = parse(FakeEngine({LAYOUT: boxes(*lines), **answers}))
    assert result.blocks == [
        block("table", FIRST, "<table><tr><td>no cells</td></tr></table>"),
        block("equation", SECOND, "\\[\nx_{1} {}_{2}\n\\]"),
    ]
    assert result.warnings == [
        "layout_unknown_type: blocks of an unknown type were left out",
        "stop_tokens: tokens that end an answer stood in its text and were taken out (text, left out)",
        "stop_tokens: tokens that end an answer stood in its text and were taken out (block 0, table)",
        "table_without_cells: the answer is plain text; each line was made a row (block 0, table)",
        "equation_delimiters: math delimiters inside the equation were taken out (block 1, equation)",
        "equation_double_subscript: an empty group was put between two subscripts (block 1, equation)",
    ]


def test_progress() -> None:
    told: list[Progress] = []
    parse(FakeEngine({LAYOUT: TWO_TEXTS, TEXT: "x"}), index=2, progress=told.append)
    assert [(p.stage, p.done, p.total, p.page) for p in told] == [
        ("layout", 0, 1, 2), ("layout", 1, 1, 2), ("block", 0, 2, 2), ("block", 1, 2, 2), ("block", 2, 2, 2),
    ]  # fmt: skip


def test_crops_are_let_go_of_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 3500 px has tens of megabytes of crops; none may wait for the end of the page."""
    from handler.upstream import Crop, Upstream

    made: list[Crop] = []
    theirs = Upstream.prepare_for_extract

    def keep(self: Upstream, *args: Any) -> Any:
        crops, warnings = theirs(self, *args)
        made.extend(crops)
        return crops, warnings

    monkeypatch.setattr(Upstream, "prepare_for_extract", keep)
    alive: list[int] = []
    engine = FakeEngine(
        {LAYOUT: TWO_TEXTS, TEXT: "x"},
        before=lambda n_asked: alive.append(sum(crop.image is not None for crop in made)),
    )
    parse(engine)
    assert alive == [0, 1, 0]

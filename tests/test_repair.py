"""Each repair on its own, with the loss that it undoes."""

from __future__ import annotations

import html
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handler import upstream
from handler.repair import finish
from handler.upstream import Upstream

BBOX = [0.1, 0.1, 0.9, 0.2]


def read(kind: str, answer: str | None, **options: Any) -> tuple[str | None, list[str]]:
    """Content and codes of the warnings of one block that was answered so."""
    processed, warnings = finish(Upstream(**options), [upstream.block(kind, list(BBOX), answer)])
    codes = [warning.split(":")[0] for item in processed for warning in item.warnings]
    return (processed[0].block["content"] if processed else None), codes + [w.split(":")[0] for w in warnings]


def rows(*cells: str) -> str:
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


AB = "<td>a</td><td>b</td>"
CD = "<td>c</td><td>d</td>"


@pytest.mark.parametrize(
    ("answer", "content", "codes"),
    [
        ("<fcel>a<fcel>b<nl><fcel>c<fcel>d<nl>", rows(AB, CD), []),
        # upstream: all texts are lost
        (
            "T < 1 <fcel>a<fcel>b<nl><fcel>c<fcel>d<nl>",
            rows(AB, CD).replace("<table>", "<table><caption>T &lt; 1</caption>"),
            ["table_text_before_first_cell"],
        ),
        # the text in front is the cell that the first row lacks
        ("a<fcel>b<nl><fcel>c<fcel>d<nl>", rows(AB, CD), ["table_text_without_cell"]),
        ("<ched>a<ched>b<nl><rhed>c<fcel>d<nl>", rows(AB, CD), ["table_token_dialect"]),
        ("<FCEL>a<Fcel>b<NL>", rows(AB), ["table_token_dialect"]),
        # upstream: the rows after the gap are lost
        ("<fcel>a<fcel>b<nl><nl> <nl><fcel>c<fcel>d<nl>", rows(AB, CD), ["table_empty_rows"]),
        ("<nl><fcel>a<fcel>b<nl>", rows(AB), ["table_empty_rows"]),
        ("<fcel>a<fcel>b<nl><nl>", rows(AB), []),
        # upstream: the text in the wrong place, and what follows, is lost
        ("<fcel>a<fcel>b<nl>c<fcel>d<nl>", rows(AB, CD), ["table_text_without_cell"]),
        ("<fcel>a<ecel>b<nl>", rows(AB), ["table_text_without_cell"]),
        ("<fcel>a<lcel>b<nl><ucel>c<fcel>d<nl>", rows(AB, CD), ["table_text_without_cell"]),
        ("<fcel>a<fcel>b<nl>note", rows(AB, "<td>note</td><td></td>"), ["table_text_without_cell"]),
        # upstream: empty
        ("Ann 31\n\nBob < 5", rows("<td>Ann 31</td>", "<td>Bob &lt; 5</td>"), ["table_without_cells"]),
        ("|a|b|\n|---|---|\n|c|d|", rows("<th>a</th><th>b</th>", CD), ["table_as_markdown"]),
        (rows(AB) + "\n", rows(AB), []),
        (
            f"Top {rows(AB)} end",
            f"<table><caption>Top</caption><tr>{AB}</tr></table>\n\nend",
            ["table_text_around_html"],
        ),
        ("<fcel>a<fcel>b<fce", rows(AB), ["table_half_token"]),
        ("<fcel>a<fcel>b<nl", rows(AB), ["table_half_token"]),
        ("<fcel>x <n", rows("<td>x &lt;n</td>"), []),
        # column span over row span: upstream's cells stay, and nothing is lost
        ("<fcel>a<fcel>b<nl><ucel><lcel><nl><fcel>c<fcel>d<nl>",
         rows('<td rowspan="2">a</td><td>b</td>', "<td></td>", CD), []),
        ("", "", []),
        ("<nl><nl>", "", []),
        (" [Non-Text]\n", None, ["non_text"]),
        ("<fcel>a<fcel>b<nl><|im_end|>", rows(AB), ["stop_tokens"]),
    ],
)  # fmt: skip
def test_table(answer: str, content: str | None, codes: list[str]) -> None:
    assert read("table", answer) == (content, codes)


@pytest.mark.parametrize(
    ("answer", "latex", "codes"),
    [
        (r"\[ x = 1 \]", "x = 1", []),
        ("$$ x = 1 $$", "x = 1", ["equation_delimiters"]),
        ("$x = 1$", "x = 1", ["equation_delimiters"]),
        (r"\(x\)", "x", ["equation_delimiters"]),
        (r"\(x^2\), \(y\).", "x^2, y.", ["equation_delimiters"]),
        (r"\(\alpha\)x", r"\alpha x", ["equation_delimiters"]),
        (r"\(x\) and so \(y\)", r"x\text{ and so }y", ["equation_delimiters"]),
        (r"\[ a \] \[ b \]", r"a \qquad b", ["equation_delimiters"]),
        (r"\[ a \quad \(b\) \]", r"a \quad b", ["equation_delimiters"]),
        # delimiters that belong where they stand
        (r"x \text{ if \(y\) or $z$}", r"x \text{ if \(y\) or $z$}", []),
        (r"a \\(b) \\[2pt] c", r"a \\(b) \\[2pt] c", []),
        (r"\$5 + 5$", r"\$5 + 5$", []),
        # upstream: both are deleted
        ("x _ {1} _ {2} = y", "x _ {1} {} _ {2} = y", ["equation_double_subscript"]),
        ("x_{a_{b}}_{2}_{3}", "x_{a_{b}} {}_{2} {}_{3}", ["equation_double_subscript"]),
        ("x<|im_end|>", "x", ["stop_tokens"]),
    ],
)
def test_equation(answer: str, latex: str, codes: list[str]) -> None:
    assert read("equation", answer) == (f"\\[\n{latex}\n\\]", codes)


def test_grid_of_a_looping_answer_is_not_built() -> None:
    """500 rows below one of 10,000 cells took upstream two minutes and gigabytes."""
    content, codes = read("table", "<lcel>" * 10_000 + "<nl>" + "<fcel>a<fcel>b<nl>" * 500)
    assert content == rows("<td></td>", *["<td>a b</td>"] * 500)
    assert codes == ["table_grid_too_large"]


def test_placeholder_is_no_equation() -> None:
    assert read("equation", "[Non-Text]") == (None, ["non_text"])


@pytest.mark.parametrize(
    ("kind", "answer", "content", "codes"),
    [
        ("text", "a<|im_end|>b<|endoftext|>", "ab", ["stop_tokens"]),
        # a page about chat templates
        ("code", "<|im_start|>user<|im_end|>\nx <|im_end|>\n", "<|im_start|>user<|im_end|>\nx", ["stop_tokens"]),
        ("text", "[Non-Text]<|im_end|>", None, ["stop_tokens"]),
        ("text", None, None, []),
    ],
)
def test_stop_tokens(kind: str, answer: str | None, content: str | None, codes: list[str]) -> None:
    assert read(kind, answer) == (content, codes)


@pytest.mark.parametrize(
    ("answer", "content", "codes"),
    [
        ("a red bicycle", "a red bicycle", ["image_answer_untagged"]),
        (
            "<|class_start|>chart<|class_end|><|content_start|>|a|\n|b|c|\n|d|e|<|content_end|>",
            "",
            ["image_answer_dropped"],
        ),
    ],
)  # fmt: skip
def test_picture_answer(answer: str, content: str, codes: list[str]) -> None:
    assert read("image", answer) == (content, codes)


def test_missing_line_leaves_a_gap_and_the_page_is_processed() -> None:
    """Upstream joins the lines, fails on None and leaves the whole page half processed."""
    boxes = [[0.1, 0.1, 0.9, 0.3], [0.11, 0.11, 0.89, 0.15], [0.11, 0.16, 0.89, 0.2], [0.1, 0.5, 0.9, 0.6]]
    kinds, answers = ("equation_block", "equation", "equation", "text"), (None, "a", None, r"so \[ x \]")
    blocks = [upstream.block(kind, bbox, answer) for kind, bbox, answer in zip(kinds, boxes, answers)]
    processed, warnings = finish(Upstream(), blocks)
    assert [(item.block["type"], item.block["content"], item.sources, item.warnings) for item in processed] == [
        (
            "equation",
            "\\[\n\\begin{array}{l} a \\\\  \\\\ \\end{array}\n\\]",
            [1, 2],
            ["equation_line_missing: a line of the equation was not read"],
        ),
        ("text", r"so \( x \)", [3], []),
    ]
    assert warnings == []


def test_line_that_was_not_read_and_stands_alone_has_no_content() -> None:
    blocks = [
        upstream.block("equation_block", [0.1, 0.1, 0.9, 0.3]),
        upstream.block("equation", [0.1, 0.1, 0.9, 0.2]),
    ]
    processed, _ = finish(Upstream(), blocks)
    assert [(item.block["type"], item.block["content"]) for item in processed] == [("equation", None)]


def test_one_bad_block_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Upstream()
    theirs = steps.post_process

    def fails_on_titles(blocks: list[upstream.Block]) -> tuple[list[upstream.Block], list[str]]:
        done = theirs(blocks)  # contents are half changed when it raises
        if any(block["type"] == "title" for block in blocks):
            raise ValueError
        return done

    monkeypatch.setattr(steps, "post_process", fails_on_titles)
    answers = {"table": "<fcel>a<nl>", "title": "T", "equation": "0<x"}
    blocks = [upstream.block(kind, list(BBOX), answer) for kind, answer in answers.items()]
    processed, warnings = finish(steps, blocks)
    assert [(item.block["content"], item.warnings) for item in processed] == [
        (rows("<td>a</td>"), []),
        ("T", ["post_process_failed: the answer was kept as it came"]),
        ("\\[\n0< x\n\\]", []),
    ]
    assert warnings == []


def test_warnings_of_dropped_blocks_are_not_lost() -> None:
    _, warnings = finish(Upstream(), [upstream.block("text", list(BBOX), "[Non-Text]<|im_end|>")])
    assert warnings == ["stop_tokens: tokens that end an answer stood in its text and were taken out (text, left out)"]


def test_picture_that_the_table_does_not_place_is_told() -> None:
    block = upstream.block("table", list(BBOX), "<fcel>[ACDG]<nl>")
    block["_table_image_token_map"] = {"[ACDG]": "data:,1", "[ZZZZ]": "data:,2"}
    processed, _ = finish(Upstream(), [block])
    assert processed[0].block == {
        "type": "table", "bbox": BBOX, "angle": None, "content": rows('<td><img src="data:,1"/></td>'),
    }  # fmt: skip
    assert processed[0].warnings == [
        "table_picture_unplaced: a picture inside the table has no place in the answer"
    ]  # fmt: skip


TOKENS = ["<fcel>", "<ecel>", "<lcel>", "<ucel>", "<xcel>", "<nl>", "<ched>", " ", "\n"]
WORDS = [f"word{i}<&" for i in range(6)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(TOKENS + WORDS), max_size=24).map(list))
def test_no_word_of_a_table_is_lost(pieces: list[str]) -> None:
    """Whatever the order of tokens and words, every word is in the content, as often as it was in the answer."""
    content, _ = read("table", "".join(pieces))
    text = html.unescape(content or "")
    assert {word: text.count(word) for word in WORDS} == {word: pieces.count(word) for word in WORDS}


LATEX = [
    r"\(",
    r"\)",
    "$",
    "$$",
    r"\[",
    r"\]",
    r"\\",
    r"\text{",
    "{",
    "}",
    "_{1}",
    " _ {2}",
    r"\alpha",
    "<|im_end|>",
    " ",
]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*LATEX, "word0 ", "word1 ", "word2 "]), max_size=16))
def test_no_word_of_an_equation_is_lost(pieces: list[str]) -> None:
    content, _ = read("equation", "".join(pieces))
    for word in ("word0", "word1", "word2"):
        assert (content or "").count(word) == pieces.count(f"{word} ")
    assert "<|" not in (content or "")

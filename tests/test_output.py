"""Renderings, whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handler.output import to_content_list, to_json, to_markdown
from handler.parse import DocumentResult
from handler.pipeline import PageResult

MODEL = {"id": "test/model", "revision": None, "backend": "onnx", "dtype": "int8", "trained": True}


def block(kind: str, content: str | None, bbox: list[float] | None = None, **more: Any) -> dict[str, Any]:
    box = bbox or [0.1, 0.29, 0.57, 0.9]
    return {"type": kind, "bbox": box, "angle": 0, "content": content, "status": "done", **more}


def document(*pages: list[dict[str, Any]]) -> DocumentResult:
    results = [
        PageResult(index, (1240, 1754), blocks, f"page {index}", ["a: b"] * index, True, {"layout": 1.26}, 7)
        for index, blocks in enumerate(pages)
    ]
    markdown = "\n\n".join(page.markdown for page in results)
    return DocumentResult(results, 9, markdown, ["a: b (page 2)"], False, {"total": 20.04}, MODEL)


def content_list(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """The content list of one page without what all entries have."""
    entries = to_content_list(document(list(blocks)))
    assert all(len(entry.pop("bbox")) == 4 and entry.pop("page_idx") == 0 for entry in entries)
    return entries


def test_json() -> None:
    text = block("text", "hello", merge_prev=False)
    rendered = to_json(document([text], []))
    assert rendered == {
        "n_pages": 9,
        "pages": [
            {
                "page": 1,
                "size_px": [1240, 1754],
                "blocks": [text],
                "markdown": "page 0",
                "warnings": [],
                "complete": True,
                "timings_ms": {"layout": 1.3},
                "n_tokens": 7,
            },
            {
                "page": 2,
                "size_px": [1240, 1754],
                "blocks": [],
                "markdown": "page 1",
                "warnings": ["a: b"],
                "complete": True,
                "timings_ms": {"layout": 1.3},
                "n_tokens": 7,
            },
        ],
        "markdown": "page 0\n\npage 1",
        "warnings": ["a: b (page 2)"],
        "complete": False,
        "timings_ms": {"total": 20.0},
        "model": MODEL,
    }
    assert json.loads(json.dumps(rendered)) == rendered


def test_markdown() -> None:
    assert to_markdown(document([], [])) == "page 0\n\npage 1"


def test_content_list_of_a_paper_page() -> None:
    """MinerU puts what stands beside the text at the end of the page, and captions with their table or picture."""
    result = document(
        [],
        [
            block("header", "Journal"),
            block("title", "A\n  Title"),
            block("text", "First half", merge_prev=False),
            block("text", "second half.", merge_prev=True),
            block("equation", "\\[\na^{2}\n\\]"),
            block("text", r"where \( c \) is known", merge_prev=False),
            block("table_caption", "Table 1"),
            block("table", "<table><tr><td>x</td></tr></table>"),
            block("table_footnote", "* p<0.05"),
            block("image", None),
            block("image_caption", "Fig. 1"),
            block("page_number", "7"),
        ],
    )
    place = {"bbox": [100, 290, 570, 900], "page_idx": 1}
    assert to_content_list(result) == [
        {"type": "text", "text": "A Title", "text_level": 1, **place},
        {"type": "text", "text": "First half second half.", **place},
        {"type": "equation", "text": "$$\na^{2}\n$$", "text_format": "latex", **place},
        {"type": "text", "text": "where $c$ is known", **place},
        {
            "type": "table",
            "img_path": "",
            "table_caption": ["Table 1"],
            "table_footnote": ["* p<0.05"],
            "table_body": "<table><tr><td>x</td></tr></table>",
            **place,
        },
        {"type": "image", "img_path": "", "image_caption": ["Fig. 1"], "image_footnote": [], "content": "", **place},
        {"type": "header", "text": "Journal", **place},
        {"type": "page_number", "text": "7", **place},
    ]


def test_content_list_of_pictures_and_charts() -> None:
    assert content_list(
        block("image_block", None, [0, 0, 1, 1]),
        block("image", "A dog", sub_type="natural_image"),
        block("chart", "|a|b|", sub_type="bar"),
        block("caption", "Chart 1"),
        block("footnote", "Source: us"),
    ) == [
        {
            "type": "image",
            "img_path": "",
            "image_caption": [],
            "image_footnote": [],
            "content": "A dog",
            "sub_type": "natural_image",
        },
        {
            "type": "chart",
            "img_path": "",
            "chart_caption": ["Chart 1"],
            "chart_footnote": ["Source: us"],
            "content": "|a|b|",
            "sub_type": "bar",
        },
    ]


def test_content_list_of_code() -> None:
    assert content_list(block("code_caption", "Listing 1"), block("code", "a<b"), block("algorithm", "1: do")) == [
        {"type": "code", "sub_type": "code", "code_caption": ["Listing 1"], "code_body": "```txt\na<b\n```"},
        {"type": "code", "sub_type": "algorithm", "code_caption": [], "code_body": "1: do"},
    ]


@pytest.mark.parametrize(("kind", "sub_type"), [("text", "text"), ("ref_text", "ref_text")])
def test_content_list_of_lists(kind: str, sub_type: str) -> None:
    inside, outside = [0.11, 0.11, 0.89, 0.2], [0.1, 0.5, 0.9, 0.6]
    items = [block(kind, r"\(1\)", inside), block(kind, "", inside), block(kind, "2", inside)]
    assert content_list(block("list", None, [0.1, 0.1, 0.9, 0.4]), *items, block(kind, "3", outside)) == [
        {"type": "list", "sub_type": sub_type, "list_items": ["$1$", "2"]},
        {"type": kind, "text": "3"},
    ]


def test_content_list_keeps_captions_without_an_owner_and_leaves_out_what_is_empty() -> None:
    assert content_list(
        block("image_caption", "Fig. 1"),
        block("text", None),
        block("text", ""),
        block("list", None),
        block("equation", None),
        block("image", None),
        block("paragraph_title", "Section"),
        block("code_caption", None),
        block("formula_number", "(3)"),
        block("phonetic", "ni hao"),
    ) == [
        {"type": "text", "text": "Fig. 1"},
        {"type": "image", "img_path": "", "image_caption": [], "image_footnote": [], "content": ""},
        {"type": "text", "text": "Section", "text_level": 2},
        {"type": "text", "text": "(3)"},
        {"type": "phonetic", "text": "ni hao"},
    ]


def test_content_list_joins_chinese_without_a_blank_and_only_within_a_page() -> None:
    first, second = block("text", "前半", merge_prev=False), block("text", "后半", merge_prev=True)
    place = {"bbox": [100, 290, 570, 900]}
    assert to_content_list(document([first, second], [second])) == [
        {"type": "text", "text": "前半后半", **place, "page_idx": 0},
        {"type": "text", "text": "后半", **place, "page_idx": 1},
    ]

"""Renderings of a document result: our JSON, MinerU's content list, Markdown. Knows results; no model and no HTTP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from handler.parse import DocumentResult
    from handler.pipeline import PageResult

Entry = dict[str, Any]
Block = dict[str, Any]

TITLE_LEVELS = {"title": 1, "doc_title": 1, "paragraph_title": 2}
# Beside the text proper; the content list puts them at the end of their page.
PARATEXT = frozenset({"header", "footer", "page_number", "aside_text", "page_footnote"})
OWN_TEXT_TYPES = PARATEXT | {"ref_text", "phonetic"}
VISUALS = {"image": "image", "image_block": "image", "chart": "chart", "table": "table"}
VISUALS |= {"code": "code", "algorithm": "code"}
CAPTIONS = {"table_caption": {"table"}, "image_caption": {"image", "chart"}, "code_caption": {"code"}}
CAPTIONS["caption"] = {"table", "image", "chart", "code"}
FOOTNOTES = {"table_footnote": {"table"}, "image_footnote": {"image", "chart"}}
FOOTNOTES["footnote"] = CAPTIONS["caption"]
# A table's caption stands above it, a picture's below.
CAPTION_ABOVE = frozenset({"table_caption", "code_caption"})
MIN_COVERED = 0.8  # share of an item's area inside its list or image block

_INLINE = re.compile(r"(?<!\\)\\\(\s*(.+?)\s*(?<!\\)\\\)", re.DOTALL)
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")


class PageJson(TypedDict):
    """One page. `page` counts from 1."""

    page: int
    size_px: list[int]
    blocks: list[Block]
    markdown: str
    warnings: list[str]
    complete: bool
    timings_ms: dict[str, float]
    n_tokens: int


class DocumentJson(TypedDict):
    """A whole result. `n_pages` are those of the document, of which `pages` has the ones asked for."""

    n_pages: int
    pages: list[PageJson]
    markdown: str
    warnings: list[str]
    complete: bool
    timings_ms: dict[str, float]
    model: dict[str, Any]


def to_json(result: DocumentResult) -> DocumentJson:
    """Render everything that is known, as plain values."""
    return {
        "n_pages": result.n_document_pages,
        "pages": [_page(page) for page in result.pages],
        "markdown": result.markdown,
        "warnings": result.warnings,
        "complete": result.complete,
        "timings_ms": _rounded(result.timings_ms),
        "model": result.model,
    }


def to_markdown(result: DocumentResult) -> str:
    """Render the Markdown of all pages."""
    return result.markdown


def to_content_list(result: DocumentResult) -> list[Entry]:
    """Render MinerU's content list: one flat list of what can be read, in reading order.

    Returns
    -------
    list of dict
        `type` (text, equation, table, image, chart, code, list, ref_text, phonetic, header, footer, …), `bbox` in
        thousandths of the page, `page_idx` from 0, and the fields of the type.

    Source: `content_list.json` as MinerU 3's output_files.md describes it for the VLM backend. Differs: `img_path` is
    empty, since no pictures are cut out; captions go to the next table, picture or code in reading order, not by
    distance on the page; a `paragraph_title` has level 2; texts without content are left out.
    """
    return [entry for page in result.pages for entry in _content_of(page)]


def _page(page: PageResult) -> PageJson:
    return {
        "page": page.index + 1,
        "size_px": list(page.size_px),
        "blocks": page.blocks,
        "markdown": page.markdown,
        "warnings": page.warnings,
        "complete": page.complete,
        "timings_ms": _rounded(page.timings_ms),
        "n_tokens": page.n_tokens,
    }


def _rounded(timings_ms: dict[str, float]) -> dict[str, float]:
    return {phase: round(ms, 1) for phase, ms in timings_ms.items()}


def _content_of(page: PageResult) -> list[Entry]:
    margin = [block for block in page.blocks if block["type"] in PARATEXT]
    body = [block for block in page.blocks if block["type"] not in PARATEXT and not _is_frame(block, page.blocks)]
    owners = {index: owner for index in range(len(body)) if (owner := _owner(body, index)) is not None}
    homes = {index: home for index in range(len(body)) if (home := _home(body, index)) is not None}
    entries: list[Entry] = []
    last_text: Entry | None = None
    for index, block in enumerate(body):
        if index in owners or index in homes:
            continue
        if last_text is not None and block.get("merge_prev") and block["content"]:
            last_text["text"] += ("" if _CJK.search(block["content"]) else " ") + _text(block)
            continue
        entry = _visual(block) if block["type"] in VISUALS else _reading(block, _children(body, homes, index))
        if entry is None:
            continue
        for child in _children(body, owners, index):
            name = "caption" if child["type"] in CAPTIONS else "footnote"
            entry.setdefault(f"{entry['type']}_{name}", []).append(_text(child))
        entries.append(_place(entry, block, page))
        if block["type"] == "text":
            last_text = entry
    return entries + [_place(entry, block, page) for block in margin if (entry := _reading(block, [])) is not None]


def _children(body: list[Block], parents: dict[int, int], index: int) -> list[Block]:
    return [body[child] for child, parent in parents.items() if parent == index and body[child]["content"]]


def _place(entry: Entry, block: Block, page: PageResult) -> Entry:
    entry["bbox"] = [round(edge * 1000) for edge in block["bbox"]]
    entry["page_idx"] = page.index
    return entry


def _text(block: Block) -> str:
    r"""Text with MinerU's dollars around formulas instead of `\( \)`."""
    return _INLINE.sub(r"$\1$", block["content"] or "")


def _reading(block: Block, items: list[Block]) -> Entry | None:
    """Entry of a block that is text, an equation or a list; None if it has nothing to read."""
    kind = block["type"]
    if kind == "list":
        texts = [_text(item) for item in items if item["content"]]
        sub_type = "ref_text" if items and all(item["type"] == "ref_text" for item in items) else "text"
        return {"type": "list", "sub_type": sub_type, "list_items": texts} if texts else None
    if not block["content"]:
        return None
    if kind == "equation":
        latex = block["content"].strip().removeprefix("\\[").removesuffix("\\]").strip()
        return {"type": "equation", "text": f"$$\n{latex}\n$$", "text_format": "latex"}
    entry: Entry = {"type": kind if kind in OWN_TEXT_TYPES else "text", "text": _text(block)}
    if kind in TITLE_LEVELS:
        entry["text"] = re.sub(r"\n\s*", " ", entry["text"]).strip()
        entry["text_level"] = TITLE_LEVELS[kind]
    return entry


def _visual(block: Block) -> Entry:
    kind, content = VISUALS[block["type"]], block["content"] or ""
    if kind == "code":
        body = content if block["type"] == "algorithm" else f"```txt\n{content}\n```"
        return {"type": kind, "sub_type": block["type"], "code_caption": [], "code_body": body}
    entry: Entry = {"type": kind, "img_path": "", f"{kind}_caption": [], f"{kind}_footnote": []}
    if kind == "table":
        return {**entry, "table_body": content} if content else entry
    entry["content"] = content
    if block.get("sub_type"):
        entry["sub_type"] = block["sub_type"]
    return entry


def _is_frame(block: Block, blocks: list[Block]) -> bool:
    """Whether a block only holds pictures that are blocks themselves."""
    return block["type"] == "image_block" and any(
        other["type"] in ("image", "chart") and _covered(other, block) for other in blocks
    )


def _owner(body: list[Block], index: int) -> int | None:
    """The table, picture or code that a caption or footnote belongs to: the nearest with nothing else between."""
    kind = body[index]["type"]
    wanted = CAPTIONS.get(kind) or FOOTNOTES.get(kind)
    if wanted is None:
        return None
    for step in (1, -1) if kind in CAPTION_ABOVE else (-1, 1):
        at = index + step
        while 0 <= at < len(body) and (body[at]["type"] in CAPTIONS or body[at]["type"] in FOOTNOTES):
            at += step
        if 0 <= at < len(body) and VISUALS.get(body[at]["type"]) in wanted:
            return at
    return None


def _home(body: list[Block], index: int) -> int | None:
    """The list that a text or reference lies in."""
    if body[index]["type"] not in ("text", "ref_text"):
        return None
    lists = (i for i, block in enumerate(body) if block["type"] == "list")
    return next((i for i in lists if _covered(body[index], body[i])), None)


def _covered(inner: Block, outer: Block) -> bool:
    a, b = inner["bbox"], outer["bbox"]
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    area = (a[2] - a[0]) * (a[3] - a[1])
    return bool(min(width, height) > 0 and width * height >= MIN_COVERED * area)

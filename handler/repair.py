"""From raw answers to contents without losing any: repairs, upstream's post-processing, and what it leaves undone.

    strip stop tokens → repair tables and equations → upstream's post_process → text beside tables, traces back

Knows blocks of one page; knows nothing about images or models. Warnings name a code and a block, never its text.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

from handler.repair_latex import repair_equation
from handler.repair_table import TableAnswer, repair_table
from handler.upstream import Block, Upstream

STOP_TOKENS = "stop_tokens: tokens that end an answer stood in its text and were taken out"
MISSING_LINE = "equation_line_missing: a line of the equation was not read"
POST_PROCESS_FAILED = "post_process_failed: the answer was kept as it came"
UNTAGGED = "image_answer_untagged: the answer was kept as it came"
PICTURE_DROPPED = "image_answer_dropped: the answer about the picture was malformed"
PICTURE_UNPLACED = "table_picture_unplaced: a picture inside the table has no place in the answer"

_NAMES = ("im_start", "im_end", "endoftext", "vision_start", "vision_end", "image_pad", "video_pad")
_TOKENS = tuple(f"<|{name}|>" for name in _NAMES)
_STOP = re.compile("|".join(map(re.escape, _TOKENS)))
_PICTURE_TOKENS = "_table_image_token_map"  # upstream's, on a table with pictures inside


@dataclass(slots=True)
class Processed:
    """A block after post-processing, and which of the blocks before it came from."""

    block: Block
    sources: list[int]
    warnings: list[str] = field(default_factory=list)


def strip_stop_tokens(kind: str, answer: str) -> str:
    """Take out tokens that end an answer. In code only at the end: inside, they may be what is documented."""
    if kind in ("code", "algorithm"):
        while answer.rstrip().endswith(_TOKENS):
            answer = answer.rstrip()[: answer.rstrip().rindex("<|")].rstrip()
        return answer
    return _STOP.sub("", answer)


def finish(upstream: Upstream, blocks: list[Block]) -> tuple[list[Processed], list[str]]:
    """Turn the raw answers in `content` into contents.

    Parameters
    ----------
    upstream : Upstream
    blocks : list of blocks
        As the layout step found them, with raw answers; None where nothing was read. Changed in place.

    Returns
    -------
    list of Processed, list of str
        Blocks in upstream's order, and warnings that belong to no block that is left.
    """
    n = len(blocks)
    kinds = [block["type"] for block in blocks]
    answers = [block["content"] for block in blocks]
    notes: list[list[str]] = [[] for _ in range(n)]
    tables: dict[int, TableAnswer] = {}
    for index, block in enumerate(blocks):
        _repair(block, notes[index], tables, index)
    empty_lines = _missing_lines(blocks)
    processed, warnings = _post_process(upstream, blocks, notes)
    for index in empty_lines:
        if not blocks[index]["content"]:
            blocks[index]["content"] = None
    results = _trace(blocks, processed)
    for result in results:
        for index in result.sources:
            result.warnings += notes[index]
            if index in empty_lines and result.block is not blocks[index]:
                result.warnings.append(MISSING_LINE)
            if index in tables:
                _put_beside(result.block, tables[index])
            if kinds[index] in ("image", "chart"):
                _keep_picture_answer(result, answers[index])
    kept = {index for result in results for index in result.sources}
    warnings += [
        f"{note} ({kinds[index]}, left out)" for index in range(n) if index not in kept for note in notes[index]
    ]
    return results, warnings


def _repair(block: Block, notes: list[str], tables: dict[int, TableAnswer], index: int) -> None:
    answer = block["content"]
    if answer is None:
        return
    stripped = strip_stop_tokens(block["type"], answer)
    if stripped != answer:
        notes.append(STOP_TOKENS)
        block["content"] = stripped
    if block["type"] == "table":
        tables[index] = repaired = repair_table(stripped)
        block["content"] = repaired.content
        notes += repaired.warnings
        if any(not re.search(rf"\[\s*{token[1:-1]}\s*\]", stripped) for token in block.get(_PICTURE_TOKENS, ())):
            notes.append(PICTURE_UNPLACED)
    elif block["type"] == "equation":
        block["content"], warnings = repair_equation(stripped)
        notes += warnings


def _missing_lines(blocks: list[Block]) -> list[int]:
    """Give equations without content an empty one where there is an equation_block.

    Upstream joins the lines of such a block and fails on None, which would switch post-processing off for the page.
    An empty line leaves its gap in the array, where a reader sees it.
    """
    if not any(block["type"] == "equation_block" for block in blocks):
        return []
    missing = [i for i, block in enumerate(blocks) if block["type"] == "equation" and block["content"] is None]
    for index in missing:
        blocks[index]["content"] = ""
    return missing


def _post_process(upstream: Upstream, blocks: list[Block], notes: list[list[str]]) -> tuple[list[Block], list[str]]:
    """Run upstream on the page; if that raises, on each block alone, so that one bad block harms no other."""
    before = [dict(block) for block in blocks]
    try:
        return upstream.post_process(blocks)
    except Exception:
        processed: list[Block] = []
        warnings: list[str] = []
        for block, saved, note in zip(blocks, before, notes):
            _restore(block, saved)
            try:
                alone, said = upstream.post_process([block])
            except Exception:
                _restore(block, saved)
                alone, said = [block], []
                note.append(POST_PROCESS_FAILED)
            processed += alone
            warnings += said
        return processed, list(dict.fromkeys(warnings))


def _restore(block: Block, saved: Block) -> None:
    block.clear()
    block.update(saved)


def _trace(blocks: list[Block], processed: list[Block]) -> list[Processed]:
    """Find what each block came from. A block that upstream made anew is a row of equations joined into one."""
    index_of = {id(block): index for index, block in enumerate(blocks)}
    kept = {index_of.get(id(block)) for block in processed}
    results = []
    for block in processed:
        index = index_of.get(id(block))
        sources = [index] if index is not None else []
        if index is None:
            lines = (i for i, line in enumerate(blocks) if line["type"] == "equation" and i not in kept)
            sources = [i for i in lines if _centre_inside(blocks[i]["bbox"], block["bbox"])]
        results.append(Processed(block, sources))
    return results


def _centre_inside(inner: list[float], outer: list[float]) -> bool:
    x, y = (inner[0] + inner[2]) / 2, (inner[1] + inner[3]) / 2
    return outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3]


def _put_beside(block: Block, table: TableAnswer) -> None:
    """Put text that belongs to no cell before and after the table; before it as its caption, inside its element."""
    content = block["content"] or ""
    if table.before:
        caption = html.escape(table.before)
        opening = re.match(r"<table[^>]*>", content)
        if opening:
            content = f"{opening[0]}<caption>{caption}</caption>{content[opening.end() :]}"
        else:
            content = f"{caption}\n\n{content}".rstrip()
    if table.after:
        content = f"{content}\n\n{html.escape(table.after)}"
    if table.before or table.after:
        block["content"] = content


def _keep_picture_answer(result: Processed, answer: str | None) -> None:
    """Tell when upstream emptied the answer about a picture; keep it where it is plain text."""
    if not answer or not answer.strip() or result.block["content"]:
        return
    if "<|class_start|>" in answer:
        result.warnings.append(PICTURE_DROPPED)
    else:
        result.block["content"] = _STOP.sub("", answer).strip()
        result.warnings.append(UNTAGGED)

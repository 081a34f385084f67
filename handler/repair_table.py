"""Repairs of a table answer before upstream converts it to HTML. Knows OTSL; knows nothing about pages.

Upstream's converter takes for granted that text stands after an `<fcel>` and nowhere else. Where a model deviates, it
loses the text of that cell, of the rows that follow or of the whole table. Here such an answer is written anew, so
that every piece of text stands in a cell, or beside the table if it belongs to no cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from handler.upstream import markdown_table_to_html

NON_TEXT = "[Non-Text]"
# Each is told to the caller with the block's place; none holds text of the document.
BEFORE_FIRST_CELL = "table_text_before_first_cell: kept as the caption of the table"
CELL_WITHOUT_TOKEN = "table_text_without_cell: text outside of any cell was given a cell of its own"
EMPTY_ROWS = "table_empty_rows: rows without cells were left out"
NO_CELLS = "table_without_cells: the answer is plain text; each line was made a row"
MARKDOWN_TABLE = "table_as_markdown: the answer was a Markdown table"
AROUND_HTML = "table_text_around_html: kept before and after the table"
DIALECT = "table_token_dialect: other spellings of the cell tokens were read as cells"
HALF_TOKEN = "table_half_token: the answer was cut inside a cell token, which was dropped"
GRID_TOO_LARGE = "table_grid_too_large: the rows differ too much in length; the cells of each were joined"
NON_TEXT_ANSWER = "non_text: the model found nothing to read"

# Upstream pads all rows to the longest, at 12 us and 2 kB a cell: a looping answer would end in minutes and GBs.
MAX_GRID_CELLS = 50_000

_TOKEN = re.compile(r"<(fcel|ecel|lcel|ucel|xcel|nl)>")
_ANY_CASE = re.compile(_TOKEN.pattern, re.IGNORECASE)
_HEADERS = re.compile(r"<(?:ched|rhed|srow)>")  # docling's cells of a column header, row header, section row
# From two letters on: "<n" or "<f" at the end could be a formula.
_HALF = re.compile(r"<(?:[felux]c(?:el?)?|nl|ch(?:ed?)?|rh(?:ed?)?|sr(?:ow?)?)$")
_HTML = re.compile(r"<table.*</table>", re.DOTALL)

_Row = list[tuple[str, str]]  # token, text after it


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """A repaired answer: what upstream is to convert, and text that belongs before and after the table."""

    content: str | None
    warnings: tuple[str, ...] = ()
    before: str = ""
    after: str = ""


def repair_table(answer: str) -> TableAnswer:
    """Bring a table answer into the form that upstream converts without loss.

    Parameters
    ----------
    answer : str
        What the model wrote; OTSL, as a rule.

    Returns
    -------
    TableAnswer
        An answer that upstream converts without loss comes back unchanged.

    Source: `convert_otsl_to_html` of mineru-vl-utils 2.0.7, whose losses these are. A column span that runs into a
    row span is left to it: its cells don't line up then, but all text is there.
    """
    text = answer.strip()
    if text == NON_TEXT:
        return TableAnswer(None, (NON_TEXT_ANSWER,))
    html = _HTML.search(text)
    if html:
        before, after = text[: html.start()].strip(), text[html.end() :].strip()
        return TableAnswer(html[0], (AROUND_HTML,) if before or after else (), before, after)
    warnings: list[str] = []
    if not _TOKEN.search(text) and _ANY_CASE.search(text):
        answer, warnings = _ANY_CASE.sub(lambda token: token[0].lower(), answer), [DIALECT]
    elif _HEADERS.search(answer):
        answer, warnings = _HEADERS.sub("<fcel>", answer), [DIALECT]
    if not _TOKEN.search(answer):
        return _without_cells(text)
    half = _HALF.search(answer.rstrip())
    if half:
        answer = answer.rstrip()[: half.start()]
        warnings.append(HALF_TOKEN)
    return _with_cells(answer, warnings)


def _without_cells(text: str) -> TableAnswer:
    if not text:
        return TableAnswer(text)
    html = markdown_table_to_html(text)
    if html:
        return TableAnswer(html, (MARKDOWN_TABLE,))
    rows = "".join(f"<fcel>{line.strip()}<nl>" for line in text.splitlines() if line.strip())
    return TableAnswer(rows, (NO_CELLS,))


def _with_cells(answer: str, warnings: list[str]) -> TableAnswer:
    lead, rows, found = _read_rows(answer)
    if lead and _lacks_first_cell(rows):
        rows[0].insert(0, ("fcel", lead))
        lead = ""
        found.append(CELL_WITHOUT_TOKEN)
    elif lead:
        found.append(BEFORE_FIRST_CELL)
    if rows and len(rows) * max(map(len, rows)) > MAX_GRID_CELLS:
        rows = [[("fcel", " ".join(text.strip() for _, text in row if text.strip()))] for row in rows]
        found.append(GRID_TOO_LARGE)
    if not found:
        return TableAnswer(answer, tuple(warnings))
    content = "".join("".join(f"<{token}>{text}" for token, text in row) + "<nl>" for row in rows)
    return TableAnswer(content, (*warnings, *dict.fromkeys(found)), before=lead)


def _read_rows(answer: str) -> tuple[str, list[_Row], list[str]]:
    """Split OTSL into text before the first token, rows that have cells, and what had to be put right."""
    lead, *rest = _TOKEN.split(answer)
    rows: list[_Row] = []
    found: list[str] = []
    row: _Row = []
    gap = False
    for token, text in zip(rest[::2], rest[1::2]):
        if token == "nl":
            if row:
                rows.append(row)
            row, gap = [], gap or not row
            if not text.strip():
                continue
        elif gap:
            found.append(EMPTY_ROWS)
            gap = False
        if token != "fcel" and text.strip():
            found.append(CELL_WITHOUT_TOKEN)
            token = "fcel"
        row.append((token, text))
    if row:
        rows.append(row)
    return lead.strip(), rows, found


def _lacks_first_cell(rows: list[_Row]) -> bool:
    """Whether the first row is one cell short of the others: then the text before it is that cell."""
    return len(rows) > 1 and max(map(len, rows[1:])) == len(rows[0]) + 1

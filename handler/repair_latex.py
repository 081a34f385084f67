"""Repairs of an equation answer before upstream's post-processing. Knows LaTeX's surface, and nothing of pages."""

from __future__ import annotations

import re

from handler.repair_table import NON_TEXT, NON_TEXT_ANSWER

DELIMITERS = "equation_delimiters: math delimiters inside the equation were taken out"
DOUBLE_SUBSCRIPT = "equation_double_subscript: an empty group was put between two subscripts"

# A group of words may hold formulas of its own, with delimiters that belong there.
_WORDS = r"\\(?:text[a-z]*|[mhf]box)\s*\{(?:[^{}]|\{[^{}]*\})*\}"
_DELIMITER = re.compile(rf"(?P<other>{_WORDS}|\\(?:left|right)\s*\\.|\\[\\$])|\\[()\[\]]|\$\$?")
_CLOSING = {"\\(": "\\)", "\\[": "\\]", "$": "$", "$$": "$$"}
# A subscript with another after it: upstream deletes both. Looked for at every place, since one may hold others.
_BEFORE_SUBSCRIPT = re.compile(r"(?=(_\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*_\s*\{)")


def repair_equation(answer: str) -> tuple[str | None, list[str]]:
    r"""Bring an equation answer into the form that upstream processes without loss.

    Parameters
    ----------
    answer : str
        LaTeX, with or without `\[` and `\]` around it.

    Returns
    -------
    tuple of str or None, list of str
        The answer, unchanged if nothing is wrong with it, and warnings. None: the model found nothing to read.

    Source: `_process_equation` of mineru-vl-utils 2.0.7, which leaves dollars and inline delimiters inside its
    `\[ \]`, where they are errors, and deletes two subscripts in a row.
    """
    if answer.strip() == NON_TEXT:
        return None, [NON_TEXT_ANSWER]
    latex, warnings = _drop_delimiters(answer), []
    if latex != answer:
        warnings.append(DELIMITERS)
    ends = sorted({match.end(1) for match in _BEFORE_SUBSCRIPT.finditer(latex)})
    if ends:
        warnings.append(DOUBLE_SUBSCRIPT)
        latex = " {}".join(latex[a:b] for a, b in zip([0, *ends], [*ends, len(latex)]))
    return latex, warnings


def _drop_delimiters(answer: str) -> str:
    r"""Take out all delimiters but the `\[` in front and the `\]` at the end, which upstream takes off itself."""
    latex = answer.strip()
    found = [match for match in _DELIMITER.finditer(latex) if match["other"] is None]
    if sum(match[0] in ("$", "$$") for match in found) % 2:
        found = [match for match in found if match[0] not in ("$", "$$")]  # a lone dollar is an amount of money
    outer = {(0, "\\["), (len(latex) - 2, "\\]")}
    if all((match.start(), match[0]) in outer for match in found):
        return answer
    pairs = list(zip(found[::2], found[1::2]))
    if len(found) % 2 or any(_CLOSING.get(first[0]) != last[0] for first, last in pairs):
        return _joined([latex[a:b] for a, b in _between(found, len(latex))])
    parts: list[str] = []
    at = 0
    for first, last in pairs:
        outside = _as_words(latex[at : first.start()])
        if at and not outside.strip() and first[0] in ("\\[", "$$"):
            outside = r" \qquad "  # two equations, which would run into each other
        parts += [outside, latex[first.end() : last.start()].strip()]
        at = last.end()
    return _joined([*parts, _as_words(latex[at:])])


def _between(found: list[re.Match[str]], end: int) -> list[tuple[int, int]]:
    return list(zip([0, *(match.end() for match in found)], [*(match.start() for match in found), end]))


def _joined(parts: list[str]) -> str:
    """Join, with a blank where a command would otherwise swallow a letter."""
    latex = ""
    for part in parts:
        glued = re.search(r"\\[A-Za-z]+$", latex) and re.match(r"[A-Za-z]", part)
        latex += f" {part}" if glued else part
    return latex.strip()


def _as_words(outside: str) -> str:
    """Words between two formulas, in a form that shows as words inside one."""
    if re.search(r"[^\W\d_]{2}", outside) and not re.search(r"[\\^_{}&#%~]", outside):
        return f"\\text{{{outside}}}"
    return outside

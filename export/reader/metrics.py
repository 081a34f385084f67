"""Edit distance and what is counted with it. Knows nothing of models."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np


def edit_distance(first: Sequence[object], second: Sequence[object]) -> int:
    """Levenshtein distance, row by row in numpy."""
    if len(first) < len(second):
        first, second = second, first
    if not second:
        return len(first)
    index: dict[object, int] = {}
    a = np.array([index.setdefault(item, len(index)) for item in first])
    b = np.array([index.setdefault(item, len(index)) for item in second])
    steps = np.arange(len(b) + 1)
    row = steps.copy()
    for position, item in enumerate(a, start=1):
        best = np.empty_like(row)
        best[0] = position
        best[1:] = np.minimum(row[:-1] + (b != item), row[1:] + 1)
        # An insertion run costs one a step: the running minimum of (cost - index) gives all of them at once.
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


OTSL = re.compile(r"<(?:fcel|ecel|lcel|ucel|xcel|nl)>")
Located = tuple[str, tuple[float, ...]]  # type, box


def structure_of(otsl: str) -> list[str]:
    """Structure tokens of a table, texts left out."""
    return OTSL.findall(otsl)


def cells_of(otsl: str) -> list[str]:
    """Texts of the filled cells."""
    return [part.strip() for token, part in zip(OTSL.findall(otsl), OTSL.split(otsl)[1:]) if token == "<fcel>"]


def iou(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Intersection over union of two boxes."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return width * height / (sum(areas) - width * height)


def block_matches(got: list[Located], wanted: list[Located], threshold: float = 0.7) -> list[tuple[int, int]]:
    """Pairs (got, wanted) of the same type whose boxes agree, best first, each used once; sorted by `wanted`."""
    scored = [
        (iou(box, true_box), i, j)
        for i, (kind, box) in enumerate(got)
        for j, (true_kind, true_box) in enumerate(wanted)
        if kind == true_kind
    ]
    used_got: set[int] = set()
    used_wanted: set[int] = set()
    pairs = []
    for score, i, j in sorted(scored, reverse=True):
        if score < threshold or i in used_got or j in used_wanted:
            continue
        used_got.add(i)
        used_wanted.add(j)
        pairs.append((i, j))
    return sorted(pairs, key=lambda pair: pair[1])


def in_order(pairs: list[tuple[int, int]]) -> bool:
    """Whether the found blocks come in the order of the truth."""
    found = [i for i, _ in pairs]
    return found == sorted(found)

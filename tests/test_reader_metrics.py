"""Counting of errors."""

from __future__ import annotations

import random

from export.reader import metrics


def _slow_distance(first: str, second: str) -> int:
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(second, start=1):
            before, row[j] = row[j], min(before + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def test_edit_distance_is_the_textbooks():
    chance = random.Random(0)
    for _ in range(200):
        first, second = ("".join(chance.choices("abc", k=chance.randrange(12))) for _ in range(2))
        assert metrics.edit_distance(first, second) == _slow_distance(first, second), (first, second)


def test_structure_and_cells_of_otsl():
    otsl = "<fcel>a b<lcel><ecel><nl><fcel>c<fcel> d<ucel><nl>"
    assert metrics.structure_of(otsl) == ["<fcel>", "<lcel>", "<ecel>", "<nl>", "<fcel>", "<fcel>", "<ucel>", "<nl>"]
    assert metrics.cells_of(otsl) == ["a b", "c", "d"]


def test_blocks_match_by_type_and_overlap_once():
    wanted = [("text", (0.0, 0.0, 1.0, 0.5)), ("text", (0.0, 0.5, 1.0, 1.0)), ("title", (0.0, 0.0, 0.5, 0.5))]
    got = [
        ("text", (0.0, 0.5, 1.0, 0.98)),
        ("text", (0.0, 0.0, 1.0, 0.52)),
        ("text", (0.0, 0.0, 1.0, 0.51)),
        ("text", (0.0, 0.0, 0.5, 0.5)),
    ]
    pairs = metrics.block_matches(got, wanted)
    assert pairs == [(2, 0), (0, 1)]
    assert not metrics.in_order(pairs)
    assert metrics.in_order([(0, 0), (2, 1)])

"""What is drawn at which step: kinds of crops, their sizes, and how many go into one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.reader import crops, formulas, pages, tables
from export.reader.draw import Sample

# Which of the prompts a kind answers; the others answer "text".
PROMPT_OF = {"table": "table", "formula": "formula", "layout": "layout"}
BATCH_GMAC = 24.0
N_MAX_BATCH = 144
N_MAX_CELLS = 320
# Small crops that only the vision tower sees: four times as many characters for the same time.
GLANCE = "glance"


@dataclass(frozen=True, slots=True)
class Stage:
    """Shares of the kinds up to a step, and the largest size of text crops in cells."""

    until_step: int
    shares: dict[str, float]
    max_columns: int
    max_rows: int


STAGES = (
    Stage(400, {"line": 1.0}, 6, 1),
    Stage(800, {"line": 0.7, "glance": 0.3}, 12, 2),
    Stage(2700, {"glance": 0.2, "line": 0.3, "paragraph": 0.33, "table": 0.05, "layout": 0.12}, 16, 2),
    Stage(
        3600, {"glance": 0.2, "line": 0.12, "paragraph": 0.42, "table": 0.08, "formula": 0.04, "layout": 0.14}, 20, 3
    ),
    Stage(
        5000, {"glance": 0.15, "line": 0.1, "paragraph": 0.42, "table": 0.11, "formula": 0.05, "layout": 0.17}, 30, 5
    ),
    Stage(
        10**9, {"glance": 0.1, "line": 0.12, "paragraph": 0.4, "table": 0.13, "formula": 0.06, "layout": 0.19}, 40, 10
    ),
)


def stage_at(step: int) -> Stage:
    """Stage that a step belongs to."""
    return next(stage for stage in STAGES if step < stage.until_step)


def batch_size(n_cells: int, n_tokens: float) -> int:
    """Samples that make a step cost the same, whatever their size."""
    gmac = (n_cells * 12.3 + (n_cells + 12 + n_tokens) * 4.1) / 1000.0
    return int(np.clip(BATCH_GMAC / gmac, 2, N_MAX_BATCH))


def draw_batch(random: np.random.Generator, step: int) -> tuple[str, list[Sample], NDArray[np.float32] | None]:
    """Samples of one size and kind, and maps of the layout where they are pages."""
    stage = stage_at(step)
    kinds = list(stage.shares)
    weights = np.array([stage.shares[kind] for kind in kinds])
    kind = kinds[int(random.choice(len(kinds), p=weights / weights.sum()))]
    if kind == "layout":
        return kind, *_layout_batch(random)
    if kind == GLANCE:
        rows, columns = int(random.integers(1, 5)), int(random.integers(4, 13))
        n = int(BATCH_GMAC * 1000 / 12.3 / (rows * columns))
        return kind, [crops.text_crop(random, rows, columns) for _ in range(n)], None
    rows, columns = _size(random, kind, stage)
    tokens_per_cell = {"line": 3.5, "paragraph": 3.2, "table": 2.0, "formula": 2.5}[kind]
    n = batch_size(rows * columns, rows * columns * tokens_per_cell)
    draw = {"table": tables.table_crop, "formula": formulas.formula_crop}.get(kind, crops.text_crop)
    return kind, [draw(random, rows, columns) for _ in range(n)], None


def _size(random: np.random.Generator, kind: str, stage: Stage) -> tuple[int, int]:
    """Rows and columns of a batch in cells."""
    if kind == "line":
        return 1, int(random.integers(2, stage.max_columns + 1))
    if kind == "formula":
        return int(random.integers(1, 4)), int(random.integers(4, min(20, stage.max_columns) + 1))
    least = min(6, stage.max_columns)
    columns = int(random.integers(least, stage.max_columns + 1))
    if kind == "table":
        return int(random.integers(3, max(4, stage.max_rows) + 2)), max(8, columns)
    return min(int(random.integers(2, stage.max_rows + 1)), max(2, N_MAX_CELLS // columns)), columns


def _layout_batch(random: np.random.Generator) -> tuple[list[Sample], NDArray[np.float32]]:
    pairs = []
    for _ in range(batch_size(256, 400)):
        # The layout step shrinks every page to one size: small pages cost less to draw and end up the same.
        width_px = int(random.integers(620, 900) if random.random() < 0.85 else random.integers(900, 1300))
        pairs.append(pages.layout_sample(pages.draw_page(random, width_px)))
    return [sample for sample, _ in pairs], np.stack([maps for _, maps in pairs])

"""Pages as files: the picture, and beside it the truth as JSON and Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from export.reader import pages
from export.reader.evaluate import truth_markdown
from handler.upstream import Upstream


def write_pages(folder: Path, n_pages: int, seed: int, width_px: int) -> None:
    """Write `page-N.png`, `page-N.json` (layout and answers) and `page-N.md`.

    Parameters
    ----------
    folder : Path
    n_pages : int
    seed : int
        Of the first page.
    width_px : int
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = Upstream()
    for number in range(n_pages):
        page = pages.draw_page(np.random.default_rng([seed, number]), width_px)
        stem = folder / f"page-{number + 1}"
        Image.fromarray(page.image).save(stem.with_suffix(".png"), optimize=True)
        blocks = [
            {"type": block.type, "bbox": [v / 1000 for v in box], "angle": block.angle, "answer": block.answer}
            for block, box in zip(page.blocks, page.boxes())
        ]
        truth = {"layout": page.layout_answer(), "blocks": blocks}
        stem.with_suffix(".json").write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(truth_markdown(library, page) + "\n", encoding="utf-8")

"""Whole pages with their truth: blocks in reading order, the layout answer, and what each block's crop should answer.

One and two columns; a header, titles, paragraphs, lists, tables, formulas, pictures, captions, footer, page number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from export.reader import draw as drawing
from export.reader import fonts
from export.reader.blocks import Block, Drawer, draw_face
from export.reader.draw import Sample
from export.reader.flow import Flow
from export.reader.model import LAYOUT_SIZE_PX

ROTATION = {0: "<|rotate_up|>", 90: "<|rotate_right|>", 180: "<|rotate_down|>", 270: "<|rotate_left|>"}
TYPES = (
    "title", "text", "table", "equation", "image", "header", "footer", "page_number", "list", "image_caption",
    "table_caption",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """A drawn page and its truth, blocks in reading order."""

    image: NDArray[np.uint8]  # (height, width, 3)
    blocks: tuple[Block, ...]

    def boxes(self) -> list[tuple[int, int, int, int]]:
        """Boxes of the blocks in thousandths of the page."""
        height, width = self.image.shape[:2]
        scale = np.array([width, height, width, height]) / 1000.0
        found = []
        for block in self.blocks:
            a, b, c, d = np.clip(np.round(np.array(block.box_px) / scale), 0, 999).astype(int).tolist()
            found.append((a, b, c, d))
        return found

    def layout_answer(self) -> str:
        """The layout in MinerU's raw format, one block a line."""
        lines = [
            f"<|box_start|>{a:03d} {b:03d} {c:03d} {d:03d}<|box_end|><|ref_start|>{block.type}<|ref_end|>"
            f"{ROTATION[block.angle]}"
            for block, (a, b, c, d) in zip(self.blocks, self.boxes())
        ]
        return "\n".join(lines)


def draw_page(
    random: np.random.Generator, width_px: int, families: tuple[str, ...] = fonts.SEEN, noise: float = 0.6
) -> Page:
    """Draw a page.

    Parameters
    ----------
    random : Generator
    width_px : int
        Of the page; its height follows from a paper size.
    """
    ratio = (1.414, 1.414, 1.294, 0.75)[int(random.choice(4, p=(0.5, 0.2, 0.22, 0.08)))]
    oversample = 2 if random.random() < 0.25 else 1
    width, height = width_px * oversample, round(width_px * ratio) * oversample
    canvas = Image.new("L", (width, height), 255)
    size = width * float(random.uniform(0.0145, 0.021)) * (1.0 if ratio > 1 else 0.8)
    blocks = Flow(random, Drawer(random, canvas, draw_face(random, size, families))).fill()
    canvas = canvas.resize((width // oversample, height // oversample), Image.Resampling.BICUBIC)
    scaled = []
    for block in blocks:
        left, top, right, bottom = (value / oversample for value in block.box_px)
        scaled.append(replace(block, box_px=(left, top, right, bottom)))
    return Page(drawing.degrade(random, canvas, noise), tuple(scaled))


def layout_sample(page: Page) -> tuple[Sample, NDArray[np.float32]]:
    """The page as the layout step sees it, where each character of the answer looks, and a map of its patches.

    Returns
    -------
    sample : Sample
    maps : float32, (n_patches, 6)
        Class of the block over each patch (0 for none), the distances to its four edges, its place in reading order.
    """
    size = LAYOUT_SIZE_PX
    image = Image.fromarray(page.image).resize((size, size), Image.Resampling.BICUBIC)
    answer = page.layout_answer()
    positions: list[tuple[float, float]] = []
    n_side = size // 14
    table = np.zeros((n_side, n_side, 6), dtype=np.float32)
    centres = (np.arange(n_side) + 0.5) / n_side
    for order, (line, block, box) in enumerate(zip(answer.split("\n"), page.blocks, page.boxes())):
        left, top, right, bottom = (value / 1000.0 for value in box)
        first = (left * size + 1.0, top * size + 1.0)
        last = (right * size - 1.0, bottom * size - 1.0)
        n_first = len("<|box_start|>000 000")
        n_last = len(" 000 000")
        places = [first] * n_first + [last] * n_last
        positions += [*places, *[first] * (len(line) - len(places) + 1)]
        if block.type == "list":
            continue
        # A patch belongs to the block over its middle, or to a thin block that lies within it.
        rows = slice(int(top * n_side), max(int(top * n_side) + 1, int(np.ceil(bottom * n_side - 0.5))))
        columns = slice(int(left * n_side), max(int(left * n_side) + 1, int(np.ceil(right * n_side - 0.5))))
        table[rows, columns, 0] = 1 + TYPES.index(block.type)
        table[rows, columns, 5] = order
        y, x = centres[rows][:, None], centres[columns][None, :]
        for index, distance in enumerate((x - left, y - top, right - x, bottom - y), start=1):
            table[rows, columns, index] = 4.0 * distance
    merged = table.reshape(n_side // 2, 2, n_side // 2, 2, 6).transpose(0, 2, 1, 3, 4).reshape(-1, 6)
    places_array = np.array(positions[: len(answer)], dtype=np.float32).reshape(-1, 2)
    return Sample(np.asarray(image), answer, places_array), merged

"""Crops of running text: single lines and paragraphs as the boxes of a layout would cut them.

A crop is drawn for a given size in cells (28 px, one image token), stretched as much as the engine's rounding to whole
cells would stretch it, so that a batch has one size. Knows nothing of pages.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from export.reader import draw as drawing
from export.reader import fonts, words
from export.reader.draw import Positions, Sample

CELL_PX = 28


def stretch(random: np.random.Generator, n_cells: int) -> float:
    """How much rounding a side to whole cells may stretch it: natural size x stretch = cells."""
    return n_cells / (n_cells + float(random.uniform(-0.5, 0.5)))


def text_crop(
    random: np.random.Generator, rows: int, columns: int, families: tuple[str, ...] = fonts.SEEN, noise: float = 0.7
) -> Sample:
    """Draw a line (one row of cells) or a paragraph.

    Parameters
    ----------
    random : Generator
    rows, columns : int
        Size in cells.
    families : tuple of str
        Font families to draw from.
    noise : float
        Share of crops that get blur, noise or colour.
    """
    width, height = columns * CELL_PX, rows * CELL_PX
    x_stretch = stretch(random, columns)
    # One row is also what every thinner crop is enlarged to, in proportion; only taller ones are squeezed.
    y_stretch = 1.0 if rows == 1 and random.random() < 0.6 else stretch(random, rows)
    if rows == 1:
        y_stretch = min(y_stretch, 1.0)
    natural_width, natural_height = width / x_stretch, height / y_stretch
    n_lines, size, pitch, margin_y = _line_sizes(random, rows, natural_height)
    oversample = 2 if random.random() < 0.5 else 1  # drawn larger and shrunk looks like unhinted text
    path = fonts.choose(random, families)
    size_px = max(6, round(size * oversample))
    canvas = Image.new("L", (round(natural_width * oversample), round(natural_height * oversample)), 255)
    pen = ImageDraw.Draw(canvas)
    left = float(random.uniform(0.05, 0.5) * size_px)
    room = canvas.width - left - float(random.uniform(0.0, 0.5)) * size_px
    text_words = words.words(random, 2 + int(n_lines * room / (size_px * 2.0)))
    indent = float(random.uniform(1, 2.5)) * size_px if n_lines > 1 and random.random() < 0.25 else 0.0
    hang = 0.0
    if random.random() < 0.08:  # an item of a list
        number = int(random.integers(1, 20))
        text_words.insert(0, ("•", "-", f"{number}.", f"({number})", "*")[int(random.integers(5))])
        indent, hang = 0.0, float(random.uniform(0.0, 1.8)) * size_px
    lines = drawing.wrap(text_words, path, size_px, room - hang, indent - hang)[:n_lines]
    if len(lines) == n_lines and random.random() < 0.5 and n_lines > 1:
        lines[-1] = lines[-1][: int(random.integers(1, len(lines[-1]) + 1))]
    justified = n_lines > 1 and random.random() < 0.5
    centred = random.random() < 0.1
    texts: list[str] = []
    parts: list[Positions] = []
    baseline = (margin_y + 0.78 * size) * oversample
    for index, line in enumerate(lines):
        line = _cut_to(line, path, size_px, room)
        x = left + (indent if index == 0 else hang)
        if centred:
            x = left + max(0.0, (room - drawing.width_px(" ".join(line), path, size_px)) / 2)
        to = left + room if justified and not centred and index < len(lines) - 1 else None
        text, positions = drawing.draw_line(pen, x, baseline, line, path, size_px, 0, to)
        texts.append(text)
        parts.append(positions)
        baseline += pitch * oversample
    answer, positions = drawing.joined(texts, parts)
    if random.random() < 0.12:
        canvas, positions = _tilted(canvas, positions, float(random.uniform(-0.6, 0.6)))
    scale = np.array([width / canvas.width, height / canvas.height], dtype=np.float32)
    canvas = canvas.resize((width, height), Image.Resampling.BICUBIC)
    return Sample(drawing.degrade(random, canvas, noise), answer, positions * scale)


def _tilted(canvas: Image.Image, positions: Positions, degrees: float) -> tuple[Image.Image, Positions]:
    """Turn a crop a little counter-clockwise around its middle, and the places with it."""
    middle = np.array([canvas.width / 2, canvas.height / 2], dtype=np.float32)
    sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    turn = np.array([[cosine, -sine], [sine, cosine]], dtype=np.float32)  # the y axis points down
    moved: Positions = ((positions - middle) @ turn + middle).astype(np.float32)
    return canvas.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=255), moved


def _line_sizes(random: np.random.Generator, rows: int, natural_height: float) -> tuple[int, float, float, float]:
    """Number of lines, font size, pitch and upper margin that fill a height, in pixels of the natural crop."""
    if rows == 1:
        return _one_line(random, natural_height)
    if random.random() < {2: 0.3, 3: 0.1}.get(rows, 0.0):  # titles
        return _one_line(random, natural_height)
    leading = float(random.uniform(1.08, 1.5))
    wanted = float(np.clip(np.exp(random.normal(np.log(19.5), 0.28)), 12.5, 46.0))
    margin = float(random.uniform(0.0, 0.5)) * wanted
    n_lines = max(1, round((natural_height - margin) / (wanted * leading)))
    pitch = (natural_height - margin) / n_lines
    size = min(pitch / leading, 46.0)
    return n_lines, size, pitch, margin * float(random.uniform(0.2, 0.8)) + (pitch - size) * 0.5


def _one_line(random: np.random.Generator, natural_height: float) -> tuple[int, float, float, float]:
    size = natural_height / float(random.uniform(0.95, 1.75))
    spare = max(0.02, natural_height - 1.02 * size)
    return 1, size, size, spare * float(random.beta(2.5, 2.5))


def _cut_to(line: list[str], path: str, size_px: int, room_px: float) -> list[str]:
    """A single word that is too long for its line is cut, not drawn over the edge."""
    if len(line) > 1:
        return line
    text = line[0]
    while len(text) > 1 and drawing.width_px(text, path, size_px) > room_px:
        text = text[:-1]
    return [text]

"""The blocks that pages are made of: each draws itself at a place and says its type, box and answer.

Knows nothing of how blocks are arranged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from export.reader import draw as drawing
from export.reader import fonts, formulas, tables, words

PAD_EM = 0.28  # paper around the ink that still belongs to the box

BoxPx = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of the truth. `answer` is what the model should say about its crop, empty where nobody asks."""

    type: str
    box_px: BoxPx
    answer: str = ""
    angle: int = 0


@dataclass(frozen=True, slots=True)
class Face:
    """Fonts and size of a page's running text."""

    path: str
    title_path: str
    size_px: float
    leading: float
    justified: bool
    families: tuple[str, ...]


class Drawer:
    """Draws blocks on one grey canvas."""

    def __init__(self, random: np.random.Generator, canvas: Image.Image, face: Face) -> None:
        self.random = random
        self.canvas = canvas
        self.pen = ImageDraw.Draw(canvas)
        self.face = face

    def text(
        self,
        kind: str,
        text_words: list[str],
        x: float,
        y: float,
        width: float,
        *,
        size: float | None = None,
        path: str | None = None,
        align: str = "left",
        indent: float = 0.0,
        hang: float = 0.0,
    ) -> Block:
        """Write words from the upper edge `y` on, in as many lines as they need."""
        size_px = max(6, round(size or self.face.size_px))
        path = path or self.face.path
        lines = drawing.wrap(text_words, path, size_px, width - hang, indent)
        baseline, right, left = y + 0.76 * size_px, x, x + width
        spoken: list[str] = []
        for index, line in enumerate(lines):
            natural = drawing.width_px(" ".join(line), path, size_px)
            start = x + (hang if index else 0.0) + (indent if index == 0 else 0.0)
            if align != "left":
                start = x + (width - natural) * (0.5 if align == "centre" else 1.0)
            spread = self.face.justified and align == "left" and index < len(lines) - 1
            text, positions = drawing.draw_line(
                self.pen, start, baseline, line, path, size_px, 0, x + width if spread else None
            )
            spoken.append(text)
            left, right = min(left, start), max(right, float(positions[-1, 0]) + 0.3 * size_px)
            baseline += self.face.leading * size_px
        bottom = baseline - self.face.leading * size_px + 0.24 * size_px
        pad = PAD_EM * size_px
        return Block(kind, (left - pad, y - pad, right + pad, bottom + pad), " ".join(spoken))

    def table(self, x: float, y: float, width: float, n_rows: int) -> Block:
        """Draw a table of a width."""
        random, size = self.random, max(6, round(self.face.size_px * float(self.random.uniform(0.85, 1.0))))
        style = tables.draw_style(random, self.face.families, size)
        n_columns = int(np.clip(round(width / (size * float(random.uniform(5, 9)))), 2, 6))
        height = n_rows * size * float(random.uniform(1.5, 2.2))
        grid = tables.draw_grid(random, n_rows, n_columns, style.rules)
        answer, _ = tables.draw_table(random, self.pen, grid, style, (x, y, x + width, y + height))
        pad = 0.25 * size
        return Block("table", (x - pad, y - pad, x + width + pad, y + height + pad), answer)

    def equation(self, x: float, y: float, width: float) -> Block:
        """Draw a formula in the middle of a column."""
        size = max(8, round(self.face.size_px * float(self.random.uniform(1.0, 1.2))))
        box = formulas.compose(self.random, size, width * 0.9, self.face.families)
        left = x + (width - box.width) / 2
        answer, _ = formulas.draw_formula(self.pen, box, left, y + box.ascent)
        pad = PAD_EM * size
        bottom = y + box.ascent + box.descent
        return Block("equation", (left - pad, y - pad, left + box.width + pad, bottom + pad), answer)

    def picture(self, x: float, y: float, width: float, height: float) -> Block:
        """Draw something grey that is no text."""
        random = self.random
        box = (round(x), round(y), round(x + width), round(y + height))
        kind = int(random.integers(4))
        if kind == 0:
            self.pen.rectangle(box, fill=int(random.integers(90, 225)))
        elif kind == 1:
            ramp = np.linspace(random.uniform(0, 255), random.uniform(0, 255), max(1, box[2] - box[0]))
            tile = np.repeat(ramp[None], max(1, box[3] - box[1]), axis=0).astype(np.uint8)
            self.canvas.paste(Image.fromarray(tile), box[:2])
        elif kind == 2:
            coarse = random.integers(40, 230, (6, 8), dtype=np.uint8)
            blurred = Image.fromarray(coarse).resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BICUBIC)
            self.canvas.paste(blurred, box[:2])
        else:
            self.pen.rectangle(box, fill=245, outline=0)
            for _ in range(int(random.integers(3, 9))):
                a, b = random.uniform(0.05, 0.6, 2)
                c, d = a + random.uniform(0.1, 0.35), b + random.uniform(0.1, 0.35)
                part = (x + a * width, y + b * height, x + c * width, y + d * height)
                shape = self.pen.ellipse if random.random() < 0.5 else self.pen.rectangle
                shape(part, fill=int(random.integers(60, 220)), outline=0)
        return Block("image", (float(box[0]), float(box[1]), float(box[2]), float(box[3])))

    def turned(self, x: float, y: float, width: float, height: float) -> Block | None:
        """Write a small block that has to be turned by 90, 180 or 270 degrees to be read."""
        angle = (90, 180, 270)[int(self.random.integers(3))]
        room = (width, height) if angle == 180 else (height, width)
        size = self.face.size_px
        paper = Image.new("L", (max(1, int(room[0])), max(1, int(room[1]))), 255)
        other = Drawer(self.random, paper, replace(self.face, justified=False))
        n_words = int(self.random.integers(3, 25))
        block = other.text("text", words.words(self.random, n_words), size, size, room[0] - 2 * size)
        left, top, right, bottom = (int(value) for value in block.box_px)
        if right > paper.width or bottom > paper.height or left < 0 or top < 0:
            return None
        # The crop is turned by `angle` counter-clockwise to be read, so it lies turned by it clockwise.
        piece = paper.crop((left, top, right, bottom)).rotate(-angle, expand=True)
        self.canvas.paste(piece, (round(x), round(y)))
        box = (round(x), round(y), round(x) + piece.width, round(y) + piece.height)
        return Block("text", (float(box[0]), float(box[1]), float(box[2]), float(box[3])), block.answer, angle)


def draw_face(random: np.random.Generator, size_px: float, families: tuple[str, ...]) -> Face:
    """Choose the fonts of a page: one family for the text, for titles its bold or another family."""
    path = fonts.choose(random, families, "regular")
    family = next(name for name in families if fonts.path_of(name, "regular") == path)
    title = fonts.path_of(family, "bold") if random.random() < 0.7 else fonts.choose(random, families, "bold")
    leading = float(random.uniform(1.12, 1.45))
    return Face(path, title, size_px, leading, bool(random.random() < 0.5), families)

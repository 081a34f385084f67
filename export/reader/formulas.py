"""Short formulas: a random expression, its LaTeX and its picture, set by a small renderer of our own.

Every box knows the LaTeX it stands for and where each of its characters is drawn, as the other crops do.
"""

# ruff: noqa: RUF001
from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from export.reader import draw as drawing
from export.reader import fonts
from export.reader.crops import CELL_PX, stretch
from export.reader.draw import Positions, Sample

# Families that have Greek letters and the signs below in upright and italic.
FORMULA_FAMILIES = ("FreeSerif", "DejaVu Serif", "Liberation Serif")
SYMBOLS = "FreeSerif"
GREEK = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\epsilon", "θ": r"\theta",
    "λ": r"\lambda", "μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau", "φ": r"\phi",
    "ω": r"\omega", "Γ": r"\Gamma", "Δ": r"\Delta", "Σ": r"\Sigma", "Ω": r"\Omega",
}  # fmt: skip
OPERATORS = {
    "+": "+", "−": "-", "=": "=", "<": "<", ">": ">", "≤": r"\leq", "≥": r"\geq", "×": r"\times", "±": r"\pm",
    "·": r"\cdot", "≈": r"\approx", "→": r"\to",
}  # fmt: skip
FUNCTIONS = {"sin": r"\sin", "cos": r"\cos", "log": r"\log", "exp": r"\exp", "max": r"\max", "min": r"\min"}


@dataclass(slots=True)
class Box:
    """A laid-out piece: its size around the baseline, what it draws, and the LaTeX pieces with their places."""

    width: float
    ascent: float
    descent: float
    glyphs: list[tuple[float, float, str, str, int]] = field(default_factory=list)  # x, y, text, path, size
    lines: list[tuple[float, float, float, float]] = field(default_factory=list)
    latex: list[tuple[str, float, float]] = field(default_factory=list)  # text, x, y

    def place(self, other: Box, x: float, y: float) -> None:
        """Draw another box with its baseline's start at (x, y); its LaTeX is not taken over."""
        self.glyphs += [(gx + x, gy + y, text, path, size) for gx, gy, text, path, size in other.glyphs]
        self.lines += [(a + x, b + y, c + x, d + y) for a, b, c, d in other.lines]

    def say(self, other: Box, x: float, y: float) -> None:
        """Take over the LaTeX of a box placed at (x, y)."""
        self.latex += [(text, lx + x, ly + y) for text, lx, ly in other.latex]


class Setter:
    """Sets expressions in one font."""

    def __init__(self, random: np.random.Generator, family: str) -> None:
        self._random = random
        self._upright = fonts.path_of(family, "regular")
        self._italic = fonts.path_of(family, "italic")
        self._symbols = fonts.path_of(SYMBOLS, "regular")

    def _glyph(self, text: str, latex: str, path: str, size: int) -> Box:
        width = drawing.width_px(text, path, size)
        box = Box(width, 0.72 * size, 0.22 * size, [(0.0, 0.0, text, path, size)])
        box.latex.append((latex, width / 2, -0.3 * size))
        return box

    def row(self, boxes: list[Box], gap: float) -> Box:
        """Set boxes side by side."""
        whole = Box(0.0, max(box.ascent for box in boxes), max(box.descent for box in boxes))
        for index, box in enumerate(boxes):
            if index:
                whole.width += gap
            whole.place(box, whole.width, 0.0)
            whole.say(box, whole.width, 0.0)
            whole.width += box.width
        return whole

    def symbol(self, size: int) -> Box:
        """One letter or number."""
        random = self._random
        kind = random.random()
        if kind < 0.5:
            letter = "abcdefghijklmnopqrstuvwxyzABCDEFGHKLMNPRSTUVWXYZ"[int(random.integers(48))]
            return self._glyph(letter, letter, self._italic, size)
        if kind < 0.72:
            greek = list(GREEK)[int(random.integers(len(GREEK)))]
            return self._glyph(greek, GREEK[greek] + " ", self._italic, size)
        number = str(int(10 ** random.uniform(0, 2.5)))
        return self._glyph(number, number, self._upright, size)

    def scripted(self, base: Box, size: int) -> Box:
        """Add an index, an exponent, or both."""
        random, small = self._random, max(8, round(size * 0.68))
        kind = random.random()
        x = base.width + 0.04 * size
        box = Box(base.width, base.ascent, base.descent)
        box.place(base, 0, 0)
        box.say(base, 0, 0)
        for wanted, mark, shift in ((kind < 0.55, "_", 0.25), (kind > 0.4, "^", -0.42)):
            if not wanted:
                continue
            script = self.symbol(small)
            if random.random() < 0.2:
                script = self.row([script, self.operator(small), self.symbol(small)], 0.1 * small)
            y = shift * size
            box.place(script, x, y)
            self._braced(box, mark + "{", script, x, y)
            box.width = max(box.width, x + script.width + 0.04 * size)
            box.ascent, box.descent = max(box.ascent, script.ascent - y), max(box.descent, script.descent + y)
        return box

    def _braced(self, box: Box, opening: str, inner: Box, x: float, y: float) -> None:
        box.latex.append((opening, inner.latex[0][1] + x, inner.latex[0][2] + y))
        box.say(inner, x, y)
        box.latex.append(("}", inner.latex[-1][1] + x, inner.latex[-1][2] + y))

    def operator(self, size: int) -> Box:
        """A sign between two terms."""
        weights = np.array([6, 5, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1], dtype=float)
        sign = list(OPERATORS)[int(self._random.choice(len(OPERATORS), p=weights / weights.sum()))]
        return self._glyph(sign, f" {OPERATORS[sign]} ", self._symbols, size)

    def fraction(self, size: int) -> Box:
        """One short expression over another."""
        small = max(9, round(size * 0.85))
        top, bottom = self.expression(small, 1, depth=1), self.expression(small, 1, depth=1)
        width = max(top.width, bottom.width) + 0.3 * size
        bar = -0.28 * size
        up, down = bar - 0.12 * size - top.descent, bar + 0.14 * size + bottom.ascent
        box = Box(width, top.ascent - up, bottom.descent + down, lines=[(0, bar, width, bar)])
        x_top, x_bottom = (width - top.width) / 2, (width - bottom.width) / 2
        box.place(top, x_top, up)
        box.place(bottom, x_bottom, down)
        self._braced(box, r"\frac{", top, x_top, up)
        self._braced(box, "{", bottom, x_bottom, down)
        return box

    def root(self, size: int) -> Box:
        """A square root."""
        inner = self.expression(size, 1, depth=1)
        hook, top = 0.5 * size, -inner.ascent - 0.1 * size
        box = Box(inner.width + hook + 0.1 * size, inner.ascent + 0.15 * size, inner.descent)
        low = inner.descent
        points = [(0, -0.25 * size), (0.12 * size, -0.32 * size), (0.28 * size, low), (0.44 * size, top)]
        box.lines = [(*a, *b) for a, b in pairwise(points)] + [(0.44 * size, top, box.width, top)]
        box.place(inner, hook, 0)
        self._braced(box, r"\sqrt{", inner, hook, 0)
        return box

    def large(self, size: int) -> Box:
        """A sum, product or integral with limits, and what it runs over."""
        random = self._random
        sign, latex = (("∑", r"\sum"), ("∏", r"\prod"), ("∫", r"\int"))[int(random.integers(3))]
        big, small = round(size * 1.5), max(8, round(size * 0.62))
        head = self._glyph(sign, latex, self._symbols, big)
        low = self.row([self.symbol(small), self._glyph("=", "=", self._symbols, small), self.symbol(small)], 0)
        high = self.symbol(small)
        width = max(head.width, low.width, high.width)
        y_head, y_low, y_high = 0.2 * size, 0.55 * size + low.ascent, -1.05 * size - high.descent
        box = Box(width + 0.15 * size, high.ascent - y_high, low.descent + y_low)
        for part, y in ((head, y_head), (low, y_low), (high, y_high)):
            box.place(part, (width - part.width) / 2, y)
        box.say(head, (width - head.width) / 2, y_head)
        self._braced(box, "_{", low, (width - low.width) / 2, y_low)
        self._braced(box, "^{", high, (width - high.width) / 2, y_high)
        box.latex.append((" ", width, 0.0))
        return self.row([box, self.term(size, 1)], 0.05 * size)

    def term(self, size: int, depth: int) -> Box:
        """What stands between two signs."""
        kind = self._random.random()
        if depth == 0 and kind < 0.17:
            return self.fraction(size)
        if depth == 0 and kind < 0.24:
            return self.root(size)
        if depth == 0 and kind < 0.32:
            return self.large(size)
        if kind < 0.42:
            name = list(FUNCTIONS)[int(self._random.integers(len(FUNCTIONS)))]
            return self.row(
                [self._glyph(name, FUNCTIONS[name] + " ", self._upright, size), self.symbol(size)], 0.15 * size
            )
        if depth == 0 and kind < 0.52:
            parts = [self._glyph("(", "(", self._upright, size), self.expression(size, 2, depth=1)]
            return self.row([*parts, self._glyph(")", ")", self._upright, size)], 0.02 * size)
        boxes = [self.symbol(size)]
        if self._random.random() < 0.55:
            boxes[0] = self.scripted(boxes[0], size)
        if self._random.random() < 0.3:
            boxes.append(self.symbol(size))
        return self.row(boxes, 0.05 * size)

    def expression(self, size: int, n_terms: int, depth: int = 0) -> Box:
        """Terms with signs between them."""
        boxes = [self.term(size, depth)]
        for _ in range(n_terms - 1):
            boxes += [self.operator(size), self.term(size, depth)]
        return self.row(boxes, 0.18 * size)


def compose(random: np.random.Generator, size_px: int, room_px: float, families: tuple[str, ...]) -> Box:
    """Set an expression that fits a width."""
    usable = tuple(name for name in FORMULA_FAMILIES if name in families) or FORMULA_FAMILIES
    setter = Setter(random, usable[int(random.integers(len(usable)))])
    n_terms = int(random.integers(2, 6))
    while True:
        box = setter.expression(size_px, n_terms)
        if box.width <= room_px:
            return box
        if n_terms == 1:
            room_px *= 1.1  # a single term that is too wide gets another draw and a little more room
        n_terms = max(1, n_terms - 1)


def draw_formula(pen: ImageDraw.ImageDraw, box: Box, x_px: float, baseline_px: float) -> tuple[str, Positions]:
    """Draw a set expression; gives its LaTeX and where each of the LaTeX's characters belongs."""
    for x, y, text, path, size in box.glyphs:
        pen.text((x_px + x, baseline_px + y), text, fill=0, font=fonts.load(path, size), anchor="ls")
    for a, b, c, d in box.lines:
        pen.line((x_px + a, baseline_px + b, x_px + c, baseline_px + d), fill=0, width=2 if box.ascent > 40 else 1)
    latex = ""
    places: list[tuple[float, float]] = []
    for text, x, y in box.latex:
        if latex.endswith(" "):
            text = text.lstrip(" ")
        if text.startswith(("}", "_", "^", ")")) and latex.endswith(" "):
            latex, places = latex[:-1], places[:-1]
        latex += text
        places += [(x_px + x, baseline_px + y)] * len(text)
    clean = latex.rstrip()
    return clean, np.array(places[: len(clean)], dtype=np.float32).reshape(-1, 2)


def formula_crop(
    random: np.random.Generator, rows: int, columns: int, families: tuple[str, ...] = fonts.SEEN, noise: float = 0.7
) -> Sample:
    """Draw a formula crop for a size in cells of 28 px."""
    width, height = columns * CELL_PX, rows * CELL_PX
    natural_width, natural_height = width / stretch(random, columns), height / stretch(random, rows)
    size = round(float(np.clip(np.exp(random.normal(np.log(21.0), 0.2)), 14, 32)))
    box = compose(random, size, natural_width * 0.94, families)
    # A crop holds its formula whole: one that is too large is drawn on a larger canvas.
    factor = max(1.0, (box.ascent + box.descent) / (0.98 * natural_height), box.width / (0.98 * natural_width))
    natural_width, natural_height = natural_width * factor, natural_height * factor
    canvas = Image.new("L", (round(natural_width), round(natural_height)), 255)
    x = float(random.uniform(0.05, 0.95)) * max(0.0, canvas.width - box.width)
    spare = max(0.0, canvas.height - box.ascent - box.descent)
    baseline = box.ascent + spare * float(random.uniform(0.3, 0.7))
    answer, positions = draw_formula(ImageDraw.Draw(canvas), box, x, baseline)
    scale = np.array([width / canvas.width, height / canvas.height], dtype=np.float32)
    canvas = canvas.resize((width, height), Image.Resampling.BICUBIC)
    return Sample(drawing.degrade(random, canvas, noise), answer, positions * scale)

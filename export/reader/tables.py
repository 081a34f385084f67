"""Tables: a grid with spans, its picture, and its OTSL as the model answers it. Knows nothing of pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from export.reader import draw as drawing
from export.reader import fonts, words
from export.reader.crops import CELL_PX, stretch
from export.reader.draw import Positions, Sample, nowhere

Grid = list[list[str]]  # OTSL token of each place: fcel, ecel, lcel, ucel, xcel


@dataclass(frozen=True, slots=True)
class Style:
    """How a table is set."""

    path: str
    bold_path: str
    size_px: int
    pad_px: float
    rules: str  # grid, rows, book, none
    n_header_rows: int
    centred: bool


def draw_grid(random: np.random.Generator, n_rows: int, n_columns: int, rules: str) -> Grid:
    """Draw the structure: mostly plain cells, some empty ones, and the spans that such rules can show."""
    grid = [["fcel"] * n_columns for _ in range(n_rows)]
    for row in range(n_rows):
        for column in range(n_columns):
            if row and random.random() < 0.06:
                grid[row][column] = "ecel"
    in_header = rules != "grid" or random.random() < 0.7
    if random.random() < 0.35 and n_columns > 2:
        _span(random, grid, 1, int(random.integers(2, min(4, n_columns) + 1)), in_header)
    if random.random() < 0.3 and n_rows > 2 and rules in ("grid", "rows"):
        _span(random, grid, int(random.integers(2, min(3, n_rows) + 1)), 1, header=False)
    if random.random() < 0.08 and n_rows > 3 and n_columns > 2 and rules == "grid":
        _span(random, grid, 2, 2, header=False)
    return grid


def _span(random: np.random.Generator, grid: Grid, n_down: int, n_right: int, header: bool) -> None:
    """Merge a rectangle that no other span touches."""
    top = 0 if header else int(random.integers(0, len(grid) - n_down + 1))
    left = int(random.integers(0, len(grid[0]) - n_right + 1))
    if n_down > 1 and random.random() < 0.6:
        left = 0
    area = [(row, column) for row in range(top, top + n_down) for column in range(left, left + n_right)]
    if any(grid[row][column] in ("lcel", "ucel", "xcel") or _is_origin(grid, row, column) for row, column in area):
        return
    for row, column in area:
        down, right = row > top, column > left
        grid[row][column] = "xcel" if down and right else "ucel" if down else "lcel" if right else "fcel"


def _is_origin(grid: Grid, row: int, column: int) -> bool:
    """Whether a span begins here."""
    right = column + 1 < len(grid[0]) and grid[row][column + 1] in ("lcel", "xcel")
    below = row + 1 < len(grid) and grid[row + 1][column] in ("ucel", "xcel")
    return right or below


def extent(grid: Grid, row: int, column: int) -> tuple[int, int]:
    """Rows and columns that the cell which begins here takes."""
    n_right = 1
    while column + n_right < len(grid[0]) and grid[row][column + n_right] == "lcel":
        n_right += 1
    n_down = 1
    while row + n_down < len(grid) and grid[row + n_down][column] == "ucel":
        n_down += 1
    return n_down, n_right


def cell_text(random: np.random.Generator, header: bool) -> str:
    """What stands in a cell."""
    if header or random.random() < 0.4:
        n = 1 if random.random() < 0.7 else 2
        text = " ".join(words.word(random) for _ in range(n))
        return text[0].upper() + text[1:] if random.random() < 0.7 else text
    return words.number(random) if random.random() < 0.8 else words.random_string(random)


def draw_style(random: np.random.Generator, families: tuple[str, ...], size_px: int) -> Style:
    """Draw fonts, rules and margins."""
    path = fonts.choose(random, families, "regular")
    family = next(name for name in families if fonts.path_of(name, "regular") == path)
    rules = ("grid", "grid", "rows", "book", "none")[int(random.integers(5))]
    bold = fonts.path_of(family, "bold" if random.random() < 0.6 else "regular")
    pad = float(random.uniform(0.25, 0.6)) * size_px
    return Style(path, bold, size_px, pad, rules, int(random.random() < 0.85), bool(random.random() < 0.4))


def draw_table(
    random: np.random.Generator,
    pen: ImageDraw.ImageDraw,
    grid: Grid,
    style: Style,
    box_px: tuple[float, float, float, float],
) -> tuple[str, Positions]:
    """Draw a table that fills a box.

    Parameters
    ----------
    grid : list of list of str
    style : Style
    box_px : (left, top, right, bottom)

    Returns
    -------
    answer : str
        OTSL, in one line.
    positions : float32, (n_characters, 2)
        Structure tokens stand in the middle of their place.
    """
    left, top, right, bottom = box_px
    n_rows, n_columns = len(grid), len(grid[0])
    shares = random.uniform(0.7, 1.4, n_columns)
    edges_x = left + np.concatenate([[0], np.cumsum(shares / shares.sum())]) * (right - left)
    edges_y = np.linspace(top, bottom, n_rows + 1)
    answer: list[str] = []
    parts: list[Positions] = []

    def say(text: str, positions: Positions) -> None:
        answer.append(text)
        parts.append(positions)

    for row in range(n_rows):
        for column in range(n_columns):
            kind = grid[row][column]
            n_down, n_right = extent(grid, row, column) if kind == "fcel" else (1, 1)
            place = (edges_x[column], edges_y[row], edges_x[column + n_right], edges_y[row + n_down])
            token = f"<{kind}>"
            written: tuple[str, Positions] = ("", nowhere(""))
            if kind == "fcel":
                centred = style.centred or row < style.n_header_rows or n_right > 1
                written = _write(random, pen, place, style, row < style.n_header_rows, centred)
                if not written[0]:
                    token = "<ecel>"
            middle = [(edges_x[column] + edges_x[column + 1]) / 2, (edges_y[row] + edges_y[row + 1]) / 2]
            here = written[1][:1] if written[0] else np.array([middle], dtype=np.float32)
            say(token, np.repeat(here, len(token), axis=0))
            say(*written)
            _rule(pen, grid, row, column, place, style)
        say("<nl>", np.repeat(np.array([[right - 2, (edges_y[row] + edges_y[row + 1]) / 2]], np.float32), 4, axis=0))
    if style.rules in ("rows", "book"):
        ys = edges_y if style.rules == "rows" else [edges_y[0], edges_y[style.n_header_rows], edges_y[-1]]
        for y in (edges_y[0], edges_y[-1]) if style.rules == "rows" else ys:
            pen.line((left, y, right, y), fill=0, width=1 + style.size_px // 24)
    return "".join(answer), np.concatenate(parts)


def _write(
    random: np.random.Generator,
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float, float, float],
    style: Style,
    header: bool,
    centred: bool,
) -> tuple[str, Positions]:
    """Write one cell; what does not fit is shortened, and a cell too narrow for anything stays empty."""
    path = style.bold_path if header else style.path
    room = place[2] - place[0] - 2 * style.pad_px
    text = cell_text(random, header)
    while text and drawing.width_px(text, path, style.size_px) > room:
        text = text[: text.rfind(" ")] if " " in text else text[:-1]
    text = text.strip()
    if not text:
        return "", nowhere("")
    spare = room - drawing.width_px(text, path, style.size_px)
    x = place[0] + style.pad_px + (spare / 2 if centred else 0)
    baseline = (place[1] + place[3]) / 2 + 0.33 * style.size_px
    return text, drawing.draw_text(pen, x, baseline, text, path, style.size_px, 0)[0]


def _rule(
    pen: ImageDraw.ImageDraw,
    grid: Grid,
    row: int,
    column: int,
    place: tuple[float, float, float, float],
    style: Style,
) -> None:
    if grid[row][column] not in ("fcel", "ecel"):
        return
    width = 1 + style.size_px // 24
    if style.rules == "grid":
        pen.rectangle(place, outline=0, width=width)
    elif style.rules == "rows" or extent(grid, row, column)[1] > 1:
        pen.line((place[0] + 2, place[3], place[2] - 2, place[3]), fill=0, width=width)


def table_crop(
    random: np.random.Generator,
    rows: int,
    columns: int,
    families: tuple[str, ...] = fonts.SEEN,
    noise: float = 0.7,
) -> Sample:
    """Draw a table crop for a size in cells of 28 px, as `crops.text_crop` does for text."""
    width, height = columns * CELL_PX, rows * CELL_PX
    natural_width, natural_height = width / stretch(random, columns), height / stretch(random, rows)
    size = float(np.clip(np.exp(random.normal(np.log(18.0), 0.2)), 13, 28))
    margin = float(random.uniform(0.0, 0.5)) * size
    n_rows = max(2, round((natural_height - 2 * margin) / (size * float(random.uniform(1.4, 2.2)))))
    size = min(size, (natural_height - 2 * margin) / n_rows / 1.3)
    n_columns = max(2, min(6, round(natural_width / (size * float(random.uniform(4.5, 9))))))
    oversample = 2 if random.random() < 0.5 else 1
    style = draw_style(random, families, max(6, round(size * oversample)))
    canvas = Image.new("L", (round(natural_width * oversample), round(natural_height * oversample)), 255)
    inset = margin * oversample
    box = (inset, inset, canvas.width - inset - 1, canvas.height - inset - 1)
    grid = draw_grid(random, n_rows, n_columns, style.rules)
    answer, positions = draw_table(random, ImageDraw.Draw(canvas), grid, style, box)
    scale = np.array([width / canvas.width, height / canvas.height], dtype=np.float32)
    canvas = canvas.resize((width, height), Image.Resampling.BICUBIC)
    return Sample(drawing.degrade(random, canvas, noise), answer, positions * scale)

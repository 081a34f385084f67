"""Draw the sample page that `make run` parses: a heading, paragraphs and a table, in Pillow's built-in font."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE_PX = (827, 1169)  # A4 at 100 dpi
TITLE = "Water levels of the Lower River"
PARAGRAPHS = (
    "Every morning at seven the height of the river is read at three gauges and written into a table. The "
    "readings below are those of one week in spring, when snow was melting in the hills.",
    "A level above 250 cm closes the footpath along the bank. This was the case on two days; the path was "
    "open again on Saturday.",
)
TABLE = (
    ("Day", "Mill", "Bridge", "Harbour"),
    ("Monday", "198", "204", "231"),
    ("Tuesday", "214", "221", "240"),
    ("Wednesday", "252", "260", "275"),
    ("Thursday", "251", "258", "272"),
    ("Friday", "233", "239", "255"),
    ("Saturday", "207", "212", "238"),
)
MARGIN_PX = 90


def draw() -> Image.Image:
    """The page, mode RGB."""
    page = Image.new("RGB", SIZE_PX, "white")
    pen = ImageDraw.Draw(page)
    top = MARGIN_PX
    pen.text((MARGIN_PX, top), TITLE, fill="black", font=ImageFont.load_default(32))
    top += 70
    font = ImageFont.load_default(18)
    for paragraph in PARAGRAPHS:
        for line in _wrap(pen, paragraph, font, SIZE_PX[0] - 2 * MARGIN_PX):
            pen.text((MARGIN_PX, top), line, fill="black", font=font)
            top += 27
        top += 20
    width, height = 150, 36
    for row in TABLE:
        for column, text in enumerate(row):
            left = MARGIN_PX + column * width
            pen.rectangle((left, top, left + width, top + height), outline="black")
            pen.text((left + 10, top + 7), text, fill="black", font=font)
        top += height
    return page


def _wrap(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, width_px: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if pen.textlength(longer, font=font) > width_px and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


if __name__ == "__main__":
    draw().save(Path(sys.argv[1]), optimize=True)

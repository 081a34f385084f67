"""Pages with their boxes drawn on them, as PNG. Knows results and documents; no model and no HTTP."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from handler.documents import cap_longest_side, open_document

if TYPE_CHECKING:
    from handler.config import Settings
    from handler.parse import DocumentResult

# One colour a family of types; what is not named here is grey.
COLOURS = {
    "title": (200, 30, 30),
    "doc_title": (200, 30, 30),
    "paragraph_title": (200, 30, 30),
    "text": (30, 90, 200),
    "list": (0, 130, 130),
    "list_item": (0, 130, 130),
    "table": (20, 130, 40),
    "equation": (150, 40, 170),
    "equation_block": (150, 40, 170),
    "image": (190, 110, 0),
    "chart": (190, 110, 0),
    "image_block": (190, 110, 0),
    "code": (90, 70, 40),
    "algorithm": (90, 70, 40),
}
OTHER = (110, 110, 110)
TINT = 0.12  # share of the colour inside a box
MAX_SIDE_PX = 2000
GAP_PX = 12
GAP_COLOUR = (90, 90, 90)


def layout_png(data: bytes, result: DocumentResult, settings: Settings, *, dpi: int | None = None) -> bytes:
    """Draw the pages of a result under each other.

    Parameters
    ----------
    data : bytes
        The document that was parsed.
    result : DocumentResult
    settings : Settings
        Its limits, as at parsing; the picture has at most `max_document_pixels`.
    dpi : int, optional

    Returns
    -------
    bytes
        PNG.

    Raises
    ------
    InputError
        A page can't be decoded; it was at parsing, so this is for pages that were recorded as failed.
    """
    side_px = min(MAX_SIDE_PX, math.isqrt(settings.max_document_pixels // max(1, len(result.pages))))
    with open_document(data, settings, dpi=dpi) as document:
        pages = [
            draw_boxes(cap_longest_side(document.page(page.index), side_px), page.blocks)
            for page in result.pages
            if page.size_px != (0, 0)
        ]
    file = io.BytesIO()
    _stacked(pages).save(file, "PNG", compress_level=4)
    return file.getvalue()


def draw_boxes(page: Image.Image, blocks: list[dict[str, Any]]) -> Image.Image:
    """Draw blocks on a copy of a page.

    Parameters
    ----------
    page : PIL image, mode RGB
    blocks : list of dict
        `type`, `bbox` in [0, 1]; numbered in their order, which is the reading order.
    """
    tinted = page.copy()
    pen = ImageDraw.Draw(tinted)
    boxes = []
    for block in blocks:
        last_px = (page.width - 1, page.height - 1)
        box = tuple(round(edge * last_px[i % 2]) for i, edge in enumerate(block["bbox"]))
        boxes.append((box, COLOURS.get(block["type"], OTHER)))
        pen.rectangle(box, fill=boxes[-1][1])
    drawn = Image.blend(page, tinted, TINT)
    pen = ImageDraw.Draw(drawn)
    unit_px = max(1, max(page.size) // 500)
    font = ImageFont.load_default(max(9, 6 * unit_px))
    for number, (block, (box, colour)) in enumerate(zip(blocks, boxes), start=1):
        pen.rectangle(box, outline=colour, width=unit_px)
        _label(pen, f"{number} {block['type']}", box, colour, font)
    return drawn


def _label(pen: ImageDraw.ImageDraw, text: str, box: tuple[int, ...], colour: tuple[int, int, int], font: Any) -> None:
    """Name a box on its upper edge, inside the picture."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    height_px = bottom - top + 4
    x, y = box[0], max(0, box[1] - height_px)
    pen.rectangle((x, y, x + right - left + 4, y + height_px), fill=colour)
    pen.text((x + 2 - left, y + 2 - top), text, fill="white", font=font)


def _stacked(pages: list[Image.Image]) -> Image.Image:
    if len(pages) == 1:
        return pages[0]
    width_px = max((page.width for page in pages), default=1)
    height_px = sum(page.height + GAP_PX for page in pages)
    sheet = Image.new("RGB", (width_px, max(1, height_px - GAP_PX)), GAP_COLOUR)
    top = 0
    for page in pages:
        sheet.paste(page, (0, top))
        top += page.height + GAP_PX
    return sheet

"""Document bytes -> upright RGB page images. Knows the file formats; knows nothing about models or HTTP.

    bytes → sniff kind → declared sizes against the limits → Document
    Document.page(i) → handler.image_file decodes, or handler.pdf renders

Nothing is decoded before its declared size has passed the limits, and one page is in memory at a time.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Protocol, Self

from PIL import Image, TiffImagePlugin

from handler.config import Settings
from handler.errors import EmptyDocument, MineruError, PageOutOfRange, RequestError, UnsupportedDocument
from handler.image_file import ImagePages, too_large

_PDF_HEADER_WITHIN_BYTES = 1024  # where PDFium looks for it
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    *((prefix, "tiff") for prefix in TiffImagePlugin.PREFIXES),
)
_BMP_HEADER_BYTES = {12, 16, 40, 52, 56, 64, 108, 124}  # "BM" alone begins many a text
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
_PAGE_RANGE = re.compile(r"\s*(?:(\d{1,18})|(\d{1,18})?\s*-\s*(\d{1,18})?)\s*", re.ASCII)


class Pages(Protocol):
    """What a format brings: its number of pages, and each of them as an image."""

    n_pages: int

    def page(self, index: int) -> Image.Image:
        """Decode one page; `index` is within the document."""

    def close(self) -> None:
        """Free everything."""


class Document:
    """An open document; a context manager.

    Attributes
    ----------
    kind : str
        "pdf", "png", "jpeg", "webp", "tiff", "gif", "bmp" or "heic".
    n_pages : int
        Frames of a TIFF are pages; of an animation only the first frame is read.
    """

    def __init__(self, kind: str, pages: Pages) -> None:
        self.kind = kind
        self.n_pages = pages.n_pages
        self._pages: Pages | None = pages

    def page(self, index: int) -> Image.Image:
        """Decode one page.

        Parameters
        ----------
        index : int
            From 0.

        Returns
        -------
        PIL.Image.Image
            Mode RGB, upright, at its full size: only PDF pages are capped (`Settings.max_page_px`).

        Raises
        ------
        PageOutOfRange, DamagedDocument, DocumentTooLarge
        """
        if self._pages is None:
            raise MineruError("The document is closed.")
        if not 0 <= index < self.n_pages:
            raise PageOutOfRange(f"There is no page {index + 1}: the document has {self.n_pages}.")
        return self._pages.page(index)

    def close(self) -> None:
        """Free the document; a second call does nothing."""
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def open_document(data: bytes, settings: Settings, *, dpi: int | None = None) -> Document:
    """Open a document; its format is told by its content.

    Parameters
    ----------
    data : bytes
        The whole file.
    settings : Settings
        The limits `max_document_bytes`, `max_document_pixels`, `max_pages`, `max_page_px`, and `page_dpi`.
    dpi : int, optional
        Dots per inch of PDF pages instead of `settings.page_dpi`.

    Raises
    ------
    RequestError, EmptyDocument, UnsupportedDocument, DamagedDocument, EncryptedDocument, DocumentTooLarge

    Source: formats that MinerU takes, and HEIC. Differs on purpose from `Image.open(…).convert("RGB")`: EXIF is
    applied, 16 bits are scaled and not clipped, transparency shows a ground and not what lies hidden under it.
    """
    if dpi is not None and dpi < 1:
        raise RequestError("dpi is a whole number from 1.")
    if not data:
        raise EmptyDocument("The document has zero bytes.")
    if len(data) > settings.max_document_bytes:
        raise too_large(f"The document has {len(data):,} bytes", "max_document_bytes", settings)
    kind = _sniff(data)
    pages: Pages
    if kind == "pdf":
        from handler.pdf import PdfPages  # here, since images need no PDFium

        pages = PdfPages(data, dpi=dpi or settings.page_dpi, max_page_px=settings.max_page_px)
    else:
        pages = ImagePages(data, kind, settings)
    if pages.n_pages > settings.max_pages:
        pages.close()
        raise too_large(f"The document has {pages.n_pages:,} pages", "max_pages", settings)
    return Document(kind, pages)


def parse_pages(text: str | None, n_pages: int) -> list[int]:
    """Read a page selection such as "1-3,7", "5-" or "-3".

    Parameters
    ----------
    text : str or None
        Page numbers from 1; None or blank selects all.
    n_pages : int
        Pages of the document.

    Returns
    -------
    list of int
        Indices from 0, sorted, each once.

    Raises
    ------
    RequestError, PageOutOfRange
    """
    if text is None or not text.strip():
        return list(range(n_pages))
    chosen = bytearray(n_pages)
    for part in text.split(","):
        match = _PAGE_RANGE.fullmatch(part)
        if match is None or not any(match.groups()):
            raise RequestError("pages is a list of page numbers and ranges, such as 1-3,7.")
        single, first_text, last_text = match.groups()
        first = int(single or first_text or 1)
        last = int(single or last_text or max(first, n_pages))
        if min(first, last) < 1 or max(first, last) > n_pages:
            raise PageOutOfRange(f"pages names a page that is not there: the document has {n_pages}.")
        if first > last:
            raise RequestError("pages has a range that ends before it begins.")
        chosen[first - 1 : last] = b"\1" * (last - first + 1)
    return [index for index, wanted in enumerate(chosen) if wanted]


def cap_longest_side(image: Image.Image, max_px: int) -> Image.Image:
    """Shrink an image so that no side is longer than `max_px` pixels; a smaller one is returned as it is."""
    longest_px = max(image.size)
    if longest_px <= max_px:
        return image
    width_px, height_px = (max(1, round(side_px * max_px / longest_px)) for side_px in image.size)
    # The gap makes large reductions several times faster; from 3 on the result looks the same (Pillow's own words).
    return image.resize((width_px, height_px), Image.Resampling.LANCZOS, reducing_gap=3.0)


def _sniff(data: bytes) -> str:
    for prefix, kind in _MAGIC:
        if data.startswith(prefix):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADER_BYTES:
        return "bmp"
    if data[4:8] == b"ftyp":
        box = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
        if _HEIC_BRANDS & {box[at : at + 4] for at in range(0, len(box), 4)}:
            return "heic"
    if b"%PDF-" in data[:_PDF_HEADER_WITHIN_BYTES]:
        return "pdf"
    raise UnsupportedDocument("The document is of no format that is read here.")

"""PDF pages as images, through PDFium. Knows nothing about image files, models or HTTP.

The only file that knows pypdfium2: its exceptions end here. Importing it loads PDFium, so importers do that late.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator

import pypdfium2
import pypdfium2.raw as pdfium_c
from PIL import Image

from handler.errors import DamagedDocument, DocumentTooLarge, EmptyDocument, EncryptedDocument, MineruError

POINTS_PER_INCH = 72

# PDFium is not thread-safe, not even across documents, and its last error is one variable of the process.
_PDFIUM_LOCK = threading.RLock()


class PdfPages:
    """The pages of one PDF, rendered one at a time.

    Parameters
    ----------
    data : bytes
        The file. PDFium reads from this memory until `close`.
    dpi : int
        Resolution in dots per inch.
    max_page_px : int
        Longest side of a page image in pixels; a larger page is rendered at a lower resolution.

    Raises
    ------
    EncryptedDocument, DamagedDocument, EmptyDocument

    Source: PDFium through pypdfium2 5.15; MinerU's 200 dpi and 3,500 px. PDFium offers no way to read /UserUnit: a
    page that has one is rendered as if it were 1.
    """

    def __init__(self, data: bytes, *, dpi: int, max_page_px: int) -> None:
        self._data = data
        self._dpi = dpi
        self._max_page_px = max_page_px
        with _pdfium("The PDF"):
            # pypdfium2 would report a PDF without pages as damaged, and never close it: so the handle is opened here.
            handle = pdfium_c.FPDF_LoadMemDocument64(data, len(data), None)
            if not handle:
                raise _load_error(pdfium_c.FPDF_GetLastError())
            self._pdf = pypdfium2.PdfDocument(handle)
            # Must come before the first page is touched; a form that is broken is no reason to refuse the pages.
            with contextlib.suppress(pypdfium2.PdfiumError):
                self._pdf.init_forms()
            self.n_pages: int = len(self._pdf)
            if self.n_pages < 1:
                self._pdf.close()
                raise EmptyDocument("The PDF has no pages.")

    def page(self, index: int) -> Image.Image:
        """Render a page, /Rotate, annotations and form fields included, on white.

        Raises
        ------
        DamagedDocument, DocumentTooLarge
        """
        with _pdfium(f"Page {index + 1}"):
            page = self._pdf[index]
            try:
                bitmap = page.render(scale=self._scale(page.get_width(), page.get_height(), index))
                try:
                    image: Image.Image = bitmap.to_pil()  # copies: the bitmap is BGR
                finally:
                    bitmap.close()
            finally:
                page.close()
        return image

    def close(self) -> None:
        """Free the document."""
        with _PDFIUM_LOCK:
            self._pdf.close()

    def _scale(self, width_pt: float, height_pt: float, index: int) -> float:
        """Pixels per point, lowered before anything is allocated, so that both sides fit after rounding up."""
        if not (0 < width_pt < math.inf and 0 < height_pt < math.inf):
            raise DamagedDocument(f"Page {index + 1} has no area.")
        longest_pt = max(width_pt, height_pt)
        scale = min(self._dpi / POINTS_PER_INCH, self._max_page_px / longest_pt)
        while math.ceil(longest_pt * scale) > self._max_page_px:
            scale = math.nextafter(scale, 0.0)
        return scale


def _load_error(code: int) -> MineruError:
    if code == pdfium_c.FPDF_ERR_PASSWORD:
        return EncryptedDocument("The PDF is protected by a password.")
    if code == pdfium_c.FPDF_ERR_SECURITY:
        return EncryptedDocument("The PDF is encrypted in a way that can't be opened here.")
    return DamagedDocument("The PDF can't be read: its structure is damaged or cut off.")


@contextlib.contextmanager
def _pdfium(what: str) -> Iterator[None]:
    """Hold the lock and translate whatever comes out of PDFium."""
    with _PDFIUM_LOCK:
        try:
            yield
        except MineruError:
            raise
        except MemoryError as exc:
            raise DocumentTooLarge(f"{what} does not fit into memory.") from exc
        except Exception as exc:  # PdfiumError, but also ctypes', ValueError and AssertionError of the wrapper
            raise DamagedDocument(f"{what} can't be rendered.") from exc

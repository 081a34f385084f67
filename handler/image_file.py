"""Pages of an image file: the only file that lets Pillow and pillow-heif decode, so their exceptions end here.

page(i) → header against the limits → decode → upright → handler.pixels: RGB → square pixels
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from io import BytesIO

# TIFF and WebP are imported by name: Pillow would import all of its forty plugins to find them.
from PIL import Image, ImageOps, TiffImagePlugin, WebPImagePlugin  # noqa: F401

from handler.config import Settings, variable
from handler.errors import DamagedDocument, DocumentTooLarge, MineruError, UnsupportedDocument
from handler.pixels import to_rgb

# Fax pixels: 204x98 dpi is to be stretched, 204x196 is not; beyond 4 the resolution is not to be believed.
MIN_STRETCH, MAX_STRETCH = 1.1, 4.0

# Our own limit lies below Pillow's error and is an error itself; its warning would only add noise to the log.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_TIFF_ORIENTATION = 274
_TIFF_TILE_WIDTH, _TIFF_TILE_LENGTH = 322, 323


class ImagePages:
    """Pages of an image file, opened anew for each page: so no pixels stay behind, and the bytes are shared."""

    def __init__(self, data: bytes, kind: str, settings: Settings) -> None:
        self._data = data
        self._kind = kind
        self._settings = settings
        with _pillow(settings), _open_image(data, kind) as image:
            self._check_pixels(image)
            self.n_pages = self._count_frames(image) if kind == "tiff" else 1

    def page(self, index: int) -> Image.Image:
        """Decode one page; see `handler.documents.Document.page`."""
        with _pillow(self._settings), _open_image(self._data, self._kind) as image:
            if index:
                image.seek(index)
            self._check_pixels(image)
            square_px = _square_size(image)
            image.load()
            self._check_pixels(image)  # HEIC may turn out larger than it declares
            _turn_upright(image)
            page = to_rgb(image)
            if page.size != square_px and self._kind == "tiff":
                page = page.resize(square_px, Image.Resampling.BICUBIC)
            page.info = {}  # texts and EXIF of the file have no business beyond this point
            return page

    def close(self) -> None:
        """Let go of the bytes."""
        self._data = b""

    def _count_frames(self, image: Image.Image) -> int:
        """Count by walking, no further than allowed; a damaged directory is a page that fails when asked for."""
        n_frames = 1
        while n_frames <= self._settings.max_pages:
            try:
                image.seek(n_frames)
            except EOFError:
                break
            except Exception:
                return n_frames + 1
            self._check_pixels(image)
            n_frames += 1
        return n_frames

    def _check_pixels(self, image: Image.Image) -> None:
        sizes_px = [image.size]
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            # A tile is decoded whole, also where it reaches beyond the image.
            tags = image.tag_v2
            sizes_px += [_square_size(image), (tags.get(_TIFF_TILE_WIDTH, 1), tags.get(_TIFF_TILE_LENGTH, 1))]
        width_px, height_px = max(sizes_px, key=lambda size_px: size_px[0] * size_px[1])
        if width_px * height_px > self._settings.max_document_pixels:
            what = f"The image has {width_px:,} x {height_px:,} pixels"
            raise too_large(what, "max_document_pixels", self._settings)


def too_large(what: str, limit: str, settings: Settings) -> DocumentTooLarge:
    """The error that names the limit which `what` is beyond."""
    return DocumentTooLarge(f"{what}; {variable(limit)} allows {getattr(settings, limit):,}.")


def _open_image(data: bytes, kind: str) -> Image.Image:
    """Read the header; no pixels yet."""
    if kind != "heic":
        return Image.open(BytesIO(data), formats=[kind.upper()])
    try:
        from pillow_heif import HeifImageFile  # optional, and 27 MB that only HEIC needs
    except ImportError as exc:
        hint = "Install pillow-heif (`pip install mineru-lambda[heic]`), or send the image as JPEG or PNG."
        raise UnsupportedDocument("HEIC can't be read: pillow-heif is not installed.", hint=hint) from exc
    image: Image.Image = HeifImageFile(BytesIO(data))
    return image


@contextlib.contextmanager
def _pillow(settings: Settings) -> Iterator[None]:
    """Translate whatever a decoder raises: hostile bytes make Pillow raise nearly anything, warnings included."""
    try:
        yield
    except MineruError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        # Pillow's own limit is left as it is, global as it is; it lies above the default of ours.
        ours, limit_px = settings.max_document_pixels, Image.MAX_IMAGE_PIXELS
        if limit_px is None or ours <= limit_px:
            raise too_large("The image has far more pixels than are read", "max_document_pixels", settings) from exc
        raise DocumentTooLarge(f"The image has more pixels than Pillow opens; it allows {limit_px:,}.") from exc
    except MemoryError as exc:
        raise DocumentTooLarge("The image does not fit into memory.") from exc
    except Exception as exc:
        raise DamagedDocument("The image can't be decoded: it is damaged or cut off.") from exc


def _square_size(image: Image.Image) -> tuple[int, int]:
    """Size in pixels that makes the pixels square.

    TIFF only, where faxes live: viewers ignore the density of other formats, which is often wrong.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return image.size
    try:
        x_dpi, y_dpi = map(float, image.info.get("dpi") or image.info.get("resolution") or (1, 1))
        stretch = x_dpi / y_dpi
        if image.tag_v2.get(_TIFF_ORIENTATION) in (5, 6, 7, 8):  # Pillow has swapped the size already
            stretch = 1 / stretch
    except (TypeError, ValueError, ArithmeticError):
        return image.size
    width_px, height_px = image.size
    if MIN_STRETCH < stretch <= MAX_STRETCH:
        return width_px, round(height_px * stretch)
    if MIN_STRETCH < 1 / (stretch or math.inf) <= MAX_STRETCH:
        return round(width_px / stretch), height_px
    return image.size


def _turn_upright(image: Image.Image) -> None:
    """Apply the EXIF orientation; EXIF that can't be read is no reason to refuse the image."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # whatever the parser stumbled over; pixels and size are consistent in any case
        return

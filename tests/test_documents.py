"""handler.documents and handler.pdf: every format, every limit, and no exception but our own."""

from __future__ import annotations

import builtins
import contextlib
import io
import math
import random
import struct
import sys
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw
from PIL import _imaging as core

from handler.config import Settings
from handler.documents import Document, cap_longest_side, open_document, parse_pages
from handler.errors import (
    DamagedDocument,
    DocumentTooLarge,
    EmptyDocument,
    EncryptedDocument,
    InputError,
    MineruError,
    PageOutOfRange,
    RequestError,
    UnsupportedDocument,
)

SETTINGS = Settings()
REAL = Path(__file__).resolve().parents[1].parent / "shared" / "documents"
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def encode(image: Image.Image | None, format: str, **options: Any) -> bytes:
    assert image is not None
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def first_page(data: bytes, settings: Settings = SETTINGS, **options: int) -> Image.Image:
    with open_document(data, settings, **options) as document:
        return document.page(0)


def page_sizes(data: bytes) -> list[tuple[int, int]]:
    with open_document(data, SETTINGS) as document:
        pages = [document.page(index) for index in range(document.n_pages)]
    assert {page.mode for page in pages} == {"RGB"}
    return [page.size for page in pages]


def levels(page: Image.Image) -> tuple[int, int]:
    """Darkest and lightest level of a page."""
    assert page.mode == "RGB"
    grey = np.asarray(page.convert("L"))
    return int(grey.min()), int(grey.max())


def corners() -> Image.Image:
    """64x32: red at the top left, green at the top right, blue at the bottom left, white at the bottom right."""
    image = Image.new("RGB", (64, 32), "white")
    image.paste("red", (0, 0, 32, 16))
    image.paste("lime", (32, 0, 64, 16))
    image.paste("blue", (0, 16, 32, 32))
    return image


def pdf(*pages: bytes, objects: tuple[bytes, ...] = (), catalog: bytes = b"", content: bytes = b"") -> bytes:
    """A PDF whose pages have the given entries; object 3 is the content of all, `objects` count from 4."""
    n_own = 3 + len(objects)
    kids = b" ".join(b"%d 0 R" % (n_own + 1 + at) for at in range(len(pages)))
    bodies = [
        b"<</Type/Catalog/Pages 2 0 R%s>>" % catalog,
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
        *objects,
        *(b"<</Type/Page/Parent 2 0 R/Contents 3 0 R%s>>" % page for page in pages),
    ]
    out, offsets = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(bodies, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    xref_at = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(bodies) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(bodies) + 1, xref_at)
    return bytes(out)


def png(
    width_px: int, height_px: int, bits: int = 8, colour_type: int = 0, chunks: tuple[tuple[bytes, bytes], ...] = ()
) -> bytes:
    """A PNG header that declares a size, and whatever chunks follow."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width_px, height_px, bits, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in ((b"IHDR", header), *chunks, (b"IEND", b"")))


def tiff(tags: dict[int, int | tuple[int, ...]], pixels: bytes) -> bytes:
    """An uncompressed one-strip TIFF written by hand; tuples become SHORT arrays."""
    n_tags = len(tags) + 2
    extra_at = 8 + 2 + 12 * n_tags + 4
    extra = bytearray()
    entries = []
    for tag, value in {**tags, 273: -1, 279: len(pixels)}.items():
        if isinstance(value, tuple) and len(value) == 2:
            entries.append((tag, 3, 2, value[0] | value[1] << 16))  # fits in place of an offset
        elif isinstance(value, tuple):
            entries.append((tag, 3, len(value), extra_at + len(extra)))
            extra += struct.pack(f"<{len(value)}H", *value)
        else:
            entries.append((tag, 4, 1, value))
    entries = [(tag, kind, n, extra_at + len(extra) if value == -1 else value) for tag, kind, n, value in entries]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<IH", 8, n_tags) + directory + struct.pack("<I", 0) + bytes(extra) + pixels


# --- formats


@pytest.mark.parametrize(
    ("kind", "format", "options"),
    [
        ("png", "PNG", {}),
        ("jpeg", "JPEG", {"quality": 95, "subsampling": 0}),
        ("webp", "WEBP", {"lossless": True}),
        ("tiff", "TIFF", {}),
        ("tiff", "TIFF", {"compression": "tiff_lzw"}),
        ("tiff", "TIFF", {"big_tiff": True}),
        ("gif", "GIF", {}),
        ("bmp", "BMP", {}),
    ],
)
def test_each_format_gives_its_pixels(kind: str, format: str, options: dict[str, object]) -> None:
    with open_document(encode(corners(), format, **options), SETTINGS) as document:
        assert (document.kind, document.n_pages) == (kind, 1)
        page = document.page(0)
        assert document.page(0).tobytes() == page.tobytes()  # again, since pages are decoded anew
    assert (page.mode, page.size) == ("RGB", (64, 32))
    assert np.abs(np.asarray(page).astype(int) - np.asarray(corners())).max() <= 4


def test_heic() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(corners()).save(file, quality=-1, chroma=444)
    with open_document(file.getvalue(), SETTINGS) as document:
        assert (document.kind, document.n_pages) == ("heic", 1)
        page = document.page(0)
    assert page.size == (64, 32)
    assert np.abs(np.asarray(page).astype(int) - np.asarray(corners())).max() <= 12


def test_heic_without_pillow_heif_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    data = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    with pytest.raises(UnsupportedDocument) as caught:
        open_document(data, SETTINGS)
    assert "pillow-heif" in caught.value.hint


def test_libraries_are_imported_only_for_their_format(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real_import = builtins.__import__

    def spy(name: str, *rest: Any) -> object:
        asked.append(name)
        return real_import(name, *rest)

    data = encode(corners(), "PNG")
    monkeypatch.setattr(builtins, "__import__", spy)
    first_page(data)
    assert not {"pillow_heif", "pypdfium2", "handler.pdf"} & set(asked)


def test_animations_are_their_first_frame() -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    for format in ("GIF", "WEBP", "PNG"):
        data = encode(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        with open_document(data, SETTINGS) as document:
            assert document.n_pages == 1
            assert document.page(0).getpixel((0, 0)) == (255, 0, 0)


def test_tiff_frames_are_pages_in_any_order() -> None:
    frames = [
        Image.new("RGB", (20, 10), "red"),
        Image.new("L", (10, 30), 77),
        Image.new("1", (7, 5), 1),
        Image.new("RGBA", (3, 4), (0, 0, 255, 255)),
    ]
    data = encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    with open_document(data, SETTINGS) as document:
        assert document.n_pages == 4
        seen = [(page.size, page.getpixel((0, 0))) for page in map(document.page, (3, 1, 0, 2))]
    assert seen == [((3, 4), (0, 0, 255)), ((10, 30), (77, 77, 77)), ((20, 10), (255, 0, 0)), ((7, 5), WHITE)]


# --- rejections


@pytest.mark.parametrize("data", [b"", pdf()])
def test_empty(data: bytes) -> None:
    with pytest.raises(EmptyDocument):
        open_document(data, SETTINGS)


@pytest.mark.parametrize(
    "data",
    [
        b"just a text",
        b"BM is how this text begins, yet it is none of the bitmaps",
        b"PK\x03\x04" + bytes(60),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf" + bytes(64),
        encode(corners(), "PPM"),
        encode(corners(), "ICO"),
        b"\0",
    ],
)
def test_unknown_formats(data: bytes) -> None:
    """Among them formats that Pillow could open: no decoder is reached that is not named here."""
    with pytest.raises(UnsupportedDocument):
        open_document(data, SETTINGS)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + b"x" * 80,
        b"\xff\xd8\xff",
        b"GIF89a",
        b"II*\0\x08\0\0\0",
        b"MM\0*" + b"\xff" * 40,
        b"BM" + bytes(12) + struct.pack("<I", 40) + b"\xff" * 36,
        b"RIFF\x10\0\0\0WEBPVP8 \x04\0\0\0\0\0\0\0",
        b"%PDF-1.7\nnothing more",
        png(0, 5),
        png(5, 5),
        pdf(b"/MediaBox[0 0 9 9]")[:150],
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_known_formats_that_can_not_be_decoded(data: bytes) -> None:
    with pytest.raises(DamagedDocument) as caught:
        first_page(data)
    assert caught.value.__cause__ is not None or data.startswith(b"%PDF")


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 255, (60, 80, 3), np.uint8))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
@pytest.mark.filterwarnings("ignore")
def test_truncated_images(format: str, kept: float) -> None:
    data = encode(NOISE, format)
    with pytest.raises(DamagedDocument):
        first_page(data[: int(len(data) * kept)])


@pytest.mark.filterwarnings("ignore")
def test_a_cut_tiff_gives_the_pages_that_are_whole() -> None:
    """The page whose directory is lost stays a page: it fails when asked for, and is never silently missing."""
    frames = [NOISE] * 3
    data = encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    with open_document(data[: len(data) * 5 // 6], SETTINGS) as document:
        assert document.n_pages == 3
        assert document.page(1).size == NOISE.size
        with pytest.raises(DamagedDocument):
            document.page(2)


@pytest.mark.parametrize(
    "data",
    [
        png(60_000, 60_000, 1),
        png(12_000, 12_000, 1),  # Pillow only warns
        png(2**31 - 1, 2**31 - 1, 16, 6),
        b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\0;",
        b"GIF89a\x01\0\x01\0\0\0\0," + struct.pack("<HHHH", 0, 0, 20_000, 20_000) + b"\0\x02\0;",
        b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 20000, -20000, 1, 24, *[0] * 6),
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (16382).to_bytes(3, "little") * 2 + b"VP8 \0\0\0\0",
        tiff({256: 20_000, 257: 20_000, 258: 8, 259: 1, 262: 1, 277: 1, 278: 20_000}, b"x"),
        tiff({256: 9, 257: 9, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 40_000, 324: 8, 325: 9}, b"x"),
    ],
    ids=["png", "png-warned", "png-16-bit", "gif", "gif-frame", "bmp", "webp", "tiff", "tiff-tile"],
)
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_bombs_are_refused_by_their_header(data: bytes, action: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "new", lambda *_: pytest.fail("pixels were allocated"))
    monkeypatch.setattr(core, "fill", lambda *_: pytest.fail("pixels were allocated"))
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        before = Image.MAX_IMAGE_PIXELS, warnings.filters[:]
        with pytest.raises(DocumentTooLarge) as caught:
            open_document(data, SETTINGS)
        assert before == (Image.MAX_IMAGE_PIXELS, warnings.filters)
    assert "MINERU_MAX_DOCUMENT_PIXELS allows 60,000,000" in caught.value.detail


def test_pillows_own_limit_is_named_where_ours_is_higher() -> None:
    with pytest.raises(DocumentTooLarge, match="Pillow"):
        open_document(png(60_000, 60_000, 1), Settings(max_document_pixels=10**12))


def test_every_tiff_frame_is_checked() -> None:
    frames = [Image.new("L", (10, 10)), Image.new("L", (10, 10)), Image.new("L", (11, 10))]
    data = encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    assert page_sizes(data)[2] == (11, 10)
    with pytest.raises(DocumentTooLarge, match=r"11 x 10 pixels; MINERU_MAX_DOCUMENT_PIXELS allows 109"):
        open_document(data, Settings(max_document_pixels=109))


def test_bytes_and_pages_are_limited() -> None:
    data = pdf(b"", b"", b"")
    with pytest.raises(DocumentTooLarge, match="MINERU_MAX_DOCUMENT_BYTES"):
        open_document(b"x" * 11, Settings(max_document_bytes=10))
    with pytest.raises(DocumentTooLarge, match="3 pages; MINERU_MAX_PAGES allows 2"):
        open_document(data, Settings(max_pages=2))
    assert open_document(data, Settings(max_pages=3)).n_pages == 3
    frames = [Image.new("1", (4, 4))] * 4
    data = encode(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    with pytest.raises(DocumentTooLarge, match="MINERU_MAX_PAGES"):
        open_document(data, Settings(max_pages=3))
    assert open_document(data, Settings(max_pages=4)).n_pages == 4


def test_running_out_of_memory_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    data = encode(corners(), "PNG")
    monkeypatch.setattr(core, "new", no_memory)
    with open_document(data, SETTINGS) as document, pytest.raises(DocumentTooLarge):
        document.page(0)


def test_pages_outside_and_after_closing() -> None:
    for data in (encode(corners(), "PNG"), pdf(b"")):
        document = open_document(data, SETTINGS)
        for index in (-1, 1):
            with pytest.raises(PageOutOfRange):
                document.page(index)
        document.close()
        document.close()
        with pytest.raises(MineruError):
            document.page(0)


# --- upright


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(format: str, orientation: int) -> None:
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what a camera that is turned so stores
    stored = corners() if orientation == 1 else corners().transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[274] = orientation
    options = {"quality": 95, "subsampling": 0} if format == "JPEG" else {}
    if format == "WEBP":
        options["lossless"] = True
    page = first_page(encode(stored, format, exif=exif, **options))
    assert page.size == (64, 32)
    assert np.abs(np.asarray(page).astype(int) - np.asarray(corners())).max() <= 6


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\x7f", b"Exif\0\0MM\0*\0\0"]
)
@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.filterwarnings("ignore")
def test_broken_exif_does_not_fail_the_image(format: str, exif: bytes) -> None:
    assert first_page(encode(corners(), format, exif=exif)).size == (64, 32)


@pytest.mark.parametrize("pointer", [8, 9, 60, 10**6, 2**32 - 1])
@pytest.mark.filterwarnings("ignore")
def test_broken_exif_in_tiff_does_not_fail_the_image(pointer: int) -> None:
    data = tiff({256: 4, 257: 2, 258: 8, 259: 1, 262: 1, 277: 1, 278: 2, 34665: pointer}, bytes(8))
    assert first_page(data).size == (4, 2)


@pytest.mark.parametrize(
    ("dpi", "orientation", "size_px"),
    [
        ((204, 98), 1, (200, 208)),
        ((204, 196), 1, (200, 100)),
        ((98, 204), 1, (416, 100)),
        ((204, 98), 6, (208, 200)),
        ((72, 1), 1, (200, 100)),
        ((200, 200), 1, (200, 100)),
    ],
)
def test_fax_pixels_are_made_square(dpi: tuple[int, int], orientation: int, size_px: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    fax = Image.new("1", (200, 100), 1)
    data = encode(fax, "TIFF", compression="group4", dpi=dpi, exif=exif)
    assert first_page(data).size == size_px
    if size_px[0] * size_px[1] > 20_000:
        with pytest.raises(DocumentTooLarge):  # the stretched size counts
            open_document(data, Settings(max_document_pixels=20_000))


@pytest.mark.filterwarnings("ignore")
def test_resolution_that_is_nonsense_is_ignored() -> None:
    tags = {256: 4, 257: 2, 258: 8, 259: 1, 262: 1, 277: 1, 278: 2, 296: 2}
    for x, y in (((0, 0), (1, 1)), ((1, 2, 3), 5), (1, 2**32 - 1)):
        assert first_page(tiff({**tags, 282: x, 283: y}, bytes(8))).size == (4, 2)


# --- transparency


def ink(fill: tuple[int, int, int], ground: tuple[int, int, int, int] = (255, 255, 255, 0)) -> Image.Image:
    """Text of one colour on a transparent ground."""
    image = Image.new("RGBA", (160, 40), ground)
    ImageDraw.Draw(image).text((4, 4), "Readable", fill=(*fill, 255), font_size=24)
    return image


def as_png_of(mode: str, image: Image.Image) -> bytes:
    """The same picture, transparency told in another way."""
    if mode in ("RGBA", "LA"):
        return encode(image.convert(mode), "PNG")
    hard = image.getchannel("A").point(lambda level: 255 * (level > 127))
    level = int(np.asarray(image)[np.asarray(hard) > 0][0, 0])
    if mode == "P":
        flat = Image.new("P", image.size, 0)
        flat.putpalette([120, 120, 120, level, level, level])
        flat.paste(1, mask=hard)
        return encode(flat, "PNG", transparency=0)
    key: Any
    fill: Any
    key, fill = {"RGB": ((120, 121, 122), (level,) * 3), "L": (120, level), "1": (255 - level, level)}[mode]
    flat = Image.new(mode, image.size, key)
    flat.paste(fill, mask=hard)
    return encode(flat, "PNG", transparency=int(level == 0) if mode == "1" else key)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L", "1"])
@pytest.mark.parametrize(("fill", "ground"), [(BLACK, WHITE), (WHITE, BLACK)])
@pytest.mark.parametrize("hidden", [(255, 255, 255, 0), (0, 0, 0, 0), (200, 30, 90, 0)])
def test_ink_on_a_transparent_ground_is_readable(
    mode: str, fill: tuple[int, int, int], ground: tuple[int, int, int], hidden: tuple[int, int, int, int]
) -> None:
    """Black text goes on white, white text on black, whatever colour lies hidden under the transparency."""
    page = first_page(as_png_of(mode, ink(fill, hidden)))
    assert page.getpixel((0, 0)) == ground
    assert levels(page) == (0, 255)


@pytest.mark.parametrize("mode", ["PA", "LA", "La", "RGBa", "RGBA"])
def test_modes_that_only_tiff_brings(mode: str) -> None:
    samples = {"PA": 2, "LA": 2, "La": 2, "RGBa": 4, "RGBA": 4}[mode]
    opaque, clear = {"PA": (b"\x01\xff", b"\0\0"), "LA": (b"\0\xff", b"\0\0"), "La": (b"\0\xff", b"\0\0")}.get(
        mode, (b"\0\0\0\xff", b"\0\0\0\0")
    )
    tags: dict[int, int | tuple[int, ...]] = {256: 4, 257: 1, 258: (8,) * samples, 259: 1, 277: samples, 278: 1}
    tags |= {262: {"PA": 3, "LA": 1, "La": 1}.get(mode, 2), 338: 1 if mode.endswith("a") else 2}
    if mode == "PA":
        tags[320] = (0xFFFF, *[0] * 255) * 3
    page = first_page(tiff(tags, opaque * 2 + clear * 2))
    assert [page.getpixel((x, 0)) for x in range(4)] == [BLACK, BLACK, WHITE, WHITE]


def test_palette_with_an_alpha_for_each_entry() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    page = first_page(encode(image, "PNG", transparency=b"\x00\xff\x80"))
    assert [page.getpixel((x, 0)) for x in range(3)] == [WHITE, (255, 0, 0), (127, 127, 255)]


def test_16_bit_colour_key() -> None:
    """The key of a 16-bit PNG has 16 bits, Pillow's pixels have 8."""
    row = b"\0" + struct.pack(">6H", 0xFFFF, 0xFFFF, 0xFFFF, 0x1234, 0, 0)
    for key, left, right in (((0xFFFF,) * 3, WHITE, (0x12, 0, 0)), ((0x1234, 0, 0), WHITE, BLACK)):
        chunks = ((b"tRNS", struct.pack(">3H", *key)), (b"IDAT", zlib.compress(row)))
        page = first_page(png(2, 1, 16, 2, chunks))
        assert (page.getpixel((0, 0)), page.getpixel((1, 0))) == (left, right)
    row = b"\0" + struct.pack(">2H", 0xFFFF, 0)
    chunks = ((b"tRNS", struct.pack(">H", 0xFFFF)), (b"IDAT", zlib.compress(row)))
    assert levels(first_page(png(2, 1, 16, 0, chunks))) == (0, 255)


@pytest.mark.parametrize("n_dark", [0, 60])
def test_a_light_card_stays_on_white_if_it_has_ink(n_dark: int) -> None:
    """Its corners are transparent; only a card without any ink counts as ink itself."""
    card = Image.new("RGBA", (100, 100), (255, 255, 255, 0))
    card.paste((250, 250, 250, 255), (5, 5, 95, 95))
    card.paste((0, 0, 0, 255), (20, 50, 20 + n_dark, 51 if n_dark else 50))
    page = first_page(encode(card, "PNG"))
    assert page.getpixel((0, 0)) == (WHITE if n_dark else BLACK)
    assert levels(page)[1] - levels(page)[0] >= 250


def test_faint_ink_counts_too() -> None:
    image = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    image.paste((255, 255, 255, 90), (5, 5, 10, 10))
    assert levels(first_page(encode(image, "PNG"))) == (0, 90)


def test_a_fully_transparent_image_is_a_white_page() -> None:
    for colour in ((255, 255, 255, 0), (0, 0, 0, 0)):
        assert levels(first_page(encode(Image.new("RGBA", (9, 9), colour), "PNG"))) == (255, 255)


def test_an_opaque_alpha_changes_nothing() -> None:
    assert first_page(encode(corners().convert("RGBA"), "PNG")).tobytes() == corners().tobytes()


def test_transparent_gif() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 0, 0, 0])
    image.putpixel((1, 1), 1)
    page = first_page(encode(image, "GIF", transparency=0))
    assert (page.getpixel((0, 0)), page.getpixel((1, 1))) == (WHITE, BLACK)


# --- depths and colour spaces


RAMP = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)


def assert_ramp(page: Image.Image) -> None:
    grey = np.asarray(page)[..., 0].ravel().astype(int)
    assert (grey[0], grey[-1]) == (0, 255)
    assert np.abs(grey - np.arange(256)).max() <= 1


def gray_tiff(bits: int, kind: int, photometric: int, pixels: bytes) -> bytes:
    return tiff({256: 16, 257: 16, 258: bits, 259: 1, 262: photometric, 277: 1, 278: 16, 339: kind}, pixels)


@pytest.mark.parametrize(
    "data",
    [
        encode(Image.fromarray(RAMP), "PNG"),
        encode(Image.fromarray(RAMP), "TIFF"),
        encode(Image.fromarray(RAMP), "TIFF", compression="tiff_lzw"),
        gray_tiff(16, 1, 0, (65535 - RAMP).tobytes()),
        b"MM\0*" + b"\0\0\0\x08" + b"",
        encode(Image.fromarray(RAMP.astype(np.int32)), "TIFF"),
        encode(Image.fromarray((RAMP // 257).astype(np.int32)), "TIFF"),
        gray_tiff(16, 2, 1, (RAMP.astype(np.int32) - 32768).astype(np.int16).tobytes()),
        encode(Image.fromarray(RAMP.astype(np.float32)), "TIFF"),
        encode(Image.fromarray(RAMP.astype(np.float32) / 65535), "TIFF"),
        encode(Image.fromarray(RAMP.astype(np.float32) / 257), "TIFF"),
        encode(Image.fromarray(RAMP.astype(np.float32) * 1e30 - 1e34), "TIFF"),
        gray_tiff(32, 3, 0, (1 - RAMP.astype(np.float32) / 65535).tobytes()),
    ],
    ids=[
        *("png16", "tiff16", "lzw16", "white-is-zero16", "big-endian16", "int32", "int32-of-8", "signed16"),
        *("f16", "f1", "f8", "f-any", "f-white-is-zero"),
    ],
)
def test_greys_of_more_than_8_bits_are_scaled(data: bytes) -> None:
    if data.startswith(b"MM"):
        little = gray_tiff(16, 1, 1, b"")
        entries = [struct.unpack("<HHII", little[10 + 12 * at : 22 + 12 * at]) for at in range(10)]
        entries = [(tag, kind, n, 512 if tag == 279 else value) for tag, kind, n, value in entries]
        data = struct.pack(">2sHIH", b"MM", 42, 8, 10) + b"".join(struct.pack(">HHII", *entry) for entry in entries)
        data += bytes(4) + RAMP.astype(">u2").tobytes()
    assert_ramp(first_page(data))


def test_12_bit_tiff() -> None:
    values = np.linspace(0, 4095, 256).astype(int)
    packed = bytearray()
    for left, right in values.reshape(-1, 2).tolist():
        packed += bytes((left >> 4, (left & 15) << 4 | right >> 8, right & 255))
    assert_ramp(first_page(gray_tiff(12, 1, 1, bytes(packed))))


@pytest.mark.parametrize("values", [[np.nan, np.inf, -np.inf, 0.5], [7.0] * 4, [-7.0] * 4, [3e38, -3e38, 0, 1]])
def test_floats_that_are_no_numbers(values: list[float]) -> None:
    image = Image.fromarray(np.array([values], np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first_page(encode(image, "TIFF")).size == (4, 1)


@pytest.mark.parametrize(
    ("mode", "format"),
    [
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("YCbCr", "JPEG"),
        ("YCbCr", "TIFF"),
        ("LAB", "TIFF"),
        ("P", "PNG"),
        ("P", "BMP"),
    ],
)
def test_colour_spaces(mode: str, format: str) -> None:
    """Also JPEG from Pillow in CMYK, which has Adobe's marker and inverted inks."""
    if mode == "LAB":
        spaces = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.profileToProfile(corners(), *spaces, outputMode="LAB")
    else:
        image = corners().convert(mode)
    options = {"quality": 100, "subsampling": 0} if format == "JPEG" else {}
    page = first_page(encode(image, format, **options))
    tolerance = 24 if mode == "LAB" else 10  # 8-bit LAB is that coarse
    assert np.abs(np.asarray(page).astype(int) - np.asarray(corners())).max() <= tolerance


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP", "GIF"])
def test_one_bit(format: str) -> None:
    image = Image.new("1", (9, 3), 1)
    image.putpixel((8, 2), 0)
    page = first_page(encode(image, format))
    assert (page.getpixel((0, 0)), page.getpixel((8, 2))) == (WHITE, BLACK)


@pytest.mark.parametrize("size_px", [(1, 1), (1, 5000), (5000, 1)])
def test_strips(size_px: tuple[int, int]) -> None:
    page = first_page(encode(Image.new("L", size_px, 7), "PNG"))
    assert page.size == size_px
    assert max(cap_longest_side(page, 960).size) <= 960
    assert min(cap_longest_side(page, 960).size) == 1


def test_texts_of_the_file_do_not_travel_with_the_page() -> None:
    exif = Image.Exif()
    exif[270] = "secret"
    assert first_page(encode(corners(), "JPEG", exif=exif, comment="secret")).info == {}


# --- PDF


LETTER = b"/MediaBox[0 0 612 792]"
TOP_LEFT = b"1 0 0 rg 0 692 100 100 re f"


def test_pdf_at_the_dpi_of_settings_or_argument() -> None:
    data = pdf(LETTER, content=TOP_LEFT)
    assert first_page(data).size == (1700, 2200)
    assert first_page(data, Settings(page_dpi=100)).size == (850, 1100)
    assert first_page(data, dpi=72).size == (612, 792)
    assert first_page(data, dpi=10_000).size == (2705, 3500)
    for dpi in (0, -5):
        with pytest.raises(RequestError):
            open_document(data, SETTINGS, dpi=dpi)


@pytest.mark.parametrize(("angle", "red_at"), [(0, (0, 0)), (90, (1, 0)), (180, (1, 1)), (270, (0, 1))])
def test_pdf_rotate(angle: int, red_at: tuple[int, int]) -> None:
    page = first_page(pdf(LETTER + b"/Rotate %d" % angle, content=TOP_LEFT), dpi=72)
    assert page.size == ((792, 612) if angle % 180 else (612, 792))
    x, y = ((5, side_px - 6)[far] for far, side_px in zip(red_at, page.size))
    assert page.getpixel((x, y)) == (255, 0, 0)
    assert page.getpixel((300, 300)) == WHITE


@pytest.mark.parametrize(
    "size_pt", [(14400, 14400), (14400, 1), (0.01, 14400), (1e9, 1e9), (1e-3, 1e-3), (1e6, 333.3333), (1260.0001, 7)]
)
def test_pdf_pages_of_any_size_stay_within_the_cap(size_pt: tuple[float, float]) -> None:
    page = first_page(pdf(b"/MediaBox[0 0 %.6f %.6f]" % size_pt))
    assert 1 <= min(page.size) <= max(page.size) <= 3500


def test_the_cap_holds_for_every_rounding() -> None:
    from handler.pdf import PdfPages

    rng = random.Random(4)
    for _ in range(300):
        longest_pt, cap_px = rng.uniform(1, 20_000), rng.randint(1, 5000)
        pages = PdfPages(pdf(b""), dpi=1200, max_page_px=cap_px)
        assert math.ceil(longest_pt * pages._scale(longest_pt, 1.0, 0)) <= cap_px
        pages.close()


@pytest.mark.parametrize("box", [b"[0 0 0 0]", b"[0 0 0 500]", b"[5 5 5 5]", b"[0 0 1e39 1e39]", b"[]", b"[a b c d]"])
def test_pdf_pages_without_area_do_not_crash(box: bytes) -> None:
    """PDFium takes US Letter for most of them; that or an error of ours."""
    data = pdf(b"/MediaBox%s/CropBox%s" % (box, box))
    with contextlib.suppress(DamagedDocument):
        assert max(first_page(data).size) <= 3500


@pytest.mark.parametrize("size_pt", [(0, 5), (5, 0), (float("inf"), 5), (float("nan"), 5), (5, float("nan")), (-1, 5)])
def test_no_scale_for_a_page_without_area(size_pt: tuple[float, float]) -> None:
    from handler.pdf import PdfPages

    with pytest.raises(DamagedDocument):
        PdfPages(pdf(b""), dpi=200, max_page_px=3500)._scale(*size_pt, 0)


def test_pdf_annotations_and_form_fields_are_drawn() -> None:
    look = b"<</Type/XObject/Subtype/Form/BBox[0 0 50 50]/Length 25>>stream\n0 0 1 rg 0 0 50 50 re f \nendstream"
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(b)/F 4/Rect[0 0 50 50]/AP<</N 4 0 R>>>>"
    square = b"<</Type/Annot/Subtype/Square/F 4/Rect[100 0 150 50]/AP<</N 4 0 R>>>>"
    hidden = b"<</Type/Annot/Subtype/Square/F 2/Rect[200 0 250 50]/AP<</N 4 0 R>>>>"
    data = pdf(
        LETTER + b"/Annots[5 0 R 6 0 R 7 0 R]",
        objects=(look, field, square, hidden),
        catalog=b"/AcroForm<</Fields[5 0 R]>>",
    )
    page = first_page(data, dpi=72)
    assert [page.getpixel((x, 780)) for x in (25, 125, 225)] == [(0, 0, 255), (0, 0, 255), WHITE]


def test_pdf_behind_other_bytes() -> None:
    assert first_page(b"\r\nsome mail header\r\n" + pdf(LETTER)).size == (1700, 2200)


def encrypted_pdf() -> bytes:
    """RC4, 40 bits, whose user password is nothing that anybody knows."""
    data = pdf(LETTER)
    entry = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<%s>/U<%s>>>/ID[<00><00>]" % (b"ab" * 32, b"cd" * 32)
    return data.replace(b"trailer<<", b"trailer<<" + entry)


def test_encrypted_pdf() -> None:
    with pytest.raises(EncryptedDocument):
        open_document(encrypted_pdf(), SETTINGS)
    with pytest.raises(EncryptedDocument):
        open_document(encrypted_pdf().replace(b"/Standard", b"/Unheard_"), SETTINGS)


def test_a_pdf_page_that_is_missing_fails_alone() -> None:
    data = pdf(LETTER, LETTER)
    broken = data.replace(b"5 0 obj\n<</Type/Page/", b"5 0 obj\n<</Type/Nope/")
    assert broken != data
    with open_document(broken, SETTINGS) as document:
        assert document.page(0).size == (1700, 2200)


def test_pdfium_objects_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = pytest.importorskip("pypdfium2.raw")
    freed = []
    for name in ("FPDFBitmap_Destroy", "FPDF_ClosePage", "FPDF_CloseDocument"):
        real_free = getattr(raw, name)

        def spy(handle: object, name: str = name, real_free: Any = real_free) -> None:
            freed.append(name)
            real_free(handle)

        monkeypatch.setattr(raw, name, spy)
    data = pdf(LETTER)
    with open_document(data, SETTINGS) as document:
        document.page(0)
        assert freed == ["FPDFBitmap_Destroy", "FPDF_ClosePage"]
    assert freed[2:] == ["FPDF_CloseDocument"]
    with pytest.raises(EmptyDocument):
        open_document(pdf(), SETTINGS)
    with pytest.raises(DocumentTooLarge):
        open_document(pdf(b"", b""), Settings(max_pages=1))
    assert freed[3:] == ["FPDF_CloseDocument"] * 2


def test_a_failing_render_is_translated_and_frees_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pypdfium2 = pytest.importorskip("pypdfium2")
    with open_document(pdf(LETTER), SETTINGS) as document:
        for raised, expected in ((pypdfium2.PdfiumError("x"), DamagedDocument), (MemoryError(), DocumentTooLarge)):

            def fail(*_: object, raised: Exception = raised, **__: object) -> None:
                raise raised

            with monkeypatch.context() as patch:
                patch.setattr(pypdfium2.PdfPage, "render", fail)
                with pytest.raises(expected) as caught:
                    document.page(0)
            assert caught.value.__cause__ is raised
        assert document.page(0).size == (1700, 2200)


def test_threads_may_render_at_once() -> None:
    data = pdf(LETTER, content=TOP_LEFT)
    sizes: list[tuple[int, int]] = []

    def work() -> None:
        with open_document(data, SETTINGS, dpi=50) as document:
            sizes.extend(document.page(0).size for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [(425, 550)] * 40


# --- page selection and shrinking


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6]),
        ("", [0, 1, 2, 3, 4, 5, 6]),
        ("  ", [0, 1, 2, 3, 4, 5, 6]),
        ("1", [0]),
        ("1-3,7", [0, 1, 2, 6]),
        ("7,1-3", [0, 1, 2, 6]),
        ("2-4,3-5,4", [1, 2, 3, 4]),
        ("5-", [4, 5, 6]),
        ("-3", [0, 1, 2]),
        ("7-", [6]),
        ("-1", [0]),
        (" 2 - 3 , 5 ", [1, 2, 4]),
        ("007", [6]),
        ("3-3", [2]),
    ],
)
def test_parse_pages(text: str | None, indices: list[int]) -> None:
    assert parse_pages(text, 7) == indices


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "1,",
        ",",
        "1,,2",
        "-",
        "1-2-3",
        "3-2",
        "1.5",
        "1;2",
        "--3",
        "+1",
        "0x1",
        "\u0661",
        "\u00b2",
        "1 2",
        "9" * 5000,
    ],
)
def test_page_selections_that_are_malformed(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_pages(text, 7)
    assert caught.value.code == "request_invalid"


@pytest.mark.parametrize("text", ["0", "8", "0-3", "5-8", "8-", "-8", "-0", "1,99999999999"])
def test_page_selections_beyond_the_document(text: str) -> None:
    with pytest.raises((PageOutOfRange,)):
        parse_pages(text, 7)


def test_cap_longest_side() -> None:
    image = corners()
    assert cap_longest_side(image, 64) is image
    assert cap_longest_side(image, 1000) is image
    assert cap_longest_side(image, 63).size == (63, 32)
    assert cap_longest_side(image, 16).size == (16, 8)
    assert cap_longest_side(image, 1).size == (1, 1)
    assert np.asarray(cap_longest_side(image, 16))[2, 2, 0] > 240


# --- whatever bytes


def seeds() -> dict[str, bytes]:
    small = NOISE.resize((24, 20))
    exif = Image.Exif()
    exif[274] = 6
    return {
        "png": encode(small.convert("RGBA"), "PNG", exif=exif, dpi=(72, 72)),
        "png-p": encode(small.quantize(16), "PNG", transparency=3),
        "jpeg": encode(small, "JPEG", exif=exif),
        "tiff-g4": encode(small.convert("1"), "TIFF", compression="group4", dpi=(204, 98)),
        "tiff-2": encode(small, "TIFF", save_all=True, append_images=[small.convert("L")], compression="tiff_lzw"),
        "gif": encode(small, "GIF", save_all=True, append_images=[small.rotate(90)]),
        "webp": encode(small, "WEBP", exif=exif),
        "bmp": encode(small, "BMP"),
        "pdf": pdf(b"/MediaBox[0 0 90 70]", b"/MediaBox[0 0 9 9]/Rotate 90", content=TOP_LEFT),
    }


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        # The head decides most; so it is hit as often as all the rest.
        at = rng.randrange(min(len(changed), 80) if rng.random() < 0.5 else len(changed))
        what = rng.randrange(6)
        if what < 3:
            changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif what == 3:
            changed[at : at + rng.randint(1, 9)] = b""
        elif what == 4:
            changed[at:at] = rng.randbytes(rng.randint(1, 9))
        elif rng.random() < 0.3:
            changed[at:] = b""
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("kind", seeds())
@pytest.mark.filterwarnings("ignore")
def test_mutations_give_an_image_or_an_input_error(kind: str) -> None:
    """Only InputError may come out, whose texts are ours; anything else fails the test by itself."""
    settings = Settings(max_document_pixels=1_000_000, max_page_px=200, max_pages=20)
    data, rng = seeds()[kind], random.Random(kind)
    first_page(data, settings)
    for _ in range(70):
        refusal: InputError | None = None
        try:
            with open_document(mutate(data, rng), settings) as document:
                for index in range(document.n_pages):
                    assert document.page(index).mode == "RGB"
        except InputError as error:
            refusal = error
        assert refusal is None or not {"BytesIO", "/"} & set(refusal.detail.replace("/", " / ").split())


# --- real files


REAL_PAGES: dict[str, list[tuple[int, int]]] = {
    "paper_twocol_dpr_2p.pdf": [(1654, 2339)] * 2,
    "paper_table_1p.pdf": [(1700, 2200)],
    "formula_code_2p.pdf": [(1700, 2200), (1654, 2339)],
    "letter_scan_rot90.pdf": [(1653, 2339)],
    "table_spans.png": [(1377, 648)],
    "multipage_5p.pdf": [(1654, 2339)] * 5,
    "edge/rotate90_page.pdf": [(2339, 1654)],
    "edge/invisible_text_layer.pdf": [(1700, 2200)],
    "edge/truncated.heic": [(16, 16)],
    "edge/cmyk.jpg": [(100, 100)],
    "edge/rgb16.png": [(128, 128)],
    "edge/gray16.png": [(128, 128)],
    "edge/rgba_black_text.png": [(1890, 503)],
    "edge/rgb_trns.png": [(64, 64)],
    "edge/bilevel.png": [(800, 566)],
    "edge/exif_orientation6_photo.jpg": [(1200, 1800)],
    "edge/fax_g3_3frames.tif": [(1728, 2156)] * 3,
    "edge/g4_3frames_3307x4677.tiff": [(3307, 4677)] * 3,
    "edge/animated_42frames.gif": [(245, 245)],
    "edge/tiny_65x11.png": [(65, 11)],
    "edge/strip_1x3000.png": [(1, 3000)],
    "edge/strip_3000x2.png": [(3000, 2)],
    "edge/receipt_exif6.jpg": [(457, 1170)],
    "edge/bomb_huge_mediabox.pdf": [(3500, 3500)],
}
REAL_ERRORS: dict[str, type[InputError]] = {
    "edge/encrypted_user_password.pdf": EncryptedDocument,
    "edge/empty.pdf": EmptyDocument,
    "edge/empty.heic": EmptyDocument,
    "edge/corrupted.heic": DamagedDocument,
    "edge/bomb_65535x66601.gif": DocumentTooLarge,
    "edge/bomb_200Mpx.heic": DocumentTooLarge,
    "edge/bomb_1bit_20000x20000.png": DocumentTooLarge,
    "edge/bomb_1bit_12000x12000.png": DocumentTooLarge,
    "edge/truncated.png": DamagedDocument,
    "edge/truncated_half.pdf": DamagedDocument,
    "edge/broken.png": DamagedDocument,
    "edge/zero_width.gif": DamagedDocument,
    "edge/text_named.png": UnsupportedDocument,
}


def real(name: str) -> bytes:
    if not (REAL / name).exists():
        pytest.skip("the shared documents are not here")
    if name.endswith(".heic") and not name.endswith("empty.heic"):
        pytest.importorskip("pillow_heif")
    return (REAL / name).read_bytes()


@pytest.mark.parametrize("name", REAL_PAGES)
def test_real_files(name: str) -> None:
    assert page_sizes(real(name)) == REAL_PAGES[name]


@pytest.mark.parametrize("name", REAL_ERRORS)
@pytest.mark.filterwarnings("ignore")
def test_real_files_that_are_refused(name: str) -> None:
    data = real(name)
    with pytest.raises(InputError) as caught:
        first_page(data)
    assert type(caught.value) is REAL_ERRORS[name]


def test_real_files_are_all_in_the_tables() -> None:
    if not REAL.exists():
        pytest.skip("the shared documents are not here")
    there = {str(path.relative_to(REAL)) for folder in (REAL, REAL / "edge") for path in folder.iterdir()}
    there = {name for name in there if (REAL / name).is_file() and not name.endswith(".json")}
    assert there == {*REAL_PAGES, *REAL_ERRORS}


def test_real_transparent_text_is_readable() -> None:
    page = first_page(real("edge/rgba_black_text.png"))
    assert (page.getpixel((0, 0)), levels(page)) == (WHITE, (0, 255))


def test_document_is_a_context_manager() -> None:
    with open_document(pdf(b""), SETTINGS) as document:
        assert isinstance(document, Document)

"""Any decoded image -> RGB as a reader would see it: greys of more than 8 bits scaled, transparency on a ground."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageCms, TiffImagePlugin

WHITE, BLACK = (255, 255, 255), (0, 0, 0)
_TIFF_PHOTOMETRIC, _TIFF_BITS = 262, 258


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert a loaded image of any mode.

    Parameters
    ----------
    image : PIL.Image.Image
        Decoded; may be changed.

    Returns
    -------
    PIL.Image.Image
        Mode RGB, same size.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return _to_8_bits(image).convert("RGB")
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        page = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert page is not None  # None is for in-place only
        return page
    if image.has_transparency_data:
        return _on_ground(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale greys of more than 8 bits. Pillow's own conversion clips at 255, which whitens the page."""
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> (4 if tags.get(_TIFF_BITS) == (12,) else 8)).astype(np.uint8)  # (height, width)
    else:
        values = np.array(image, dtype=np.float32)  # (height, width); worked on in place, since it may be 240 MB
        np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        low, high = float(values.min()), float(values.max())
        # What white is, no tag says: the least of the usual ones that holds all values, or else their own range.
        whites = [white for white in (1.0, 255.0, 65535.0) if high <= white and (white > 1 or image.mode == "F")]
        black, white = (0.0, whites[0]) if low >= 0 and whites else (low, high)
        gain = 255 / (white - black) if white > black else 0.0
        values *= gain
        values += 0.5 - black * gain
        grey = values.clip(0, 255, out=values).astype(np.uint8)
    if tags.get(_TIFF_PHOTOMETRIC) == 0:  # white is zero: Pillow turns 1 and 8 bits only
        np.invert(grey, out=grey)
    return Image.fromarray(grey)


def _on_ground(image: Image.Image) -> Image.Image:
    """Lay a transparent image on white, or on black if its ink would vanish on white."""
    if image.mode in ("La", "RGBa"):
        image = image.convert(image.mode[:-1] + "A")
    key = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(key, tuple):  # of a 16-bit PNG the key has 16 bits, the pixels have 8
        image.info["transparency"] = tuple(level >> 8 if max(key) > 255 else level for level in key)
    if image.mode != "RGBA":
        image = image.convert("RGBA")
    alpha = image.getchannel("A")
    levels = [level for level, count in enumerate(alpha.histogram()) if count]
    if levels[0] == 255:
        return image.convert("RGB")
    page = Image.new("RGB", image.size, BLACK if _is_light(image, alpha, levels[-1]) else WHITE)
    page.paste(image, mask=alpha)
    return page


def _is_light(image: Image.Image, alpha: Image.Image, highest: int) -> bool:
    """Whether nearly all of the visible pixels would vanish on white, and nearly none on black.

    Only what is nearly as opaque as the most opaque pixel counts: colours of soft edges are often mixed with black.
    """
    opaque = alpha.point([255 if level >= 0.78 * highest else 0 for level in range(256)])
    levels = image.convert("L").histogram(opaque)
    n_opaque, n_light, n_dark = sum(levels), sum(levels[200:]), sum(levels[:64])
    return highest > 0 and n_light >= 0.98 * n_opaque and n_dark <= 0.001 * n_opaque

"""Free fonts by family, found on the machine at training time and never committed. Knows nothing of what is written."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from PIL import ImageFont

FONT_FOLDERS = ("/usr/share/fonts", "/usr/share/texmf/fonts/opentype")
DEBIAN_PACKAGES = (
    "fonts-dejavu fonts-liberation fonts-freefont-ttf fonts-crosextra-carlito fonts-crosextra-caladea fonts-lmodern "
    "fonts-texgyre fonts-open-sans fonts-roboto-unhinted fonts-noto-core fonts-linuxlibertine fonts-sil-gentium-basic"
)
STYLES = ("regular", "bold", "italic", "bolditalic")
STYLE_SHARES = (0.72, 0.13, 0.11, 0.04)

_ITALIC = ("Regular", "Bold", "Italic", "BoldItalic")
_OBLIQUE = ("", "-Bold", "-Oblique", "-BoldOblique")
_FREE = ("", "Bold", "Oblique", "BoldOblique")
_LOWER = ("regular", "bold", "italic", "bolditalic")

# File names of the four styles, and how often the family is drawn. What printed documents use most weighs most.
FAMILIES: dict[str, tuple[str, tuple[str, str, str, str], float]] = {
    "Liberation Sans": ("LiberationSans-{}.ttf", _ITALIC, 3.0),
    "Liberation Serif": ("LiberationSerif-{}.ttf", _ITALIC, 3.0),
    "DejaVu Sans": ("DejaVuSans{}.ttf", _OBLIQUE, 2.0),
    "DejaVu Serif": ("DejaVuSerif{}.ttf", ("", "-Bold", "-Italic", "-BoldItalic"), 1.0),
    "Latin Modern Roman": ("lmroman10-{}.otf", _LOWER, 3.0),
    "TeX Gyre Termes": ("texgyretermes-{}.otf", _LOWER, 2.0),
    "TeX Gyre Heros": ("texgyreheros-{}.otf", _LOWER, 2.0),
    "TeX Gyre Pagella": ("texgyrepagella-{}.otf", _LOWER, 1.0),
    "FreeSans": ("FreeSans{}.ttf", _FREE, 1.0),
    "FreeSerif": ("FreeSerif{}.ttf", ("", "Bold", "Italic", "BoldItalic"), 1.0),
    "Carlito": ("Carlito-{}.ttf", _ITALIC, 1.5),
    "Open Sans": ("OpenSans-{}.ttf", _ITALIC, 1.0),
    "Noto Sans": ("NotoSans-{}.ttf", _ITALIC, 1.0),
    "Noto Serif": ("NotoSerif-{}.ttf", _ITALIC, 1.0),
    "Roboto": ("Roboto-{}.ttf", _ITALIC, 1.0),
    "Linux Libertine": ("LinLibertine_{}.otf", ("R", "RB", "RI", "RBI"), 1.0),
    "Gentium": ("GenBas{}.ttf", ("R", "B", "I", "BI"), 1.0),
    "DejaVu Sans Mono": ("DejaVuSansMono{}.ttf", _OBLIQUE, 0.5),
    "Liberation Mono": ("LiberationMono-{}.ttf", _ITALIC, 0.5),
    "Caladea": ("Caladea-{}.ttf", _ITALIC, 1.0),
}
# Kept out of training, to measure what an unknown design costs.
UNSEEN = ("Caladea",)
SEEN = tuple(name for name in FAMILIES if name not in UNSEEN)


class MissingFonts(SystemExit):
    """The fonts are not installed; says which packages bring them."""


@cache
def _files() -> dict[str, str]:
    folders = os.environ.get("READER_FONTS", "").split(os.pathsep) if os.environ.get("READER_FONTS") else FONT_FOLDERS
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".ttf", ".otf"):
                found.setdefault(path.name, str(path))
    return found


@cache
def path_of(family: str, style: str) -> str:
    """File of one style of a family.

    Raises
    ------
    MissingFonts
    """
    pattern, names, _ = FAMILIES[family]
    name = pattern.format(names[STYLES.index(style)])
    try:
        return _files()[name]
    except KeyError:
        raise MissingFonts(
            f"The font file {name} is not on this machine.\nhint: apt-get install {DEBIAN_PACKAGES}"
        ) from None


@lru_cache(maxsize=4096)
def load(path: str, size_px: int) -> ImageFont.FreeTypeFont:
    """A font at a size; the basic layout engine, since ligatures would change what is drawn."""
    return ImageFont.truetype(path, size_px, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=65536)
def advance_px(path: str, size_px: int, character: str) -> float:
    """Width of one character."""
    return float(load(path, size_px).getlength(character))


def choose(random: np.random.Generator, families: tuple[str, ...] = SEEN, style: str | None = None) -> str:
    """Draw a font file: families by weight, styles by share."""
    weights = np.array([FAMILIES[name][2] for name in families])
    family = families[int(random.choice(len(families), p=weights / weights.sum()))]
    return path_of(family, style or STYLES[int(random.choice(4, p=STYLE_SHARES))])

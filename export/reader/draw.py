"""Text on a picture, and where each of its characters lies. Also what printing and scanning do to a picture."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from export.reader import fonts

Positions = NDArray[np.float32]  # (n_characters, 2): x, y of the middle in pixels, NaN where there is none


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture, what should be answered, and where the answer's characters stand in the picture."""

    image: NDArray[np.uint8]  # (height, width, 3)
    answer: str
    positions: Positions


def nowhere(text: str) -> Positions:
    """Positions of characters that are not drawn."""
    return np.full((len(text), 2), np.nan, dtype=np.float32)


def width_px(text: str, path: str, size_px: int) -> float:
    """Width of a text, kerning left out."""
    return sum(fonts.advance_px(path, size_px, character) for character in text)


def draw_text(
    draw: ImageDraw.ImageDraw, x_px: float, baseline_px: float, text: str, path: str, size_px: int, fill: int
) -> tuple[Positions, float]:
    """Write one run of text on a grey picture.

    Returns
    -------
    positions : float32, (n_characters, 2)
    x_px : float
        Where the run ends.
    """
    font = fonts.load(path, size_px)
    draw.text((x_px, baseline_px), text, fill=fill, font=font, anchor="ls")
    advances = np.array([fonts.advance_px(path, size_px, character) for character in text])
    ends = np.cumsum(advances)
    total = float(font.getlength(text))
    scale = total / ends[-1] if len(text) and ends[-1] else 1.0  # spreads the kerning over the run
    positions = np.empty((len(text), 2), dtype=np.float32)
    positions[:, 0] = x_px + (ends - advances / 2) * scale
    positions[:, 1] = baseline_px - 0.3 * size_px  # the middle of the small letters
    return positions, x_px + total


def wrap(text_words: list[str], path: str, size_px: int, room_px: float, indent_px: float = 0.0) -> list[list[str]]:
    """Break words into lines."""
    space = fonts.advance_px(path, size_px, " ")
    lines: list[list[str]] = [[]]
    x = indent_px
    for text in text_words:
        width = width_px(text, path, size_px)
        if lines[-1] and x + width > room_px:
            lines.append([])
            x = 0.0
        lines[-1].append(text)
        x += width + space
    return lines


def draw_line(
    draw: ImageDraw.ImageDraw,
    x_px: float,
    baseline_px: float,
    line: list[str],
    path: str,
    size_px: int,
    fill: int,
    justify_to_px: float | None = None,
) -> tuple[str, Positions]:
    """Write the words of one line, spread to `justify_to_px` where that is given."""
    text = " ".join(line)
    if justify_to_px is None or len(line) < 2:
        positions, _ = draw_text(draw, x_px, baseline_px, text, path, size_px, fill)
        return text, positions
    widths = [float(fonts.load(path, size_px).getlength(word)) for word in line]
    gap = (justify_to_px - x_px - sum(widths)) / (len(line) - 1)
    parts: list[Positions] = []
    for word, width in zip(line, widths):
        if parts:
            parts.append(np.array([[x_px - gap / 2, baseline_px - 0.3 * size_px]], dtype=np.float32))
        parts.append(draw_text(draw, x_px, baseline_px, word, path, size_px, fill)[0])
        x_px += width + gap
    return text, np.concatenate(parts)


def joined(texts: list[str], parts: list[Positions], glue: str = " ") -> tuple[str, Positions]:
    """Join texts and their positions; the glue stands where the text before it ends."""
    texts_and_parts = [(text, part) for text, part in zip(texts, parts) if text]
    pieces: list[Positions] = []
    for index, (_, part) in enumerate(texts_and_parts):
        if index and glue:
            pieces.append(np.repeat(pieces[-1][-1:], len(glue), axis=0))
        pieces.append(part)
    text = glue.join(text for text, _ in texts_and_parts)
    return text, np.concatenate(pieces) if pieces else nowhere("")


def degrade(random: np.random.Generator, image: Image.Image, strength: float = 1.0) -> NDArray[np.uint8]:
    """Paper, ink, blur, noise and JPEG in small doses.

    Parameters
    ----------
    random : Generator
    image : PIL image, mode L
        Black on white, at its final size.
    strength : float
        Share of the pictures that are touched at all, from 0 to 1.

    Returns
    -------
    uint8, (height, width, 3)
    """
    if random.random() >= strength:
        return np.repeat(np.asarray(image)[:, :, None], 3, axis=2)
    if random.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(float(random.uniform(0.2, 0.7))))
    grey = np.asarray(image, dtype=np.float32) / 255.0  # (height, width)
    if random.random() < 0.3:
        noise = random.standard_normal(grey.shape, dtype=np.float32)
        grey = grey + noise * np.float32(random.uniform(0.005, 0.03))
    ink = random.uniform(0, 90, 3) if random.random() < 0.15 else np.full(3, random.uniform(0, 70))
    paper = random.uniform(225, 255, 3) if random.random() < 0.2 else np.full(3, random.uniform(240, 255))
    if random.random() < 0.5:
        ink, paper = np.zeros(3), np.full(3, 255.0)
    elif random.random() < 0.04:
        ink, paper = random.uniform(230, 255, 3), random.uniform(0, 90, 3)
    colour = ink[None, None, :] + grey[:, :, None] * (paper - ink)[None, None, :]
    pixels: NDArray[np.uint8] = np.clip(colour, 0, 255).astype(np.uint8)
    if random.random() < 0.2:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=int(random.integers(55, 95)))
        pixels = np.asarray(Image.open(buffer).convert("RGB"))
    return pixels

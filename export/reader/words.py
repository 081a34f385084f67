"""Text to draw: words of a real list, numbers, punctuation, codes and random strings. Knows nothing of fonts.

Half of what is drawn can't be guessed from its neighbours, so that the model learns to read and not to guess.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

WORD_LIST = "/usr/share/dict/words"
EXTRA_CHARACTERS = "éèüöäñçßÉÜ–—“”‘’…€£°§×±µ•"  # noqa: RUF001
ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F)) + EXTRA_CHARACTERS

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said what "
    "its about than into them can only other time new some could these two may first then do any like my now over "
    "such our man me even most made after also well many must before through back years where much your way down "
    "should because long each just state people those too mr how little good world make very year still see own "
    "work men day get here old life both between being under three never know same last another while us off might "
    "great go come since against right used take section table figure page data model results total amount"
)
COMMON = tuple(_COMMON.split())


class MissingWords(SystemExit):
    """The word list is not installed."""


@cache
def dictionary() -> tuple[str, ...]:
    """Words of the list, those that end in 's left out.

    Raises
    ------
    MissingWords
    """
    path = Path(os.environ.get("READER_WORDS", WORD_LIST))
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError:
        raise MissingWords(f"There is no word list at {path}.\nhint: apt-get install wamerican") from None
    allowed = set(ALPHABET)
    return tuple(word for word in lines if not word.endswith("'s") and set(word) <= allowed)


def _pick(random: np.random.Generator, items: tuple[str, ...] | str) -> str:
    return items[int(random.integers(len(items)))]


def number(random: np.random.Generator) -> str:
    """A number as documents write them."""
    form = int(random.integers(10))
    whole = int(10 ** random.uniform(0, 6))
    if form < 3:
        return str(whole)
    if form == 3:
        return f"{whole:,}"
    if form == 4:
        return f"{random.uniform(0, 100):.{int(random.integers(1, 4))}f}"
    if form == 5:
        return f"{random.uniform(0, 100):.1f}%"
    if form == 6:
        return f"{_pick(random, '$€£')}{whole:,}.{int(random.integers(100)):02d}"
    if form == 7:
        return f"{int(random.integers(1900, 2030))}-{int(random.integers(1, 13)):02d}-{int(random.integers(1, 29)):02d}"
    if form == 8:
        return f"{int(random.integers(1, 29)):02d}/{int(random.integers(1, 13)):02d}/{int(random.integers(1900, 2030))}"
    return f"{'-' if random.random() < 0.5 else '±'}{random.uniform(0, 10):.2f}"


def random_string(random: np.random.Generator, n_max: int = 8) -> str:
    """Characters without sense, letters and digits more often than the rest."""
    n = int(random.integers(1, n_max + 1))
    kind = random.random()
    if kind < 0.35:
        pool = "abcdefghijklmnopqrstuvwxyz"
    elif kind < 0.55:
        pool = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    elif kind < 0.75:
        pool = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    else:
        pool = ALPHABET
    return "".join(pool[int(index)] for index in random.integers(len(pool), size=n))


def word(random: np.random.Generator) -> str:
    """One word of running text, without the punctuation around it."""
    kind = random.random()
    if kind < 0.38:
        return _pick(random, COMMON)
    if kind < 0.82:
        text = _pick(random, dictionary())
        form = random.random()
        if form < 0.12:
            return text.capitalize()
        return text.upper() if form < 0.16 else text
    if kind < 0.90:
        return number(random)
    if kind < 0.97:
        return random_string(random)
    if kind < 0.985:
        return f"{_pick(random, dictionary())}-{_pick(random, COMMON)}"
    return (
        f"{_pick(random, COMMON)}@{_pick(random, dictionary()).lower()}.{_pick(random, ('com', 'org', 'net', 'edu'))}"
    )


def _punctuated(random: np.random.Generator, text: str) -> str:
    kind = random.random()
    if kind < 0.84:
        return text
    if kind < 0.92:
        return text + ","
    if kind < 0.94:
        return f"({text})"
    if kind < 0.955:
        return f"“{text}”"
    if kind < 0.97:
        return f'"{text}"'
    if kind < 0.98:
        return f"[{int(random.integers(1, 60))}]"
    return text + _pick(random, ";:!?…")


def words(random: np.random.Generator, n: int) -> list[str]:
    """Running text as a list of words: sentences with capitals, stops and other marks.

    Parameters
    ----------
    random : Generator
    n : int
        How many words.
    """
    result: list[str] = []
    left = 0
    for _ in range(n):
        text = word(random)
        if left <= 0:
            left = int(random.integers(4, 16))
            text = text[0].upper() + text[1:]
        left -= 1
        text = _punctuated(random, text)
        if left <= 0 and text[-1].isalnum():
            text += "." if random.random() < 0.85 else _pick(random, "?!:")
        if random.random() < 0.012:
            result.append(_pick(random, "–—-&=+/|•"))  # noqa: RUF001
        result.append(text)
    return result

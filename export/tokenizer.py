"""Tokenizers for checkpoints made without a hub: Qwen's vocabulary rebuilt, or bytes only. Knows nothing of weights.

MinerU's structure tokens are added by the strings that its outputs use. Where an id is public it is that id; the order
inside 151661-151667 and the tokens around it are assumed (they matter to no measurement and to no trained weights).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# Source: the pattern published with Qwen's tokenizer; it decides where merges may not cross.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In the order of their ids; the first is 151643 in Qwen2-VL.
ADDED_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|ref_start|>",
    "<|ref_end|>",
    "<|txt_contd|>",
    "<|txt_contd_tgt|>",
    "<fcel>",
    "<ecel>",
    "<lcel>",
    "<ucel>",
    "<xcel>",
    "<nl>",
    "<|md_start|>",
    "<|rotate_up|>",
    "<|rotate_right|>",
    "<|rotate_down|>",
    "<|rotate_left|>",
)


def _byte_characters() -> dict[int, str]:
    """Printable stand-ins for the 256 bytes, as byte-level BPE files write them (Source: GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(0x100 + len(table) - len(printable))
    return table


def qwen_ranks() -> dict[bytes, int]:
    """Read Qwen's vocabulary from the `dashscope` package.

    Returns
    -------
    dict of bytes to int
        151,643 byte sequences and their ranks, which are their token ids.

    Raises
    ------
    SystemExit
        The package is not installed.
    """
    try:
        text = (files("dashscope") / "resources" / "qwen.tiktoken").read_text(encoding="ascii")
    except (ModuleNotFoundError, FileNotFoundError) as exc:
        raise SystemExit(
            "The full-size tokenizer is rebuilt from Qwen's vocabulary in the PyPI package `dashscope`.\n"
            "hint: pip install 'mineru-lambda[synth]', or use --preset small."
        ) from exc
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in text.splitlines() if line)}


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pair that each token was merged from, by replaying the merges of lower rank on its bytes."""
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def build(ranks: dict[bytes, int]) -> Tokenizer:
    """Build a byte-level BPE tokenizer with MinerU's added tokens.

    Parameters
    ----------
    ranks : dict of bytes to int
        Vocabulary; the added tokens get the ids after it.
    """
    characters = _byte_characters()

    def written(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    tokenizer = Tokenizer(
        models.BPE(
            vocab={written(token): rank for token, rank in ranks.items()},
            merges=[(written(left), written(right)) for left, right in _merges(ranks)],
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED_TOKENS])
    return tokenizer


def byte_ranks() -> dict[bytes, int]:
    """Vocabulary of the single bytes only, for small models."""
    return {bytes([byte]): byte for byte in range(256)}


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write `tokenizer.json`."""
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)

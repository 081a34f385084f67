"""The token side of a request: chat template, image tokens, M-RoPE positions, and text of an answer.

Knows the tokenizer and the manifest, not the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from handler.artifact import Manifest
from handler.errors import ArtifactError, RequestError

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A whole prompt as the decoder takes it."""

    input_ids: NDArray[np.int64]  # (S,)
    image_start: int
    n_image_tokens: int
    position_ids: NDArray[np.int64]  # (3, 1, S)

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt, those of the image included."""
        return len(self.input_ids)

    @property
    def next_position(self) -> int:
        """Position of the first generated token; all three axes run on together from there."""
        return int(self.position_ids.max()) + 1

    @property
    def rope_delta(self) -> int:
        """Next position minus the number of tokens, `rope_deltas` of Transformers."""
        return self.next_position - self.n_tokens


class Prompter:
    """Builds prompts for one model.

    Parameters
    ----------
    directory : Path
        Folder with `tokenizer.json`.
    manifest : Manifest

    Raises
    ------
    ArtifactError
        The tokenizer can't be read or does not know the image token.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        except Exception as exc:  # tokenizers raises bare Exception
            raise ArtifactError(f"{TOKENIZER} can't be read.") from exc
        self._image_pad = manifest.tokens.image_pad
        self._merge = manifest.image.merge_size
        self._max_positions = manifest.text.max_position_embeddings
        before = self._tokenizer.encode(manifest.chat.before, add_special_tokens=False).ids
        if before.count(self._image_pad) != 1:
            raise ArtifactError(f"The chat template of the manifest and {TOKENIZER} don't fit together.")
        self._image_start = before.index(self._image_pad)
        self._before = before
        self._after = self._tokenizer.encode(manifest.chat.after, add_special_tokens=False).ids

    def tokenize(self, prompt: str, grid: tuple[int, int]) -> TokenizedPrompt:
        """Build the whole prompt for one image.

        Parameters
        ----------
        prompt : str
            User's words; what looks like a special token stays text, so that no one can leave the user turn.
        grid : tuple of int
            Rows and columns of patches.

        Raises
        ------
        RequestError
            The prompt leaves no room for an answer.
        """
        rows, columns = grid[0] // self._merge, grid[1] // self._merge
        n_image_tokens, start = rows * columns, self._image_start
        ids = [
            *self._before[:start],
            *[self._image_pad] * n_image_tokens,
            *self._before[start + 1 :],
            *self._encode_user_text(prompt),
            *self._after,
        ]
        if len(ids) >= self._max_positions:
            raise RequestError(f"The prompt has {len(ids)} tokens; the model has room for {self._max_positions - 1}.")
        return TokenizedPrompt(
            input_ids=np.array(ids, dtype=np.int64),
            image_start=start,
            n_image_tokens=n_image_tokens,
            position_ids=mrope_positions(len(ids), start, rows, columns),
        )

    def decode(self, token_ids: list[int]) -> str:
        """Text of generated tokens; MinerU's structure tokens are marked special and must stay."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _encode_user_text(self, text: str) -> list[int]:
        self._tokenizer.encode_special_tokens = True
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False
        return ids


def mrope_positions(n_tokens: int, image_start: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Temporal, height and width position of each token of a prompt with one image.

    Parameters
    ----------
    n_tokens : int
    image_start : int
        Index of the first image token.
    rows, columns : int
        Image tokens by height and width.

    Returns
    -------
    int64, (3, 1, n_tokens)

    Source: `Qwen2VLModel.get_rope_index` of Transformers 4.57 for one still image.
    """
    positions = np.empty((3, n_tokens), dtype=np.int64)
    image_end = image_start + rows * columns
    positions[:, :image_start] = np.arange(image_start)
    positions[0, image_start:image_end] = image_start
    positions[1, image_start:image_end] = image_start + np.repeat(np.arange(rows), columns)
    positions[2, image_start:image_end] = image_start + np.tile(np.arange(columns), rows)
    after = image_start + max(rows, columns)
    positions[:, image_end:] = np.arange(after, after + n_tokens - image_end)
    return positions[:, None]

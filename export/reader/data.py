"""Batches for training: pictures of one size under one prompt, drawn from the seed and the number of the step alone.

Beside the answers a batch tells where their characters stand, which the auxiliary losses use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from export.reader import curriculum, words
from export.reader.draw import Sample
from export.reader.metrics import OTSL
from export.reader.model import AFTER_IMAGE, AFTER_PROMPT, BEFORE_IMAGE, PROMPTS, build_tokenizer

N_SLOTS = 3  # characters that one patch can name
SLOT_CLASSES = 1 + len(words.ALPHABET)
_CLASS = {character: index for index, character in enumerate(words.ALPHABET, start=1)}
IGNORE = -100
# Kinds whose answers are not the characters that are drawn.
UNDRAWN = ("formula", "layout")


@dataclass
class Batch:
    """One step's worth of samples. P: patches, A: tokens of prompt tail and answer."""

    kind: str
    images: Tensor  # uint8, (B, height, width, 3)
    before: Tensor  # int64, (n,)
    after: Tensor  # int64, (B, A): prompt behind the image, answer, stop
    labels: Tensor  # int64, (B, A): the next token, IGNORE where it is not learned
    targets_xy: Tensor  # float32, (B, A, 2): where the next token's character stands, in image tokens; NaN: nowhere
    slots: Tensor | None = None  # int64, (B, P, N_SLOTS): characters in each patch, 0 for none
    maps: Tensor | None = None  # float32, (B, P, n): what of a layout lies over each patch
    answers: list[str] = field(default_factory=list)


class Encoder:
    """Turns samples into tensors."""

    def __init__(self) -> None:
        self.tokenizer = build_tokenizer()
        self.stop: int = self.tokenizer.token_to_id("<|im_end|>")
        self.before = torch.tensor(self.ids(BEFORE_IMAGE))

    def ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def after(self, prompt: str) -> list[int]:
        """Token ids between image and answer."""
        return self.ids(AFTER_IMAGE + prompt + AFTER_PROMPT)

    def batch(self, kind: str, samples: list[Sample], maps: NDArray[np.float32] | None = None) -> Batch:
        """Pad the answers of samples whose pictures have one size."""
        prompt = self.after(PROMPTS[curriculum.PROMPT_OF.get(kind, "text")])
        rows: list[tuple[list[int], NDArray[np.float32]]] = []
        for sample in samples:
            encoding = self.tokenizer.encode(sample.answer, add_special_tokens=False)
            starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
            where = sample.positions[starts] if len(starts) else np.empty((0, 2), np.float32)
            rows.append(([*encoding.ids, self.stop], np.concatenate([where, [[np.nan, np.nan]]]).astype(np.float32)))
        n_prompt, longest = len(prompt), max(len(ids) for ids, _ in rows)
        after = torch.full((len(rows), n_prompt + longest - 1), self.stop)
        labels = torch.full_like(after, IGNORE)
        targets = np.full((len(rows), n_prompt + longest - 1, 2), np.nan, dtype=np.float32)
        for row, (ids, where) in enumerate(rows):
            after[row, :n_prompt] = torch.tensor(prompt)
            after[row, n_prompt : n_prompt + len(ids) - 1] = torch.tensor(ids[:-1])
            labels[row, n_prompt - 1 : n_prompt - 1 + len(ids)] = torch.tensor(ids)
            targets[row, n_prompt - 1 : n_prompt - 1 + len(ids)] = where / 28.0
        return Batch(
            kind=kind,
            images=torch.from_numpy(np.stack([sample.image for sample in samples])),
            before=self.before,
            after=after,
            labels=labels,
            targets_xy=torch.from_numpy(targets),
            slots=torch.from_numpy(np.stack([patch_slots(s) for s in samples])) if kind not in UNDRAWN else None,
            maps=None if maps is None else torch.from_numpy(maps),
            answers=[sample.answer for sample in samples],
        )


def patch_slots(sample: Sample) -> NDArray[np.int64]:
    """Which characters have their middle in which patch, left to right.

    Returns
    -------
    int64, (n_patches, N_SLOTS)
        Classes, 0 for none; patches in the processor's order.
    """
    rows, columns = sample.image.shape[0] // 14, sample.image.shape[1] // 14
    table = np.zeros((rows, columns, N_SLOTS), dtype=np.int64)
    filled = np.zeros((rows, columns), dtype=np.int64)
    classes = np.array([_CLASS.get(character, 0) for character in sample.answer], dtype=np.int64)
    for token in OTSL.finditer(sample.answer):
        classes[token.start() : token.end()] = 0  # structure has a place, but is not written there
    known = np.isfinite(sample.positions[:, 0]) & (classes > 0)
    where = sample.positions[known]
    order = np.argsort(where[:, 0], kind="stable")
    for (x, y), label in zip(where[order], classes[known][order]):
        row, column = int(y // 14), int(x // 14)
        if 0 <= row < rows and 0 <= column < columns and filled[row, column] < N_SLOTS:
            table[row, column, filled[row, column]] = label
            filled[row, column] += 1
    merged = table.reshape(rows // 2, 2, columns // 2, 2, N_SLOTS).transpose(0, 2, 1, 3, 4)
    return merged.reshape(-1, N_SLOTS)


class Steps(Dataset[Batch]):
    """The batch of each step. The same seed and step give the same batch on every machine with the same fonts."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._encoder: Encoder | None = None

    def __getitem__(self, step: int) -> Batch:
        self._encoder = self._encoder or Encoder()
        random = np.random.default_rng([self._seed, step])
        kind, samples, maps = curriculum.draw_batch(random, step)
        return self._encoder.batch(kind, samples, maps)


def loader(seed: int, first_step: int, last_step: int, n_workers: int = 1) -> Iterator[Any]:
    """Batches of a range of steps, drawn ahead in another process."""
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    return iter(
        torch.utils.data.DataLoader(
            Steps(seed),
            batch_size=None,
            sampler=range(first_step, last_step),
            num_workers=n_workers,
            prefetch_factor=6 if n_workers else None,
        )
    )

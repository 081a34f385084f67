"""Greedy answers on a few fixed crops during training. The full measurement is `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.reader import crops, fonts, formulas, pages, tables
from export.reader.batched import generate
from export.reader.data import Encoder
from export.reader.draw import Sample
from export.reader.metrics import edit_distance
from export.reader.model import PROMPTS

SEED = 987_654_321  # no step of a training has it


@cache
def _sets() -> tuple[tuple[str, str, tuple[Sample, ...]], ...]:
    """Name, prompt kind and samples of one size."""
    random = np.random.default_rng(SEED)

    def text(rows: int, columns: int, n: int, families: tuple[str, ...]) -> tuple[Sample, ...]:
        return tuple(crops.text_crop(random, rows, columns, families) for _ in range(n))

    return (
        ("short", "text", text(1, 5, 64, fonts.SEEN)),
        ("line", "text", text(1, 16, 48, fonts.SEEN)),
        ("line_unseen", "text", text(1, 16, 32, fonts.UNSEEN)),
        ("paragraph", "text", text(4, 18, 16, fonts.SEEN)),
        ("table", "table", tuple(tables.table_crop(random, 5, 16) for _ in range(16))),
        ("formula", "formula", tuple(formulas.formula_crop(random, 2, 10) for _ in range(16))),
        ("layout", "layout", tuple(pages.layout_sample(pages.draw_page(random, 800))[0] for _ in range(8))),
    )


@contextmanager
def averaged(model: Any, average: dict[str, Tensor]) -> Iterator[None]:
    """The model with the averaged weights, for as long as the block lasts."""
    own = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(average[name])
        try:
            yield
        finally:
            for name, value in model.named_parameters():
                value.copy_(own[name])


def validate(model: Any, average: dict[str, Tensor]) -> dict[str, float]:
    """Character error rate by kind, in per cent."""
    encoder = Encoder()
    found: dict[str, float] = {}
    with averaged(model, average), torch.autocast("cpu", torch.bfloat16):
        for name, prompt, samples in _sets():
            answers = answer(model, encoder, samples, PROMPTS[prompt])
            errors = sum(edit_distance(ours, sample.answer) for ours, sample in zip(answers, samples))
            found[name] = round(100 * errors / sum(len(sample.answer) for sample in samples), 2)
    return found


def answer(model: Any, encoder: Encoder, samples: tuple[Sample, ...], prompt: str) -> list[str]:
    """Greedy answers to samples of one size."""
    images = torch.from_numpy(np.stack([sample.image for sample in samples]))
    longest = max(len(encoder.ids(sample.answer)) for sample in samples) + 20
    tokens = generate(model, images, encoder.before, torch.tensor(encoder.after(prompt)), encoder.stop, longest)
    return [encoder.tokenizer.decode(ids, skip_special_tokens=False) for ids in tokens]

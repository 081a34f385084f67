"""The generation loop: logits in, greedy tokens out, under penalties, n-gram ban, stop tokens, cap and deadline.

Both engines run through here. Everything is incremental: a step costs the same however long the answer is, but for
the penalty of the distinct tokens so far. Knows nothing about models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from handler.engine import FinishReason, Sampling
from handler.errors import EngineError

Logits = NDArray[np.float32]


class LogitsProcessor:
    """Penalties and the n-gram ban for one answer.

    Parameters
    ----------
    sampling : Sampling
    prompt_ids : sequence of int
        Counted by the repetition penalty only.

    Source: vLLM's `apply_penalties` (repetition, then frequency, then presence) and the n-gram processor that
    mineru-vl-utils plugs into vLLM, which looks at generated tokens only, unlike Transformers' own.
    """

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int] = ()) -> None:
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._repetition = np.float32(sampling.repetition_penalty)
        self._ngram_size = sampling.no_repeat_ngram_size
        self._token_ids: list[int] = []
        self._followers: dict[tuple[int, ...], list[int]] = {}
        self._slots: dict[int, int] = {}
        self._seen = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.float32)
        if self._repetition != 1.0:
            for token in prompt_ids:
                self._count(token, 0.0)

    def update(self, token: int) -> None:
        """Take note of a generated token."""
        self._count(token, 1.0)
        size = self._ngram_size
        if size <= 0:
            return
        self._token_ids.append(token)
        if len(self._token_ids) >= size:
            prefix = tuple(self._token_ids[-size:-1])
            self._followers.setdefault(prefix, []).append(token)

    def apply(self, logits: Logits) -> None:
        """Change the logits in place.

        Parameters
        ----------
        logits : float32, (vocab_size,)
        """
        n_seen = len(self._slots)
        if n_seen and (self._presence or self._frequency or self._repetition != 1.0):
            self._penalise(logits, self._seen[:n_seen], self._counts[:n_seen])
        size = self._ngram_size
        if size > 0 and len(self._token_ids) >= size:
            prefix = tuple(self._token_ids[len(self._token_ids) - size + 1 :])
            for banned in self._followers.get(prefix, ()):
                logits[banned] = -np.inf

    def _penalise(self, logits: Logits, seen: NDArray[np.int64], counts: Logits) -> None:
        values = logits[seen]
        if self._repetition != 1.0:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0)
        logits[seen] = values

    def _count(self, token: int, amount: float) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._seen):
                self._seen = np.concatenate((self._seen, np.empty_like(self._seen)))
                self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
            self._seen[slot] = token
            self._counts[slot] = 0.0
        self._counts[slot] += amount


def greedy(
    logits: Logits,
    step: Callable[[int], Logits],
    processor: LogitsProcessor,
    *,
    stop: Collection[int],
    max_new_tokens: int,
    deadline_s: float | None = None,
) -> tuple[list[int], FinishReason]:
    """Choose the most likely token until one stops it.

    Parameters
    ----------
    logits : float32, (vocab_size,)
        Of the prompt's last position; changed in place.
    step : callable
        Takes a token, gives the logits after it; may reuse one buffer.
    processor : LogitsProcessor
    stop : collection of int
        Token ids that end the answer; not part of it.
    max_new_tokens : int
        At least 1.
    deadline_s : float, optional
        `time.monotonic()` value after which no token is begun.

    Returns
    -------
    tuple
        Token ids and why it ended.

    Raises
    ------
    EngineError
        The model gave something that is not a number.
    """
    token_ids: list[int] = []
    while True:
        processor.apply(logits)
        token = int(logits.argmax())
        if np.isnan(logits[token]):
            raise EngineError("The model's output is not a number.", hint="Check the artifact with --verify.")
        if token in stop:
            return token_ids, "stop"
        token_ids.append(token)
        if len(token_ids) >= max_new_tokens:
            return token_ids, "length"
        if deadline_s is not None and time.monotonic() >= deadline_s:
            return token_ids, "deadline"
        processor.update(token)
        logits = step(token)

"""The generation loop against a reference that scans everything anew at each step, as vLLM's definitions read."""

from __future__ import annotations

import time

import numpy as np
import pytest

from handler.engine import Sampling
from handler.errors import EngineError
from handler.generate import Logits, LogitsProcessor, greedy

VOCAB = 12


def reference_logits(logits: Logits, prompt: list[int], output: list[int], sampling: Sampling) -> Logits:
    """Plain transcription of the definitions: no state, no shortcuts."""
    changed = logits.astype(np.float32).copy()
    for token in range(len(changed)):
        count = output.count(token)
        if sampling.repetition_penalty != 1.0 and (count or token in prompt):
            penalty = np.float32(sampling.repetition_penalty)
            changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
        changed[token] -= np.float32(sampling.frequency_penalty) * count
        changed[token] -= np.float32(sampling.presence_penalty) * (count > 0)
    size = sampling.no_repeat_ngram_size
    if size > 0:
        for token in range(len(changed)):
            candidate = [*output[len(output) - size + 1 :], token]
            if len(candidate) < size or len(output) < size:
                continue
            if any(output[start : start + size] == candidate for start in range(len(output) - size + 1)):
                changed[token] = -np.inf
    return changed


def reference_greedy(table: Logits, prompt: list[int], sampling: Sampling, n_tokens: int) -> list[int]:
    output: list[int] = []
    while len(output) < n_tokens:
        last = output[-1] if output else prompt[-1]
        output.append(int(reference_logits(table[last], prompt, output, sampling).argmax()))
    return output


def run(table: Logits, prompt: list[int], sampling: Sampling, n_tokens: int) -> list[int]:
    buffer = table[prompt[-1]].copy()

    def step(token: int) -> Logits:
        buffer[:] = table[token]
        return buffer

    ids, reason = greedy(buffer, step, LogitsProcessor(sampling, prompt), stop=(), max_new_tokens=n_tokens)
    assert reason == "length"
    return ids


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(presence_penalty=1.0, frequency_penalty=0.05),
        Sampling(frequency_penalty=0.7),
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.8, presence_penalty=-0.5),
        Sampling(no_repeat_ngram_size=1),
        Sampling(no_repeat_ngram_size=2),
        Sampling(no_repeat_ngram_size=3, presence_penalty=0.3, frequency_penalty=0.1, repetition_penalty=1.1),
        Sampling(no_repeat_ngram_size=100, presence_penalty=1.0, frequency_penalty=0.005),
    ],
)
def test_equals_the_plain_reference(sampling: Sampling) -> None:
    """A made-up model whose next token depends on the last one: it loops at once, so penalties and bans must bite."""
    differs_from_plain = 0
    n_tokens = VOCAB if sampling.no_repeat_ngram_size == 1 else 140
    for seed in range(12):
        random = np.random.default_rng(seed)
        table = random.normal(size=(VOCAB, VOCAB)).astype(np.float32)
        prompt = random.integers(0, VOCAB, 4).tolist()
        ours = run(table, prompt, sampling, n_tokens)
        assert ours == reference_greedy(table, prompt, sampling, n_tokens)
        differs_from_plain += ours != run(table, prompt, Sampling(), n_tokens)
    assert (differs_from_plain > 0) == (sampling != Sampling())


def test_many_distinct_tokens_are_all_counted() -> None:
    """More tokens than the first room for them; each is penalised once for each time it came."""
    processor = LogitsProcessor(Sampling(frequency_penalty=1.0))
    for token in [*range(500), *range(250)]:
        processor.update(token)
    logits = np.zeros(600, dtype=np.float32)
    processor.apply(logits)
    assert logits.tolist() == [-2.0] * 250 + [-1.0] * 250 + [0.0] * 100


def counting_step(logits: Logits) -> tuple[list[int], object]:
    calls: list[int] = []

    def step(token: int) -> Logits:
        calls.append(token)
        logits[:] = 0
        logits[(token + 1) % len(logits)] = 1
        return logits

    return calls, step


def first(token: int) -> Logits:
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[token] = 1
    return logits


def test_stop_token_ends_and_is_not_part_of_the_answer() -> None:
    logits = first(3)
    calls, step = counting_step(logits)
    ids, reason = greedy(logits, step, LogitsProcessor(Sampling()), stop={6}, max_new_tokens=99)  # type: ignore[arg-type]
    assert (ids, reason, calls) == ([3, 4, 5], "stop", [3, 4, 5])


def test_cap_runs_no_step_too_many() -> None:
    logits = first(0)
    calls, step = counting_step(logits)
    ids, reason = greedy(logits, step, LogitsProcessor(Sampling()), stop=(), max_new_tokens=3)  # type: ignore[arg-type]
    assert (ids, reason, calls) == ([0, 1, 2], "length", [0, 1])


def test_deadline_keeps_what_is_there() -> None:
    logits = first(0)
    calls, step = counting_step(logits)
    ids, reason = greedy(
        logits,
        step,  # type: ignore[arg-type]
        LogitsProcessor(Sampling()),
        stop=(),
        max_new_tokens=99,
        deadline_s=time.monotonic() - 1,
    )
    assert (ids, reason, calls) == ([0], "deadline", [])


def test_not_a_number_is_an_error() -> None:
    logits = np.full(VOCAB, np.nan, dtype=np.float32)
    with pytest.raises(EngineError):
        greedy(logits, lambda token: logits, LogitsProcessor(Sampling()), stop=(), max_new_tokens=9)

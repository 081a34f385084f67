"""The training loop on a few small steps: it goes on where it stopped, and its losses know the truth."""

from __future__ import annotations

import json

import pytest
import torch

from export.reader import curriculum, data, losses, optimiser, start, train
from tests.test_reader_model import encoder, reader, samples  # noqa: F401 (fixtures)
from tests.test_reader_truth import needs_fonts


def _plan(out, steps):
    return train.Plan(out=out, hours=1, total_steps=steps, log_every=1, n_threads=1)


@needs_fonts
def test_resumed_training_is_the_training_in_one_go(monkeypatch, tmp_path):
    monkeypatch.setattr(curriculum, "BATCH_GMAC", 0.4)
    monkeypatch.setattr(train, "validate_at", lambda step, every: False)
    monkeypatch.setattr(
        data, "loader", lambda seed, first, last: (data.Steps(seed)[step] for step in range(first, last))
    )
    monkeypatch.setattr(train.Run, "rate", lambda self: 1e-3)
    train.train(_plan(tmp_path / "whole", 4))
    train.train(_plan(tmp_path / "parts", 2))
    train.train(_plan(tmp_path / "parts", 4))
    whole, parts = (torch.load(tmp_path / name / train.STATE, weights_only=True) for name in ("whole", "parts"))
    assert whole["step"] == parts["step"] == 4
    for name, value in whole["model"].items():
        assert torch.equal(value, parts["model"][name]), name
    lines = [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["line.answer"] > 0 for line in lines)


def test_all_losses_are_finite_and_reach_the_weights(reader, encoder):  # noqa: F811
    helpers = losses.Helpers(192, 256)
    parts = losses.losses(reader, helpers, encoder.batch("line", samples()))
    assert set(parts) == {"answer", "right", "pointer", "place", "slots", "slots_right"}
    sum(value for name, value in parts.items() if name in train.WEIGHTS).backward()
    missing = [name for name, p in reader.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    reader.zero_grad()
    assert missing == []


def test_muon_steps_are_orthogonal():
    matrices = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(optimiser.orthogonal(matrices).float())
    assert values.min() > 0.5
    assert values.max() < 1.35


@pytest.mark.parametrize(("step", "share"), [(0, 1 / 150), (149, 1.0), (800, 1.0), (900, 0.5), (1000, 0.0)])
def test_rate_warms_up_and_ends_at_nothing(step, share):
    run = train.Run.__new__(train.Run)
    run.plan, run.step, run.warm_from = train.Plan(out=None, hours=1, lr=1e-3, total_steps=1000), step, 0
    assert run.rate() == pytest.approx(share * 1e-3)


def test_a_start_file_brings_weights_and_step_to_another_machine(tmp_path):
    run = train.Run(_plan(tmp_path / "here", 1))
    run.step, run.n_samples = 70, 700
    with torch.no_grad():
        for value in (*run.average.values(), *run.helpers.parameters()):
            value.add_(0.25)
    run.save()
    assert start.pack(tmp_path / "here" / train.STATE, tmp_path / "start.safetensors") == 70
    other = train.Run(train.Plan(out=tmp_path / "there", hours=1, seed=5, start=tmp_path / "start.safetensors"))
    assert (other.step, other.n_samples, other.rate()) == (70, 700, pytest.approx(1.5e-3 / 150))
    for name, value in other.model.named_parameters():
        assert torch.allclose(value, run.average[name], rtol=1e-3, atol=1e-4), name
        assert torch.equal(other.average[name], value)
    for ours, theirs in zip(other.helpers.parameters(), run.helpers.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)

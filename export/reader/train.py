"""The training loop: resumable, seeded, logged as JSON lines. Knows losses and batches, not what is drawn."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from export.reader import data, losses, model, optimiser, start, validate
from export.reader.curriculum import stage_at

WEIGHTS = {"answer": 1.0, "slots": 0.5, "pointer": 0.3, "place": 0.3, "maps": 0.5, "order": 0.2}
N_WARMUP_STEPS = 150
EMA_DECAY = 0.998
STATE = "state.pt"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to do."""

    out: Path
    hours: float
    seed: int = 0
    lr: float = 1.5e-3
    total_steps: int | None = None  # the rate falls to nothing over the last fifth; None: it stays
    log_every: int = 50
    validate_every: int = 1000
    save_every_s: float = 240.0
    n_threads: int = 2
    start: Path | None = None  # weights to begin with, where the folder has no state yet


class Run:
    """Model, helpers, optimisers and the averaged weights at some step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.step = self.warm_from = 0
        self.n_samples = 0
        self.trained_s = 0.0
        self.model = model.build_model(plan.seed)
        self.helpers = losses.Helpers(model.VISION["embed_dim"], model.TEXT["hidden_size"])
        matrices, others = optimiser.split_parameters(self.model, self.helpers)
        self.optimisers: list[torch.optim.Optimizer] = [
            optimiser.Muon(matrices, lr=plan.lr),
            torch.optim.AdamW(others, lr=plan.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        state = plan.out / STATE
        if plan.start and not state.exists():
            about = start.unpack(plan.start, self.model, self.helpers)
            self.step, self.n_samples, self.trained_s = int(about["step"]), int(about["n_samples"]), about["trained_s"]
            self.warm_from = self.step  # the optimisers begin anew
        self.average = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        if state.exists():
            self._load(torch.load(state, weights_only=True))

    def _load(self, state: dict[str, Any]) -> None:
        self.step, self.n_samples, self.trained_s = state["step"], state["n_samples"], state["trained_s"]
        self.model.load_state_dict(state["model"])
        self.helpers.load_state_dict(state["helpers"])
        self.average = state["average"]
        for one, saved in zip(self.optimisers, state["optimisers"]):
            one.load_state_dict(saved)

    def save(self) -> None:
        """Write everything that a later run needs, and the averaged weights as a model directory."""
        state = {
            "step": self.step,
            "n_samples": self.n_samples,
            "trained_s": self.trained_s,
            "model": self.model.state_dict(),
            "helpers": self.helpers.state_dict(),
            "average": self.average,
            "optimisers": [one.state_dict() for one in self.optimisers],
        }
        self.plan.out.mkdir(parents=True, exist_ok=True)
        scratch = self.plan.out / f".{STATE}"
        torch.save(state, scratch)
        scratch.replace(self.plan.out / STATE)
        about = {"steps": self.step, "samples": self.n_samples, "seed": self.plan.seed}
        model.write_checkpoint(self.average, self.plan.out / "checkpoint", about)

    def rate(self) -> float:
        """Learning rate of this step: warm-up, plateau, straight to nothing at the end."""
        rate = self.plan.lr * min(1.0, (self.step - self.warm_from + 1) / N_WARMUP_STEPS)
        total = self.plan.total_steps
        if total:
            rate *= min(1.0, max(0.0, (total - self.step) / (0.2 * total)))
        return rate

    def advance(self, batch: data.Batch) -> dict[str, float]:
        """Take one step."""
        with torch.autocast("cpu", torch.bfloat16):
            parts = losses.losses(self.model, self.helpers, batch)
        total = torch.stack([WEIGHTS[name] * value for name, value in parts.items() if name in WEIGHTS]).sum()
        for one in self.optimisers:
            one.zero_grad(set_to_none=True)
            for group in one.param_groups:
                group["lr"] = self.rate()
        total.backward()  # type: ignore[no-untyped-call]
        parameters = [
            parameter for one in self.optimisers for group in one.param_groups for parameter in group["params"]
        ]
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for one in self.optimisers:
            one.step()
        with torch.no_grad():
            decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(
                list(self.average.values()), [value for _, value in self.model.named_parameters()], 1 - decay
            )
        self.step += 1
        self.n_samples += len(batch.answers)
        values = {name: float(value.detach()) for name, value in parts.items()}
        return {**values, "gradient": float(norm)}


class Log:
    """Means since the last line, by kind of batch, written as JSON lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._sums: dict[str, list[float]] = {}

    def add(self, kind: str, values: dict[str, float]) -> None:
        """Take note of one step."""
        for name, value in values.items():
            self._sums.setdefault(f"{kind}.{name}", []).append(value)

    def write(self, **fields: Any) -> None:
        """Write a line with the means and forget them."""
        means = {name: round(sum(values) / len(values), 4) for name, values in sorted(self._sums.items())}
        self._file.write(json.dumps({**fields, **means}) + "\n")
        self._file.flush()
        self._sums.clear()


def validate_at(step: int, every: int) -> bool:
    """Whether to look at answers after this step."""
    return step % every == 0


def train(plan: Plan) -> None:
    """Train until the hours or the steps are over; what was trained before is continued.

    Parameters
    ----------
    plan : Plan
        Paused time (SIGSTOP) counts as time; nothing else depends on the clock.
    """
    torch.set_num_threads(plan.n_threads)
    run = Run(plan)
    log = Log(plan.out / "log.jsonl")
    last = plan.total_steps or 10**9
    begun_s = saved_s = logged_s = time.monotonic()
    n_logged, drawn_s = run.n_samples, 0.0
    batches = data.loader(plan.seed, run.step, last)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    while run.step < last and time.monotonic() - begun_s < plan.hours * 3600 and not asked_to_end.is_set():
        asked_s = time.monotonic()
        batch = next(batches)
        now_s = time.monotonic()
        drawn_s += now_s - asked_s
        log.add(batch.kind, run.advance(batch))
        run.trained_s += time.monotonic() - asked_s
        if run.step % plan.log_every == 0:
            took_s = time.monotonic() - logged_s
            log.write(
                step=run.step,
                columns=stage_at(run.step).max_columns,
                rows=stage_at(run.step).max_rows,
                lr=round(run.rate(), 6),
                samples_per_s=round((run.n_samples - n_logged) / took_s, 1),
                steps_per_s=round(plan.log_every / took_s, 2),
                waiting=round(drawn_s / took_s, 3),
                trained_s=round(run.trained_s),
                samples=run.n_samples,
            )
            n_logged, drawn_s, logged_s = run.n_samples, 0.0, time.monotonic()
        if validate_at(run.step, plan.validate_every):
            begun_check_s = time.monotonic()
            found = validate.validate(run.model, run.average)
            log.write(step=run.step, validation=found, took_s=round(time.monotonic() - begun_check_s, 1))
            logged_s = time.monotonic()
        if time.monotonic() - saved_s > plan.save_every_s:
            run.save()
            saved_s = time.monotonic()
    run.save()

"""A training's weights as one small file, to go on from on another machine: averaged model and helper heads, float16.

What it lacks, the optimisers' momenta, is won back in some hundred steps.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

NUMBERS = ("step", "n_samples", "trained_s")


def pack(state_file: Path, output: Path) -> int:
    """Write the start file of a training's state.

    Returns
    -------
    int
        Step that it stands at.
    """
    state = torch.load(state_file, weights_only=True)
    tensors = {f"model.{name}": value for name, value in state["average"].items()}
    tensors |= {f"helpers.{name}": value for name, value in state["helpers"].items()}
    halves = {name: value.to(torch.float16).contiguous() for name, value in tensors.items()}
    save_file(halves, str(output), metadata={name: str(state[name]) for name in NUMBERS})
    return int(state["step"])


def unpack(file: Path, model: nn.Module, helpers: nn.Module) -> dict[str, float]:
    """Load a start file into a model and its helper heads.

    Parameters
    ----------
    file : Path
    model, helpers : nn.Module
        Changed in place; a helper head that the file lacks or that has another size keeps its first weights.

    Returns
    -------
    dict
        `step`, `n_samples`, `trained_s` of the training that it came from.
    """
    with safe_open(str(file), framework="pt") as stored:
        names = set(stored.keys())
        _copy({name: stored.get_tensor(f"model.{name}") for name, _ in model.named_parameters()}, model)
        heads = {
            name: stored.get_tensor(f"helpers.{name}") for name in helpers.state_dict() if f"helpers.{name}" in names
        }
        _copy(heads, helpers)
        about = stored.metadata()
    return {name: float(about[name]) for name in NUMBERS}


@torch.no_grad()
def _copy(values: dict[str, Tensor], module: nn.Module) -> None:
    own = dict(module.named_parameters())
    for name, value in values.items():
        if own[name].shape == value.shape:
            own[name].copy_(value)

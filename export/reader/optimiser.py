"""Muon for the weight matrices and AdamW for the rest, as one optimiser that can be stopped and resumed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal by Newton-Schulz iterations; equal shapes go through together.

    Source: Keller Jordan's Muon, with the step sizes of "Muon is Scalable for LLM Training" (AdamW's rates fit).
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault((parameter.shape[0], parameter[0].numel()), []).append(parameter)
            for shape, members in shapes.items():
                self._step_together(shape, members, group)

    def _step_together(self, shape: tuple[int, int], members: list[nn.Parameter], group: dict[str, Any]) -> None:
        updates = []
        for parameter in members:
            state = self.state[parameter]
            gradient = parameter.grad
            assert gradient is not None
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradient)
            state["momentum"].lerp_(gradient, 1 - group["momentum"])
            updates.append(gradient.lerp(state["momentum"], group["momentum"]).reshape(shape))
        directions = orthogonal(torch.stack(updates)).float()
        scale = 0.2 * max(shape) ** 0.5 * group["lr"]
        for parameter, direction in zip(members, directions):
            parameter.mul_(1 - group["lr"] * group["decay"])
            parameter.add_(direction.reshape(parameter.shape), alpha=-scale)


def orthogonal(matrices: Tensor, n_steps: int = 5) -> Tensor:
    """Bring the singular values of matrices (n, rows, columns) near one, in bfloat16."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.float().flatten(1).norm(dim=1)[:, None, None].to(x.dtype) + 1e-7)
    for _ in range(n_steps):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.transpose(1, 2) if tall else x
    return result


def split_parameters(model: nn.Module, helpers: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, and everything else: tables, norms, biases, helper heads."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = parameter.dim() >= 2 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if inner else others).append(parameter)
    return matrices, [*others, *helpers.parameters()]

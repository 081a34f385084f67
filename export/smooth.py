"""Moves outliers from activations into weights before int8, without changing what the model computes.

A channel that is 100 times larger than the others takes the whole range of its token's 8 bits and leaves the rest
nothing. Where a linear layer's input comes from a norm or another linear layer, that channel can be divided by a number
at its origin and the layer's column multiplied by it.

Source: SmoothQuant (Xiao et al., 2023), alpha 0.5; here also for value -> output and up -> down projections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ALPHA = 0.5
SMALLEST = 1e-5


@dataclass(frozen=True)
class Pair:
    """Consumers whose input channels can be divided at their origin.

    Attributes
    ----------
    name : str
    consumers : list of nn.Linear
        Layers that read the channels.
    origins : list of Tensor
        Parameters whose first axis is divided: a norm's weight and bias, or rows of a linear layer.
    repeats : int
        How many times the channels stand in the consumers' input (the merger reads four patches side by side).
    groups : tuple of int, optional
        (kv heads, query heads per kv head, head_dim): an origin channel feeds several of the consumer's.
    """

    name: str
    consumers: list[nn.Linear]
    origins: list[Tensor]
    repeats: int = 1
    groups: tuple[int, int, int] | None = None


def pairs(model: Any) -> Iterator[Pair]:
    """All places of a Qwen2VLForConditionalGeneration where channels can be divided."""
    visual, text = model.model.visual, model.model.language_model
    for index, block in enumerate(visual.blocks):
        width = block.attn.dim
        yield _after_norm(f"vision.{index}.qkv", block.norm1, [block.attn.qkv])
        yield _after_norm(f"vision.{index}.fc1", block.norm2, [block.mlp.fc1])
        values = [block.attn.qkv.weight.data[2 * width :], block.attn.qkv.bias.data[2 * width :]]
        yield Pair(f"vision.{index}.proj", [block.attn.proj], values)
    merger = visual.merger
    yield _after_norm("vision.merger", merger.ln_q, [merger.mlp[0]], repeats=visual.spatial_merge_size**2)
    for index, layer in enumerate(text.layers):
        attention, mlp = layer.self_attn, layer.mlp
        yield _after_norm(
            f"decoder.{index}.qkv", layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]
        )
        yield _after_norm(f"decoder.{index}.mlp", layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj])
        yield Pair(f"decoder.{index}.down", [mlp.down_proj], [mlp.up_proj.weight.data])
        yield Pair(
            f"decoder.{index}.out",
            [attention.o_proj],
            [attention.v_proj.weight.data, attention.v_proj.bias.data],
            groups=(attention.num_key_value_heads, attention.num_key_value_groups, attention.head_dim),
        )
    yield _after_norm("decoder.head", text.norm, [model.lm_head])


def _after_norm(name: str, norm: nn.Module, consumers: list[nn.Linear], repeats: int = 1) -> Pair:
    origins = [parameter.data for parameter in norm.parameters(recurse=False)]
    return Pair(name, consumers, origins, repeats)


class ChannelRanges:
    """Collects the largest absolute value of each input channel while the model runs; a context manager.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
    """

    def __init__(self, model: Any) -> None:
        self.largest: dict[str, Tensor] = {}
        self._hooks = [pair.consumers[0].register_forward_pre_hook(self._hook(pair.name)) for pair in pairs(model)]

    def __enter__(self) -> ChannelRanges:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str) -> Any:
        def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].detach().abs().flatten(0, -2).amax(0)
            known = self.largest.get(name)
            self.largest[name] = values if known is None else torch.maximum(known, values)

        return note


def untie_head(model: Any) -> None:
    """Give the head weights of its own: its columns are changed, the embedding's rows must not be."""
    if model.lm_head.weight is model.get_input_embeddings().weight:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)


@torch.no_grad()
def smooth(model: Any, ranges: dict[str, Tensor], alpha: float = ALPHA) -> None:
    """Divide origins and multiply consumers, in place.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
        float32, its head untied.
    ranges : dict of str to float32, (channels,)
        `ChannelRanges.largest` of a calibration run; pairs without a range are left alone.
    alpha : float
        0 leaves activations as they are, 1 makes all their channels alike.
    """
    for pair in pairs(model):
        if pair.name in ranges:
            _smooth_pair(pair, ranges[pair.name], alpha)


def _smooth_pair(pair: Pair, activation: Tensor, alpha: float) -> None:
    weight = torch.stack([layer.weight.abs().amax(0) for layer in pair.consumers]).amax(0)  # (in,)
    activation, weight = (_by_origin(values, pair).clamp(min=SMALLEST) for values in (activation, weight))
    scale = activation**alpha / weight ** (1 - alpha)  # (origin channels,)
    scale = scale / scale.log().mean().exp()  # the common factor would only move the scales about
    for origin in pair.origins:
        origin.div_(scale if origin.dim() == 1 else scale.unsqueeze(1))
    columns = by_consumer(scale, pair)
    for layer in pair.consumers:
        layer.weight.data.mul_(columns)


def _by_origin(values: Tensor, pair: Pair) -> Tensor:
    """Largest value over the consumer channels that one origin channel feeds."""
    if pair.groups:
        n_kv, shared, head_dim = pair.groups
        return values.reshape(n_kv, shared, head_dim).amax(1).flatten()
    return values.reshape(pair.repeats, -1).amax(0)


def by_consumer(scale: Tensor, pair: Pair) -> Tensor:
    """Scale of each consumer channel, (in,), of one scale per origin channel."""
    if pair.groups:
        n_kv, shared, head_dim = pair.groups
        return scale.reshape(n_kv, 1, head_dim).expand(n_kv, shared, head_dim).flatten()
    return scale.repeat(pair.repeats)

"""The model's forward pass for a batch of images of one size, on the parameters of the Transformers model itself.

Transformers runs the vision tower image by image and pads what it needs not; here a batch is one matrix. Attention is
written out, which is faster in bfloat16 on CPUs than the fused kernel, and lets the training look at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from export.checkpoint import IMAGE_MEAN, IMAGE_STD
from handler.prompt import mrope_positions

PATCH_PX, MERGE = 14, 2


def patches(images: Tensor) -> Tensor:
    """Cut a batch into normalised patches in the order of the Qwen2-VL processor.

    Parameters
    ----------
    images : uint8, (B, height, width, 3)

    Returns
    -------
    float32, (B, n_patches, 3 x 14 x 14); the second, equal frame is left out.
    """
    n, height, width, _ = images.shape
    mean, std = torch.tensor(IMAGE_MEAN), torch.tensor(IMAGE_STD)
    values = (images.float() / 255.0 - mean) / std
    blocks = values.reshape(
        n, height // (PATCH_PX * MERGE), MERGE, PATCH_PX, width // (PATCH_PX * MERGE), MERGE, PATCH_PX, 3
    )
    blocks = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6)  # (B, R, C, m, m, channel, p, p)
    return blocks.reshape(n, -1, 3 * PATCH_PX * PATCH_PX)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _rotate_half(x) * sin


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of (B, heads, n, d); also gives the scores before the softmax."""
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.softmax(scores, dim=-1) @ value, scores


def encode_images(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Run the vision tower.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
    images : uint8, (B, height, width, 3)
        Sides in multiples of 28.

    Returns
    -------
    features : (B, n_patches / 4, hidden)
        Image tokens.
    patch_states : (B, n_patches, embed_dim)
        The tower's last states, before merging; patches in the processor's order.
    """
    tower = model.model.visual
    rows, columns = images.shape[1] // PATCH_PX, images.shape[2] // PATCH_PX
    kernel = tower.patch_embed.proj.weight.sum(dim=2)  # a still image is the same in both frames
    x = functional.linear(patches(images), kernel.reshape(kernel.shape[0], -1))
    angles = tower.rot_pos_emb(torch.tensor([[1, rows, columns]]))
    angles = torch.cat((angles, angles), dim=-1)  # (n_patches, head_dim)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    for block in tower.blocks:
        normed = block.norm1(x)
        n_heads = block.attn.num_heads
        qkv = block.attn.qkv(normed).reshape(*x.shape[:2], 3, n_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]  # (B, heads, n, d)
        attended, _ = _attend(_rotated(query, cos, sin), _rotated(key, cos, sin), value, None)
        x = x + block.attn.proj(attended.transpose(1, 2).reshape(x.shape))
        x = x + block.mlp(block.norm2(x))
    merger = tower.merger
    merged = merger.ln_q(x).reshape(x.shape[0], -1, merger.hidden_size)
    return merger.mlp(merged), x


@dataclass
class Decoded:
    """What a pass through the decoder leaves."""

    states: Tensor  # (B, S, hidden), after the last norm
    layer_states: dict[int, Tensor] = field(default_factory=dict)  # after the named layers
    layer_scores: dict[int, Tensor] = field(default_factory=dict)  # (B, S, S), first head of the named layers
    cache: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def decode(
    model: Any,
    embeds: Tensor,
    position_ids: Tensor,
    *,
    watch: Sequence[int] = (),
    cache: list[tuple[Tensor, Tensor]] | None = None,
) -> Decoded:
    """Run the decoder under a causal mask.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
    embeds : (B, S, hidden)
        With a `cache` one new token each.
    position_ids : int64, (3, 1, S)
        The same for the whole batch.
    watch : sequence of int
        Layers whose states and first head's scores are kept.
    cache : list of (key, value), optional
        Of the tokens before.
    """
    decoder = model.model.language_model
    n, length = embeds.shape[:2]
    cos, sin = decoder.rotary_emb(embeds, position_ids)  # (3, 1, S, d)
    sections = decoder.config.rope_scaling["mrope_section"] * 2
    cos = torch.cat([part[i % 3] for i, part in enumerate(cos.split(sections, dim=-1))], dim=-1)[:, None]
    sin = torch.cat([part[i % 3] for i, part in enumerate(sin.split(sections, dim=-1))], dim=-1)[:, None]
    mask = torch.full((length, length), -1e4).triu(1) if length > 1 else None
    x, result = embeds, Decoded(embeds)
    for index, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        normed = layer.input_layernorm(x)
        heads = (n, length, -1, attention.head_dim)
        query = _rotated(attention.q_proj(normed).view(heads).transpose(1, 2), cos, sin)
        key = _rotated(attention.k_proj(normed).view(heads).transpose(1, 2), cos, sin)
        value = attention.v_proj(normed).view(heads).transpose(1, 2)
        if cache is not None:
            key = torch.cat((cache[index][0], key.to(cache[index][0].dtype)), dim=2)
            value = torch.cat((cache[index][1], value), dim=2)
        result.cache.append((key, value))
        groups = attention.num_key_value_groups
        attended, scores = _attend(
            query.to(value.dtype),
            key.to(value.dtype).repeat_interleave(groups, 1),
            value.repeat_interleave(groups, 1),
            mask,
        )
        x = x + attention.o_proj(attended.transpose(1, 2).reshape(n, length, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        if index in watch:
            result.layer_states[index] = x
            result.layer_scores[index] = scores[:, 0]
    result.states = decoder.norm(x)
    return result


def embed(model: Any, before: Tensor, features: Tensor, after: Tensor) -> Tensor:
    """Put the image tokens between the tokens before and after them: (B, S, hidden)."""
    table = model.model.language_model.embed_tokens
    n = features.shape[0]
    first = table(before)[None].expand(n, -1, -1)
    return torch.cat((first, features.to(first.dtype), table(after)), dim=1)


def positions(n_before: int, rows: int, columns: int, n_after: int) -> Tensor:
    """Positions (3, 1, S) of a prompt and its answer; rows and columns in image tokens."""
    return torch.from_numpy(mrope_positions(n_before + rows * columns + n_after, n_before, rows, columns))


@torch.no_grad()
def generate(
    model: Any, images: Tensor, before: Tensor, after: Tensor, stop: int, max_new_tokens: int
) -> list[list[int]]:
    """Greedy answers for images of one size under one prompt.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
    images : uint8, (B, height, width, 3)
    before, after : int64, (n,)
        Token ids of the prompt on both sides of the image.
    stop : int
        Token id that ends an answer.
    """
    n = images.shape[0]
    features, _ = encode_images(model, images)
    rows, columns = images.shape[1] // 28, images.shape[2] // 28
    embeds = embed(model, before, features, after[None].expand(n, -1))
    position_ids = positions(len(before), rows, columns, len(after))
    decoded = decode(model, embeds, position_ids)
    position = int(position_ids.max()) + 1
    head = model.lm_head.weight
    tokens = functional.linear(decoded.states[:, -1].float(), head).argmax(-1)
    answers, done = [tokens], tokens == stop
    while not bool(done.all()) and len(answers) < max_new_tokens:
        step = model.model.language_model.embed_tokens(tokens)[:, None]
        decoded = decode(model, step, torch.full((3, 1, 1), position), cache=decoded.cache)
        tokens = functional.linear(decoded.states[:, -1].float(), head).argmax(-1)
        tokens = torch.where(done, stop, tokens)
        done = done | (tokens == stop)
        answers.append(tokens)
        position += 1
    return [[token for token in row if token != stop] for row in torch.stack(answers, 1).tolist()]

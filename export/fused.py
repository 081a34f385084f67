"""ONNX Runtime's fused operators as functions that PyTorch can trace, each with the same mathematics in `forward`.

Optimum's exporter traces with TorchScript, where an autograd function's `symbolic` decides what is written; Optimum's
validation then compares ONNX Runtime's operator with `forward` here, and the tests compare with unpatched Transformers.

Source: operator definitions in ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DOMAIN = "com.microsoft"


def _heads(tensor: Tensor, n_heads: int) -> Tensor:
    """(B, S, heads x head) to (B, heads, S, head)."""
    return tensor.reshape(*tensor.shape[:2], n_heads, -1).transpose(1, 2)


class MultiHeadAttention(torch.autograd.Function):
    """Unmasked attention of one image's patches; flash attention on CPU, memory O(n)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, n_heads: int, scale: float) -> Tensor:
        """Attend.

        Parameters
        ----------
        query, key, value : float32, (1, n_patches, n_heads x head_dim)
        n_heads : int
        scale : float

        Returns
        -------
        float32, (1, n_patches, n_heads x head_dim)
        """
        q, k, v = (_heads(tensor, n_heads) for tensor in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
        return output.transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(g: Any, query: Any, key: Any, value: Any, n_heads: int, scale: float) -> Any:
        """Write com.microsoft::MultiHeadAttention."""
        output = g.op(f"{DOMAIN}::MultiHeadAttention", query, key, value, num_heads_i=n_heads, scale_f=scale)
        return output.setType(query.type())


class RotaryEmbedding(torch.autograd.Function):
    """Rotate the two halves of each head (not interleaved) by given angles."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor, n_heads: int) -> Tensor:
        """Rotate.

        Parameters
        ----------
        states : float32, (1, S, n_heads x head_dim)
        cos, sin : float32, (S, head_dim / 2)
        n_heads : int

        Returns
        -------
        float32, (1, S, n_heads x head_dim)
        """
        first, second = _heads(states, n_heads).chunk(2, dim=-1)  # each (1, heads, S, head / 2)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(g: Any, states: Any, cos: Any, sin: Any, n_heads: int) -> Any:
        """Write com.microsoft::RotaryEmbedding; position 0 makes row i of the angles belong to token i."""
        start = g.op("Constant", value_t=torch.zeros(1, dtype=torch.int64))
        output = g.op(f"{DOMAIN}::RotaryEmbedding", states, start, cos, sin, num_heads_i=n_heads)
        return output.setType(states.type())


class GroupQueryAttention(torch.autograd.Function):
    """Causal attention over a key-value cache that the caller owns.

    ONNX Runtime writes the new keys and values in place when past and present are bound to one buffer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        seqlens_k: Tensor,
        total_sequence_length: Tensor,
        n_heads: int,
        n_kv_heads: int,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend and extend the cache.

        Parameters
        ----------
        query : float32, (1, S, n_heads x head_dim)
        key, value : float32, (1, S, n_kv_heads x head_dim)
        past_key, past_value : float32, (1, n_kv_heads, past, head_dim)
        seqlens_k : int32, (1,)
            Tokens in the cache after this call, minus 1.
        total_sequence_length : int32, (1,)

        Returns
        -------
        output : float32, (1, S, n_heads x head_dim)
        present_key, present_value : float32, (1, n_kv_heads, past + S, head_dim)
        """
        present_key = torch.cat((past_key, _heads(key, n_kv_heads)), dim=2)
        present_value = torch.cat((past_value, _heads(value, n_kv_heads)), dim=2)
        n_new, n_total = query.shape[1], present_key.shape[2]
        visible = torch.ones(n_new, n_total, dtype=torch.bool).tril(diagonal=n_total - n_new)
        shared = n_heads // n_kv_heads
        keys, values = (cache.repeat_interleave(shared, dim=1) for cache in (present_key, present_value))
        output = torch.nn.functional.scaled_dot_product_attention(
            _heads(query, n_heads), keys, values, attn_mask=visible, scale=scale
        )
        return output.transpose(1, 2).flatten(2), present_key, present_value

    @staticmethod
    def symbolic(g: Any, query: Any, *rest: Any) -> Any:
        """Write com.microsoft::GroupQueryAttention."""
        *tensors, n_heads, n_kv_heads, scale = rest
        outputs = g.op(
            f"{DOMAIN}::GroupQueryAttention",
            query,
            *tensors,
            num_heads_i=n_heads,
            kv_num_heads_i=n_kv_heads,
            scale_f=scale,
            outputs=3,
        )
        outputs[0].setType(query.type())
        outputs[1].setType(tensors[2].type().with_sizes([1, n_kv_heads, None, None]))
        outputs[2].setType(tensors[3].type().with_sizes([1, n_kv_heads, None, None]))
        return outputs

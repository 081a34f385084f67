"""The three parts of a Qwen2-VL model that are exported, as modules over the checkpoint's own layers.

Each takes and gives what the engine feeds and reads, for one image and one sequence. The attentions inside stay
Transformers' own until `export.onnx_configs` patches them. Knows nothing about files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

COMPONENTS = ("vision_encoder", "embed_tokens", "decoder")


class VisionEncoder(nn.Module):
    """Patches of one image in, image features in the decoder's width out.

    Source: Qwen2VisionTransformerPretrainedModel of Transformers 4.57. Two things differ and are equal in value: the
    patch convolution, whose stride is its kernel, is one matrix product; row and column of each patch come as an input
    in place of a grid that a loop would read.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config = model.config
        self.visual = model.model.visual
        kernel = self.visual.patch_embed.proj.weight.data.flatten(1)  # (embed, channels x temporal x patch x patch)
        self.patch_embed = nn.Linear(kernel.shape[1], kernel.shape[0], bias=False)
        self.patch_embed.weight = nn.Parameter(kernel, requires_grad=False)

    def forward(self, pixel_values: Tensor, patch_positions: Tensor) -> Tensor:
        """Encode.

        Parameters
        ----------
        pixel_values : float32, (n_patches, channels x temporal x patch x patch)
            Patches in merge order: the four patches of one image token stand together.
        patch_positions : int64, (n_patches, 2)
            Row and column of each patch.

        Returns
        -------
        float32, (n_patches / merge², hidden_size)
        """
        visual = self.visual
        hidden = self.patch_embed(pixel_values.unsqueeze(0))  # (1, n_patches, embed)
        angles = patch_positions.unsqueeze(-1).float() * visual.rotary_pos_emb.inv_freq  # (n_patches, 2, head / 4)
        angles = angles.flatten(1)  # (n_patches, head / 2)
        angles = (angles.cos(), angles.sin())
        for block in visual.blocks:
            hidden = hidden + block.attn(block.norm1(hidden), None, position_embeddings=angles)
            hidden = hidden + block.mlp(block.norm2(hidden))
        features: Tensor = visual.merger(hidden.squeeze(0))
        return features


class EmbedTokens(nn.Module):
    """Token ids in, embedding rows out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config = model.config
        self.embed_tokens = model.model.language_model.embed_tokens

    def forward(self, input_ids: Tensor) -> Tensor:
        """Look up.

        Parameters
        ----------
        input_ids : int64, (1, S)

        Returns
        -------
        float32, (1, S, hidden_size)
        """
        rows: Tensor = self.embed_tokens(input_ids)
        return rows


class Decoder(nn.Module):
    """Embeddings and a key-value cache in, logits of the last position and the longer cache out.

    Source: Qwen2VLTextModel and the tied head of Transformers 4.57.
    """

    rotary_axes: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config = model.config
        self.language_model = model.model.language_model
        self.lm_head = model.lm_head
        sections = self.config.text_config.rope_scaling["mrope_section"]
        axes = [axis for axis, size in enumerate(sections) for _ in range(size)]
        self.register_buffer("rotary_axes", torch.tensor(axes), persistent=False)

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        total_sequence_length: Tensor,
        past_key_values: list[tuple[Tensor, Tensor]],
    ) -> dict[str, Any]:
        """Run the new tokens.

        Parameters
        ----------
        inputs_embeds : float32, (1, S, hidden_size)
        position_ids : int64, (3, 1, S)
            Temporal, height and width position (M-RoPE).
        total_sequence_length : int32, (1,)
            Tokens in the cache after this call.
        past_key_values : per layer, two of float32, (1, n_kv_heads, past, head_dim)

        Returns
        -------
        dict
            `logits` float32, (1, 1, vocab_size); `past_key_values` as given, longer by S.
        """
        rotary = self.language_model.rotary_emb
        # Each frequency turns with one of the three axes: choosing the axis first replaces the split and concatenation.
        positions = position_ids[:, 0].float().index_select(0, self.rotary_axes)  # (head / 2, S)
        angles = (positions * rotary.inv_freq.unsqueeze(1)).transpose(0, 1)  # (S, head / 2)
        cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
        hidden = inputs_embeds
        seqlens_k = total_sequence_length - 1
        present = []
        for layer, past in zip(self.language_model.layers, past_key_values, strict=True):
            attended, cache = layer.self_attn(
                layer.input_layernorm(hidden), (cos, sin), past, seqlens_k, total_sequence_length
            )
            present.append(cache)
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last = self.language_model.norm(hidden[:, -1:])
        return {"logits": self.lm_head(last), "past_key_values": present}


def build(name: str, model: Any) -> nn.Module:
    """Wrap one component of a loaded Qwen2VLForConditionalGeneration."""
    parts: dict[str, type[nn.Module]] = {
        "vision_encoder": VisionEncoder,
        "embed_tokens": EmbedTokens,
        "decoder": Decoder,
    }
    return parts[name](model).eval()

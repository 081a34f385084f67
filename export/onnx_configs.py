"""What Optimum needs to export Qwen2-VL: an OnnxConfig per component and the patcher that puts fused attention in.

optimum-onnx 0.1 has no `qwen2_vl`; importing this module registers ours with its TasksManager.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from optimum.exporters.onnx.base import OnnxConfig, OnnxConfigWithPast
from optimum.exporters.onnx.model_patcher import ModelPatcher
from optimum.exporters.tasks import TasksManager
from optimum.utils import DummyInputGenerator, NormalizedTextConfig
from torch import Tensor
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLAttention, VisionAttention

from export.fused import GroupQueryAttention, MultiHeadAttention, RotaryEmbedding

MODEL_TYPE = "qwen2_vl"
TASK = "image-text-to-text-with-past"
DUMMY_GRID = (8, 12)  # patches; odd sizes would hide a swap of height and width
DUMMY_TOKENS = 5
DUMMY_PAST = 7


def _vision_attention(self: Any, hidden_states: Tensor, _cu: Any, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
    """Attention of one image: every patch sees every patch, so no chunk boundaries are needed."""
    query, key, value = self.qkv(hidden_states).chunk(3, dim=-1)  # each (1, n_patches, embed)
    query = RotaryEmbedding.apply(query, *position_embeddings, self.num_heads)
    key = RotaryEmbedding.apply(key, *position_embeddings, self.num_heads)
    output: Tensor = self.proj(MultiHeadAttention.apply(query, key, value, self.num_heads, float(self.scaling)))
    return output


def _decoder_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    past: tuple[Tensor, Tensor],
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Rotate, then attend over the cache that is bound from outside."""
    n_heads, n_kv_heads = self.num_heads, self.num_key_value_heads
    query = RotaryEmbedding.apply(self.q_proj(hidden_states), *position_embeddings, n_heads)
    key = RotaryEmbedding.apply(self.k_proj(hidden_states), *position_embeddings, n_kv_heads)
    output, present_key, present_value = GroupQueryAttention.apply(
        query,
        key,
        self.v_proj(hidden_states),
        *past,
        seqlens_k,
        total_sequence_length,
        n_heads,
        n_kv_heads,
        float(self.scaling),
    )
    return self.o_proj(output), (present_key, present_value)


class FusedAttentionPatcher(ModelPatcher):  # type: ignore[misc]
    """Swap the attentions' forward for the fused ones while Optimum traces or validates."""

    def __enter__(self) -> None:
        super().__enter__()
        self._originals = {kind: kind.forward for kind in (VisionAttention, Qwen2VLAttention)}
        VisionAttention.forward = _vision_attention
        Qwen2VLAttention.forward = _decoder_attention

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        for kind, forward in self._originals.items():
            kind.forward = forward
        super().__exit__(exc_type, exc_value, traceback)


class DummyVisionInputs(DummyInputGenerator):  # type: ignore[misc]
    """Patches of an image of `DUMMY_GRID`."""

    SUPPORTED_INPUT_NAMES = ("pixel_values", "patch_positions")

    def __init__(self, task: str, normalized_config: Any, **_: Any) -> None:
        vision = normalized_config.config.vision_config
        self._patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    def generate(
        self, input_name: str, framework: str = "pt", int_dtype: str = "int64", float_dtype: str = "fp32"
    ) -> Any:
        """Draw one input."""
        rows, columns = DUMMY_GRID
        if input_name == "pixel_values":
            shape = [rows * columns, self._patch_values]
            return self.random_float_tensor(shape, framework=framework, dtype=float_dtype)
        positions = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        return positions if framework == "pt" else positions.numpy()


class DummyDecoderInputs(DummyInputGenerator):  # type: ignore[misc]
    """A few new tokens behind a cache of a few older ones, so that neither length is special."""

    SUPPORTED_INPUT_NAMES = ("input_ids", "inputs_embeds", "position_ids", "total_sequence_length", "past_key_values")

    def __init__(self, task: str, normalized_config: Any, **_: Any) -> None:
        self._text = normalized_config.config.text_config

    def generate(
        self, input_name: str, framework: str = "pt", int_dtype: str = "int64", float_dtype: str = "fp32"
    ) -> Any:
        """Draw one input."""
        text, past = self._text, DUMMY_PAST

        def uniform(*shape: int) -> Any:
            return self.random_float_tensor(list(shape), framework=framework, dtype=float_dtype)

        def integers(values: Tensor) -> Any:
            return values if framework == "pt" else values.numpy()

        if input_name == "input_ids":
            return self.random_int_tensor([1, DUMMY_TOKENS], text.vocab_size, framework=framework, dtype=int_dtype)
        if input_name == "inputs_embeds":
            return uniform(1, DUMMY_TOKENS, text.hidden_size)
        if input_name == "position_ids":
            steps = torch.arange(past, past + DUMMY_TOKENS)
            return integers(torch.stack([steps, steps + 1, steps + 3]).unsqueeze(1))
        if input_name == "total_sequence_length":
            return integers(torch.tensor([past + DUMMY_TOKENS], dtype=torch.int32))
        head_dim = text.hidden_size // text.num_attention_heads
        shape = (1, text.num_key_value_heads, past, head_dim)
        return [(uniform(*shape), uniform(*shape)) for _ in range(text.num_hidden_layers)]


class _ComponentConfig(OnnxConfig):  # type: ignore[misc]
    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig
    DEFAULT_ONNX_OPSET = 18
    ATOL_FOR_VALIDATION = 1e-4
    _MODEL_PATCHER = FusedAttentionPatcher


class VisionEncoderOnnxConfig(_ComponentConfig):
    """Inputs and outputs of `export.components.VisionEncoder`."""

    DUMMY_INPUT_GENERATOR_CLASSES = (DummyVisionInputs,)

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the inputs."""
        return OrderedDict(pixel_values={0: "n_patches"}, patch_positions={0: "n_patches"})

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the outputs."""
        return OrderedDict(image_features={0: "n_image_tokens"})


class EmbedTokensOnnxConfig(_ComponentConfig):
    """Inputs and outputs of `export.components.EmbedTokens`."""

    DUMMY_INPUT_GENERATOR_CLASSES = (DummyDecoderInputs,)

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the inputs."""
        return OrderedDict(input_ids={1: "sequence_length"})

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the outputs."""
        return OrderedDict(inputs_embeds={1: "sequence_length"})


class DecoderOnnxConfig(_ComponentConfig, OnnxConfigWithPast):  # type: ignore[misc]
    """Inputs and outputs of `export.components.Decoder`."""

    DUMMY_INPUT_GENERATOR_CLASSES = (DummyDecoderInputs,)

    def __init__(self, config: Any, task: str = TASK, **kwargs: Any) -> None:
        kwargs.update(use_past=True, use_past_in_inputs=True)
        super().__init__(config, task=task, **kwargs)

    def _past(self, name: str, axis: str) -> dict[str, dict[int, str]]:
        n_layers = self._config.text_config.num_hidden_layers
        return {f"{name}.{i}.{part}": {2: axis} for i in range(n_layers) for part in ("key", "value")}

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the inputs."""
        return OrderedDict(
            inputs_embeds={1: "sequence_length"},
            position_ids={2: "sequence_length"},
            total_sequence_length={},
            **self._past("past_key_values", "past_sequence_length"),
        )

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        """Dynamic axes of the outputs."""
        return OrderedDict(logits={}, **self._past("present", "present_sequence_length"))

    def generate_dummy_inputs(self, framework: str = "pt", **kwargs: Any) -> dict[str, Any]:
        """Draw all inputs; the cache is one nested input for PyTorch."""
        generator = DummyDecoderInputs(self.task, self._normalized_config)
        names = ("inputs_embeds", "position_ids", "total_sequence_length", "past_key_values")
        return {name: generator.generate(name, framework=framework) for name in names}


_register = TasksManager.create_register("onnx", overwrite_existing=True)


@_register(MODEL_TYPE, TASK)
class Qwen2VLOnnxConfig(DecoderOnnxConfig):
    """The entry that TasksManager hands out for `qwen2_vl`; `with_behavior` gives the config of a component."""

    def with_behavior(self, behavior: str) -> _ComponentConfig:
        """Config of one of `export.components.COMPONENTS`."""
        kinds: dict[str, type[_ComponentConfig]] = {
            "vision_encoder": VisionEncoderOnnxConfig,
            "embed_tokens": EmbedTokensOnnxConfig,
            "decoder": DecoderOnnxConfig,
        }
        return kinds[behavior](self._config, task=self.task, int_dtype=self.int_dtype, float_dtype=self.float_dtype)

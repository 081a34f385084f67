"""Checkpoints without a hub: MinerU2.5's exact architecture, or a small one, with seeded random weights.

Speed and memory do not depend on weight values, so the full-size one measures them honestly; what it says is noise.
Weights are drawn and written a shard at a time, so little memory is needed. Knows nothing about ONNX.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from export import tokenizer as tokenizers
from export.progress import Progress

SHARD_BYTES = 512 * 1024 * 1024

# Renders as the published Qwen2-VL template does for one system turn and one user turn with an image.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'text' -%}{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class Preset:
    """Sizes of a checkpoint. Source of `mineru2.5`: the public facts collected for the 2509 checkpoint."""

    text: dict[str, Any]
    vision: dict[str, Any]
    min_pixels: int
    max_pixels: int
    dtype: torch.dtype
    full_vocabulary: bool
    extra: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "mineru2.5": Preset(
        text={
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        },
        vision={"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": 896},
        min_pixels=50176,
        max_pixels=1605632,
        dtype=torch.bfloat16,
        full_vocabulary=True,
    ),
    "small": Preset(
        text={
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 352,
            "vocab_size": 320,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        },
        vision={"depth": 3, "embed_dim": 160, "num_heads": 2, "mlp_ratio": 4, "hidden_size": 128},
        min_pixels=3136,
        max_pixels=1605632,
        dtype=torch.float32,
        full_vocabulary=False,
        extra={"max_new_tokens": 256},
    ),
}


def synthesise(preset_name: str, directory: Path, *, seed: int = 0, quiet: bool = False) -> dict[str, int]:
    """Write a checkpoint directory as `from_pretrained` reads it.

    Parameters
    ----------
    preset_name : {"mineru2.5", "small"}
    directory : Path
        Must not exist or be empty.
    seed : int
        The same seed gives the same bytes, whatever the machine.

    Returns
    -------
    dict
        `parameters` and `tensors`, counted from what was written.

    Raises
    ------
    SystemExit
        The directory is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty.\nhint: name a folder that does not exist yet.")
    preset = PRESETS[preset_name]
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.build(tokenizers.qwen_ranks() if preset.full_vocabulary else tokenizers.byte_ranks())
    tokenizers.save(tokenizer, directory)
    config = _config(preset, tokenizer)
    _write_json(directory / "config.json", _config_json(config, preset, preset_name))
    _write_json(directory / "generation_config.json", _generation_json(tokenizer, preset))
    _write_json(directory / "preprocessor_config.json", _preprocessor_json(preset))
    _write_json(directory / "tokenizer_config.json", _tokenizer_json(preset))
    _write_json(directory / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    return _write_weights(config, preset, directory, seed, quiet)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(preset: Preset, tokenizer: Any) -> Qwen2VLConfig:
    return Qwen2VLConfig(
        **preset.text,
        vision_config={**preset.vision, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
        tie_word_embeddings=True,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    )


def _config_json(config: Qwen2VLConfig, preset: Preset, preset_name: str) -> dict[str, Any]:
    """The flat form that the 2509 checkpoint has: text sizes and the tie at the root."""
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": str(preset.dtype).removeprefix("torch."),
        "bos_token_id": config.text_config.bos_token_id,
        "eos_token_id": config.text_config.eos_token_id,
        "_mineru_lambda": {"trained": False, "preset": preset_name},
        **{name: getattr(config, name) for name in ids},
        **preset.text,
        "vision_config": {
            **preset.vision,
            "model_type": "qwen2_vl",
            "in_channels": 3,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
        },
    }


def _generation_json(tokenizer: Any, preset: Preset) -> dict[str, Any]:
    stop = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    return {
        "do_sample": False,
        "eos_token_id": stop,
        "pad_token_id": stop[1],
        "bos_token_id": stop[1],
        **preset.extra,
    }


def _preprocessor_json(preset: Preset) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": preset.min_pixels,
        "max_pixels": preset.max_pixels,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _tokenizer_json(preset: Preset) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": preset.text["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }


def checkpoint_name(name: str) -> str:
    """Key that the 2509 file uses for a parameter of the Transformers 4.57 model."""
    return name.replace("model.visual.", "visual.", 1).replace("model.language_model.", "model.", 1)


def _random(name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    """Draw a tensor that depends on its name and the seed only, in the sizes that trained layers have."""
    # The generator keeps 32 bits of a seed, so name and seed are hashed into one number of that size.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    if len(shape) == 1:
        spread = torch.randn(shape, generator=generator) * 0.02
        return spread if name.endswith("bias") else spread + 1.0
    fan_in = math.prod(shape[1:])
    return torch.randn(shape, generator=generator) / math.sqrt(fan_in)


def _parameters(config: Qwen2VLConfig) -> Iterator[tuple[str, torch.Size]]:
    with torch.device("meta"):
        model = Qwen2VLForConditionalGeneration(config)
    yield from ((checkpoint_name(name), parameter.shape) for name, parameter in model.named_parameters())


def _write_weights(config: Any, preset: Preset, directory: Path, seed: int, quiet: bool) -> dict[str, int]:
    itemsize = preset.dtype.itemsize
    shards: list[list[tuple[str, torch.Size]]] = [[]]
    sizes = [0]
    for name, shape in _parameters(config):
        n_bytes = shape.numel() * itemsize
        if sizes[-1] and sizes[-1] + n_bytes > SHARD_BYTES:
            shards.append([])
            sizes.append(0)
        shards[-1].append((name, shape))
        sizes[-1] += n_bytes
    weight_map: dict[str, str] = {}
    progress = Progress("weights", sum(len(shard) for shard in shards), quiet=quiet)
    for number, shard in enumerate(shards, start=1):
        single = len(shards) == 1
        file = "model.safetensors" if single else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name, shape in shard:
            tensors[name] = _random(name, shape, seed).to(preset.dtype)
            weight_map[name] = file
            progress.step()
        save_file(tensors, str(directory / file), metadata={"format": "pt"})
    progress.close()
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        _write_json(directory / "model.safetensors.index.json", index)
    return {"parameters": sum(sizes) // itemsize, "tensors": len(weight_map)}

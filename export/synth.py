"""Checkpoints without a hub: MinerU2.5's exact architecture, or a small one, with seeded random weights.

Speed and memory do not depend on weight values, so the full-size one measures them honestly; what it says is noise.
Weights are drawn and written a shard at a time, so little memory is needed. Knows nothing about ONNX.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from export import checkpoint
from export import tokenizer as tokenizers
from export.progress import Progress

SHARD_BYTES = 512 * 1024 * 1024


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
    config = _config(preset, tokenizer)
    checkpoint.write_settings(
        directory,
        config,
        text=preset.text,
        vision=preset.vision,
        tokenizer=tokenizer,
        dtype=preset.dtype,
        about={"trained": False, "preset": preset_name},
        generation=preset.extra,
        preprocessor={"min_pixels": preset.min_pixels, "max_pixels": preset.max_pixels},
    )
    return _write_weights(config, preset, directory, seed, quiet)


def _config(preset: Preset, tokenizer: Any) -> Qwen2VLConfig:
    return checkpoint.model_config(preset.text, preset.vision, tokenizer)


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
    yield from ((checkpoint.checkpoint_name(name), parameter.shape) for name, parameter in model.named_parameters())


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
        checkpoint.write_json(directory / "model.safetensors.index.json", index)
    return {"parameters": sum(sizes) // itemsize, "tensors": len(weight_map)}

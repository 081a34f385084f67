"""The files of a checkpoint directory around its weights, as MinerU2.5's has them and `from_pretrained` reads them.

For checkpoints that are made here, with random weights or trained. Knows nothing of where the weights come from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2VLConfig

from export import tokenizer as tokenizers

IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
PATCHES = {"patch_size": 14, "temporal_patch_size": 2}

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


def model_config(text: dict[str, Any], vision: dict[str, Any], tokenizer: Any, **extra: Any) -> Qwen2VLConfig:
    """Configuration object of a model with these sizes and this tokenizer's ids."""
    return Qwen2VLConfig(
        **text,
        vision_config={**vision, **PATCHES, "spatial_merge_size": 2},
        tie_word_embeddings=True,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        **extra,
    )


def write_settings(
    directory: Path,
    config: Qwen2VLConfig,
    *,
    text: dict[str, Any],
    vision: dict[str, Any],
    tokenizer: Any,
    dtype: torch.dtype,
    about: dict[str, Any],
    generation: dict[str, Any],
    preprocessor: dict[str, Any],
) -> None:
    """Write everything but the weights, each file whole or not at all.

    Parameters
    ----------
    about : dict
        What config.json says of the checkpoint under `_mineru_lambda`.
    generation, preprocessor : dict
        Members added to those that every checkpoint has.
    """
    tokenizers.save(tokenizer, directory)
    stop = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    tokens = {"eos_token_id": stop, "pad_token_id": stop[1], "bos_token_id": stop[1]}
    write_json(directory / "config.json", _config_json(config, text, vision, dtype, about))
    write_json(directory / "generation_config.json", {"do_sample": False, **tokens, **generation})
    write_json(
        directory / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            **PATCHES,
            "merge_size": 2,
            "image_mean": list(IMAGE_MEAN),
            "image_std": list(IMAGE_STD),
            **preprocessor,
        },
    )
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": text["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(directory / "chat_template.json", {"chat_template": CHAT_TEMPLATE})


def _config_json(
    config: Qwen2VLConfig, text: dict[str, Any], vision: dict[str, Any], dtype: torch.dtype, about: dict[str, Any]
) -> dict[str, Any]:
    """The flat form that the 2509 checkpoint has: text sizes and the tie at the root."""
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    fixed = {"model_type": "qwen2_vl", "in_channels": 3, "spatial_merge_size": 2}
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": config.text_config.bos_token_id,
        "eos_token_id": config.text_config.eos_token_id,
        "_mineru_lambda": about,
        **{name: getattr(config, name) for name in ids},
        **text,
        "vision_config": {**vision, **fixed, **PATCHES},
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object, whole or not at all."""
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def checkpoint_name(name: str) -> str:
    """Key that the 2509 file uses for a parameter of the Transformers 4.57 model."""
    return name.replace("model.visual.", "visual.", 1).replace("model.language_model.", "model.", 1)

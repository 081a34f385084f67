"""The reader's sizes, tokenizer and checkpoint directory. Knows nothing of training.

A checkpoint has the files and the flat config.json that MinerU2.5 has, so that everything that takes the one takes the
other; it differs in sizes, in its vocabulary of single bytes, and in what it says about itself (`_mineru_lambda`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from export import tokenizer as tokenizers
from export.synth import CHAT_TEMPLATE, checkpoint_name

VOCABULARY_SIZE = 304  # 256 bytes, MinerU's tokens, the strings below; a multiple of 16
LAYOUT_SIZE_PX = 448
MIN_PIXELS = 28 * 28
MAX_PIXELS = 640 * 28 * 28
MAX_POSITIONS = 4096
MAX_NEW_TOKENS = 1536

PROMPTS = {
    "text": "\nText Recognition:",
    "table": "\nTable Recognition:",
    "formula": "\nFormula Recognition:",
    "layout": "\nLayout Detection:",
}
# The published penalties are made for words: a vocabulary of characters repeats all of its tokens.
_PLAIN = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "no_repeat_ngram_size": 100}
SAMPLING: dict[str, dict[str, float]] = {
    kind: dict(_PLAIN) for kind in ("[default]", "[layout]", "table", "equation", "image", "chart")
}
# Strings that every prompt holds become one token each: bytes would make the prompt longer than most answers.
WHOLE_STRINGS = ("system\nYou are a helpful assistant.", "assistant\n", *PROMPTS.values(), "\nImage Analysis:")
BEFORE_IMAGE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
AFTER_IMAGE = "<|vision_end|>"
AFTER_PROMPT = "<|im_end|>\n<|im_start|>assistant\n"

TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "vocab_size": VOCABULARY_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-6,
    # The sections take the rotations from fast to slow, so width would get slow ones only and could not tell one cell
    # from the next. Few for time and height, and a small base, leave it fast ones to find places and slow ones to find
    # content wherever it is.
    "rope_theta": 30.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 3, 28]},
}
VISION: dict[str, Any] = {"depth": 6, "embed_dim": 192, "num_heads": 6, "mlp_ratio": 4, "hidden_size": 256}
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)


def build_tokenizer() -> Tokenizer:
    """Bytes, MinerU's tokens and the whole strings of the prompts."""
    tokenizer = tokenizers.build(tokenizers.byte_ranks())
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in WHOLE_STRINGS])
    return tokenizer


def build_config(tokenizer: Tokenizer) -> Qwen2VLConfig:
    """Configuration object of the model."""
    return Qwen2VLConfig(
        **TEXT,
        vision_config={**VISION, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
        tie_word_embeddings=True,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        initializer_range=0.04,
    )


def build_model(seed: int) -> Any:
    """The model with seeded first weights, float32."""
    torch.manual_seed(seed)
    return Qwen2VLForConditionalGeneration(build_config(build_tokenizer()))


def _config_json(config: Qwen2VLConfig, about: dict[str, Any]) -> dict[str, Any]:
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    fixed = {"model_type": "qwen2_vl", "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2}
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": config.text_config.bos_token_id,
        "eos_token_id": config.text_config.eos_token_id,
        "_mineru_lambda": {"trained": True, "preset": "reader", "sampling": SAMPLING, **about},
        **{name: getattr(config, name) for name in ids},
        **TEXT,
        "vision_config": {**VISION, **fixed, "spatial_merge_size": 2},
    }


def _preprocessor_json() -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": list(IMAGE_MEAN),
        "image_std": list(IMAGE_STD),
        "layout_image_size": [LAYOUT_SIZE_PX, LAYOUT_SIZE_PX],
    }


def write_checkpoint(
    weights: dict[str, torch.Tensor], directory: Path, about: dict[str, Any], dtype: torch.dtype = torch.float16
) -> None:
    """Write a directory that `from_pretrained` and `python -m export` read.

    Parameters
    ----------
    weights : dict
        Named parameters of the Transformers model.
    directory : Path
        Made if missing; files in it are replaced, each one whole or not at all.
    about : dict
        What config.json says of the training.
    dtype : torch.dtype
        Of the stored weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    config = build_config(tokenizer)
    stop = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    tokenizers.save(tokenizer, directory)
    generation = {"do_sample": False, "eos_token_id": stop, "pad_token_id": stop[1], "bos_token_id": stop[1]}
    _write_json(directory / "config.json", _config_json(config, about))
    _write_json(directory / "generation_config.json", {**generation, "max_new_tokens": MAX_NEW_TOKENS})
    _write_json(directory / "preprocessor_config.json", _preprocessor_json())
    _write_json(directory / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": MAX_POSITIONS,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    tensors = {checkpoint_name(name): value.to(dtype).contiguous() for name, value in weights.items()}
    scratch = directory / ".model.safetensors"
    save_file(tensors, str(scratch), metadata={"format": "pt"})
    scratch.replace(directory / "model.safetensors")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)

"""The reader's sizes, tokenizer and checkpoint directory. Knows nothing of training.

A checkpoint has the files and the flat config.json that MinerU2.5 has, so that everything that takes the one takes the
other; it differs in sizes, in its vocabulary of single bytes, and in what it says about itself (`_mineru_lambda`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from export import checkpoint
from export import tokenizer as tokenizers

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


def build_tokenizer() -> Tokenizer:
    """Bytes, MinerU's tokens and the whole strings of the prompts."""
    tokenizer = tokenizers.build(tokenizers.byte_ranks())
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in WHOLE_STRINGS])
    return tokenizer


def build_config(tokenizer: Tokenizer) -> Qwen2VLConfig:
    """Configuration object of the model."""
    return checkpoint.model_config(TEXT, VISION, tokenizer, initializer_range=0.04)


def build_model(seed: int) -> Any:
    """The model with seeded first weights, float32."""
    torch.manual_seed(seed)
    return Qwen2VLForConditionalGeneration(build_config(build_tokenizer()))


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
    checkpoint.write_settings(
        directory,
        config,
        text=TEXT,
        vision=VISION,
        tokenizer=tokenizer,
        dtype=dtype,
        about={"trained": True, "preset": "reader", "sampling": SAMPLING, **about},
        generation={"max_new_tokens": MAX_NEW_TOKENS},
        preprocessor={
            "min_pixels": MIN_PIXELS,
            "max_pixels": MAX_PIXELS,
            "layout_image_size": [LAYOUT_SIZE_PX, LAYOUT_SIZE_PX],
        },
    )
    tensors = {checkpoint.checkpoint_name(name): value.to(dtype).contiguous() for name, value in weights.items()}
    scratch = directory / ".model.safetensors"
    save_file(tensors, str(scratch), metadata={"format": "pt"})
    scratch.replace(directory / "model.safetensors")

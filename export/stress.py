"""A checkpoint made as hard to quantise as real ones are, without changing what it computes: the stress test of int8.

Source: the outlier channels that Dettmers et al. (LLM.int8, 2022) and others found in trained transformers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from export import smooth, source
from export.checkpoint import checkpoint_name

N_CHANNELS = 4
FACTORS = (50.0, 200.0)


@torch.no_grad()
def add_outliers(model: Any, seed: int = 0) -> int:
    """Multiply a few channels behind every norm by 50 to 200, and divide the columns that read them by it, in place.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration
        A tied head is left alone: its columns are the embedding's too.

    Returns
    -------
    int
        Number of norms changed.
    """
    generator = torch.Generator().manual_seed(seed)
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    n_changed = 0
    for pair in smooth.pairs(model):
        behind_norm = pair.origins[0].dim() == 1
        if not behind_norm or (tied and model.lm_head in pair.consumers):
            continue
        scale = torch.ones(len(pair.origins[0]))
        chosen = torch.randperm(len(scale), generator=generator)[:N_CHANNELS]
        low, high = FACTORS
        scale[chosen] = low + (high - low) * torch.rand(N_CHANNELS, generator=generator)
        for origin in pair.origins:
            origin.mul_(scale)
        for layer in pair.consumers:
            layer.weight.data.div_(smooth.by_consumer(scale, pair))
        n_changed += 1
    return n_changed


def write(model_dir: Path, output: Path, seed: int = 0) -> int:
    """Write the stressed variant of a checkpoint, float32.

    Returns
    -------
    int
        Number of norms changed.

    Raises
    ------
    ExportError
        The checkpoint can't be loaded, or the output exists.
    """
    from export.build import load_model

    if output.exists():
        raise source.ExportError(f"{output} exists.", "name another folder.")
    found = source.resolve(str(model_dir))
    model = load_model(found)
    n_changed = add_outliers(model, seed)
    output.mkdir(parents=True)
    for path in found.path.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copy(path, output / path.name)
    tensors = {checkpoint_name(name): tensor.contiguous() for name, tensor in model.named_parameters()}
    save_file(tensors, str(output / "model.safetensors"), metadata={"format": "pt"})
    return n_changed

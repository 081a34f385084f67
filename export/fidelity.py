"""How far an artifact strays from the checkpoint under Transformers: per component, and in the tokens that come out.

The reference runs before the export, so that the two never share the memory. Inputs are drawn, not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from export import source
from handler.artifact import Artifact, Manifest
from handler.config import Settings
from handler.engine import Sampling, load
from handler.image import prepare
from handler.prompt import Prompter

PROMPT = "\nText Recognition:"
SIZES_PX = ((224, 224), (420, 140), (140, 308))
N_TOKENS = 16


@dataclass(frozen=True)
class Sample:
    """What Transformers makes of one image."""

    image: Image.Image
    image_features: NDArray[np.float32]  # (n_image_tokens, hidden)
    logits: NDArray[np.float32]  # (vocab_size,), after the prompt
    token_ids: list[int]


def drawn_image(width_px: int, height_px: int, seed: int = 0) -> Image.Image:
    """A page-like image: dark text lines on white, different for each size and seed."""
    image = Image.new("RGB", (width_px, height_px), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(16)
    random = np.random.default_rng([width_px, height_px, seed])
    for top in range(6, height_px - 12, 22):
        line = "".join(chr(code) for code in random.integers(33, 126, max(1, width_px // 11)))
        draw.text((6, top), line, fill=tuple(int(value) for value in random.integers(0, 120, 3)), font=font)
    return image


def drawn_images() -> list[Image.Image]:
    """The images that every artifact is compared on."""
    return [drawn_image(*size) for size in SIZES_PX]


def calibration_images(folder: Path | None) -> list[Image.Image]:
    """Images by whose activations outliers are found: those of a folder, or drawn ones that nothing is measured on.

    Raises
    ------
    ExportError
        The folder has no image.
    """
    if folder is None:
        return [drawn_image(*size, seed=1) for size in SIZES_PX]
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in {".png", ".jpg", ".jpeg", ".webp"})
    if not paths:
        raise source.ExportError("the calibration folder has no PNG, JPEG or WebP.", "name a folder of page images.")
    return [Image.open(path).convert("RGB") for path in paths]


def reference(model: Any, found: source.Source, images: list[Image.Image] | None = None) -> list[Sample]:
    """Run the checkpoint itself.

    Parameters
    ----------
    model : Qwen2VLForConditionalGeneration, float32
    found : Source
    images : list of PIL images, optional
        Default: `drawn_images`.
    """
    return [transformers_sample(model, found, image) for image in images or drawn_images()]


@torch.inference_mode()
def transformers_sample(model: Any, found: source.Source, image: Image.Image) -> Sample:
    """Features, logits and greedy tokens of one image under Transformers."""
    config = source.read_config(found)
    prompter = Prompter(found.path, _partial_manifest(found))
    prepared = prepare(image, source.image_info(found))
    tokens = prompter.tokenize(PROMPT, prepared.grid)
    inputs = {
        "input_ids": torch.from_numpy(tokens.input_ids)[None],
        "attention_mask": torch.ones(1, tokens.n_tokens, dtype=torch.int64),
        "pixel_values": torch.from_numpy(prepared.pixel_values),
        "image_grid_thw": torch.tensor([prepared.image_grid_thw]),
    }
    (features,) = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    model.model.rope_deltas = None  # Transformers keeps those of the last image
    logits = model(**inputs, logits_to_keep=1).logits[0, -1]
    model.model.rope_deltas = None
    generated = model.generate(
        **inputs, max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=source.token_info(found, config).stop
    )
    stop = set(source.token_info(found, config).stop)
    token_ids = [token for token in generated[0, tokens.n_tokens :].tolist() if token not in stop]
    return Sample(image, features.float().numpy(), logits.float().numpy(), token_ids)


def _partial_manifest(found: source.Source) -> Manifest:
    """Enough of a manifest for the prompt side, before there is an artifact."""
    config = source.read_config(found)
    return Manifest(
        backend="onnx",
        dtype="fp32",
        target_cpu="",
        model=source.model_info(found, 0),
        image=source.image_info(found),
        text=source.text_info(config),
        tokens=source.token_info(found, config),
        chat=source.chat_info(found),
        files={},
    )


def compare(folder: Path, samples: list[Sample]) -> dict[str, Any]:
    """Run an artifact on the reference's images.

    Returns
    -------
    dict
        `vision_encoder` and `decoder` with `max_abs` and `mean_abs` difference and the reference's `mean_abs_value`;
        `token_agreement`, the share of greedy tokens that are the same up to the first that differs.
    """
    artifact = Artifact.open(folder)
    engine = load(artifact, Settings())
    report: dict[str, Any] = {}
    if artifact.manifest.backend == "onnx":
        differences: dict[str, list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {}
        for sample in samples:
            features, logits = engine.probe(sample.image, PROMPT)  # type: ignore[attr-defined]
            differences.setdefault("vision_encoder", []).append((features, sample.image_features))
            differences.setdefault("decoder", []).append((logits, sample.logits))
        report = {name: _difference(pairs) for name, pairs in differences.items()}
    agreed = total = 0
    for sample in samples:
        answer = engine.generate(sample.image, PROMPT, Sampling(max_new_tokens=N_TOKENS))
        total += len(sample.token_ids)
        agreed += _common_prefix(answer.token_ids, sample.token_ids)
    report["token_agreement"] = agreed / total if total else 1.0
    report["n_tokens"] = total
    return report


def _difference(pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> dict[str, float]:
    errors = np.concatenate([np.abs(ours - theirs).ravel() for ours, theirs in pairs])
    values = np.concatenate([np.abs(theirs).ravel() for _, theirs in pairs])
    return {
        "max_abs": float(errors.max()),
        "mean_abs": float(errors.mean()),
        "mean_abs_value": float(values.mean()),
    }


def _common_prefix(ours: list[int], theirs: list[int]) -> int:
    for count, (mine, other) in enumerate(zip(ours, theirs)):
        if mine != other:
            return count
    return min(len(ours), len(theirs))


def as_table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{'component':<16}{'max diff':>12}{'mean diff':>12}{'mean value':>12}"]
    for name, row in report.items():
        if isinstance(row, dict):
            lines.append(f"{name:<16}{row['max_abs']:>12.2e}{row['mean_abs']:>12.2e}{row['mean_abs_value']:>12.2e}")
    lines.append(f"token agreement {report['token_agreement']:.1%} of {report['n_tokens']}")
    return "\n".join(lines)

"""Both engines against Transformers itself, on the small checkpoint: the same tokens, image size by image size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")

from export.fidelity import drawn_image
from handler.artifact import Artifact
from handler.config import Settings
from handler.engine import Engine, Sampling, load
from handler.image import prepare
from handler.onnx_engine import OnnxEngine
from handler.prompt import Prompter
from tests.test_generate import reference_logits

PROMPT = "\nText Recognition:"
# Width x height, from the smallest crop to a layout page, odd proportions among them.
SIZES_PX = [
    (28, 28),
    (28, 1036),
    (1036, 28),
    (30, 1400),
    (1400, 31),
    (57, 85),
    (84, 56),
    (100, 500),
    (224, 224),
    (300, 40),
    (333, 777),
    (420, 140),
    (448, 448),
    (500, 100),
    (613, 211),
    (640, 480),
    (672, 952),
    (700, 41),
    (777, 333),
    (952, 672),
    (1036, 1036),
    (1036, 1484),
]
MAX_NEW_TOKENS = 64


def named(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


@pytest.fixture(scope="module")
def engine(fp32_artifact: Path) -> OnnxEngine:
    loaded = load(Artifact.open(fp32_artifact), Settings())
    assert isinstance(loaded, OnnxEngine)
    return loaded


@pytest.fixture(scope="module")
def fallback(transformers_artifact: Path) -> Engine:
    return load(Artifact.open(transformers_artifact), Settings())


def model_inputs(image: Image.Image, artifact: Path, prompt: str) -> dict[str, Any]:
    """Inputs of Transformers' own forward for the same image and prompt."""
    import torch

    manifest = Artifact.open(artifact).manifest
    prepared = prepare(image, manifest.image)
    tokens = Prompter(artifact, manifest).tokenize(prompt, prepared.grid)
    return {
        "input_ids": torch.from_numpy(tokens.input_ids)[None],
        "attention_mask": torch.ones(1, tokens.n_tokens, dtype=torch.int64),
        "pixel_values": torch.from_numpy(prepared.pixel_values),
        "image_grid_thw": torch.tensor([prepared.image_grid_thw]),
    }


@pytest.mark.parametrize("size", SIZES_PX, ids=named)
def test_same_tokens_as_transformers_generate(
    engine: OnnxEngine, reference_model: Any, fp32_artifact: Path, size: tuple[int, int]
) -> None:
    image = drawn_image(*size)
    inputs = model_inputs(image, fp32_artifact, PROMPT)
    reference_model.model.rope_deltas = None
    stop = engine.manifest.tokens.stop
    generated = reference_model.generate(
        **inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, eos_token_id=stop, pad_token_id=stop[-1]
    )
    expected = generated[0, inputs["input_ids"].shape[1] :].tolist()
    answer = engine.generate(image, PROMPT, Sampling(max_new_tokens=MAX_NEW_TOKENS))
    assert answer.token_ids == [token for token in expected if token not in stop]
    assert answer.finish_reason == ("stop" if expected[-1] in stop else "length")
    assert answer.n_prompt_tokens == inputs["input_ids"].shape[1]


def test_answers_depend_on_the_image(engine: OnnxEngine) -> None:
    """Or equal tokens would say nothing about the vision side."""
    sampling = Sampling(max_new_tokens=24)
    answers = {tuple(engine.generate(drawn_image(*size), PROMPT, sampling).token_ids) for size in SIZES_PX[:12]}
    assert len(answers) >= 8


SAMPLINGS = [
    Sampling(presence_penalty=1.0, frequency_penalty=0.05, no_repeat_ngram_size=100),
    Sampling(presence_penalty=1.0, frequency_penalty=0.005, no_repeat_ngram_size=3),
    Sampling(repetition_penalty=1.2, no_repeat_ngram_size=2),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["default", "table-ngram-3", "repetition-ngram-2"])
@pytest.mark.parametrize("size", [(224, 224), (420, 140), (333, 777)], ids=named)
def test_penalties_equal_a_plain_reference(
    engine: OnnxEngine, reference_model: Any, fp32_artifact: Path, sampling: Sampling, size: tuple[int, int]
) -> None:
    """Transformers' logits, recomputed over the whole sequence at each step, under the definitions read plainly."""
    import torch

    image = drawn_image(*size)
    inputs = model_inputs(image, fp32_artifact, PROMPT)
    prompt = inputs["input_ids"][0].tolist()
    output: list[int] = []
    stop = engine.manifest.tokens.stop
    with torch.inference_mode():
        while len(output) < 40:
            inputs["input_ids"] = torch.tensor([prompt + output])
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            reference_model.model.rope_deltas = None
            logits = reference_model(**inputs, logits_to_keep=1).logits[0, -1].numpy()
            token = int(reference_logits(logits, prompt, output, sampling).argmax())
            if token in stop:
                break
            output.append(token)
    capped = Sampling(**{**_fields(sampling), "max_new_tokens": 40})
    assert engine.generate(image, PROMPT, capped).token_ids == output


def _fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


@pytest.mark.parametrize("size", [(28, 28), (300, 40), (448, 448), (672, 952)], ids=named)
def test_components_differ_by_less_than_1e_4(
    engine: OnnxEngine, reference_model: Any, fp32_artifact: Path, size: tuple[int, int]
) -> None:
    import torch

    image = drawn_image(*size)
    inputs = model_inputs(image, fp32_artifact, PROMPT)
    reference_model.model.rope_deltas = None
    with torch.inference_mode():
        (features,) = reference_model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        logits = reference_model(**inputs, logits_to_keep=1).logits[0, -1]
        rows = reference_model.get_input_embeddings()(inputs["input_ids"])[0]
    ours = engine.probe(image, PROMPT)
    assert np.abs(ours[0] - features.numpy()).max() <= 1e-4
    assert np.abs(ours[1] - logits.numpy()).max() <= 1e-4
    assert np.array_equal(engine._embeddings.rows(inputs["input_ids"][0].numpy()), rows.numpy())


def test_one_request_leaves_nothing_for_the_next(engine: OnnxEngine) -> None:
    """The cache is reused: a long answer before must not change a short one after."""
    short, long = drawn_image(84, 56), drawn_image(672, 952)
    sampling = Sampling(max_new_tokens=16)
    before = engine.generate(short, PROMPT, sampling)
    engine.generate(long, PROMPT, Sampling(max_new_tokens=200))
    assert engine.generate(short, PROMPT, sampling).token_ids == before.token_ids


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=48), *SAMPLINGS[:1]], ids=["greedy", "default"])
def test_fallback_gives_the_same_answers(engine: OnnxEngine, fallback: Engine, sampling: Sampling) -> None:
    capped = Sampling(**{**_fields(sampling), "max_new_tokens": 48})
    for size in ((28, 28), (420, 140), (333, 777)):
        image = drawn_image(*size)
        ours, theirs = engine.generate(image, PROMPT, capped), fallback.generate(image, PROMPT, capped)
        assert ours.token_ids == theirs.token_ids
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)


def test_int8_stays_near(int8_artifact: Path, reference_model: Any, fp32_artifact: Path) -> None:
    import torch

    engine = load(Artifact.open(int8_artifact), Settings())
    assert isinstance(engine, OnnxEngine)
    image = drawn_image(420, 140)
    inputs = model_inputs(image, fp32_artifact, PROMPT)
    with torch.inference_mode():
        (features,) = reference_model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    ours, _ = engine.probe(image, PROMPT)
    error = np.abs(ours - features.numpy()).mean() / np.abs(features.numpy()).mean()
    assert 0 < error < 0.06

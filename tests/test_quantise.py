"""Smaller weights: what they cost, that outliers don't ruin them, and that the stress which shows it is a real one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("torch")

import torch
from onnx import TensorProto, helper, numpy_helper

from export import fidelity, quantise, smooth, source, stress
from export.__main__ import main
from export.build import load_model
from handler.artifact import Artifact


def linear_graph(weight: np.ndarray[Any, Any]) -> Any:
    n_in, n_out = weight.shape
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")],
            "linear",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "s", n_in])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "s", n_out])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )


def relative_error(shrink: Callable[[Any], Any], weight: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> float:
    graph = linear_graph(weight)
    shrink(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    expected = x @ weight
    return float(np.abs(y - expected).mean() / np.abs(expected).mean())


@pytest.mark.parametrize(
    ("shrink", "low", "high"),
    [
        (quantise.halve_weights, 1e-6, 1e-3),
        (quantise.quantise_linear_layers, 1e-3, 0.025),
        (lambda graph: quantise.quantise_linear_layers(graph, lambda name: 4), 0.02, 0.12),
    ],
    ids=["fp16", "int8", "int4"],
)
@pytest.mark.parametrize("n_in", [96, 160])
def test_error_of_one_layer(shrink: Callable[[Any], Any], low: float, high: float, n_in: int) -> None:
    random = np.random.default_rng(n_in)
    weight = random.normal(size=(n_in, 64)).astype(np.float32)
    x = random.normal(size=(1, 7, n_in)).astype(np.float32)
    assert low < relative_error(shrink, weight, x) < high


def test_each_token_has_its_own_scale() -> None:
    """One token 1,000 times larger than the others must not take their precision."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(64, 32)).astype(np.float32)
    x = random.normal(size=(1, 5, 64)).astype(np.float32)
    large = np.concatenate([x, 1000 * x[:, :1]], axis=1)
    graph = linear_graph(weight)
    quantise.quantise_linear_layers(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    alone, together = (session.run(None, {"x": values})[0][:, :5] for values in (x, large))
    assert np.allclose(alone, together, atol=1e-5)


def test_a_token_of_zeros_gives_zeros() -> None:
    weight = np.ones((32, 4), dtype=np.float32)
    graph = linear_graph(weight)
    quantise.quantise_linear_layers(graph)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.zeros((1, 2, 32), dtype=np.float32)})
    assert (y == 0).all()


def test_embedding_rows() -> None:
    table = np.random.default_rng(0).normal(size=(9, 32)).astype(np.float32)
    table[3] = 0
    rows, scales = quantise.quantise_rows(table)
    assert np.abs(rows * scales[:, None] - table).max() <= scales.max() / 2 + 1e-6
    assert np.abs(rows).max() == 127


@pytest.fixture(scope="module")
def stressed(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stress") / "stressed"
    assert main(["stress", str(small_checkpoint), str(path)]) == 0
    return path


def ranges_of(model: Any, found: source.Source) -> dict[str, torch.Tensor]:
    with smooth.ChannelRanges(model) as ranges:
        fidelity.reference(model, found, fidelity.calibration_images(None))
    return ranges.largest


def largest_ratio(ranges: dict[str, torch.Tensor], name: str) -> float:
    return float(ranges[name].max() / ranges[name].median())


def test_stress_and_smoothing_change_nothing_but_the_ranges(small_checkpoint: Path, stressed: Path) -> None:
    plain, hard = source.resolve(str(small_checkpoint)), source.resolve(str(stressed))
    expected = fidelity.reference(load_model(plain), plain)
    model = load_model(hard)
    before = ranges_of(model, hard)
    smooth.untie_head(model)
    smooth.smooth(model, before)
    after = ranges_of(model, hard)
    for samples in (fidelity.reference(load_model(hard), hard), fidelity.reference(model, hard)):
        for ours, theirs in zip(samples, expected, strict=True):
            assert np.abs(ours.logits - theirs.logits).max() < 1e-4
            assert np.abs(ours.image_features - theirs.image_features).max() < 1e-4
    for name in ("vision.0.qkv", "vision.1.fc1", "decoder.0.qkv", "decoder.2.mlp", "vision.merger"):
        assert largest_ratio(before, name) > 20
        assert largest_ratio(after, name) < 8


def vision_error(artifact: Path) -> float:
    row = Artifact.open(artifact).manifest.fidelity["vision_encoder"]
    return float(row["mean_abs"] / row["mean_abs_value"])


def test_outliers_cost_int8_nothing(
    stressed: Path, int8_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(stressed), str(tmp_path / "smoothed"), "--quiet"]) == 0
    monkeypatch.setattr("export.smooth.smooth", lambda model, ranges: None)
    assert main([str(stressed), str(tmp_path / "naive"), "--quiet"]) == 0
    plain = vision_error(int8_artifact)
    assert vision_error(tmp_path / "smoothed") < 1.3 * plain
    assert vision_error(tmp_path / "naive") > 2 * plain


@pytest.mark.parametrize(("dtype", "most"), [("fp16", 2e-3), ("int4", 0.6)])
def test_other_dtypes_run(small_checkpoint: Path, fp32_artifact: Path, tmp_path: Path, dtype: str, most: float) -> None:
    output = tmp_path / dtype
    assert main([str(small_checkpoint), str(output), "--dtype", dtype, "--quiet"]) == 0
    row = Artifact.open(output).manifest.fidelity["decoder"]
    assert 0 < row["mean_abs"] / row["mean_abs_value"] < most
    sizes = [
        sum(entry.bytes for entry in Artifact.open(path).manifest.files.values()) for path in (output, fp32_artifact)
    ]
    assert sizes[0] < 0.6 * sizes[1]


def test_calibration_folder(small_checkpoint: Path, tmp_path: Path) -> None:
    fidelity.drawn_image(300, 200).save(tmp_path / "page.png")
    (image,) = fidelity.calibration_images(tmp_path)
    assert image.size == (300, 200)
    (tmp_path / "page.png").unlink()
    with pytest.raises(source.ExportError, match="no PNG"):
        fidelity.calibration_images(tmp_path)


def test_stress_refuses_an_existing_folder(small_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(small_checkpoint, tmp_path / "there")
    with pytest.raises(source.ExportError, match="exists"):
        stress.write(small_checkpoint, tmp_path / "there")

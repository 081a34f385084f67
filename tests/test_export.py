"""The build side as a command: checkpoints, graphs, artifacts, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handler.artifact import Artifact
from tests.conftest import ROOT

pytest.importorskip("torch")


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-m", "export", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def test_synth_is_the_same_for_the_same_seed(small_checkpoint: Path, tmp_path: Path) -> None:
    from export.synth import synthesise

    for seed, same in ((0, True), (1, False)):
        folder = tmp_path / str(seed)
        synthesise("small", folder, seed=seed, quiet=True)
        weights = (folder / "model.safetensors").read_bytes() == (small_checkpoint / "model.safetensors").read_bytes()
        assert weights is same
        assert (folder / "config.json").read_bytes() == (small_checkpoint / "config.json").read_bytes()


def test_synth_weights_are_what_transformers_loads(small_checkpoint: Path, reference_model: Any) -> None:
    """Every parameter comes from the file; none was silently initialised."""
    from safetensors.numpy import load_file

    from export.checkpoint import checkpoint_name

    stored = load_file(small_checkpoint / "model.safetensors")
    parameters = {checkpoint_name(name): tensor for name, tensor in reference_model.named_parameters()}
    assert parameters.keys() == stored.keys()
    assert all(np.array_equal(parameters[name].numpy(force=True), stored[name]) for name in stored)


def test_full_preset_has_the_real_models_tensors() -> None:
    """Names, count and parameters of the published checkpoint, without drawing its weights."""
    pytest.importorskip("dashscope")
    from export import synth
    from export import tokenizer as tokenizers

    preset = synth.PRESETS["mineru2.5"]
    config = synth._config(preset, tokenizers.build(tokenizers.qwen_ranks()))
    shapes = dict(synth._parameters(config))
    assert len(shapes) == 681
    assert sum(shape.numel() for shape in shapes.values()) == 1_156_026_624
    assert shapes["visual.patch_embed.proj.weight"] == (1280, 3, 2, 14, 14)
    assert shapes["model.embed_tokens.weight"] == (151936, 896)
    assert not [name for name in shapes if not name.startswith(("visual.", "model."))]


def test_graphs_have_fused_attention_and_mapped_weights(fp32_artifact: Path) -> None:
    import onnx

    artifact = Artifact.open(fp32_artifact)
    components = artifact.manifest.onnx
    assert components is not None
    counts = {}
    for name in (components.vision_encoder, components.decoder):
        graph = onnx.load(str(fp32_artifact / name), load_external_data=False).graph
        counts[name] = Counter(node.op_type for node in graph.node)
        for tensor in graph.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if np.prod(tensor.dims) * 4 >= 1024:
                assert entries["location"] == f"{name}.data"
                assert int(entries["offset"]) % 4096 == 0
    vision, decoder = counts[components.vision_encoder], counts[components.decoder]
    assert (vision["MultiHeadAttention"], vision["RotaryEmbedding"], vision["Softmax"]) == (3, 6, 0)
    assert (decoder["GroupQueryAttention"], decoder["RotaryEmbedding"], decoder["Softmax"]) == (3, 6, 0)


def test_int8_replaces_every_linear_layer_and_cannot_saturate(int8_artifact: Path) -> None:
    import onnx

    artifact = Artifact.open(int8_artifact)
    components = artifact.manifest.onnx
    assert components is not None
    for name, n_linear in ((components.vision_encoder, 15), (components.decoder, 22)):
        graph = onnx.load(str(int8_artifact / name)).graph
        counts = Counter(node.op_type for node in graph.node)
        assert (counts["DynamicQuantizeMatMul"], counts["MatMul"], counts["Gemm"]) == (n_linear, 0, 0)
        tensors = [tensor for tensor in graph.initializer if tensor.name.endswith("_int8")]
        weights = [onnx.numpy_helper.to_array(tensor) for tensor in tensors]
        assert len(weights) == n_linear
        for weight in weights:
            pairs = np.abs(weight.astype(int))
            largest = (pairs[0::2] + pairs[1::2]).max() * 255
            assert largest <= 32767
            assert np.abs(weight).max() == 63


def test_registered_with_optimum() -> None:
    from optimum.exporters.tasks import TasksManager

    from export import onnx_configs

    tasks = TasksManager.get_supported_tasks_for_model_type("qwen2_vl", "onnx", library_name="transformers")
    assert onnx_configs.TASK in tasks


def test_manifest_says_what_was_exported(int8_artifact: Path, transformers_artifact: Path) -> None:
    manifest = Artifact.open(int8_artifact).manifest
    assert (manifest.backend, manifest.dtype, manifest.model.id) == ("onnx", "int8", "small")
    assert (manifest.model.trained, manifest.model.n_parameters) == (False, 2_204_192)
    assert (manifest.image.min_pixels, manifest.image.max_pixels) == (3136, 1605632)
    assert manifest.image.layout_size_px == [1036, 1036]
    assert manifest.max_new_tokens == 256
    assert manifest.fidelity["n_tokens"] > 0
    assert manifest.fidelity["vision_encoder"]["max_abs"] > 0
    assert Artifact.open(transformers_artifact).manifest.backend == "transformers"


def test_export_twice_is_the_same_bytes(small_checkpoint: Path, int8_artifact: Path, tmp_path: Path) -> None:
    """An image layer must not change because an export was repeated, nor with the number of threads."""
    result = run(str(small_checkpoint), str(tmp_path / "again"), "--quiet", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    files = {path.name for path in int8_artifact.iterdir()}
    assert files == {path.name for path in (tmp_path / "again").iterdir()}
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (int8_artifact / name).read_bytes(), name


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nothing-here", "out"], 1, "neither a directory nor a hub id"),
        (["opendatalab/MinerU2.5-2509-1.2B", "out"], 1, "hub can't be reached"),
        (["{empty}", "out"], 1, "no config.json"),
        (["{other}", "out"], 1, "only qwen2_vl"),
        (["{headless}", "out"], 1, "weights can't be loaded"),
        (["{small}", "{full}"], 1, "exists"),
        (["{small}", "out", "--backend", "transformers", "--dtype", "int8"], 2, "--dtype bf16, fp16, fp32"),
        (["synth", "{full}"], 1, "not empty"),
        ([], 2, "usage"),
    ],
)
def test_errors_have_no_traceback_and_leave_nothing(
    small_checkpoint: Path, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    folders = {name: tmp_path / name for name in ("empty", "other", "headless", "full")}
    for folder in folders.values():
        folder.mkdir()
    (folders["other"] / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (folders["full"] / "file").write_text("", encoding="utf-8")
    for name in ("config.json", "tokenizer.json"):
        (folders["headless"] / name).write_bytes((small_checkpoint / name).read_bytes())
    filled = [text.format(small=small_checkpoint, **folders) for text in arguments]
    filled = [str(tmp_path / "out") if text == "out" else text for text in filled]
    result = run(*filled, HF_HUB_OFFLINE="1")
    assert result.returncode == status, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not [path for path in tmp_path.iterdir() if path.name not in folders]


def test_missing_tensors_are_refused(small_checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for path in small_checkpoint.iterdir():
        if path.suffix == ".json":
            (broken / path.name).write_bytes(path.read_bytes())
    tensors = load_file(small_checkpoint / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    result = run(str(broken), str(tmp_path / "out"))
    assert result.returncode == 1
    assert "lacks 1 tensors" in result.stderr


def test_force_replaces(small_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("", encoding="utf-8")
    result = run(str(small_checkpoint), str(tmp_path / "out"), "--force", "--no-check", "--dtype", "fp32")
    assert result.returncode == 0, result.stderr
    assert "exporting decoder" in result.stderr
    Artifact.open(tmp_path / "out").verify()
    assert not (tmp_path / "out" / "old").exists()

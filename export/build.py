"""From a model directory to an artifact: load, export a component at a time, quantise, check, write the manifest.

Everything is written to a temporary folder beside the target, which is renamed at the end: there is a whole artifact or
none.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from optimum.exporters.onnx.convert import export_models, validate_models_outputs
from optimum.exporters.tasks import TasksManager
from transformers import Qwen2VLForConditionalGeneration

from export import components, fidelity, onnx_configs, quantise, smooth, source, weights
from export.progress import say
from handler.artifact import (
    MANIFEST,
    Backend,
    Dtype,
    EmbedTable,
    FileEntry,
    Manifest,
    OnnxComponents,
    sha256_of,
)
from handler.prompt import TOKENIZER

# Any x86-64 with AVX2 and any arm64: the graphs hold no CPU-specific layout and the int8 weights can't saturate.
TARGET_CPU = "any"
N_THREADS = 2
QUANTISED = ("int8", "int4")
VERSIONS = ("onnxruntime", "optimum", "optimum-onnx", "torch", "transformers", "mineru-vl-utils")


def export(
    model_name: str,
    output: Path,
    *,
    dtype: Dtype,
    backend: Backend = "onnx",
    revision: str | None = None,
    force: bool = False,
    check: bool = True,
    calibration: Path | None = None,
    quiet: bool = False,
) -> Manifest:
    """Write an artifact.

    Parameters
    ----------
    model_name : str
        Model directory or hub id.
    output : Path
        Folder to make; with `force` one that exists is replaced at the end.
    dtype : {"fp32", "fp16", "int8", "int4"} for onnx, {"fp32", "fp16", "bf16"} for transformers
    backend : {"onnx", "transformers"}
    revision : str, optional
        Of the hub.
    check : bool
        Compare with Transformers and record the differences.
    calibration : Path, optional
        Folder of page images by whose activations outliers are found; default: drawn ones.

    Raises
    ------
    ExportError
    """
    if output.exists() and not force and (not output.is_dir() or any(output.iterdir())):
        raise source.ExportError(f"{output} exists.", "name another folder, or add --force to replace it.")
    found = source.resolve(model_name, revision)
    with _fixed_threads(), _atomic_folder(output) as folder:
        model = load_model(found)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        reference = fidelity.reference(model, found) if check else None
        if backend == "onnx" and dtype in QUANTISED:
            say("smoothing", quiet=quiet)
            smooth.untie_head(model)
            with smooth.ChannelRanges(model) as ranges:
                fidelity.reference(model, found, fidelity.calibration_images(calibration))
            smooth.smooth(model, ranges.largest)
        entries: dict[str, Any] = {}
        if backend == "onnx":
            entries["onnx"] = _export_onnx(model, dtype, folder, quiet)
            del model
        else:
            _export_transformers(model, found, dtype, folder)
        gc.collect()
        shutil.copy(found.path / TOKENIZER, folder / TOKENIZER)
        manifest = _manifest(found, folder, dtype, backend, n_parameters, entries)
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        if reference is not None:
            say("comparing with Transformers", quiet=quiet)
            entries["fidelity"] = fidelity.compare(folder, reference)
            say(fidelity.as_table(entries["fidelity"]), quiet=quiet)
            manifest = _manifest(found, folder, dtype, backend, n_parameters, entries)
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def load_model(found: source.Source, dtype: torch.dtype = torch.float32) -> Any:
    """Load a checkpoint, refusing one that lacks weights.

    Raises
    ------
    ExportError
        Weights are missing, unreadable or of other sizes.
    """
    config = source.read_config(found)
    try:
        model, report = Qwen2VLForConditionalGeneration.from_pretrained(
            found.path, config=config, dtype=dtype, low_cpu_mem_usage=True, output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError) as exc:
        raise source.ExportError(
            f"the weights can't be loaded ({type(exc).__name__}: {exc}).", "download them again."
        ) from exc
    missing = sorted(set(report["missing_keys"]) - {"lm_head.weight"})
    if missing or report["mismatched_keys"]:
        raise source.ExportError(
            f"the checkpoint lacks {len(missing)} tensors, {', '.join(missing[:3])} among them.", "download it again."
        )
    return model.eval()


def _export_onnx(model: Any, dtype: Dtype, folder: Path, quiet: bool) -> OnnxComponents:
    constructor = TasksManager.get_exporter_config_constructor(
        exporter="onnx", model_type=onnx_configs.MODEL_TYPE, task=onnx_configs.TASK, library_name="transformers"
    )
    configs = constructor(model.config)
    files: dict[str, str] = {}
    table: EmbedTable | None = None
    for name in components.COMPONENTS:
        say(f"exporting {name}", quiet=quiet)
        graph = _traced(name, model, configs.with_behavior(name), folder)
        if name == "embed_tokens":
            table = _write_table(graph, dtype, folder)
            continue
        _shrink(graph, name, dtype)
        files[name] = f"{name}_{dtype}.onnx"
        weights.write(graph, folder / files[name])
        del graph
        gc.collect()
    assert table is not None
    return OnnxComponents(vision_encoder=files["vision_encoder"], decoder=files["decoder"], embed_tokens=table)


def _shrink(graph: Any, name: str, dtype: Dtype) -> None:
    """Give a component's weights the precision of the artifact: int4 means the decoder's layers, not its head."""
    if dtype == "fp16":
        quantise.halve_weights(graph)
    elif dtype in QUANTISED:
        four = dtype == "int4" and name == "decoder"
        quantise.quantise_linear_layers(graph, lambda node: 4 if four and "lm_head" not in node else 8)


def _traced(name: str, model: Any, config: Any, folder: Path) -> Any:
    """Export one component through Optimum, validate it, and load the graph."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        module = components.build(name, model)
        pair = {name: (module, config)}
        _, outputs = export_models(pair, Path(scratch))
        validate_models_outputs(pair, outputs, Path(scratch), atol=config.ATOL_FOR_VALIDATION, use_subprocess=False)
        return weights.read(Path(scratch) / f"{name}.onnx")


def _write_table(graph: Any, dtype: Dtype, folder: Path) -> EmbedTable:
    """The embedding graph is one lookup: its table is written as rows to map."""
    (tensor,) = (tensor for tensor in graph.graph.initializer if len(tensor.dims) == 2)
    table = numpy_helper.to_array(tensor)
    file = f"embed_tokens_{dtype}.bin"
    if dtype in QUANTISED:
        rows, scales = quantise.quantise_rows(table)
        return EmbedTable(file, "int8", 0, weights.write_rows(rows, scales, folder / file))
    weights.write_rows(table.astype(np.float32), None, folder / file)
    return EmbedTable(file, "fp32", 0)


def _export_transformers(model: Any, found: source.Source, dtype: Dtype, folder: Path) -> None:
    """The fallback: the checkpoint itself in one dtype, as `from_pretrained` reads it."""
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    model.to(dtypes[dtype]).save_pretrained(folder)


def _manifest(
    found: source.Source, folder: Path, dtype: Dtype, backend: Backend, n_parameters: int, entries: dict[str, Any]
) -> Manifest:
    config = source.read_config(found)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return Manifest(
        backend=backend,
        dtype=dtype,
        target_cpu=TARGET_CPU,
        model=source.model_info(found, n_parameters),
        image=source.image_info(found),
        text=source.text_info(config),
        tokens=source.token_info(found, config),
        chat=source.chat_info(found),
        files={path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in files},
        sampling=source.sampling_profile(found),
        max_new_tokens=source.max_new_tokens(found),
        versions={name: version(name) for name in VERSIONS},
        **entries,
    )


@contextmanager
def _fixed_threads() -> Iterator[None]:
    """Sums come out in another order on another number of threads, and with them smoothing and the weights' bytes."""
    before = torch.get_num_threads()
    torch.set_num_threads(N_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends well, and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        if target.exists():
            old = scratch.with_name(scratch.name + ".old")
            target.rename(old)
            scratch.rename(target)
            shutil.rmtree(old)
        else:
            scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise

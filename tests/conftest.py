"""Shared fixtures: small checkpoints and artifacts, made once a session, and the outside truth where it lies."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

if find_spec("torch") is None:  # a base install: what builds and trains is not there to be tested
    collect_ignore_glob = ["test_reader_*.py"]


def shared_json(name: str) -> Any:
    """A JSON file of ../shared, or a skip in a plain clone."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip("needs ../shared, which a plain clone does not have")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of the small preset."""
    pytest.importorskip("torch")
    from export.synth import synthesise

    path = tmp_path_factory.mktemp("checkpoints") / "small"
    synthesise("small", path, quiet=True)
    return path


def _artifact(checkpoint: Path, folder: Path, *options: str) -> Path:
    from export.__main__ import main

    output = folder / "-".join(("artifact", *options)).replace("--", "")
    assert main([str(checkpoint), str(output), "--quiet", *options]) == 0
    return output


@pytest.fixture(scope="session")
def fp32_artifact(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small checkpoint exported to ONNX fp32."""
    return _artifact(small_checkpoint, tmp_path_factory.mktemp("fp32"), "--dtype", "fp32")


@pytest.fixture(scope="session")
def int8_artifact(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small checkpoint exported to ONNX int8."""
    return _artifact(small_checkpoint, tmp_path_factory.mktemp("int8"), "--dtype", "int8")


@pytest.fixture(scope="session")
def transformers_artifact(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small checkpoint as a fallback artifact, fp32."""
    folder = tmp_path_factory.mktemp("transformers")
    return _artifact(small_checkpoint, folder, "--backend", "transformers", "--dtype", "fp32")


@pytest.fixture(scope="session")
def reference_model(small_checkpoint: Path) -> Any:
    """The small checkpoint under Transformers, unpatched."""
    from export.build import load_model
    from export.source import resolve

    return load_model(resolve(str(small_checkpoint)))

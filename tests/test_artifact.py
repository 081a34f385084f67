"""The artifact's contract: whole or a clear error that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handler.artifact import FORMAT_VERSION, Artifact, Manifest, sha256_of
from handler.config import BUNDLED_ARTIFACT, Settings
from handler.engine import load
from handler.errors import ArtifactError


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the bundled artifact to do harm to."""
    return Path(shutil.copytree(BUNDLED_ARTIFACT, tmp_path / "artifact"))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_bundled_artifact_is_whole() -> None:
    artifact = Artifact.open(BUNDLED_ARTIFACT)
    artifact.verify()
    names = {path.name for path in BUNDLED_ARTIFACT.iterdir()} - {"manifest.json"}
    assert names == set(artifact.manifest.files)


def test_manifest_round_trip() -> None:
    artifact = Artifact.open(BUNDLED_ARTIFACT)
    assert artifact.manifest.to_json() == (BUNDLED_ARTIFACT / "manifest.json").read_text(encoding="utf-8")
    assert isinstance(artifact.manifest, Manifest)


def test_every_file_missing_or_cut_is_named(copy: Path) -> None:
    for name in Artifact.open(copy).manifest.files:
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[:-1])
        with pytest.raises(ArtifactError, match=name):
            Artifact.open(copy)
        (copy / name).unlink()
        with pytest.raises(ArtifactError, match=name):
            Artifact.open(copy)
        (copy / name).write_bytes(whole)
    Artifact.open(copy)


def test_a_flipped_bit_is_found_by_verify(copy: Path) -> None:
    for name in Artifact.open(copy).manifest.files:
        whole = (copy / name).read_bytes()
        middle = len(whole) // 2
        (copy / name).write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(ArtifactError, match=name):
            Artifact.open(copy).verify()
        (copy / name).write_bytes(whole)
    Artifact.open(copy).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(format_version=FORMAT_VERSION + 1), "format version"),
        (lambda raw: raw.pop("image"), "image"),
        (lambda raw: raw.update(image=3), "object"),
        (lambda raw: raw["image"].pop("patch_size"), "patch_size"),
        (lambda raw: raw.update(backend="tensorflow"), "tensorflow"),
        (lambda raw: raw.update(onnx=None), "ONNX"),
    ],
)
def test_bad_manifests(copy: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    edit(copy, change)
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(copy)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_manifest_that_is_no_manifest(copy: Path, content: bytes) -> None:
    (copy / "manifest.json").write_bytes(content)
    with pytest.raises(ArtifactError):
        Artifact.open(copy)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        Artifact.open(tmp_path / "nothing")


def test_unknown_keys_of_a_later_minor_version_are_ignored(copy: Path) -> None:
    edit(copy, lambda raw: raw.update(something_new=1))
    assert Artifact.open(copy).manifest == Artifact.open(BUNDLED_ARTIFACT).manifest


def test_a_graph_that_is_no_graph_is_an_artifact_error(copy: Path) -> None:
    """Same size, other bytes: sizes fit, so only loading finds it."""
    name = Artifact.open(copy).manifest.onnx.decoder  # type: ignore[union-attr]
    (copy / name).write_bytes(b"\0" * (copy / name).stat().st_size)
    with pytest.raises(ArtifactError):
        load(Artifact.open(copy), Settings())


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

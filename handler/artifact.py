"""The artifact: what `export/` writes and the engines read. Knows the files and their contract, not how to run them.

An artifact is a folder with `manifest.json` and the files that it names. Reading checks format version, presence and
sizes at once; hashes on demand (`verify`), since hashing a gigabyte at every cold start would cost seconds.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from handler.errors import ArtifactError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

Backend = Literal["onnx", "transformers"]
Dtype = Literal["fp32", "fp16", "bf16", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of one file of the artifact."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Where the weights come from. `trained` is false for random weights, whose output is noise."""

    id: str
    revision: str | None
    licence: str | None
    model_type: str
    n_parameters: int
    trained: bool


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Image preparation, as the checkpoint's preprocessor configuration says. Pixels of the resized image."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    mean: list[float]
    std: list[float]
    rescale_factor: float
    layout_size_px: list[int]


@dataclass(frozen=True, slots=True)
class TextInfo:
    """Sizes of the decoder that the engine allocates by."""

    hidden_size: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """Token ids that the engine must know."""

    image_pad: int
    stop: list[int]


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """The rendered chat template around one image and one prompt: `before` + prompt + `after`.

    `before` holds the system turn and exactly one image token.
    """

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class EmbedTable:
    """The embedding rows that are read by memory map.

    Row `i` of `vocab_size` starts at byte `offset` + i x row bytes. fp32 rows are used as they are; int8 rows are
    multiplied by `scales[i]`, float32 values that start at `scales_offset` of the same file.
    """

    file: str
    dtype: Literal["fp32", "int8"]
    offset: int
    scales_offset: int | None = None


@dataclass(frozen=True, slots=True)
class OnnxComponents:
    """Graph files of the onnx backend, and the embedding table."""

    vision_encoder: str
    decoder: str
    embed_tokens: EmbedTable


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything the handler knows about a model. See `design` in the README for the file layout."""

    backend: Backend
    dtype: Dtype
    target_cpu: str
    model: ModelInfo
    image: ImageInfo
    text: TextInfo
    tokens: TokenInfo
    chat: ChatInfo
    files: dict[str, FileEntry]
    onnx: OnnxComponents | None = None
    prompts: dict[str, str] | None = None
    sampling: dict[str, dict[str, float]] | None = None
    max_new_tokens: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    fidelity: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Serialise, stable byte for byte for equal manifests."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact on disk whose manifest has been read and whose files have the right sizes."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Artifact:
        """Read the manifest and check that every file it names is there in full.

        Raises
        ------
        ArtifactError
            Names the file that is missing, cut, unreadable or of another format version.
        """
        manifest = _read_manifest(path / MANIFEST)
        for name, entry in manifest.files.items():
            try:
                size = (path / name).stat().st_size
            except OSError as exc:
                raise ArtifactError(f"The artifact lacks {name}.") from exc
            if size != entry.bytes:
                raise ArtifactError(f"{name} has {size} bytes, the manifest says {entry.bytes}.")
        if manifest.backend == "onnx" and manifest.onnx is None:
            raise ArtifactError(f"{MANIFEST} names no ONNX components.")
        return cls(path, manifest)

    def verify(self) -> None:
        """Compare the SHA-256 of every file.

        Raises
        ------
        ArtifactError
            Names the first file that differs.
        """
        for name, entry in self.manifest.files.items():
            if sha256_of(self.path / name) != entry.sha256:
                raise ArtifactError(f"{name} is not the file that was exported: its SHA-256 differs.")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ArtifactError(f"There is no readable {MANIFEST} in the artifact's folder.") from exc
    except ValueError as exc:
        raise ArtifactError(f"{MANIFEST} is not valid JSON.") from exc
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version != FORMAT_VERSION:
        raise ArtifactError(f"{MANIFEST} has format version {version}; this program reads {FORMAT_VERSION}.")
    try:
        manifest: Manifest = _build(Manifest, raw)
    except (KeyError, TypeError, ValueError) as exc:
        raise ArtifactError(f"{MANIFEST} lacks or mistypes a field: {exc}.") from exc
    if manifest.backend not in get_args(Backend) or manifest.dtype not in get_args(Dtype):
        raise ArtifactError(f"{MANIFEST} names backend {manifest.backend!r} and dtype {manifest.dtype!r}.")
    return manifest


def _build(kind: Any, raw: Any) -> Any:
    """Build nested dataclasses from plain JSON; unknown keys are ignored, missing ones raise."""
    if not isinstance(raw, dict):
        raise TypeError(f"{kind.__name__} is not an object")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for spec in fields(kind):
        if spec.name not in raw:
            continue
        values[spec.name] = _convert(hints[spec.name], raw[spec.name])
    return kind(**values)


def _convert(hint: Any, value: Any) -> Any:
    options = [option for option in get_args(hint) if is_dataclass(option)]
    if is_dataclass(hint):
        return _build(hint, value)
    if options and value is not None:
        if isinstance(value, dict) and getattr(hint, "__origin__", None) is dict:
            return {key: _build(options[0], item) for key, item in value.items()}
        return _build(options[0], value)
    return value

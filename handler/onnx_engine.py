"""The default engine: ONNX Runtime on CPU over memory-mapped weights. No torch.

Three components: vision encoder and decoder are graphs, the embedding table is rows of a file. The key-value cache is
one set of buffers for the life of the engine, bound as past and as present, so ONNX Runtime writes it in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from handler.artifact import Artifact, EmbedTable, Manifest
from handler.config import Settings, threads_available
from handler.engine import Generation, Sampling
from handler.errors import ArtifactError, EngineError, MineruError
from handler.generate import Logits, LogitsProcessor, greedy
from handler.image import PreparedImage, prepare
from handler.prompt import Prompter, TokenizedPrompt
from handler.timing import Stopwatch

if TYPE_CHECKING:
    from PIL.Image import Image


class OnnxEngine:
    """Runs an artifact with backend `onnx`. One call at a time.

    Raises
    ------
    ArtifactError
        A graph can't be loaded or is not what the manifest says.
    """

    def __init__(self, artifact: Artifact, settings: Settings) -> None:
        manifest, components = artifact.manifest, artifact.manifest.onnx
        if components is None:
            raise ArtifactError("The manifest names no ONNX components.")
        self._manifest = manifest
        options = _session_options(settings.threads or threads_available())
        with _translated(ArtifactError, "The exported graphs can't be loaded."):
            self._prompter = Prompter(artifact.path, manifest)
            self._embeddings = EmbeddingRows(artifact, components.embed_tokens)
            self._vision = _session(artifact, components.vision_encoder, options)
            self._decoder = DecoderRunner(_session(artifact, components.decoder, options), manifest)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the artifact that was loaded."""
        return self._manifest

    def generate(self, image: Image, prompt: str, sampling: Sampling, *, deadline_s: float | None = None) -> Generation:
        """See `handler.engine.Engine.generate`."""
        watch = Stopwatch()
        prepared = prepare(image, self._manifest.image)
        tokens = self._prompter.tokenize(prompt, prepared.grid)
        watch.lap("preprocess")
        with _translated(EngineError, "The model could not be run on this image."):
            features = self._encode(prepared)
            n_patches = prepared.n_patches
            del prepared
            watch.lap("vision")
            embeds = self._embed(tokens, features)
            del features
            logits = self._decoder.prefill(embeds, tokens)
            del embeds
            watch.lap("prefill")
            room = self._manifest.text.max_position_embeddings - tokens.n_tokens
            token_ids, finish_reason = greedy(
                logits,
                lambda token: self._decoder.step(self._embeddings.row(token)),
                LogitsProcessor(sampling, tokens.input_ids.tolist()),
                stop=frozenset(self._manifest.tokens.stop),
                max_new_tokens=min(sampling.max_new_tokens or room, room),
                deadline_s=deadline_s,
            )
            watch.lap("decode")
        return Generation(
            text=self._prompter.decode(token_ids),
            token_ids=token_ids,
            finish_reason=finish_reason,
            n_prompt_tokens=tokens.n_tokens,
            n_image_patches=n_patches,
            timings_ms=watch.laps_ms,
        )

    def probe(self, image: Image, prompt: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Outputs of the components before any token is chosen, for comparing artifacts.

        Returns
        -------
        image_features : float32, (n_image_tokens, hidden)
        logits : float32, (vocab_size,)
            After the last token of the prompt.
        """
        prepared = prepare(image, self._manifest.image)
        tokens = self._prompter.tokenize(prompt, prepared.grid)
        with _translated(EngineError, "The model could not be run on this image."):
            features = self._encode(prepared)
            return features, self._decoder.prefill(self._embed(tokens, features), tokens).copy()

    def _encode(self, image: PreparedImage) -> NDArray[np.float32]:
        inputs = {"pixel_values": image.pixel_values, "patch_positions": image.patch_positions}
        features: NDArray[np.float32] = self._vision.run(["image_features"], inputs, _giving_back())[0]
        return features  # (n_image_tokens, hidden)

    def _embed(self, tokens: TokenizedPrompt, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Embedding rows with the image's features in the image tokens' places."""
        embeds = self._embeddings.rows(tokens.input_ids)
        embeds[tokens.image_start : tokens.image_start + tokens.n_image_tokens] = features
        return embeds[None]  # (1, S, hidden)


class EmbeddingRows:
    """The embedding table, read a row at a time from the mapped file."""

    def __init__(self, artifact: Artifact, table: EmbedTable) -> None:
        shape = (artifact.manifest.text.vocab_size, artifact.manifest.text.hidden_size)
        path = artifact.path / table.file
        self._scales: NDArray[np.float32] | None = None
        self._rows: NDArray[np.float32] | NDArray[np.int8]
        if table.dtype == "int8":
            if table.scales_offset is None:
                raise ArtifactError("The manifest has no scales for its int8 embedding table.")
            self._rows = np.memmap(path, np.int8, "r", offset=table.offset, shape=shape)
            self._scales = np.memmap(path, "<f4", "r", offset=table.scales_offset, shape=shape[:1])
        else:
            self._rows = np.memmap(path, "<f4", "r", offset=table.offset, shape=shape)

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of several tokens, float32, (S, hidden), free to be written to."""
        rows = self._rows[token_ids].astype(np.float32)
        if self._scales is not None:
            rows *= self._scales[token_ids][:, None]
        return rows

    def row(self, token: int) -> NDArray[np.float32]:
        """Row of one token, float32, (hidden,)."""
        if self._scales is None:
            row: NDArray[np.float32] = self._rows[token]
            return row
        scaled: NDArray[np.float32] = self._rows[token] * self._scales[token]
        return scaled


class DecoderRunner:
    """The decoder graph with its buffers bound: a prefill, then one token a step.

    The cache has room for every position of the model. Its pages are only backed by memory once written.
    """

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        text = manifest.text
        self._session = session
        self._n_cached = 0
        self._position = 0
        shape = (1, text.n_kv_heads, text.max_position_embeddings, text.head_dim)
        self._cache = {
            f"{layer}.{part}": _value(np.empty(shape, dtype=np.float32))
            for layer in range(text.n_layers)
            for part in ("key", "value")
        }
        self._logits = np.empty((1, 1, text.vocab_size), dtype=np.float32)
        self._last_logits: Logits = self._logits[0, 0]
        self._total = np.empty(1, dtype=np.int32)
        self._embeds = np.empty((1, 1, text.hidden_size), dtype=np.float32)
        self._position_ids = np.empty((3, 1, 1), dtype=np.int64)
        self._step_binding = self._bind(self._embeds, self._position_ids)

    def prefill(self, embeds: NDArray[np.float32], tokens: TokenizedPrompt) -> Logits:
        """Run a whole prompt into an empty cache.

        Parameters
        ----------
        embeds : float32, (1, S, hidden)
        tokens : TokenizedPrompt

        Returns
        -------
        float32, (vocab_size,)
            Of the last position; the buffer that `step` writes to as well.
        """
        self._n_cached = self._total[0] = tokens.n_tokens
        self._position = tokens.next_position
        self._session.run_with_iobinding(self._bind(embeds, tokens.position_ids), _giving_back())
        return self._last_logits

    def step(self, embed: NDArray[np.float32]) -> Logits:
        """Run one token.

        Parameters
        ----------
        embed : float32, (hidden,)

        Returns
        -------
        float32, (vocab_size,)
        """
        self._n_cached += 1
        self._total[0] = self._n_cached
        self._position_ids[:] = self._position
        self._position += 1
        self._embeds[0, 0] = embed
        self._session.run_with_iobinding(self._step_binding)
        return self._last_logits

    def _bind(self, embeds: NDArray[np.float32], position_ids: NDArray[np.int64]) -> ort.IOBinding:
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("inputs_embeds", _value(embeds))
        binding.bind_ortvalue_input("position_ids", _value(position_ids))
        binding.bind_ortvalue_input("total_sequence_length", _value(self._total))
        binding.bind_ortvalue_output("logits", _value(self._logits))
        for name, value in self._cache.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        return binding


def _value(array: NDArray[np.generic]) -> ort.OrtValue:
    """The array's own memory as an OrtValue; on CPU nothing is copied and the array is kept alive."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def _session_options(n_threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # Without the arena, glibc keeps every freed buffer below 32 MB: 3.4 GB instead of 1.2 at 3,264 patches.
    options.enable_cpu_mem_arena = True
    options.log_severity_level = 3
    return options


def _giving_back() -> ort.RunOptions:
    """Options of a large run: what the arena grew to is given back at the end."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _session(artifact: Artifact, file: str, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(str(artifact.path / file), options, providers=["CPUExecutionProvider"])


@contextmanager
def _translated(error: type[MineruError], detail: str) -> Iterator[None]:
    """The one place where ONNX Runtime's and numpy's exceptions become ours."""
    try:
        yield
    except MineruError:
        raise
    except Exception as exc:  # ONNX Runtime's own exception types share no base but Exception
        raise error(detail) from exc

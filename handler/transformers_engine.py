"""The fallback engine: Transformers on CPU. The only file of the handler that imports torch.

For checkpoints or machines on which the ONNX artifact can't be used, and as the reference in tests. Preparation,
prompt and generation loop are the same code as the ONNX engine's; only the model's forward differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, Qwen2VLForConditionalGeneration

from handler.artifact import Artifact, Manifest
from handler.config import Settings, threads_available
from handler.engine import Generation, Sampling
from handler.errors import ArtifactError, EngineError, MineruError
from handler.generate import Logits, LogitsProcessor, greedy
from handler.image import prepare
from handler.prompt import Prompter, TokenizedPrompt
from handler.timing import Stopwatch

if TYPE_CHECKING:
    from PIL.Image import Image


class TransformersEngine:
    """Runs an artifact with backend `transformers`. One call at a time.

    Weights stay in the dtype that they are stored in and are memory-mapped from the safetensors file.

    Raises
    ------
    ArtifactError
        The checkpoint can't be loaded.
    """

    def __init__(self, artifact: Artifact, settings: Settings) -> None:
        self._manifest = artifact.manifest
        torch.set_num_threads(settings.threads or threads_available())
        try:
            self._prompter = Prompter(artifact.path, artifact.manifest)
            self._model: Any = Qwen2VLForConditionalGeneration.from_pretrained(
                artifact.path, dtype="auto", low_cpu_mem_usage=True, local_files_only=True
            ).eval()
        except MineruError:
            raise
        except Exception as exc:  # Transformers and safetensors share no base but Exception
            raise ArtifactError("The checkpoint can't be loaded.") from exc

    @property
    def manifest(self) -> Manifest:
        """The manifest of the artifact that was loaded."""
        return self._manifest

    @torch.inference_mode()
    def generate(self, image: Image, prompt: str, sampling: Sampling, *, deadline_s: float | None = None) -> Generation:
        """See `handler.engine.Engine.generate`."""
        watch = Stopwatch()
        prepared = prepare(image, self._manifest.image)
        tokens = self._prompter.tokenize(prompt, prepared.grid)
        watch.lap("preprocess")
        room = self._manifest.text.max_position_embeddings - tokens.n_tokens
        try:
            pixel_values = torch.from_numpy(prepared.pixel_values)
            (features,) = self._model.get_image_features(pixel_values, torch.tensor([prepared.image_grid_thw]))
            watch.lap("vision")
            run = _Decoding(self._model, tokens, features)
            del features
            logits = run.prefill()
            watch.lap("prefill")
            token_ids, finish_reason = greedy(
                logits,
                run.step,
                LogitsProcessor(sampling, tokens.input_ids.tolist()),
                stop=frozenset(self._manifest.tokens.stop),
                max_new_tokens=min(sampling.max_new_tokens or room, room),
                deadline_s=deadline_s,
            )
            watch.lap("decode")
        except MineruError:
            raise
        except Exception as exc:  # torch raises RuntimeError, MemoryError, IndexError, …
            raise EngineError("The model could not be run on this image.") from exc
        return Generation(
            text=self._prompter.decode(token_ids),
            token_ids=token_ids,
            finish_reason=finish_reason,
            n_prompt_tokens=tokens.n_tokens,
            n_image_patches=prepared.n_patches,
            timings_ms=watch.laps_ms,
        )


class _Decoding:
    """The text side of one answer, with its cache."""

    def __init__(self, model: Any, tokens: TokenizedPrompt, features: torch.Tensor) -> None:
        self._language_model, self._head = model.model.language_model, model.lm_head
        self._tokens = tokens
        self._features = features
        self._cache = DynamicCache(config=model.config.text_config)
        self._position = tokens.next_position

    def prefill(self) -> Logits:
        """Run the prompt; logits of its last position, float32, (vocab_size,)."""
        start, count = self._tokens.image_start, self._tokens.n_image_tokens
        embeds = self._language_model.embed_tokens(torch.from_numpy(self._tokens.input_ids)[None])
        embeds[0, start : start + count] = self._features.to(embeds.dtype)
        return self._forward(embeds, torch.from_numpy(self._tokens.position_ids))

    def step(self, token: int) -> Logits:
        """Run one token; logits after it, float32, (vocab_size,)."""
        embeds = self._language_model.embed_tokens(torch.tensor([[token]]))
        positions = torch.full((3, 1, 1), self._position)
        self._position += 1
        return self._forward(embeds, positions)

    def _forward(self, embeds: torch.Tensor, positions: torch.Tensor) -> Logits:
        hidden = self._language_model(
            inputs_embeds=embeds, position_ids=positions, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        logits: Logits = self._head(hidden[:, -1:])[0, 0].float().numpy()
        return logits

"""The port between the pipeline and a model: one image and one prompt in, text out.

The pipeline knows only what stands here; which engine runs is the artifact's business (`load`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image

    from handler.artifact import Artifact, Manifest
    from handler.config import Settings

FinishReason = Literal["stop", "length", "deadline"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Decoding is greedy; these only change the logits before the choice.

    Source: vLLM's definitions. Presence and frequency penalties and the n-gram ban count generated tokens only;
    the repetition penalty counts prompt tokens too.
    """

    max_new_tokens: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What came out of one call of `Engine.generate`.

    `text` keeps MinerU's structure tokens (boxes, OTSL) and has no stop token. `timings_ms` has `preprocess`,
    `vision`, `prefill`, `decode`.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    n_prompt_tokens: int
    n_image_patches: int
    timings_ms: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """A loaded model. Not thread-safe: one call at a time."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the artifact that was loaded."""
        ...

    def generate(self, image: Image, prompt: str, sampling: Sampling, *, deadline_s: float | None = None) -> Generation:
        """Answer `prompt` about `image`.

        Parameters
        ----------
        image : PIL image, mode RGB, any size from 1 x 1
        prompt : str
            Text of the user turn; special tokens in it are plain text.
        sampling : Sampling
        deadline_s : float, optional
            `time.monotonic()` value after which no further token is begun; the answer so far is returned.

        Raises
        ------
        EngineError
        """
        ...


def load(artifact: Artifact, settings: Settings) -> Engine:
    """Start the engine that the artifact was exported for.

    Raises
    ------
    ArtifactError
        The artifact's files don't fit together, or its backend is not installed.
    """
    if artifact.manifest.backend == "transformers":
        from handler.transformers_engine import TransformersEngine

        return TransformersEngine(artifact, settings)
    from handler.onnx_engine import OnnxEngine

    return OnnxEngine(artifact, settings)

"""Where a model comes from: a local Hugging Face directory, or a hub id that is downloaded at a pinned revision.

Reads the configuration files into what the manifest needs. Knows nothing about graphs or weights.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLImageProcessor

from handler.artifact import ChatInfo, ImageInfo, ModelInfo, TextInfo, TokenInfo

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
DOWNLOADED = ["*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE*"]
PROMPT_MARK = "\N{OBJECT REPLACEMENT CHARACTER}PROMPT"


class ExportError(SystemExit):
    """The export can't be done; ends the program with status 1, a message and a hint."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(f"error: {detail}\nhint: {hint}")


@dataclass(frozen=True)
class Source:
    """A model directory and how it was named."""

    path: Path
    id: str
    revision: str | None


def resolve(name: str, revision: str | None = None) -> Source:
    """Find a model directory, downloading it when `name` is a hub id.

    Parameters
    ----------
    name : str
        A directory, or `owner/name` on the Hugging Face hub.
    revision : str, optional
        Branch, tag or commit; the commit that it names now is what is downloaded and recorded.

    Raises
    ------
    ExportError
        Neither a directory nor a hub id, or the hub can't be reached or lacks it.
    """
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ExportError(f"{name} has no config.json.", "name a Hugging Face model directory.")
        return Source(path, path.resolve().name, None)
    if not HUB_ID.fullmatch(name):
        raise ExportError(
            f"{name} is neither a directory nor a hub id.", "name a model directory, or owner/name on the hub."
        )
    return _download(name, revision)


def _download(hub_id: str, revision: str | None) -> Source:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        commit = HfApi().model_info(hub_id, revision=revision).sha
        path = snapshot_download(hub_id, revision=commit, allow_patterns=DOWNLOADED)
    except (RepositoryNotFoundError, RevisionNotFoundError) as exc:
        raise ExportError(
            f"the hub has no {hub_id}" + (f" at {revision}." if revision else "."),
            "check the spelling; a private model needs `hf auth login`.",
        ) from exc
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as exc:
        raise ExportError(
            f"{hub_id} is no directory here and the Hugging Face hub can't be reached ({type(exc).__name__}).",
            "connect to the network, or name a downloaded model directory.",
        ) from exc
    except Exception as exc:
        if type(exc).__module__.split(".")[0] not in {"httpx", "requests"}:
            raise
        raise ExportError(
            f"{hub_id} is no directory here and the Hugging Face hub can't be reached ({type(exc).__name__}).",
            "connect to the network, or name a downloaded model directory.",
        ) from exc
    return Source(Path(path), hub_id, commit)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is none."""
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def read_config(source: Source) -> Qwen2VLConfig:
    """Model configuration, with the tie of the head where any of the known checkpoints puts it.

    Raises
    ------
    ExportError
        Not a `qwen2_vl` model.
    """
    raw = read_json(source.path / "config.json")
    if raw.get("model_type") != "qwen2_vl":
        raise ExportError(f"its model_type is {raw.get('model_type')!r}.", "only qwen2_vl models are exported.")
    config = Qwen2VLConfig.from_pretrained(source.path)
    tied = raw.get("tie_word_embeddings", raw.get("text_config", {}).get("tie_word_embeddings", False))
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = bool(tied)
    return config


def model_info(source: Source, n_parameters: int) -> ModelInfo:
    """Identity of the model; the licence is what the model card's front matter says."""
    raw = read_json(source.path / "config.json")
    card = source.path / "README.md"
    match = re.search(r"^license:\s*(\S+)", card.read_text(encoding="utf-8"), re.MULTILINE) if card.is_file() else None
    return ModelInfo(
        id=source.id,
        revision=source.revision,
        licence=match.group(1) if match else None,
        model_type=raw["model_type"],
        n_parameters=n_parameters,
        trained=bool(raw.get("_mineru_lambda", {}).get("trained", True)),
    )


def image_info(source: Source) -> ImageInfo:
    """Image preparation of the model, and the size of the layout image."""
    processor = Qwen2VLImageProcessor.from_pretrained(source.path)
    raw = read_json(source.path / "preprocessor_config.json")
    return ImageInfo(
        patch_size=processor.patch_size,
        temporal_patch_size=processor.temporal_patch_size,
        merge_size=processor.merge_size,
        min_pixels=processor.size["shortest_edge"],
        max_pixels=processor.size["longest_edge"],
        mean=[float(value) for value in processor.image_mean],
        std=[float(value) for value in processor.image_std],
        rescale_factor=float(processor.rescale_factor),
        layout_size_px=list(raw.get("layout_image_size") or _upstream_layout_size()),
    )


def _upstream_layout_size() -> tuple[int, int]:
    from mineru_vl_utils import MinerUClient

    size: tuple[int, int] = inspect.signature(MinerUClient.__init__).parameters["layout_image_size"].default
    return size


def text_info(config: Qwen2VLConfig) -> TextInfo:
    """Decoder sizes."""
    text = config.text_config
    return TextInfo(
        hidden_size=text.hidden_size,
        n_layers=text.num_hidden_layers,
        n_kv_heads=text.num_key_value_heads,
        head_dim=text.hidden_size // text.num_attention_heads,
        vocab_size=text.vocab_size,
        max_position_embeddings=text.max_position_embeddings,
    )


def token_info(source: Source, config: Qwen2VLConfig) -> TokenInfo:
    """Image token and stop tokens."""
    stop = read_json(source.path / "generation_config.json").get("eos_token_id", config.text_config.eos_token_id)
    return TokenInfo(image_pad=config.image_token_id, stop=stop if isinstance(stop, list) else [stop])


def max_new_tokens(source: Source) -> int | None:
    """Cap on answers, where the generation configuration sets one."""
    value = read_json(source.path / "generation_config.json").get("max_new_tokens")
    return int(value) if value else None


def sampling_profile(source: Source) -> dict[str, dict[str, float]] | None:
    """Sampling by block type, where the checkpoint brings its own; else the model authors' defaults hold."""
    profile: dict[str, dict[str, float]] | None = (
        read_json(source.path / "config.json").get("_mineru_lambda", {}).get("sampling")
    )
    return profile


def chat_info(source: Source) -> ChatInfo:
    """Render the chat template around one image and a mark, and split it there.

    Raises
    ------
    ExportError
        There is no template, or tokenizing the parts differs from tokenizing the whole.
    """
    from mineru_vl_utils.vlm_client import DEFAULT_SYSTEM_PROMPT

    tokenizer = AutoTokenizer.from_pretrained(source.path)
    template = tokenizer.chat_template or _template_file(source)
    if not template:
        raise ExportError("the model has no chat template.", "add chat_template.json to the model directory.")

    def render(prompt: str) -> str:
        user = [{"type": "image"}, {"type": "text", "text": prompt}]
        messages = [{"role": "system", "content": DEFAULT_SYSTEM_PROMPT}, {"role": "user", "content": user}]
        text: str = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        return text

    before, mark, after = render(PROMPT_MARK).partition(PROMPT_MARK)
    probe = "\nText Recognition:"
    parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, probe, after)]
    whole = tokenizer(render(probe), add_special_tokens=False)["input_ids"]
    if not mark or [token for part in parts for token in part] != whole:
        raise ExportError("the chat template changes the prompt it is given.", "report the model.")
    return ChatInfo(before=before, after=after)


def _template_file(source: Source) -> str | None:
    jinja = source.path / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    return read_json(source.path / "chat_template.json").get("chat_template")

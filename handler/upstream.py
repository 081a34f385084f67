"""The one place that touches mineru-vl-utils: preparation of images, its parsers and its post-processing.

Imported lazily, since the library costs 0.2-0.3 s. Knows no engine and repairs nothing (that is `handler.repair`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from handler.engine import Sampling
from handler.upstream_log import collected, stand_in

if TYPE_CHECKING:
    from PIL.Image import Image

    from handler.artifact import Manifest

# Upstream's ContentBlock is a dict with checks: type, bbox, angle, content, and merge_prev of a text.
Block = dict[str, Any]

# What upstream takes for a block; anything else it passes over without a word.
_LAYOUT_LINE = re.compile(r"<\|box_start\|>\d+\s+\d+\s+\d+\s+\d+<\|box_end\|><\|ref_start\|>\w+?<\|ref_end\|>")


@dataclass(frozen=True, slots=True)
class _Library:
    client: Any
    post: Any
    structs: Any
    defaults: Mapping[str, Any]


@functools.cache
def _library() -> _Library:
    client = importlib.import_module("mineru_vl_utils.mineru_client")
    stand_in(module for name, module in list(sys.modules.items()) if name.startswith("mineru_vl_utils."))
    # The helper has no defaults of its own; those of the client are what everybody runs with.
    theirs = inspect.signature(client.MinerUClient.__init__).parameters
    wanted = inspect.signature(client.MinerUClientHelper.__init__).parameters
    defaults = {name: theirs[name].default for name in wanted if name not in ("self", "backend")}
    post = importlib.import_module("mineru_vl_utils.post_process")
    return _Library(client, post, importlib.import_module("mineru_vl_utils.structs"), defaults)


@dataclass(slots=True)
class Crop:
    """What is to be read of one block. `image` is dropped as soon as it has been."""

    index: int  # in the list of blocks
    image: Image | None
    prompt: str
    sampling: Sampling


class Upstream:
    """mineru-vl-utils with the prompts, sampling and layout size of one model.

    Parameters
    ----------
    manifest : Manifest, optional
        Its prompts and sampling go before upstream's, type by type.
    **options
        Arguments of `MinerUClientHelper`; default: what `MinerUClient` passes to it.

    Source: `MinerUClientHelper` of mineru-vl-utils 2.0.7, used as it is.
    """

    def __init__(self, manifest: Manifest | None = None, **options: Any) -> None:
        library = _library()
        self._post = library.post
        values = {**library.defaults, **options}
        self._prompts: dict[str, str] = dict(values["prompts"])
        self._sampling = {kind: _sampling(vars(params)) for kind, params in values["sampling_params"].items()}
        if manifest is not None:
            width_px, height_px = manifest.image.layout_size_px
            values["layout_image_size"] = (width_px, height_px)
            self._prompts |= manifest.prompts or {}
            self._sampling |= {kind: _sampling(params) for kind, params in (manifest.sampling or {}).items()}
        values |= {"prompts": self._prompts, "sampling_params": self._sampling}
        # Any backend but "http-client" makes the helper hand out PIL images instead of PNG bytes.
        self._helper = library.client.MinerUClientHelper(backend="transformers", **values)

    def prompt(self, kind: str) -> str:
        """Prompt of a block type, or of the steps "[layout]" and "[default]"."""
        return self._prompts.get(kind) or self._prompts["[default]"]

    def sampling(self, kind: str) -> Sampling:
        """Sampling of a block type, or of the steps "[layout]" and "[default]"."""
        return self._sampling.get(kind) or self._sampling["[default]"]

    def prepare_for_layout(self, image: Image) -> Image:
        """Page image resized to what the layout step takes, regardless of its proportions."""
        prepared: Image = self._helper.prepare_for_layout(image)
        return prepared

    def resize_by_need(self, image: Image) -> Image:
        """Pad and enlarge images that are too thin or too small for the model."""
        resized: Image = self._helper.resize_by_need(image)
        return resized

    def parse_layout_output(self, answer: str) -> tuple[list[Block], list[str]]:
        """Blocks of a layout answer, and warnings that count what could not be taken from it."""
        n_lines = len(_LAYOUT_LINE.findall(answer))
        n_unreadable = answer.count("<|box_start|>") - n_lines
        with collected() as warnings:
            blocks: list[Block] = self._helper.parse_layout_output(answer)
        if n_unreadable > 0 and n_lines > 0:
            warnings.append(f"layout_line_unreadable: lines that are cut or garbled were left out ({n_unreadable})")
        return blocks, warnings

    def prepare_for_extract(
        self, image: Image, blocks: list[Block], not_extract_list: list[str] | None = None
    ) -> tuple[list[Crop], list[str]]:
        """Crops of the blocks that are to be read, in their order.

        Parameters
        ----------
        image : PIL image, mode RGB
        blocks : list of blocks
            Changed in place: captions inside a picture are taken out; marks for post-processing are put in.

        Source: as upstream, but blocks that would round to no pixel are widened to one, and the random codes that
        stand in for pictures inside tables are the same in every run.
        """
        n_before = len(blocks)
        thin = [block for block in blocks if _widen(block, image.size)]
        state = random.getstate()
        random.seed(0)  # upstream draws the codes from the global generator
        try:
            with collected() as warnings:
                prepared = self._helper.prepare_for_extract(image, blocks, not_extract_list)
        finally:
            random.setstate(state)
            for block in thin:
                block["bbox"] = block.pop("_bbox")
        crops = [Crop(index, crop, prompt, params) for crop, prompt, params, index in zip(*prepared)]
        n_gone = n_before - len(blocks)
        if n_gone:
            warnings.append(f"caption_inside_picture: captions inside a picture were not read ({n_gone})")
        if any(block is blocks[crop.index] for crop in crops for block in thin):
            warnings.append("crop_widened: blocks thinner than a pixel were read from a crop of one pixel")
        return crops, warnings

    def post_process(self, blocks: list[Block]) -> tuple[list[Block], list[str]]:
        """Turn raw answers into contents. Changes the blocks; merged equations come back as new ones.

        Raises whatever upstream's own code raises: the helper's method would swallow it and skip the rest.
        """
        helper = self._helper
        with collected() as warnings:
            processed: list[Block] = self._post.post_process(
                blocks,
                simple_post_process=helper.simple_post_process,
                handle_equation_block=helper.handle_equation_block,
                abandon_list=helper.abandon_list,
                abandon_paratext=helper.abandon_paratext,
                enable_table_formula_eq_wrap=helper.enable_table_formula_eq_wrap,
            )
        return processed, warnings

    def json2md(self, blocks: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
        """Markdown of blocks that have been post-processed."""
        with collected() as warnings:
            markdown: str = self._post.json2md(blocks)
        return markdown, warnings


def block(kind: str, bbox: list[float], content: str | None = None) -> Block:
    """Make a block as the layout step would have found it, without an angle."""
    made: Block = _library().structs.ContentBlock(kind, bbox, content=content)
    return made


def markdown_table_to_html(text: str) -> str | None:
    """HTML of a Markdown table with pipes; None when the text is not one, whole and regular."""
    convert: Callable[[str], str | None] = _library().post.convert_markdown_table_to_html
    return convert(text)


def _sampling(params: Mapping[str, Any]) -> Sampling:
    """Take what matters to greedy decoding; None means the neutral value."""
    known: dict[str, Any] = {spec.name: params.get(spec.name) for spec in fields(Sampling)}
    whole = {"no_repeat_ngram_size", "max_new_tokens"}
    values: dict[str, Any] = {k: int(v) if k in whole else float(v) for k, v in known.items() if v is not None}
    return Sampling(**values)


def _widen(thin: Block, size_px: tuple[int, int]) -> bool:
    """Move the edges of a block that would be cropped to nothing one pixel apart; its own box is kept in `_bbox`."""
    bbox = list(thin["bbox"])
    for low, high, side_px in ((0, 2, size_px[0]), (1, 3, size_px[1])):
        if round(bbox[high] * side_px) <= round(bbox[low] * side_px):  # PIL rounds the edges of a crop
            first = min(round(bbox[low] * side_px), side_px - 1)
            bbox[low], bbox[high] = first / side_px, (first + 1) / side_px
    if bbox == thin["bbox"]:
        return False
    thin["_bbox"], thin["bbox"] = thin["bbox"], bbox
    return True

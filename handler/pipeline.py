"""One page: image in, blocks and Markdown out. Knows the engine's port and upstream's steps, never an engine.

    page     layout image → blocks → a crop per block → answers → repair and post-processing → Markdown
    layout   the first two only
    text, table, formula, ask     one answer about the whole image

Nothing is begun after the deadline; what was finished by then is returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from handler import upstream
from handler.documents import cap_longest_side
from handler.engine import FinishReason, Generation, Sampling
from handler.errors import RequestError
from handler.repair import Processed, finish, strip_stop_tokens
from handler.upstream import Block, Crop, Upstream

if TYPE_CHECKING:
    from PIL.Image import Image

    from handler.config import Settings
    from handler.engine import Engine

Task = Literal["page", "text", "table", "formula", "layout", "ask"]
Status = Literal["done", "truncated", "skipped"]

BLOCK_TYPE_OF = {"text": "text", "table": "table", "formula": "equation", "ask": "text"}
WHOLE_PAGE = [0.0, 0.0, 1.0, 1.0]
ASK_MAX_NEW_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What is to be read from a page, and limits of this request."""

    task: Task = "page"
    instruction: str | None = None
    max_image_px: int | None = None
    max_new_tokens: int | None = None
    image_analysis: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a page is. `done` of `total` answers of this stage; `page` is an index from 0."""

    stage: Literal["layout", "block"]
    done: int
    total: int
    page: int = 0


@dataclass(slots=True)
class PageResult:
    """What was read from one page.

    `index` counts pages of the document from 0. A block has `type`, `bbox` [x1, y1, x2, y2] in [0, 1], `angle`,
    `content`, `status`, and `merge_prev` (texts) and `sub_type` (pictures) as upstream sets them. `timings_ms` has
    `layout`, `crops` (making and reading them), `post_process`, `total`, and the engine's own phases, summed.
    """

    index: int
    size_px: tuple[int, int]
    blocks: list[dict[str, Any]] = field(default_factory=list)
    markdown: str = ""
    warnings: list[str] = field(default_factory=list)
    complete: bool = True
    timings_ms: dict[str, float] = field(default_factory=dict)
    n_tokens: int = 0


def check_options(options: Options) -> None:
    """Refuse options that can't be followed, before any work is done.

    Raises
    ------
    RequestError
    """
    if options.task not in get_args(Task):
        raise RequestError(f"task is one of {', '.join(get_args(Task))}.")
    if options.task == "ask" and not (options.instruction or "").strip():
        raise RequestError("Task ask needs an instruction.")
    for name in ("max_image_px", "max_new_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise RequestError(f"{name} is a whole number from 1.")


def parse_page(
    image: Image,
    engine: Engine,
    options: Options,
    settings: Settings,
    *,
    index: int = 0,
    deadline_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PageResult:
    """Read one page.

    Parameters
    ----------
    image : PIL image, mode RGB
        The whole page, upright.
    engine : Engine
    options : Options
    settings : Settings
        `max_image_px` and `max_new_tokens`, where the options don't say.
    index : int
        Page of the document, from 0.
    deadline_s : float, optional
        `time.monotonic()` value after which nothing is begun.
    progress : callable, optional
        Called before the first answer and after each.

    Raises
    ------
    RequestError, EngineError

    Source: `two_step_extract` and `content_extract` of mineru-vl-utils 2.0.7: their images, prompts and sampling, one
    block after the other in the order of the layout. Differs on purpose where text would be lost (`handler.repair`),
    and in that a layout answer without any box makes the whole page one text block.
    """
    check_options(options)
    result = PageResult(index, image.size)
    library = Upstream(engine.manifest, image_analysis=options.image_analysis)
    run = _Run(engine, library, options, settings, result, deadline_s, progress)
    begun_s = time.monotonic()
    if options.task in ("page", "layout"):
        run.two_steps(image if options.max_image_px is None else cap_longest_side(image, options.max_image_px))
    else:
        run.one_step(cap_longest_side(image, options.max_image_px or settings.max_image_px))
    result.timings_ms["total"] = (time.monotonic() - begun_s) * 1000.0
    return result


@dataclass(slots=True)
class _Run:
    """Work on one page; fills `result`."""

    engine: Engine
    upstream: Upstream
    options: Options
    settings: Settings
    result: PageResult
    deadline_s: float | None
    progress: Callable[[Progress], None] | None

    def two_steps(self, image: Image) -> None:
        blocks = self._layout(image)
        if self.options.task == "layout":
            self.result.blocks = [_plain(block, "done") for block in blocks]
            return
        begun_s = time.monotonic()
        crops, warnings = self.upstream.prepare_for_extract(image, blocks)
        self.result.warnings += warnings
        self._read(crops, blocks, begun_s)

    def one_step(self, image: Image) -> None:
        begun_s = time.monotonic()
        kind = BLOCK_TYPE_OF[self.options.task]
        block = upstream.block(kind, list(WHOLE_PAGE))
        prompt, sampling = self.upstream.prompt(kind), self.upstream.sampling(kind)
        if self.options.task == "ask":
            prompt = self.options.instruction or ""
            sampling = replace(self.upstream.sampling("[default]"), max_new_tokens=ASK_MAX_NEW_TOKENS)
        self._read([Crop(0, self.upstream.resize_by_need(image), prompt, sampling)], [block], begun_s)

    def _layout(self, image: Image) -> list[Block]:
        begun_s = time.monotonic()
        self._tell("layout", 0, 1)
        if self._late():
            self._stop("the layout was not begun")
            return []
        sampling = self.upstream.sampling("[layout]")
        answer = self._generate(self.upstream.prepare_for_layout(image), self.upstream.prompt("[layout]"), sampling)
        self._tell("layout", 1, 1)
        blocks, warnings = self.upstream.parse_layout_output(answer.text)
        self.result.warnings += warnings
        if answer.finish_reason == "deadline":
            self._stop("the layout was cut, and blocks may be missing")
        elif answer.finish_reason == "length":
            self.result.warnings.append("layout_truncated: the token limit cut the layout, and blocks may be missing")
        if not blocks and strip_stop_tokens("layout", answer.text).strip():
            self.result.warnings.append("layout_unparsed: no block can be told from the layout")
            if self.options.task == "page":
                blocks = [upstream.block("text", list(WHOLE_PAGE))]
        self._time("layout", begun_s)
        return blocks

    def _read(self, crops: list[Crop], blocks: list[Block], begun_s: float) -> None:
        """Have the crops read one by one, each let go of when it has been, and finish the page."""
        reasons: dict[int, FinishReason | None] = {}
        for n_done, crop in enumerate(crops):
            self._tell("block", n_done, len(crops))
            image, crop.image = crop.image, None
            if image is None or self._late():
                reasons[crop.index] = None
                continue
            answer = self._generate(image, crop.prompt, crop.sampling)
            blocks[crop.index]["content"] = answer.text
            reasons[crop.index] = answer.finish_reason
        self._tell("block", len(crops), len(crops))
        n_skipped, n_cut = (list(reasons.values()).count(reason) for reason in (None, "deadline"))
        if n_skipped or n_cut:
            self._stop(f"blocks not read: {n_skipped}, cut: {n_cut}")
        self._time("crops", begun_s)
        self._finish(blocks, reasons)

    def _generate(self, image: Image, prompt: str, sampling: Sampling) -> Generation:
        limit = self.options.max_new_tokens or self.settings.max_new_tokens or sampling.max_new_tokens
        sampling = replace(sampling, max_new_tokens=limit or self.engine.manifest.max_new_tokens)
        answer = self.engine.generate(image, prompt, sampling, deadline_s=self.deadline_s)
        self.result.n_tokens += len(answer.token_ids)
        for phase, ms in answer.timings_ms.items():
            self.result.timings_ms[phase] = self.result.timings_ms.get(phase, 0.0) + ms
        return answer

    def _finish(self, blocks: list[Block], reasons: dict[int, FinishReason | None]) -> None:
        begun_s = time.monotonic()
        # An answer to a question is what was asked for, not text of the page.
        processed = [Processed(blocks[0], [0])] if self.options.task == "ask" else self._post_process(blocks)
        for position, item in enumerate(processed):
            found = [reasons.get(index, "stop") for index in item.sources]
            if "length" in found:
                item.warnings.append("truncated: the token limit cut the answer")
            self.result.warnings += [f"{note} (block {position}, {item.block['type']})" for note in item.warnings]
            read: Status = "done" if set(found) <= {"stop"} else "truncated"
            self.result.blocks.append(_plain(item.block, "skipped" if None in found else read))
        self.result.markdown, warnings = self.upstream.json2md([item.block for item in processed])
        self.result.warnings += warnings
        self._time("post_process", begun_s)

    def _post_process(self, blocks: list[Block]) -> list[Processed]:
        processed, warnings = finish(self.upstream, blocks)
        self.result.warnings += warnings
        return processed

    def _late(self) -> bool:
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def _stop(self, what: str) -> None:
        self.result.complete = False
        self.result.warnings.append(f"deadline: {what}")

    def _tell(self, stage: Literal["layout", "block"], done: int, total: int) -> None:
        if self.progress:
            self.progress(Progress(stage, done, total, self.result.index))

    def _time(self, phase: str, begun_s: float) -> None:
        self.result.timings_ms[phase] = (time.monotonic() - begun_s) * 1000.0


def _plain(block: Block, status: Status) -> dict[str, Any]:
    """Copy a block as a plain dict without upstream's private marks."""
    kept = {name: block[name] for name in ("type", "bbox", "angle", "content")}
    extra: dict[str, Any] = {name: block[name] for name in ("merge_prev", "sub_type") if name in block}
    return {**kept, "status": status, **extra}

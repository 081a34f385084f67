"""One document: bytes in, pages read one after the other, one result out. Knows pages, not file formats or models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from handler.documents import Document, open_document, parse_pages
from handler.errors import EngineError, InputError
from handler.pipeline import PageResult, check_options, parse_page

if TYPE_CHECKING:
    from handler.config import Settings
    from handler.engine import Engine
    from handler.pipeline import Options, Progress


@dataclass(slots=True)
class DocumentResult:
    """What was read from a document.

    `warnings` has those of the pages too, with their number. `timings_ms` has those of the pages summed,
    `decode_pages` and `total`. `model` has `id`, `revision`, `backend`, `dtype`, `trained`.
    """

    pages: list[PageResult]
    n_document_pages: int
    markdown: str = ""
    warnings: list[str] = field(default_factory=list)
    complete: bool = True
    timings_ms: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


def parse_document(
    data: bytes,
    engine: Engine,
    options: Options,
    settings: Settings,
    *,
    pages: str | None = None,
    dpi: int | None = None,
    deadline_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> DocumentResult:
    """Read a document page by page; one page image is in memory at a time.

    Parameters
    ----------
    data : bytes
        The whole file.
    engine : Engine
    options : Options
    settings : Settings
    pages : str, optional
        Which pages, such as "1-3,7"; default all.
    dpi : int, optional
        Dots per inch of PDF pages instead of `settings.page_dpi`.
    deadline_s : float, optional
        `time.monotonic()` value after which nothing is begun; pages that were not begun come back without blocks.
    progress : callable, optional

    Raises
    ------
    InputError
        The document can't be opened, or none of its pages can be read.
    EngineError
        The model fails on every page.
    """
    check_options(options)
    begun_s = time.monotonic()
    with open_document(data, settings, dpi=dpi) as document:
        result = DocumentResult([], document.n_pages, model=describe(engine))
        wanted = parse_pages(pages, document.n_pages)
        failure: InputError | EngineError | None = None  # the first alone: each holds its page's image
        n_failed = 0
        for index in wanted:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                page = _without_blocks(index, "deadline: the page was not begun")
            else:
                try:
                    page = _parse_one(document, index, engine, options, settings, deadline_s, progress)
                except (InputError, EngineError) as exc:
                    failure, n_failed = failure or exc, n_failed + 1
                    page = _without_blocks(index, f"page_failed: {exc.detail} ({exc.code})")
            result.pages.append(page)
        if failure and n_failed == len(wanted):
            raise failure
    _sum_up(result)
    result.timings_ms["total"] = (time.monotonic() - begun_s) * 1000.0
    return result


def describe(engine: Engine) -> dict[str, Any]:
    """What a result says about the model that made it."""
    manifest = engine.manifest
    return {
        "id": manifest.model.id,
        "revision": manifest.model.revision,
        "backend": manifest.backend,
        "dtype": manifest.dtype,
        "trained": manifest.model.trained,
    }


def _parse_one(
    document: Document,
    index: int,
    engine: Engine,
    options: Options,
    settings: Settings,
    deadline_s: float | None,
    progress: Callable[[Progress], None] | None,
) -> PageResult:
    begun_s = time.monotonic()
    image = document.page(index)
    decode_ms = (time.monotonic() - begun_s) * 1000.0
    page = parse_page(image, engine, options, settings, index=index, deadline_s=deadline_s, progress=progress)
    page.timings_ms["decode_pages"] = decode_ms
    return page


def _without_blocks(index: int, warning: str) -> PageResult:
    return PageResult(index, (0, 0), warnings=[warning], complete=False)


def _sum_up(result: DocumentResult) -> None:
    # A paragraph that goes on over a page break stays in two: the layout of one page can't tell where it belongs.
    result.markdown = "\n\n".join(page.markdown for page in result.pages if page.markdown)
    result.complete = all(page.complete for page in result.pages)
    if not result.model["trained"]:
        result.warnings.append("model_untrained: the weights are random; the output is noise")
    for page in result.pages:
        result.warnings += [f"{warning} (page {page.index + 1})" for warning in page.warnings]
        for phase, ms in page.timings_ms.items():
            result.timings_ms[phase] = result.timings_ms.get(phase, 0.0) + ms

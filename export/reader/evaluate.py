"""The measurement: unseen crops and pages through any engine, and a table of what went wrong. Knows no training.

python -m export.reader evaluate MODEL_OR_ARTIFACT --pages 200 --crops 2000
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from export.reader import crops, fonts, formulas, pages, tables
from export.reader.draw import Sample
from export.reader.metrics import (
    block_matches,
    cells_of,
    edit_distance,
    in_order,
    structure_of,
)
from export.reader.model import MAX_NEW_TOKENS, PROMPTS, SAMPLING
from handler.artifact import MANIFEST, Artifact, Manifest
from handler.config import Settings
from handler.engine import Engine, Generation, Sampling, load
from handler.pipeline import Options, parse_page
from handler.repair import finish
from handler.upstream import Upstream

SEED = 20_261_201  # of no training
# Kind, prompt, share of the crops, families.
CROP_KINDS = (
    ("line", "text", 0.25, fonts.SEEN),
    ("paragraph", "text", 0.25, fonts.SEEN),
    ("line, unseen font", "text", 0.1, fonts.UNSEEN),
    ("paragraph, unseen font", "text", 0.1, fonts.UNSEEN),
    ("table", "table", 0.2, fonts.SEEN),
    ("formula", "formula", 0.1, fonts.SEEN),
)


@dataclass
class Tally:
    """Counts over the samples of one kind."""

    n: int = 0
    n_exact: int = 0
    n_characters: int = 0
    n_errors: int = 0
    extra: dict[str, list[float]] = field(default_factory=dict)

    def add(self, answer: str, truth: str) -> None:
        """Compare one answer with the truth."""
        self.n += 1
        self.n_exact += answer == truth
        self.n_characters += len(truth)
        self.n_errors += edit_distance(answer, truth)

    def note(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add to a share."""
        pair = self.extra.setdefault(name, [0.0, 0.0])
        pair[0] += value
        pair[1] += weight

    def result(self) -> dict[str, float]:
        """Shares in per cent."""
        found = {"n": float(self.n), "exact": _percent(self.n_exact, self.n)}
        found["cer"] = _percent(self.n_errors, self.n_characters)
        return found | {name: _percent(*pair) for name, pair in self.extra.items()}


def _percent(part: float, whole: float) -> float:
    return round(100.0 * part / whole, 3) if whole else 0.0


class _Neutral:
    """An engine whose manifest has the reader's sampling, for artifacts whose own manifest says nothing of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def manifest(self) -> Manifest:
        """Manifest of the engine, with sampling."""
        found = self._engine.manifest
        return found if found.sampling else replace(found, sampling=SAMPLING)

    def generate(self, image: Any, prompt: str, sampling: Sampling, *, deadline_s: float | None = None) -> Generation:
        """Pass on."""
        return self._engine.generate(image, prompt, sampling, deadline_s=deadline_s)


@contextmanager
def engine_of(path: Path) -> Iterator[Engine]:
    """The engine of an artifact, or of a checkpoint under Transformers in fp32."""
    if (path / MANIFEST).exists():
        yield _Neutral(load(Artifact.open(path), Settings()))
        return
    from export.build import export

    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch) / "artifact"
        export(str(path), artifact, dtype="fp32", backend="transformers", check=False, quiet=True)
        yield _Neutral(load(Artifact.open(artifact), Settings()))


def crop_of(random: np.random.Generator, kind: str, families: tuple[str, ...]) -> Sample:
    """One unseen crop."""
    if kind == "table":
        return tables.table_crop(random, int(random.integers(3, 9)), int(random.integers(8, 30)), families)
    if kind == "formula":
        return formulas.formula_crop(random, int(random.integers(1, 4)), int(random.integers(4, 20)), families)
    if kind.startswith("line"):
        return crops.text_crop(random, 1, int(random.integers(3, 32)), families)
    return crops.text_crop(random, int(random.integers(2, 8)), int(random.integers(8, 32)), families)


def measure_crops(engine: Engine, n_crops: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Character error rates by kind; tables also by structure and cells."""
    found: dict[str, dict[str, float]] = {}
    for index, (kind, prompt, share, families) in enumerate(CROP_KINDS):
        tally = Tally()
        random = np.random.default_rng([SEED, index])
        for _ in range(max(1, round(n_crops * share))):
            sample = crop_of(random, kind, families)
            sampling = Sampling(max_new_tokens=len(sample.answer.encode()) * 2 + 30)
            answer = engine.generate(Image.fromarray(sample.image), PROMPTS[prompt], sampling).text
            tally.add(answer, sample.answer)
            if kind == "table":
                tally.note("structure", structure_of(answer) == structure_of(sample.answer))
                truth = cells_of(sample.answer)
                tally.note("cells_wrong", min(len(truth), edit_distance(cells_of(answer), truth)), len(truth))
        found[kind] = tally.result()
        say(f"{kind:<24}{found[kind]}")
    return found


def measure_pages(engine: Engine, n_pages: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Layout and whole pages, end to end."""
    layout, markdown = Tally(), Tally()
    library = Upstream(engine.manifest)
    for number in range(n_pages):
        random = np.random.default_rng([SEED, 1000, number])
        page = pages.draw_page(random, int(random.integers(950, 1260)))
        image = Image.fromarray(page.image)
        result = parse_page(image, engine, Options(), Settings(max_new_tokens=MAX_NEW_TOKENS))
        wanted = [(block.type, tuple(value / 1000.0 for value in box)) for block, box in zip(page.blocks, page.boxes())]
        got = [(block["type"], tuple(block["bbox"])) for block in result.blocks]
        pairs = block_matches(got, wanted)
        layout.n += 1
        layout.note("recall", len(pairs), len(wanted))
        layout.note("precision", len(pairs), len(got))
        layout.note("order", in_order(pairs))
        layout.note("all_found", len(pairs) == len(wanted) == len(got))
        markdown.add(result.markdown, truth_markdown(library, page))
        if (number + 1) % 20 == 0:
            say(f"{number + 1} pages: layout {layout.result()}, Markdown {markdown.result()}")
    return {"layout": layout.result(), "page": markdown.result()}


def truth_markdown(library: Upstream, page: pages.Page) -> str:
    """Markdown of the truth, through the same post-processing as answers."""
    from handler import upstream

    blocks = []
    for block, box in zip(page.blocks, page.boxes()):
        made = upstream.block(block.type, [value / 1000.0 for value in box], block.answer or None)
        made["angle"] = block.angle
        blocks.append(made)
    processed, _ = finish(library, blocks)
    return library.json2md([item.block for item in processed])[0]


def evaluate(path: Path, n_pages: int, n_crops: int, say: Callable[[str], None] = print) -> dict[str, dict[str, float]]:
    """Measure a checkpoint or an artifact; says the numbers as they come, the last line as JSON.

    Parameters
    ----------
    path : Path
        Model directory (Transformers, fp32) or artifact.
    n_pages, n_crops : int
        How many of the fixed sequence are tried.
    """
    with engine_of(path) as engine:
        found = measure_crops(engine, n_crops, say) if n_crops else {}
        if n_pages:
            found |= measure_pages(engine, n_pages, say)
    say(as_table(found))
    say(json.dumps(found))
    return found


def as_table(found: dict[str, dict[str, float]]) -> str:
    """The numbers for people, in per cent."""
    lines = [f"{'kind':<24}{'n':>6}{'CER':>9}{'exact':>9}  more"]
    for kind, row in found.items():
        more = ", ".join(f"{name} {value:.1f}" for name, value in row.items() if name not in ("n", "cer", "exact"))
        lines.append(f"{kind:<24}{row['n']:>6.0f}{row['cer']:>9.2f}{row['exact']:>9.1f}  {more}")
    return "\n".join(lines)

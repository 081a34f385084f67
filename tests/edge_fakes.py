"""A loaded model that costs nothing, and a `parse_document` that takes down what it was called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from handler.engine import Generation
from handler.parse import DocumentResult
from handler.pipeline import PageResult, Progress

MODEL = {"id": "fake/model", "revision": "r1", "backend": "onnx", "dtype": "int8", "trained": True}
BLOCK = {"type": "text", "bbox": [0.1, 0.1, 0.9, 0.3], "angle": None, "content": "Größe 漢字", "status": "done"}
PAGE_JSON = {
    "page": 1,
    "size_px": [3, 2],
    "blocks": [BLOCK],
    "markdown": "Größe 漢字",
    "warnings": [],
    "complete": True,
    "timings_ms": {"total": 12.3},
    "n_tokens": 7,
}
RESULT_JSON = {
    "n_pages": 1,
    "pages": [PAGE_JSON],
    "markdown": "Größe 漢字",
    "warnings": [],
    "complete": True,
    "timings_ms": {"total": 12.3},
    "model": MODEL,
}
CONTENT_LIST = [{"type": "text", "text": "Größe 漢字", "bbox": [100, 100, 900, 300], "page_idx": 0}]
# A layout of one block, as the model writes it.
LAYOUT = "<|box_start|>100 100 900 300<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"


class FakeEngine:
    """Answers the layout prompt with one block and every other with the block's text."""

    def __init__(self) -> None:
        model = SimpleNamespace(id="fake/model", revision="r1", trained=True)
        self.manifest = SimpleNamespace(
            model=model,
            backend="onnx",
            dtype="int8",
            format_version=1,
            prompts=None,
            sampling=None,
            max_new_tokens=None,
            image=SimpleNamespace(layout_size_px=[1036, 1036]),
        )

    def generate(self, image: Any, prompt: str, sampling: Any, *, deadline_s: float | None = None) -> Generation:
        text = LAYOUT if "Layout" in prompt else "Größe 漢字"
        return Generation(text, [1, 2, 3], "stop", n_prompt_tokens=10, n_image_patches=16)


class FakeParse:
    """Stands in for `handler.parse.parse_document`; `error`, `warnings` and `complete` steer it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.warnings: list[str] = []
        self.complete = True
        self.n_progress = 1

    def __call__(self, data: bytes, engine: Any, options: Any, settings: Any, **named: Any) -> DocumentResult:
        self.calls.append({"data": data, "options": options, **named})
        for done in range(self.n_progress + 1):
            if named["progress"]:
                named["progress"](Progress("block", done, self.n_progress))
        if self.error is not None:
            raise self.error
        page = PageResult(0, (3, 2), [dict(BLOCK)], "Größe 漢字", timings_ms={"total": 12.34}, n_tokens=7)
        return DocumentResult([page], 1, "Größe 漢字", self.warnings, self.complete, {"total": 12.34}, dict(MODEL))

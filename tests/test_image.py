"""Image preparation against the slow processor's recorded sizes, grids, token counts and pixels."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handler.artifact import ImageInfo
from handler.errors import EngineError
from handler.image import prepare, smart_resize
from tests.conftest import shared_json


def image_info(min_pixels: int = 3136, max_pixels: int = 1605632) -> ImageInfo:
    return ImageInfo(
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        mean=[0.48145466, 0.4578275, 0.40821073],
        std=[0.26862954, 0.26130258, 0.27577711],
        rescale_factor=1 / 255,
        layout_size_px=[1036, 1036],
    )


def ruled_image(width: int, height: int) -> Image.Image:
    """The recording's pixels: R=(7x+3y)&255 G=(x+5y)&255 B=(x^y)&255."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([7 * x + 3 * y, x + 5 * y, x ^ y], axis=-1).astype(np.uint8))


# From the recording, so that a plain clone checks them too: image size, limits, resized (width, height).
@pytest.mark.parametrize(
    ("size", "limits", "resized"),
    [
        ((1036, 1036), (50176, 1605632), (1036, 1036)),
        ((1, 1), (50176, 1605632), (224, 224)),
        ((10, 10), (3136, 1605632), (56, 56)),
    ],
)
def test_resized_sizes(size: tuple[int, int], limits: tuple[int, int], resized: tuple[int, int]) -> None:
    width, height = size
    assert smart_resize(height, width, image_info(*limits)) == resized[::-1]


def test_too_long_an_image_is_an_error() -> None:
    with pytest.raises(EngineError):
        smart_resize(1, 201, image_info())


def test_every_recorded_size() -> None:
    recorded = shared_json("oracle/image_prep.json")
    checked = 0
    for row in recorded["sizes"]:
        for source in ("direct", "after_resize_by_need"):
            width, height = row["input_size"] if source == "direct" else row["resize_by_need"]
            for name, expected in (row.get(source) or {}).items():
                info = image_info(*recorded["configs"][name])
                if "resized" not in expected:
                    with pytest.raises(EngineError):
                        smart_resize(height, width, info)
                    continue
                resized = smart_resize(height, width, info)
                grid = [1, resized[0] // 14, resized[1] // 14]
                tokens = grid[1] * grid[2] // 4
                assert [*resized] == resized_of(expected), (row["input_size"], source, name)
                assert (grid, tokens) == (expected["grid_thw"], expected["image_tokens"])
                checked += 1
    assert checked >= 200


def resized_of(expected: dict[str, Any]) -> list[int]:
    """Recorded as the grid says: rows first."""
    rows, columns = expected["grid_thw"][1:]
    return [rows * 14, columns * 14]


def test_every_recorded_pixel_value() -> None:
    recorded = shared_json("oracle/image_prep.json")
    identical = total = 0
    for row in recorded["pixel_values"]:
        image = ruled_image(*row["input_size"])
        for name, limits in recorded["configs"].items():
            if name not in row:
                continue
            slow = row[name]["slow_pil"]
            prepared = prepare(image, image_info(*limits))
            values = prepared.pixel_values
            assert list(prepared.image_grid_thw) == slow["grid_thw"]
            assert list(values.shape) == slow["shape"]
            flat = values.ravel()
            for index, value in slow["samples"]:
                assert abs(float(flat[index]) - value) <= 0.004
            total += 1
            identical += hashlib.sha256(values.tobytes()).hexdigest() == slow["sha256_f32"]
    assert identical == total > 0


def test_positions_follow_the_order_of_the_patches() -> None:
    """A patch whose pixels hold its own row and column must stand where `patch_positions` says."""
    rows, columns = 4, 6
    pixels = np.zeros((rows * 14, columns * 14, 3), dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            pixels[row * 14 : row * 14 + 14, column * 14 : column * 14 + 14, 0] = row
            pixels[row * 14 : row * 14 + 14, column * 14 : column * 14 + 14, 1] = column
    info = image_info(min_pixels=1)
    prepared = prepare(Image.fromarray(pixels), info)
    patches = prepared.pixel_values.reshape(-1, 3, 2, 14, 14)
    for channel in (0, 1):
        level = np.rint((patches[:, channel] * info.std[channel] + info.mean[channel]) * 255).astype(int)
        assert (level == prepared.patch_positions[:, channel][:, None, None, None]).all()


def test_equals_the_slow_processor_for_odd_sizes() -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.Qwen2VLImageProcessor(min_pixels=3136, max_pixels=1605632)
    random = np.random.default_rng(0)
    for width, height in ((29, 57), (333, 41), (640, 481), (1500, 2100)):
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        theirs = processor(images=[image], return_tensors="np")
        ours = prepare(image, image_info())
        assert [list(ours.image_grid_thw)] == theirs["image_grid_thw"].tolist()
        assert np.array_equal(ours.pixel_values, theirs["pixel_values"])

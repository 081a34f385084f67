"""Image preparation: an RGB image in, the vision encoder's patches out. numpy and Pillow only.

Source: Qwen2VLImageProcessor (the slow one) of Transformers 4.57, whose values are reproduced to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Resampling

from handler.errors import EngineError

if TYPE_CHECKING:
    from PIL.Image import Image

    from handler.artifact import ImageInfo

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """One image as the vision encoder takes it."""

    pixel_values: NDArray[np.float32]  # (n_patches, channels x temporal x patch x patch)
    patch_positions: NDArray[np.int64]  # (n_patches, 2): row, column
    grid: tuple[int, int]  # rows and columns of patches

    @property
    def n_patches(self) -> int:
        """Patches of the image."""
        return self.grid[0] * self.grid[1]

    @property
    def image_grid_thw(self) -> tuple[int, int, int]:
        """Grid in patches with the one temporal step of a still image."""
        return (1, *self.grid)


def smart_resize(height_px: int, width_px: int, info: ImageInfo) -> tuple[int, int]:
    """Size to resize an image to: multiples of patch x merge within the model's pixel limits.

    Parameters
    ----------
    height_px, width_px : int
        Size of the image, from 1.
    info : ImageInfo
        Limits and patch sizes of the model.

    Returns
    -------
    tuple of int
        Height and width in pixels.

    Raises
    ------
    EngineError
        One side is more than 200 times the other.

    Source: `smart_resize` of Transformers 4.57, its rounding of halves to even included.
    """
    factor = info.patch_size * info.merge_size
    if max(height_px, width_px) > MAX_ASPECT_RATIO * min(height_px, width_px):
        raise EngineError(f"The image is over {MAX_ASPECT_RATIO} times longer than wide.", hint="Crop or pad it.")
    height, width = round(height_px / factor) * factor, round(width_px / factor) * factor
    if height * width > info.max_pixels:
        shrink = math.sqrt(height_px * width_px / info.max_pixels)
        height = max(factor, math.floor(height_px / shrink / factor) * factor)
        width = max(factor, math.floor(width_px / shrink / factor) * factor)
    elif height * width < info.min_pixels:
        grow = math.sqrt(info.min_pixels / (height_px * width_px))
        height = math.ceil(height_px * grow / factor) * factor
        width = math.ceil(width_px * grow / factor) * factor
    return height, width


def prepare(image: Image, info: ImageInfo) -> PreparedImage:
    """Resize, normalise and cut an image into patches.

    Parameters
    ----------
    image : PIL image, mode RGB
    info : ImageInfo

    Raises
    ------
    EngineError
        The image's proportions are beyond the model's.
    """
    height, width = smart_resize(image.height, image.width, info)
    if (width, height) != image.size:
        image = image.resize((width, height), Resampling.BICUBIC)
    patch, merge = info.patch_size, info.merge_size
    rows, columns = height // patch, width // patch
    blocks = np.asarray(image, dtype=np.uint8).reshape(
        rows // merge, merge, patch, columns // merge, merge, patch, 3
    )  # (R, m, p, C, m, p, channel)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # (R, C, m, m, channel, p, p)
    table = _normalised_values(info)  # (channel, 256)
    n_frames = info.temporal_patch_size
    values = np.empty((*blocks.shape[:5], n_frames, patch, patch), dtype=np.float32)
    for channel in range(3):
        # A still image fills every frame of the temporal patch with itself.
        values[:, :, :, :, channel] = table[channel][blocks[:, :, :, :, channel]][:, :, :, :, None]
    return PreparedImage(
        pixel_values=values.reshape(rows * columns, -1),
        patch_positions=_patch_positions(rows, columns, merge),
        grid=(rows, columns),
    )


def _normalised_values(info: ImageInfo) -> NDArray[np.float32]:
    """What each of the 256 levels becomes per channel, computed in the steps and precisions of the source."""
    scaled = (np.arange(256, dtype=np.float64) * info.rescale_factor).astype(np.float32)
    mean, std = np.asarray(info.mean, dtype=np.float32), np.asarray(info.std, dtype=np.float32)
    table: NDArray[np.float32] = (scaled[None, :] - mean[:, None]) / std[:, None]
    return table


def _patch_positions(rows: int, columns: int, merge: int) -> NDArray[np.int64]:
    """Row and column of each patch, in the order in which the patches stand."""
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)  # (rows, columns, 2)
    grid = grid.reshape(rows // merge, merge, columns // merge, merge, 2).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid.reshape(-1, 2), dtype=np.int64)

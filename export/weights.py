"""Weight files as the handler maps them: one external-data file a graph, every tensor on a page boundary.

Knows the formats, not what the weights mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

PAGE_BYTES = 4096
INLINE_BYTES = 1024  # smaller tensors stay in the graph file: shapes and scalars that are read at load anyway


def read(path: Path) -> Any:
    """Load a graph with its weights."""
    return onnx.load(str(path))


def write(model: Any, path: Path) -> list[str]:
    """Write a graph and its weights.

    Parameters
    ----------
    model : ModelProto
        Its large initialisers are moved out of it.
    path : Path
        The graph file; the weights go to the same name with `.data` behind it.

    Returns
    -------
    list of str
        Names of the files written.
    """
    data = path.with_name(path.name + ".data")
    offset = 0
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            raw = tensor_bytes(tensor)
            if len(raw) < INLINE_BYTES:
                continue
            padding = -offset % PAGE_BYTES
            file.write(b"\0" * padding)
            offset += padding
            file.write(raw)
            _point(tensor, data.name, offset, len(raw))
            offset += len(raw)
    onnx.save(model, str(path))
    return [path.name, data.name]


def tensor_bytes(tensor: Any) -> bytes:
    """Little-endian bytes of an initialiser."""
    if tensor.HasField("raw_data"):
        raw: bytes = tensor.raw_data
        return raw
    values: bytes = onnx.numpy_helper.to_array(tensor).tobytes()
    return values


def _point(tensor: Any, location: str, offset: int, length: int) -> None:
    """Make an initialiser refer to a part of a file instead of holding its values."""
    for name in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(name)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def write_rows(rows: NDArray[np.generic], scales: NDArray[np.float32] | None, path: Path) -> int | None:
    """Write an embedding table, and behind it on a page boundary its scales.

    Parameters
    ----------
    rows : (vocab_size, hidden)
    scales : float32, (vocab_size,), optional

    Returns
    -------
    int or None
        Byte offset of the scales.
    """
    with path.open("wb") as file:
        file.write(np.ascontiguousarray(rows).data)
        if scales is None:
            return None
        file.write(b"\0" * (-file.tell() % PAGE_BYTES))
        offset = file.tell()
        file.write(np.ascontiguousarray(scales, dtype="<f4").data)
        return offset

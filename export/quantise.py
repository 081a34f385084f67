"""Smaller weights for the linear layers of an exported graph: int8, int4, fp16. Knows graphs, not their models.

Weights: symmetric per output column in 7 bits. Activations: 8 bits, one scale per token. Why 7: without VNNI, x86 adds
pairs of u8 x s8 products in 16 saturating bits; 2 x 255 x 63 = 32,130 is the largest that cannot overflow, while +-127
is off by 2 % on such CPUs. AWS documents AVX2 only for Lambda's x86 hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WEIGHT_MAX = 63  # 7 bits
BLOCK = 32  # inputs that share a 4-bit scale
ROW_MAX = 127  # embedding rows are never multiplied in integers
SMALLEST_ROW = np.float32(1e-10)  # a row of zeros must not be divided by zero
DOMAIN = "com.microsoft"


def quantise_linear_layers(model: Any, bits_of: Callable[[str], int] = lambda name: 8) -> int:
    """Replace every product with a constant matrix by its int8 or int4 form, in place.

    Parameters
    ----------
    model : ModelProto
        float32, with its weights.
    bits_of : callable
        Takes a node's name, gives 8 or 4.

    Returns
    -------
    int
        Number of layers replaced.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    rows = _RowScales()
    nodes: list[Any] = []
    replaced: set[str] = set()
    for node in graph.node:
        if not _is_linear(node, weights):
            nodes.append(node)
            continue
        make = _int8_nodes if bits_of(node.name) == 8 else _int4_nodes
        nodes.extend(make(graph, node, weights[node.input[1]], rows))
        replaced.add(node.input[1])
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), "last_axis"))
    graph.initializer.append(numpy_helper.from_array(SMALLEST_ROW, "smallest_row"))
    _drop_unused(graph, replaced)
    return len(replaced)


def quantise_rows(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise an embedding table per row, symmetric in 8 bits.

    Parameters
    ----------
    table : float32, (vocab_size, hidden)

    Returns
    -------
    rows : int8, (vocab_size, hidden)
    scales : float32, (vocab_size,)
    """
    scales = np.maximum(np.abs(table).max(axis=1) / ROW_MAX, np.finfo(np.float32).tiny)
    return np.rint(table / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def quantise_columns(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise a weight matrix per column, symmetric in 7 bits.

    Parameters
    ----------
    weight : float32, (in, out)

    Returns
    -------
    columns : int8, (in, out)
    scales : float32, (out,)
    """
    scales = np.maximum(np.abs(weight).max(axis=0) / WEIGHT_MAX, np.finfo(np.float32).tiny)
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def quantise_blocks(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise a weight matrix in 4 bits, a scale for each block of inputs of an output.

    Parameters
    ----------
    weight : float32, (in, out)

    Returns
    -------
    packed : uint8, (out, n_blocks, BLOCK / 2)
        Two values a byte, the first in the low half; 8 stands for zero.
    scales : float32, (out, n_blocks)

    Source: layout of com.microsoft::MatMulNBits; the extreme value of a block becomes -8, as in ggml's Q4_0.
    """
    n_in, n_out = weight.shape
    padded = np.zeros((n_out, -(-n_in // BLOCK) * BLOCK), dtype=np.float32)
    padded[:, :n_in] = weight.T
    blocks = padded.reshape(n_out, -1, BLOCK)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), axis=-1)
    scales = extreme / -8
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    values = np.clip(np.rint(blocks * inverse) + 8, 0, 15).astype(np.uint8)
    return values[..., 0::2] | values[..., 1::2] << 4, scales[..., 0].astype(np.float32)


def halve_weights(model: Any) -> int:
    """Store the weight matrices in float16 and cast them where they are used, in place.

    Parameters
    ----------
    model : ModelProto
        float32, with its weights.

    Returns
    -------
    int
        Number of matrices stored in half precision.

    ONNX Runtime has no float16 kernels on x86: it casts to float32 when the graph is loaded, so files are halved and
    memory is not.
    """
    casts = []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim < 2:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_fp16"))
        casts.append(helper.make_node("Cast", [f"{name}_fp16"], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
    for cast in reversed(casts):
        model.graph.node.insert(0, cast)
    return len(casts)


def _is_linear(node: Any, weights: dict[str, Any]) -> bool:
    if node.op_type not in {"MatMul", "Gemm"} or node.input[1] not in weights:
        return False
    return len(weights[node.input[1]].dims) == 2


class _RowScales:
    """The nodes that bring each token's activations to [-1, 1], made once for layers that share an input.

    ONNX Runtime's operator has one activation scale for the whole matrix: after this, one scale fits every token.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, str]] = {}

    def nodes(self, name: str) -> Iterator[Any]:
        if name in self._made:
            return
        largest, bounded, scaled = (f"{name}_{part}" for part in ("row_max", "row_scale", "scaled"))
        self._made[name] = (scaled, bounded)
        yield helper.make_node("Abs", [name], [f"{name}_abs"], name=f"{name}_abs")
        yield helper.make_node("ReduceMax", [f"{name}_abs", "last_axis"], [largest], name=largest, keepdims=1)
        yield helper.make_node("Max", [largest, "smallest_row"], [bounded], name=bounded)
        yield helper.make_node("Div", [name, bounded], [scaled], name=scaled)

    def names(self, name: str) -> tuple[str, str]:
        return self._made[name]


def _matrix(node: Any, tensor: Any) -> NDArray[np.float32]:
    """Weights of a linear layer, (in, out)."""
    weight: NDArray[np.float32] = numpy_helper.to_array(tensor)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return np.ascontiguousarray(weight.T) if transposed else weight


def _bias(node: Any) -> tuple[str | None, str]:
    """Name of a Gemm's bias, and the name that the product before it gets."""
    bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else None
    return bias, f"{node.output[0]}_product" if bias else node.output[0]


def _int4_nodes(graph: Any, node: Any, tensor: Any, rows: _RowScales) -> Iterator[Any]:
    weight = _matrix(node, tensor)
    packed, scales = quantise_blocks(weight)
    graph.initializer.append(numpy_helper.from_array(packed, f"{tensor.name}_int4"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{tensor.name}_scales"))
    bias, output = _bias(node)
    yield helper.make_node(
        "MatMulNBits",
        [node.input[0], f"{tensor.name}_int4", f"{tensor.name}_scales"],
        [output],
        name=f"{node.name}_int4",
        domain=DOMAIN,
        K=weight.shape[0],
        N=weight.shape[1],
        bits=4,
        block_size=BLOCK,
        accuracy_level=4,  # activations in int8
    )
    if bias:
        yield helper.make_node("Add", [output, bias], [node.output[0]], name=f"{node.name}_bias")


def _int8_nodes(graph: Any, node: Any, tensor: Any, rows: _RowScales) -> Iterator[Any]:
    columns, scales = quantise_columns(_matrix(node, tensor))
    graph.initializer.append(numpy_helper.from_array(columns, f"{tensor.name}_int8"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{tensor.name}_scales"))
    yield from rows.nodes(node.input[0])
    scaled, row_scale = rows.names(node.input[0])
    bias, output = _bias(node)
    product = f"{node.output[0]}_scaled"
    yield helper.make_node(
        "DynamicQuantizeMatMul",
        [scaled, f"{tensor.name}_int8", f"{tensor.name}_scales"],
        [product],
        name=f"{node.name}_int8",
        domain=DOMAIN,
    )
    yield helper.make_node("Mul", [product, row_scale], [output], name=f"{node.name}_rescaled")
    if bias:
        yield helper.make_node("Add", [output, bias], [node.output[0]], name=f"{node.name}_bias")


def _drop_unused(graph: Any, candidates: set[str]) -> None:
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in candidates or tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)

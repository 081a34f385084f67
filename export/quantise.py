"""Dynamic int8 for the linear layers of an exported graph. Knows ONNX graphs, not which model they are of.

Weights: symmetric per output column in 7 bits. Activations: 8 bits, one scale per token. Why 7: without VNNI, x86 adds
pairs of u8 x s8 products in 16 saturating bits; 2 x 255 x 63 = 32,130 is the largest that cannot overflow, while +-127
is off by 2 % on such CPUs. AWS documents AVX2 only for Lambda's x86 hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

WEIGHT_MAX = 63  # 7 bits
ROW_MAX = 127  # embedding rows are never multiplied in integers
SMALLEST_ROW = np.float32(1e-10)  # a row of zeros must not be divided by zero
DOMAIN = "com.microsoft"


def quantise_linear_layers(model: Any) -> int:
    """Replace every product with a constant matrix by its int8 form, in place.

    Parameters
    ----------
    model : ModelProto
        float32, with its weights.

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
        nodes.extend(_int8_nodes(graph, node, weights[node.input[1]], rows))
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


def _int8_nodes(graph: Any, node: Any, tensor: Any, rows: _RowScales) -> Iterator[Any]:
    weight = numpy_helper.to_array(tensor)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    columns, scales = quantise_columns(np.ascontiguousarray(weight.T) if transposed else weight)
    graph.initializer.append(numpy_helper.from_array(columns, f"{tensor.name}_int8"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{tensor.name}_scales"))
    yield from rows.nodes(node.input[0])
    scaled, row_scale = rows.names(node.input[0])
    bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else None
    output = f"{node.output[0]}_product" if bias else node.output[0]
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

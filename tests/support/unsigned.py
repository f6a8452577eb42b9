"""Engines that nobody vouches for: networks that need tables and symbols, and their files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import smelt
from smelt import ops
from smelt.engine import serialize_engine
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from smelt.engine import EngineFile
    from smelt.runtime import Engine
    from smelt.types import Dim

N: Dim = SymbolicDim.symbol("n")
BATCH: Dim = SymbolicDim.symbol("batch")


def unsigned(engine: Engine, **changes: Any) -> bytes:
    """The engine's file without signature and code, with another header."""
    file = engine.file
    weights = changes.pop("weights_data", file.weights)
    header = replace(file.header, **changes)
    return serialize_engine(header, weights, b"", b"", None, file.network_arrays)


def program_changed(file: EngineFile, *path: str | int, value: Any) -> str:
    """The program with something else at a place."""
    document = json.loads(file.header.program)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document)


def _weight(graph: Graph, name: str, *shape: int) -> Any:
    random = np.random.default_rng(len(name))
    return graph.add_constant(random.standard_normal(shape).astype(np.float32), name)


def picture_graph() -> Graph:
    """A convolution, an enlargement by tables and a pooling, in batches."""
    graph = Graph("picture")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (BATCH, 2, 6, 6)))
    w = _weight(graph, "w", 4, 2, 3, 3)
    (y,) = graph.add(ops.Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), x, w, name="conv").outputs
    scales = graph.add_constant(np.array([1, 1, 2, 2], np.float32), "scales")
    resize = ops.Resize(mode="linear", coordinate_transformation_mode="half_pixel")
    (y,) = graph.add(resize, y, None, scales, None, name="resize").outputs
    pool = ops.MaxPool(kernel_shape=(2, 2), strides=(2, 2))
    graph.outputs = list(graph.add(pool, y, name="pool").outputs)
    return graph


def ranked_graph() -> Graph:
    """The largest elements of rows, by the op's own reference, and a product."""
    graph = Graph("ranked")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, 8)))
    (y,) = graph.add(ops.MatMul(), x, _weight(graph, "w", 8, 8), name="product").outputs
    k = graph.add_constant(np.array([3], np.int64), "k")
    graph.outputs = list(graph.add(ops.TopK(), y, k, name="top").outputs)
    return graph


def picked_graph() -> Graph:
    """Columns that a constant picks."""
    graph = Graph("picked")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, 8)))
    indices = graph.add_constant(np.array([[3, -1], [0, 5]], np.int64), "indices")
    graph.outputs = list(graph.add(ops.Gather(axis=1), x, indices, name="pick").outputs)
    return graph


def multiplied_graph() -> Graph:
    """A product that is only one where two symbols are equal."""
    graph = Graph("multiplied")
    k: Dim = SymbolicDim.symbol("k")
    a = graph.add_input("a", TensorType(DType.FLOAT32, (4, N)))
    b = graph.add_input("b", TensorType(DType.FLOAT32, (k, 4)))
    graph.outputs = list(graph.add(ops.MatMul(), a, b, name="product").outputs)
    return graph


def build(graph: Graph, **options: Any) -> Engine:
    """An engine by estimates."""
    return smelt.build(graph, tune="none", **options)

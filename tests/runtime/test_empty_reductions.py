"""A sum over no elements is zero, and reads nothing, whatever its extents are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.guarded_engines import GuardedContext


def _gram_matrix() -> Graph:
    """``x @ x.T``: both extents are open, so the kernel learns the reduction depth at the run."""
    graph = Graph("gram")
    shape = (SymbolicDim.symbol("n"), SymbolicDim.symbol("k"))
    x = graph.add_input("x", TensorType(DType.FLOAT32, shape))
    transposed = graph.add(ops.Transpose((1, 0)), x, name="transposed").output
    graph.outputs.append(graph.add(ops.MatMul(), x, transposed, name="y").output)
    return graph


def _attention() -> Graph:
    """Attention whose number of keys is open."""
    graph = Graph("attention")
    b, s, t = (SymbolicDim.symbol(name) for name in "bst")
    q = graph.add_input("q", TensorType(DType.FLOAT32, (b, s, 4)))
    k = graph.add_input("k", TensorType(DType.FLOAT32, (b, t, 4)))
    transposed = graph.add(ops.Transpose((0, 2, 1)), k, name="transposed").output
    scores = graph.add(ops.MatMul(), q, transposed, name="scores").output
    weights = graph.add(ops.Softmax(-1), scores, name="weights").output
    graph.outputs.append(graph.add(ops.MatMul(), weights, k, name="y").output)
    return graph


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("name", ["gram", "attention"])
def test_a_product_over_no_elements_reads_nothing(name: str, precision: str, spread: bool) -> None:
    inputs: dict[str, Any]
    shapes: dict[str, Any]
    if name == "gram":
        graph, inputs = _gram_matrix(), {"x": np.zeros((3, 0), np.float32)}
        shapes = {"x": ((1, 0), (3, 4), (40, 50))}
    else:
        graph = _attention()
        inputs = {"q": np.ones((2, 3, 4), np.float32), "k": np.zeros((2, 0, 4), np.float32)}
        shapes = {"q": ((1, 1, 4), (2, 5, 4), (4, 40, 4)), "k": ((1, 0, 4), (2, 5, 4), (4, 50, 4))}
    with (
        smelt.build(graph, shapes=shapes, tune="none", precision=precision) as engine,
        GuardedContext(engine, spread=spread, at_end=False) as context,
    ):
        for poison in (0x7F, 0x3F):
            run = context.run(inputs, poison)
            assert run.damage == ()
            assert not run.outputs["y"].any()

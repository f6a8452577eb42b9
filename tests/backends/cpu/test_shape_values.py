"""Shapes as data: extents that only a run decides, written by a kernel."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.engine import HostCall
from smelt.ir import Graph
from smelt.ops import Cast, Concat, Gather, Mul, Shape
from smelt.types import DType, SymbolicDim, TensorType


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_shape_and_what_is_computed_from_it_are_written_without_python(rows: int) -> None:
    graph = Graph("extents")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (SymbolicDim.symbol("rows"), 5)))
    shape = graph.add(Shape(), x, name="shape").output
    first = graph.add(
        Gather(), shape, graph.add_constant(np.array([0]), "zero"), name="first"
    ).output
    doubled = graph.add(Mul(), first, graph.add_constant(np.array([2]), "two"), name="twice").output
    joined = graph.add(Concat(axis=0), shape, doubled, name="joined").output
    narrow = graph.add(Cast(to=DType.INT32), joined, name="narrow").output
    graph.outputs += [shape, joined, narrow]
    engine = smelt.build(graph, tune="none", shapes={"x": ((1, 5), (4, 5), (8, 5))})
    assert not any(isinstance(step, HostCall) for step in engine.header.plans[0].steps)
    with engine.create_context() as context:
        made = context.run({"x": np.zeros((rows, 5), np.float32)})
    assert [made[v.name].tolist() for v in (shape, joined, narrow)] == [
        [rows, 5],
        [rows, 5, 2 * rows],
        [rows, 5, 2 * rows],
    ]
    assert made[narrow.name].dtype == np.int32

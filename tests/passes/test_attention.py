"""Attention in the ways in which exporters write it: one op makes the same of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt
from smelt import ops
from smelt.backends.cpu import CpuBackend
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.passes import pipeline, run_passes
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from smelt.ir import Op, Value
    from smelt.types import Dim

Array = np.ndarray[Any, Any]
_HEADS = 2


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to write it."""

    split: bool
    """Heads are split off tensors of places."""
    joined: bool
    scales: frozenset[str]
    """Of the queries (q), the keys (k), the scores (s)."""
    divides: bool
    mask: tuple[bool, ...] | None
    """Which of its axes are as long as the scores'."""
    mask_first: bool
    open_batch: bool
    queries: int
    keys: int

    @property
    def batch(self) -> Dim:
        return SymbolicDim.symbol("n") if self.open_batch else 2


_WAYS = st.builds(
    _Way,
    split=st.booleans(),
    joined=st.booleans(),
    scales=st.frozensets(st.sampled_from("qks")),
    divides=st.booleans(),
    mask=st.none() | st.lists(st.booleans(), min_size=1, max_size=4).map(tuple),
    mask_first=st.booleans(),
    open_batch=st.booleans(),
    queries=st.sampled_from([1, 3, 17, 50]),
    keys=st.sampled_from([1, 4, 33]),
)


class _Written:
    """A network of attention, and inputs for it."""

    def __init__(self, way: _Way) -> None:
        self.way = way
        self.graph = Graph("attention")
        self.given: dict[str, Array] = {}
        self.random = np.random.default_rng(0)
        q, k = self.factor("q", way.queries, 8), self.factor("k", way.keys, 8)
        v = self.factor("v", way.keys, 5)
        turned = self.scaled(self.add(ops.Transpose((0, 1, 3, 2)), k), "k")
        product = self.add(ops.MatMul(), self.scaled(q, "q"), turned)
        scores = self.sanitize_name(self.scaled(product, "s"))
        made = self.add(ops.MatMul(), self.add(ops.Softmax(-1), scores), v)
        if way.joined:
            made = self.add(ops.Transpose((0, 2, 1, 3)), made)
            made = self.add(ops.Reshape(), made, self.constant(0, 0, _HEADS * 5))
        self.graph.outputs.append(made)

    def add(self, op: Op, *inputs: Value) -> Value:
        return self.graph.add(op, *inputs, name=f"node{len(self.graph.nodes)}").output

    def constant(self, *values: int) -> Value:
        name = f"constant{len(self.graph.nodes)}"
        return self.graph.add_constant(np.array(values, np.int64), name)

    def input(self, name: str, *shape: Dim) -> Value:
        known = tuple(e if isinstance(e, int) else 2 for e in shape)
        self.given[name] = self.random.standard_normal(known).astype(np.float32)
        return self.graph.add_input(name, TensorType(DType.FLOAT32, shape))

    def factor(self, name: str, places: int, width: int) -> Value:
        if not self.way.split:
            return self.input(name, self.way.batch, _HEADS, places, width)
        joined = self.input(name, self.way.batch, places, _HEADS * width)
        apart = self.add(ops.Reshape(), joined, self.constant(0, 0, _HEADS, width))
        return self.add(ops.Transpose((0, 2, 1, 3)), apart)

    def scaled(self, value: Value, name: str) -> Value:
        if name not in self.way.scales:
            return value
        number = self.graph.add_constant(np.array(0.6, np.float32), f"scale_{name}")
        return self.add(ops.Div() if self.way.divides else ops.Mul(), value, number)

    def sanitize_name(self, scores: Value) -> Value:
        way = self.way
        if way.mask is None:
            return scores
        whole = (way.batch, _HEADS, way.queries, way.keys)[-len(way.mask) :]
        shape = (e if full else 1 for e, full in zip(whole, way.mask, strict=True))
        mask = self.input("mask", *shape)
        return self.add(ops.Add(), *((mask, scores) if way.mask_first else (scores, mask)))


@settings(max_examples=60, deadline=None)
@given(_WAYS)
def test_it_becomes_one_op_that_makes_the_same(way: _Way) -> None:
    written = _Written(way)
    made = clone(written.graph)
    run_passes(made, pipeline(supported_composite_ops=CpuBackend.supported_composite_ops))
    assert [node.op.name for node in made.nodes].count("attention") == 1
    assert not {"softmax", "mat_mul"} & {node.op.name for node in made.nodes}
    _assert_alike(interpret(made, written.given), interpret(written.graph, written.given))


@settings(max_examples=10, deadline=None)
@given(_WAYS)
def test_engines_make_the_same_on_one_to_four_threads(way: _Way) -> None:
    written = _Written(way)
    shapes: dict[str, Any] = {}
    for value in written.graph.inputs:
        if not all(isinstance(extent, int) for extent in value.tensor.shape):
            best = written.given[value.name].shape
            shapes[value.name] = tuple((n, *best[1:]) for n in (1, 2, 4))
    runs: list[dict[str, Array]] = []
    with smelt.build(clone(written.graph), tune="none", shapes=shapes or None) as engine:
        for threads in (1, 2, 3, 4):
            with engine.create_context(threads=threads) as context:
                runs.append(context.run(written.given))
    _assert_alike(runs[0], interpret(written.graph, written.given))
    for other in runs[1:]:
        for name, array in runs[0].items():
            np.testing.assert_array_equal(other[name], array)


def _assert_alike(mine: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(mine[name], array, rtol=0, atol=5e-5)

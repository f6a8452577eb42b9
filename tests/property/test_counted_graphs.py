"""Small random graphs with counts that only a run tells: the verifier of plans is never the first.

What is wrong with such a network or its inputs is found by inference, a guard or an op, which say
so. EngineFormatError would call an engine damaged that this very process has built.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import EngineFormatError, SmeltError
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.types import Dim, DType, SymbolicDim, TensorType, element_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smelt.ir import Array, Op, Value
    from smelt.runtime import Engine

N = SymbolicDim.symbol("n")
SHAPES = ((6,), (12,), (2, 6), (3, 4), (-1,), (1, -1), (2, -1), (0, -1), (-1, 3))
BOXES = (((0, 3), (6, 3), (6, 3)), ((1, 3), (4, 3), (6, 3)), [(1, 3), (4, 3)], [(2, 3), (6, 3)])


class _Builder:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  (no secret)
        self.graph = Graph("counted")
        self.constants = 0
        extent = self.choose(N, N, 4)
        self.values = [self.graph.add_input("x", TensorType(DType.FLOAT32, (extent, 3)))]

    def choose(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def pick(self, like: Value | None = None) -> Value:
        """A value; one of the type's dtype and rank, where there is another like it."""
        kind = None if like is None else (like.tensor.dtype, like.tensor.rank)
        fitting = [v for v in self.values if kind in (None, (v.tensor.dtype, v.tensor.rank))]
        return self.random.choice(fitting[-5:])

    def axis(self, value: Value) -> int:
        return self.random.randrange(max(value.tensor.rank, 1))

    def numbers(self, *numbers: int) -> Value:
        self.constants += 1
        return self.graph.add_constant(np.array(numbers, np.int64), f"n{self.constants}")

    def count(self, most: Dim) -> str:
        name = f"k{len(self.graph.symbol_bounds)}"
        self.graph.symbol_bounds[name] = most
        return name

    def add(self, op: Op, *inputs: Value) -> Value:
        node = self.graph.add(op, *inputs, name=f"{op.name}{len(self.graph.nodes)}")
        self.values += node.outputs
        return node.output

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.tensor.dtype is dtype else self.add(ops.Cast(dtype), value)


def _non_zero(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.NonZero(b.count(element_count(x.tensor.shape))), x)


def _compress(b: _Builder) -> None:
    x, data = b.pick(), b.pick()
    flat = b.add(ops.Reshape(), x, b.numbers(-1))
    marks = b.cast(flat, DType.BOOL)
    b.add(ops.Compress(b.axis(data), b.count(marks.tensor.shape[0])), data, marks)


def _non_max_suppression(b: _Builder) -> None:
    boxes = b.add(ops.Reshape(), b.cast(b.pick(), DType.FLOAT32), b.numbers(1, -1, 4))
    scores = b.add(ops.Reshape(), b.cast(b.pick(), DType.FLOAT32), b.numbers(1, 1, -1))
    op = ops.NonMaxSuppression(count_symbol=b.count(boxes.tensor.shape[1]))
    b.add(op, boxes, scores, b.numbers(9))


def _reshape(b: _Builder) -> None:
    b.add(ops.Reshape(), b.pick(), b.numbers(*b.choose(*SHAPES)))


def _like_another(b: _Builder) -> None:
    x, shape = b.pick(), b.add(ops.Shape(), b.pick())
    b.add(b.choose(ops.Reshape(), ops.Expand()), x, shape)


def _join(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.Concat(b.axis(x)), x, b.pick(x))


def _two(b: _Builder) -> None:
    x = b.pick()
    b.add(b.choose(ops.Add(), ops.Mul(), ops.Max()), x, b.pick(x))


def _select(b: _Builder) -> None:
    x, marks = b.pick(), b.cast(b.pick(), DType.BOOL)
    b.add(ops.Where(), marks, x, b.pick(x))


def _split(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.Split(b.axis(x)), x, b.numbers(*b.choose((1, 1), (3, 3), (1, 2))))


def _slice(b: _Builder) -> None:
    x = b.pick()
    ends = b.choose((0, 2), (1, 9), (-2, 9), (0, -1))
    b.add(ops.Slice(), x, *map(b.numbers, ends), b.numbers(b.axis(x)))


def _gather(b: _Builder) -> None:
    x = b.pick()
    places = b.cast(b.pick(), DType.INT64) if b.choose(True, False) else b.numbers(0, 1)  # noqa: FBT003  (choices)
    b.add(ops.Gather(b.axis(x)), x, places)


def _rows_of(b: _Builder) -> Value:
    return b.add(ops.Transpose((1, 0)), b.cast(b.pick(), DType.INT64))


def _gather_nd(b: _Builder) -> None:
    b.add(ops.GatherND(), b.pick(), _rows_of(b))


def _scatter_nd(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.ScatterND(), x, _rows_of(b), b.cast(b.pick(), x.tensor.dtype))


def _product(b: _Builder) -> None:
    b.add(ops.MatMul(), *(b.cast(b.pick(), DType.FLOAT32) for _ in range(2)))


def _flatten(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.Flatten(b.axis(x)), x)


def _loop(b: _Builder) -> None:
    x = b.cast(b.pick(), DType.FLOAT32)
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    flag = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", x.type)
    made = body.add(ops.Relu(), state, name="made").output
    body.outputs = [flag, made, body.add(ops.Identity(), made, name="kept").output]
    largest = b.add(ops.ReduceMax(keepdims=0), x)
    b.add(ops.Loop(body, 1, b.count(9)), b.cast(largest, DType.INT64), None, x)  # type: ignore[arg-type]  # no condition


_STEPS = (
    _non_zero, _non_zero, _compress, _non_max_suppression, _loop, _reshape, _reshape, _like_another,
    _join, _join, _two, _two, _select, _split, _slice, _gather, _gather_nd, _scatter_nd, _product,
    _flatten,
)  # fmt: skip
_COUNTING = 5
"""The first so many steps have results of which only a run tells how large they are."""


def counted_graph(seed: int) -> Graph:
    """A graph of a few steps, those left out that inference refuses, and what nobody reads."""
    b = _Builder(seed)
    counts = b.random.choices(_STEPS[:_COUNTING], k=b.random.randrange(1, 4))
    for step in (*counts, *b.random.choices(_STEPS, k=b.random.randrange(1, 9))):
        try:
            step(b)
        except SmeltError:
            continue
    ends = [v for v in b.values if v.producer is not None and not v.users]
    b.random.shuffle(ends)
    b.graph.outputs = ends[:3]
    b.graph.remove_unused()
    return b.graph


@pytest.mark.slow
def test_the_verifier_is_never_the_first_to_notice() -> None:
    for seed in range(500):
        graph = counted_graph(seed)
        if graph.outputs:
            check(graph, seed)


def check(graph: Graph, seed: int) -> None:
    """Build a graph and run it at several extents."""
    rng = np.random.default_rng(seed)
    is_open = not graph.inputs[0].tensor.is_static
    shapes: Any = {"x": BOXES[seed % len(BOXES)]} if is_open else None
    engine = answer(lambda: smelt.build(graph, shapes=shapes, tune="none"))
    if isinstance(engine, SmeltError):
        return
    for rows in (1, 2, 3, 4, 6) if is_open else (4, 4):
        x = rng.integers(-2, 3, (rows, 3)) * rng.integers(0, 2, (rows, 3))
        compare(graph, engine, x.astype(np.float32))


def compare(graph: Graph, engine: Engine, x: Array) -> None:
    """Where the references answer, so does the engine, and alike; else it may know better."""
    made = answer(lambda: engine.run({"x": x}))
    wanted: Mapping[str, Array] | SmeltError = answer(lambda: interpret(graph, {"x": x}))
    if isinstance(wanted, SmeltError):
        return
    if isinstance(made, SmeltError):
        assert "no plan" in str(made)
        return
    for name, array in wanted.items():
        assert made[name].shape == array.shape
        assert np.allclose(made[name], array, 1e-3, 1e-3, equal_nan=True)


def answer(ask: Callable[[], Any]) -> Any:
    """What is made, or the error that says why not; that an engine is damaged says nothing."""
    try:
        return ask()
    except EngineFormatError:
        raise
    except SmeltError as error:
        return error

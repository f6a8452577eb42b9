"""What a run checks of its values is what the full verifier says of them, on whole networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError, ShapeError
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.verdicts import compare_verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Array, Value
    from smelt.types import Dim

    Chance = np.random.Generator
    Shapes = dict[str, Sequence[tuple[int, ...]]]
    Network = tuple[Graph, Shapes, Callable[[Chance], dict[str, Array]]]

_RUNS = 120


def _tensor(*shape: Dim | str, dtype: DType = DType.FLOAT32) -> TensorType:
    dims = [SymbolicDim.symbol(d) if isinstance(d, str) else d for d in shape]
    return TensorType(dtype, tuple(dims))


def _stack(graph: Graph, *rows: Value) -> None:
    """Let the output have these rows, which must be of one length."""
    axes = graph.add_constant(np.array([0]), "rows.axes")
    stacked = [
        graph.add(ops.Unsqueeze(), row, axes, name=f"row{k}").output for k, row in enumerate(rows)
    ]
    whole = graph.add(ops.Concat(0), *stacked, name="stack").output
    graph.outputs = [graph.add(ops.Relu(), whole, name="relu").output]


def _unet() -> Network:
    """Three levels, whose shortcuts fit where extents are multiples of 8."""
    graph, rng = Graph("unet"), np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Value:
        return graph.add_constant(rng.standard_normal(shape).astype(np.float32) * 0.1, name)

    value = graph.add_input("x", _tensor(1, 3, "h", "w"))
    shortcuts: list[Value] = []
    for level in range(3):
        conv = ops.Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        filters = weights(f"down{level}.filters", 3, 3, 3, 3)
        shortcuts.append(graph.add(conv, value, filters, name=f"down{level}").output)
        pool = ops.MaxPool(kernel_shape=(2, 2), strides=(2, 2))
        value = graph.add(pool, shortcuts[-1], name=f"pool{level}").output
    for level in reversed(range(3)):
        up = ops.ConvTranspose(kernel_shape=(2, 2), strides=(2, 2))
        filters = weights(f"up{level}.filters", 3 * (3 - level), 3, 2, 2)
        value = graph.add(up, value, filters, name=f"up{level}").output
        value = graph.add(ops.Concat(1), shortcuts[level], value, name=f"join{level}").output
        if level:
            value = graph.add(
                ops.Conv(kernel_shape=(1, 1)),
                value,
                weights(f"mix{level}.filters", 3 * (3 - level + 1), 6, 1, 1),
                name=f"mix{level}",
            ).output
    graph.outputs = [value]

    def inputs(chance: Chance) -> dict[str, Array]:
        h, w = (int(8 * chance.integers(1, 7) + chance.choice([0, 0, 0, 1, -2])) for _ in "hw")
        return {"x": np.ones((1, 3, h, w), np.float32)}

    return graph, {"x": ((1, 3, 8, 8), (1, 3, 16, 16), (1, 3, 40, 40))}, inputs


def _counts() -> Network:
    """A count, one of what the other has left, and an extent that must meet it."""
    graph = Graph("counts")
    x, y = graph.add_input("x", _tensor("n")), graph.add_input("y", _tensor("m"))
    graph.symbol_bounds |= {"count": SymbolicDim.symbol("n"), "again": SymbolicDim.symbol("n")}
    value = x
    for name in ("count", "again"):
        found = graph.add(ops.NonZero(name), value, name=name).output
        cast = graph.add(ops.Cast(DType.FLOAT32), found, name=f"{name}.cast").output
        axes = graph.add_constant(np.array([0]), f"{name}.axes")
        value = graph.add(ops.ReduceSum(keepdims=0), cast, axes, name=f"{name}.row").output
    _stack(graph, value, y)

    def inputs(chance: Chance) -> dict[str, Array]:
        ones = chance.random(chance.integers(1, 12)) < 0.6
        left = max(int(ones.sum()) - int(ones[0]), 1) + int(chance.choice([0, 0, 1]))
        return {"x": ones.astype(np.float32), "y": np.ones(left, np.float32)}

    return graph, {"x": ((1,), (6,), (9,)), "y": ((1,), (5,), (9,))}, inputs


def _loop() -> Network:
    """As many rows as there are trips, beside an input of the same extent."""
    body = Graph("body")
    trip = body.add_input("trip", _tensor(dtype=DType.INT64))
    condition = body.add_input("condition", _tensor(dtype=DType.BOOL))
    body.outputs = [condition, body.add(ops.Cast(DType.FLOAT32), trip, name="kept").output]
    graph = Graph("loop")
    trips = graph.add_input("trips", _tensor(dtype=DType.INT64))
    y = graph.add_input("y", _tensor("m"))
    graph.symbol_bounds["count"] = 9
    numbers = graph.add(ops.Loop(body, 0, "count"), trips, None, name="loop").output
    _stack(graph, numbers, y)

    def inputs(chance: Chance) -> dict[str, Array]:
        count = int(chance.integers(0, 11))
        extent = max(count + int(chance.choice([0, 0, 1])), 1)
        return {"trips": np.array(count), "y": np.ones(extent, np.float32)}

    return graph, {"trips": ((), (), ()), "y": ((1,), (5,), (9,))}, inputs


@pytest.mark.parametrize(("make", "stages"), [(_unet, 1), (_counts, 3), (_loop, 2)])
def test_a_runs_verdicts_are_those_of_the_full_verifier(
    make: Callable[[], Network], stages: int
) -> None:
    graph, shapes, inputs = make()
    chance, refused = np.random.default_rng(1), {BindingError: 0, ShapeError: 0}
    with (
        smelt.build(graph, shapes=shapes, tune="none") as engine,
        engine.create_context(threads=1) as context,
    ):
        (verdicts,) = compare_verdicts(context)
        for _ in range(_RUNS):
            try:
                context.run(inputs(chance))
            except (BindingError, ShapeError) as error:
                refused[type(error)] += 1
    assert all(refused.values()), "both outside of the box and where guards fail"
    assert len({stage for stage, *_ in verdicts.met}) == stages
    assert len(verdicts.met) > _RUNS // 8

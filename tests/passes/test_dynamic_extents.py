"""Every op through the passes with extents that are open, each by itself: no rewrite asks for more.

A rewrite may need more than the op that it replaces: parts broadcast by other rules, and extents
that an op takes as equal are two symbols to its parts. Such an op stays whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import ShapeError
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import ALL_OPS, BatchNormalization, Case, Op
from smelt.passes import pipeline, run_passes
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Value
    from smelt.types import Dim

_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


def _graph(case: Case, *, alike: bool) -> Graph:
    """The case's node with a symbol for each extent, or one for all that are ``alike``."""
    graph = Graph("case")
    values: list[Value | None] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
        elif index in case.constants:
            values.append(graph.add_constant(array, f"x{index}"))
        else:
            names = [
                f"d{extent}" if alike else f"x{index}_{axis}"
                for axis, extent in enumerate(array.shape)
            ]
            shape: tuple[Dim, ...] = tuple(map(SymbolicDim.symbol, names))
            kind = TensorType(DType.from_numpy(array.dtype), shape)
            values.append(graph.add_input(f"x{index}", kind))
    graph.outputs += graph.add(case.op, *values, name="node").outputs
    return graph


def _graphs(op: type[Op]) -> Iterator[tuple[Case, Graph]]:
    for case in op.cases():
        for alike in (True, False):
            try:
                yield case, _graph(case, alike=alike)
            except ShapeError:
                continue


@_every_op
@pytest.mark.slow
def test_an_op_with_open_extents_comes_through_the_passes(op: type[Op]) -> None:
    for _, graph in _graphs(op):
        for precision in ("float32", "float16"):
            run_passes(graph, pipeline(precision))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_normalisation_whose_parts_do_not_fit_together_stays_whole(dtype: str) -> None:
    case = next(BatchNormalization.cases())
    inputs = [a.astype(dtype) if i == 0 else a for i, a in enumerate(case.inputs) if a is not None]
    graph = _graph(
        Case("open", case.op, tuple(inputs), constants=frozenset()), alike=dtype == "float64"
    )
    arrays = {f"x{i}": a for i, a in enumerate(inputs)}
    (wanted,) = interpret(graph, arrays).values()
    run_passes(graph, pipeline())
    assert [node.op for node in graph.nodes] == [case.op]
    (made,) = interpret(graph, arrays).values()
    assert np.array_equal(made, wanted)

"""Powers whose exponent is a constant: other ops take their place only where IEEE 754 agrees."""

from __future__ import annotations

import math

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.passes import Decompose
from smelt.types import DType, TensorType

_BASES = np.array([-math.inf, -2, -0.0, 0.0, 1e-30, 4, math.inf, math.nan], np.float32)


def _graph(exponent: float, *before: ops.Op) -> Graph:
    graph = Graph("power")
    value = graph.add_input("x", TensorType(DType.FLOAT32, (8,)))
    for number, op in enumerate(before):
        value = graph.add(op, value, name=f"v{number}").output
    power = graph.add_constant(np.array([exponent], np.float32), "exponent")
    graph.outputs.append(graph.add(ops.Pow(), value, power, name="y").output)
    return graph


@pytest.mark.parametrize("exponent", [0.5, -0.5, 2, 3, -1, 1, 0, 1.5])
def test_a_constant_exponent_gives_the_powers_of_ieee_754(exponent: float) -> None:
    wanted: list[float] = []
    for base in _BASES.astype(float):
        try:
            wanted.append(math.pow(base, exponent))
        except ValueError:  # how math.pow tells of what is no number, or of a division by zero
            odd = exponent % 2 == 1
            wanted.append(math.nan if base else math.copysign(math.inf, base if odd else 1))
    with smelt.build(_graph(exponent), tune="none") as engine:
        made = engine.run({"x": _BASES})["y"]
    expected = np.array(wanted).astype(np.float32)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(made)[numbers], np.signbit(expected)[numbers])


def test_a_root_is_taken_of_what_has_no_sign_and_of_nothing_else() -> None:
    for before, wanted in ((ops.Abs(), ops.Sqrt), (ops.Neg(), ops.Pow), (ops.Relu(), ops.Pow)):
        graph = _graph(0.5, before)
        Decompose().apply(graph)
        assert isinstance(graph.nodes[-1].op, wanted)


@pytest.mark.parametrize(
    ("low", "high", "is_root"),
    [(1.0, 2.0, True), (1.0, -math.inf, False), (1.0, -0.0, False), (-1.0, 1.0, False)],
)
def test_a_clip_whose_bounds_cross_has_no_sign_of_its_lower_bound(
    low: float, high: float, *, is_root: bool
) -> None:
    graph = Graph("clip")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (8,)))
    bounds = [
        graph.add_constant(np.array(v, np.float32), str(k)) for k, v in enumerate((low, high))
    ]
    clipped = graph.add(ops.Clip(), x, *bounds, name="clip").output
    power = graph.add_constant(np.array([0.5], np.float32), "exponent")
    graph.outputs.append(graph.add(ops.Pow(), clipped, power, name="y").output)
    Decompose().apply(graph)
    assert isinstance(graph.nodes[-1].op, ops.Sqrt if is_root else ops.Pow)

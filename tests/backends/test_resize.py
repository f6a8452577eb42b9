"""Resize on an engine: regions off the input or of no extent, and infinite elements."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

import smelt
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import Resize
from smelt.types import DType, TensorType


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("beyond", [0.0, -7.0])
@pytest.mark.parametrize(
    "region",
    [(0.5, 1.5), (nan, 1), (0, nan), (0, inf), (-inf, 1), (inf, inf), (3e38, -3e38), (1e20, 1e21)],
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_what_lies_outside_a_region_is_the_extrapolation_value(
    mode: str, beyond: float, region: tuple[float, float], *, is_constant: bool
) -> None:
    op = Resize(
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=beyond,
        axes=(1,),
    )
    graph = Graph()
    given = {"x": np.array([[inf, 2, 3], [4, 5, 6]], np.float32)}
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
    roi = np.array(region, np.float32)
    if is_constant:
        window = graph.add_constant(roi, "roi")
    else:
        window, given["roi"] = graph.add_input("roi", TensorType(DType.FLOAT32, (2,))), roi
    sizes = graph.add_constant(np.array([3]), "sizes")
    graph.outputs.append(graph.add(op, x, window, None, sizes, name="crop").output)
    (wanted,) = interpret(graph, given).values()
    assert (wanted == beyond).any() or region == (-inf, 1)
    with smelt.build(graph) as engine:
        (found,) = engine.run(given).values()
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)


@pytest.mark.parametrize(("mode", "antialias"), [("linear", 0), ("linear", 1), ("cubic", 0)])
@pytest.mark.parametrize("points", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("size", [(10, 7), (5, 12), (3, 3)])
def test_an_infinite_element_changes_no_element_that_it_has_no_part_in(
    mode: str, antialias: int, points: str, size: tuple[int, int]
) -> None:
    op = Resize(mode=mode, coordinate_transformation_mode=points, antialias=antialias)
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (5, 7)))
    sizes = graph.add_constant(np.array(size), "sizes")
    graph.outputs.append(graph.add(op, x, None, None, sizes, name="resize").output)
    data = np.linspace(1, 2, 35, dtype=np.float32).reshape(5, 7)
    data[1, 2], data[4, 0] = inf, -inf
    (wanted,) = interpret(graph, {"x": data}).values()
    with smelt.build(graph) as engine:
        (found,) = engine.run({"x": data}).values()
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)

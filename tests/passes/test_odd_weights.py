"""Weights that are not numbers, networks that are not small."""

from __future__ import annotations

import numpy as np

from smelt import ops
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.passes import DEFAULT_PIPELINE, run_passes
from smelt.types import DType, TensorType


def test_infinite_weights_and_nan_fold_into_what_they_would_compute() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 4)))
    weights = np.asarray([[np.inf, np.nan, 0, 1e38]] * 4, np.float32)
    scale = np.asarray([0, 1, -np.inf, 1e38], np.float32)
    product = graph.add(ops.MatMul(), x, graph.add_constant(weights, "w"), name="fc")
    scaled = graph.add(ops.Mul(), product.output, graph.add_constant(scale, "s"), name="scale")
    graph.outputs = [graph.add(ops.Tanh(), scaled.output, name="y").output]
    made = clone(graph)
    run_passes(made, DEFAULT_PIPELINE)
    inputs = {"x": np.ones((1, 4), np.float32)}
    with np.errstate(all="ignore"):
        expected, found = interpret(graph, inputs), interpret(made, inputs)
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_an_infinite_factor_is_not_folded_into_weights_and_a_bias_of_zero() -> None:
    """The product of the factor and the bias is not a number, and every output was NaN."""
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 1, 1, 4)))
    weights, bias = np.full((1, 1, 1, 1), 2, np.float32), np.zeros(1, np.float32)
    constants = [graph.add_constant(weights, "w"), graph.add_constant(bias, "b")]
    conv = graph.add(ops.Conv((1, 1)), x, *constants, name="conv")
    factor = graph.add_constant(np.array(np.inf, np.float32), "factor")
    graph.outputs = [graph.add(ops.Mul(), conv.output, factor, name="y").output]
    made = clone(graph)
    run_passes(made, DEFAULT_PIPELINE)
    inputs = {"x": np.array([[[[1, -1, 0, 2]]]], np.float32)}
    with np.errstate(all="ignore"):
        (y,) = interpret(made, inputs).values()
    np.testing.assert_array_equal(y.ravel(), [np.inf, -np.inf, np.nan, np.inf])


def test_a_deep_network_needs_no_deep_stack() -> None:
    graph = Graph()
    value = graph.add_input("x", TensorType(DType.FLOAT32, (2,)))
    one = np.ones(2, np.float32)
    for number in range(700):
        op = (ops.Relu(), ops.Mul(), ops.Add())[number % 3]
        extra = [] if number % 3 == 0 else [graph.add_constant(one * 1.25, f"c{number}")]
        value = graph.add(op, value, *extra, name=f"n{number}").output
    graph.outputs = [value]
    run_passes(graph, DEFAULT_PIPELINE)
    assert len(graph.nodes) < 70
    assert sum(len(node.layers) for node in graph.nodes) == 700


def test_nothing_but_the_output_may_be_left_of_a_network() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2,)))
    graph.outputs = [x, graph.add(ops.Identity(), x, name="y").output]
    run_passes(graph, DEFAULT_PIPELINE)
    assert [v.name for v in graph.outputs] == ["x", "y"]
    run_passes(Graph(), DEFAULT_PIPELINE)

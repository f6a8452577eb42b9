"""An activation is recognised by constants that spell its own, and by no others near them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smelt import ops
from smelt.ir import Graph
from smelt.passes import run_passes
from smelt.passes.recognize_activations import RecognizeActivations
from smelt.types import DType, TensorType

_ROOT, _SIXTH = math.sqrt(2), 1 / 6


def _recognised(graph: Graph) -> bool:
    run_passes(graph, [RecognizeActivations()])
    return len(graph.nodes) == 1


@pytest.mark.parametrize(
    ("dtype", "root", "half", "expected"),
    [
        (DType.FLOAT32, _ROOT, 0.5, True),
        (DType.FLOAT32, 1.41421354, 0.5, True),
        (DType.FLOAT32, 1.41421, 0.5, True),
        (DType.FLOAT32, 1.4142, 0.5, False),
        (DType.FLOAT32, 1.4143, 0.5, False),
        (DType.FLOAT32, _ROOT, 0.50002, False),
        (DType.FLOAT64, _ROOT, 0.5, True),
        (DType.FLOAT64, 1.41421354, 0.5, False),
        (DType.FLOAT16, 1.4143, 0.5, False),
    ],
)
def test_a_gelu_has_the_root_of_2(dtype: DType, root: float, half: float, expected: bool) -> None:
    graph = Graph("gelu")
    x = graph.add_input("x", TensorType(dtype, (4,)))
    c, one, factor = (
        graph.add_constant(np.array(number, dtype.numpy), name)
        for number, name in ((root, "c"), (1, "one"), (half, "half"))
    )
    divided = graph.add(ops.Div(), x, c, name="a").output
    gate = graph.add(ops.Erf(), divided, name="b").output
    sum_ = graph.add(ops.Add(), gate, one, name="d").output
    product = graph.add(ops.Mul(), x, sum_, name="e").output
    graph.outputs = [graph.add(ops.Mul(), product, factor, name="y").output]
    assert _recognised(graph) == expected


@pytest.mark.parametrize(
    ("dtype", "alpha", "beta", "expected"),
    [
        (DType.FLOAT32, 0.1666666716337204, 0.5, True),
        (DType.FLOAT32, 0.166667, 0.5, True),
        (DType.FLOAT32, 0.1667, 0.5, False),
        (DType.FLOAT32, 0.1666, 0.5, False),
        (DType.FLOAT32, _SIXTH, 0.50004, False),
        (DType.FLOAT64, _SIXTH, 0.5, True),
        (DType.FLOAT64, 0.1666666716337204, 0.5, False),
    ],
)
def test_a_hard_swish_has_a_sixth(dtype: DType, alpha: float, beta: float, expected: bool) -> None:
    graph = Graph("hard swish")
    x = graph.add_input("x", TensorType(dtype, (4,)))
    gate = graph.add(ops.HardSigmoid(alpha=alpha, beta=beta), x, name="a").output
    graph.outputs = [graph.add(ops.Mul(), x, gate, name="y").output]
    assert _recognised(graph) == expected

"""A name that a model gives to an extent is never that of an extent which a run determines."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import smelt

_NODES = {
    "If": "y = If(c) <then_branch = t () => (float[u] a) { a = Concat<axis=0>(x, x) },"
    " else_branch = e () => (float[v] b) { b = Identity(x) }>",
    "NonZero": "y = NonZero(x)",
    "Compress": "y = Compress<axis=0>(q, k)",
    "Loop": "y = Loop(m, c) <body = l (int64 i, bool d) => (bool e, float[w] s)"
    " { e = Identity(d) s = Identity(x) }>",
}


@pytest.mark.parametrize("name", ["y_count", "y_count_0_0", "y_count_2_0_0", "y_count_x", "n"])
@pytest.mark.parametrize("op", _NODES)
def test_an_extent_may_have_the_name_of_a_symbol_that_an_op_would_make(op: str, name: str) -> None:
    kind = "int64[o, p]" if op == "NonZero" else "float[o]" if op == "If" else "float[o, p]"
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (bool c, float[{name}] x,'
        f" float[3, {name}] q, bool[3] k, int64 m) => ({kind} y) {{ {_NODES[op]} }}"
    )
    model.graph.node[0].name = "y"
    x = np.array([1, 2, 3], np.float32)
    given = {"c": np.array(1, np.bool_), "x": x, "q": np.ones((3, 3), np.float32), "m": np.array(2)}
    given["k"] = np.array([True, False, True])
    expected = {
        "If": np.concatenate([x, x]),
        "NonZero": np.array([[0, 1, 2]]),
        "Compress": np.ones((2, 3), np.float32),
        "Loop": np.stack([x, x]),
    }[op]
    network = smelt.network_from_onnx(model.SerializeToString())
    shapes = {"x": ((1,), (3,), (9,)), "q": ((3, 1), (3, 3), (3, 9))}
    with smelt.build(network, tune="none", shapes=shapes) as engine:
        np.testing.assert_array_equal(engine.run(given)["y"], expected)

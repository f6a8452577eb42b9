"""Branches within branches and loops within loops cost what their file's size says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import smelt
from smelt import ops
from smelt.errors import GraphError, ModelFormatError
from smelt.interp import interpret
from smelt.ir import Graph, clone, print_graph, verify
from smelt.ops import op_from_json, op_to_json
from smelt.types import DType, Limit, TensorType
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto

MODEL_DEPTH = 28
"""protobuf itself reads no model that is much deeper."""
VECTOR = TensorType(DType.FLOAT32, (2,))


def _float(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def _branch(node: NodeProto, name: str) -> GraphProto:
    return helper.make_graph([node], name, [], [_float(node.output[0])])


def nested_branches(depth: int) -> ModelProto:
    """Negates x within ``depth`` branches; where c does not hold, x is made positive."""
    node = helper.make_node("Neg", ["x"], ["y0"], name="innermost")
    for level in range(1, depth + 1):
        other = helper.make_node("Abs", ["x"], [f"a{level}"], name=f"abs{level}")
        branches: dict[str, Any] = {
            "then_branch": _branch(node, f"then{level}"),
            "else_branch": _branch(other, f"else{level}"),
        }
        node = helper.make_node("If", ["c"], [f"y{level}"], name=f"if{level}", **branches)
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), _float("x")]
    return _model(node, inputs)


def nested_loops(depth: int) -> ModelProto:
    """Adds x to itself within ``depth`` loops of n trips."""
    node = helper.make_node("Add", ["s1", "x"], ["y0"], name="innermost")
    for level in range(1, depth + 1):
        inputs = [
            helper.make_tensor_value_info(f"i{level}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, []),
            _float(f"s{level}"),
        ]
        on = helper.make_node("Identity", [f"c{level}"], [f"on{level}"], name=f"on{level}")
        outputs = [
            helper.make_tensor_value_info(f"on{level}", TensorProto.BOOL, []),
            _float(node.output[0]),
        ]
        body = helper.make_graph([on, node], f"body{level}", inputs, outputs)
        state = f"s{level + 1}" if level < depth else "x"
        read = ["n", "", state]
        node = helper.make_node("Loop", read, [f"y{level}"], name=f"loop{level}", body=body)
    inputs = [helper.make_tensor_value_info("n", TensorProto.INT64, []), _float("x")]
    return _model(node, inputs)


def _model(node: NodeProto, inputs: list[Any]) -> ModelProto:
    graph = helper.make_graph([node], "nested", inputs, [_float(node.output[0])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([1, -2], np.float32)
MODELS: list[tuple[Callable[[int], ModelProto], dict[str, NDArray[Any]], NDArray[Any]]] = [
    (nested_branches, {"c": np.ones((), np.bool_), "x": X}, -X),
    (nested_loops, {"n": np.array(1), "x": X}, X + X),
]
KINDS = pytest.mark.parametrize(("make", "inputs", "expected"), MODELS, ids=["if", "loop"])


@KINDS
def test_a_deep_model_builds_loads_and_runs(
    make: Callable[[int], ModelProto], inputs: dict[str, NDArray[Any]], expected: NDArray[Any]
) -> None:
    network = smelt.network_from_onnx(make(MODEL_DEPTH).SerializeToString())
    graph = network.graph
    (found,) = interpret(graph, inputs).values()
    assert np.array_equal(found, expected)
    engine = smelt.load(smelt.build(network, tune="none").serialize())
    with engine.create_context() as context:
        (found,) = context.run(inputs).values()
    assert np.array_equal(found, expected)


@KINDS
def test_regions_are_inferred_a_number_of_times_that_grows_with_their_depth_alone(
    make: Callable[[int], ModelProto],
    inputs: dict[str, NDArray[Any]],
    expected: NDArray[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    infer = Graph.infer

    def counted(graph: Graph) -> None:
        counts[-1] += 1
        infer(graph)

    monkeypatch.setattr(Graph, "infer", counted)
    for depth in (4, 8):
        counts.append(0)
        engine = smelt.build(smelt.network_from_onnx(make(depth)), tune="none")
        with smelt.load(engine.serialize()).create_context() as context:
            (found,) = context.run(inputs).values()
        assert np.array_equal(found, expected)
    # Each level is inferred with those around it: the square of the depth, never a power of two.
    assert counts[1] < 5 * counts[0]


def _nested_graph(depth: int) -> Graph:
    """A graph of ``depth`` branches within each other."""
    inner = Graph("innermost")
    inner.add_input("c", TensorType(DType.BOOL, ()))
    x = inner.add_input("x", VECTOR)
    inner.outputs = [inner.add(ops.Neg(), x, name="neg").output]
    for level in range(depth):
        other = Graph(f"other{level}")
        other.add_input("c", TensorType(DType.BOOL, ()))
        x = other.add_input("x", VECTOR)
        other.outputs = [other.add(ops.Abs(), x, name="abs").output]
        graph = Graph(f"level{level}")
        flag = graph.add_input("c", TensorType(DType.BOOL, ()))
        x = graph.add_input("x", VECTOR)
        graph.outputs = [graph.add(ops.If(inner, other), flag, flag, x, name="if").output]
        inner = graph
    return inner


def test_a_graph_of_the_greatest_depth_is_verified_printed_written_and_run() -> None:
    graph = _nested_graph(Limit.MAX_REGION_DEPTH.most)
    verify(graph)
    text = print_graph(clone(graph))
    assert print_graph(parse_graph(text, {op.__name__: op for op in ops.ALL_OPS})) == text
    written = json.dumps(op_to_json(graph.nodes[0].op))
    assert json.dumps(op_to_json(op_from_json(json.loads(written)))) == written
    inputs = {"c": np.ones((), np.bool_), "x": X}
    (found,) = interpret(graph, inputs).values()
    assert np.array_equal(found, -X)


def test_a_deeper_graph_is_refused_by_the_limits_name() -> None:
    with pytest.raises(GraphError, match="MAX_REGION_DEPTH is 40"):
        verify(_nested_graph(Limit.MAX_REGION_DEPTH.most + 1))


def test_a_model_deeper_than_protobuf_reads_is_refused() -> None:
    data = _nested_bytes(200)
    with pytest.raises(ModelFormatError, match="not an ONNX model"):
        smelt.network_from_onnx(data)


def _nested_bytes(depth: int) -> bytes:
    """A model of 200 branches within each other, written by hand: protobuf would refuse to."""
    node = helper.make_node("Neg", ["x"], ["y"]).SerializeToString()
    for _ in range(depth):
        graph = _field(1, node)
        attribute = (
            _field(1, b"then_branch") + _field(6, graph) + bytes([20 << 3 & 127 | 128, 1, 5])
        )
        node = _field(1, b"c") + _field(2, b"y") + _field(4, b"If") + _field(5, attribute)
    return bytes([8, 8]) + _field(7, _field(1, node)) + _field(8, bytes([16, 17]))


def _field(number: int, content: bytes) -> bytes:
    length, rest = bytearray(), len(content)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([rest]) + content

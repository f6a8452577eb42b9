"""What an ONNX model becomes: names, symbols, constants, regions, functions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.errors import GraphError, UnsupportedError
from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from smelt.ir import Case, Op, Operand, verify
from smelt.ops import register_op
from smelt.types import override, symbols_of
from tests.importers.onnx.one_node import compare, float_info, node_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

    from smelt.ir import Array
    from smelt.types import ValueType


def _graph(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    weights: Sequence[TensorProto] = (),
) -> GraphProto:
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    return helper.make_graph(list(nodes), "part", list(inputs), results, list(weights))


def _model(graph: GraphProto, opset: int = 17, **fields: Any) -> ModelProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=opsets, **({"ir_version": 8} | fields))


def _rand(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def test_nodes_and_values_keep_the_models_names() -> None:
    nodes = [
        helper.make_node("Conv", ["picture", "conv.weight"], ["features"], name="conv"),
        helper.make_node("Relu", ["features"], ["positive"]),
        helper.make_node("Relu", ["positive"], ["again"], name="conv"),
    ]
    weight = numpy_helper.from_array(_rand(2, 3, 3, 3), "conv.weight")
    graph = import_onnx(
        _model(_graph(nodes, ["again"], [float_info("picture", ["N", 3, 8, 8])], [weight]))
    )
    assert [node.name for node in graph.nodes] == ["conv", "positive", "conv_2"]
    assert [node.output.name for node in graph.nodes] == ["features", "positive", "again"]
    assert [value.name for value in graph.inputs] == ["picture"]
    assert [constant.name for constant in graph.constants()] == ["conv.weight"]


def test_open_extents_become_symbols_with_readable_names() -> None:
    x = float_info("x", ["batch size", 3, None, "?"])
    y = float_info("y", ["batch size", "lambda", "2*n", "batch_size"])
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["y"], ["b"])]
    graph = import_onnx(_model(_graph(nodes, ["a", "b"], [x, y])))
    shapes = [[str(extent) for extent in value.tensor.shape] for value in graph.inputs]
    assert shapes == [
        ["batch_size", "3", "x_2", "x_3"],
        ["batch_size", "_lambda", "_2_n", "batch_size_2"],
    ]


def test_weights_that_are_inputs_too_are_no_inputs() -> None:
    x, w = float_info("x", [2, 3]), float_info("w", [3])
    graph_proto = _graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        ["y"],
        [x, w],
        [numpy_helper.from_array(_rand(3), "w")],
    )
    graph = import_onnx(_model(graph_proto, ir_version=3))
    assert [value.name for value in graph.inputs] == ["x"]


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        ("value", numpy_helper.from_array(np.array([1.5, 2], np.float32)), [1.5, 2]),
        ("value_float", 2.5, 2.5),
        ("value_floats", [1.0, 2.0], [1, 2]),
        ("value_int", 3, 3),
        ("value_ints", [3, 4], [3, 4]),
        (
            "sparse_value",
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([7, 9], np.float32)),
                numpy_helper.from_array(np.array([1, 3])),
                [5],
            ),
            [0, 7, 0, 9, 0],
        ),
    ],
)
def test_a_constant_may_have_any_form(form: str, value: Any, expected: Any) -> None:
    node = helper.make_node("Constant", [], ["c"], **{form: value})
    use = helper.make_node("Identity", ["c"], ["y"])
    graph = import_onnx(_model(_graph([node, use], ["y"])))
    (result,) = interpret(graph, {}).values()
    assert np.array_equal(result, np.array(expected, result.dtype))


def test_outputs_may_be_named_and_none_may_be_marked() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Abs", ["r"], ["y"])]
    model = _model(_graph(nodes, ["y"], [float_info("x", [2])]))
    assert [value.name for value in import_onnx(model).outputs] == ["y"]
    assert [value.name for value in import_onnx(model, outputs=["r"]).outputs] == ["r"]
    assert import_onnx(model, outputs=[]).outputs == []
    with pytest.raises(GraphError, match=r"no value 'rr'.*did you mean 'r'"):
        import_onnx(model, outputs=["rr"])


def test_nodes_in_any_order_are_sorted() -> None:
    nodes = [helper.make_node("Abs", ["r"], ["y"]), helper.make_node("Relu", ["x"], ["r"])]
    graph = import_onnx(_model(_graph(nodes, ["y"], [float_info("x", [2])])))
    assert [node.op.name for node in graph.nodes] == ["relu", "abs"]


def test_a_path_bytes_and_a_message_give_the_same_network(tmp_path: Path) -> None:
    model = node_model("Relu", 17, [_rand(2, 3)])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    sources: list[Any] = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), model]
    assert len({str([str(n.op) for n in import_onnx(source).nodes]) for source in sources}) == 1


def test_shapes_that_follow_from_shapes_are_followed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "first"], ["v"]),
        helper.make_node("Concat", ["v", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(np.array([0]), "first"),
        numpy_helper.from_array(np.array([-1]), "rest"),
    ]
    model = _model(_graph(nodes, ["y"], [float_info("x", ["N", 3, 4])], weights))
    assert [str(d) for d in import_onnx(model).outputs[0].tensor.shape] == ["N", "12"]
    compare(model, {"x": _rand(5, 3, 4)})


def test_scales_computed_from_fixed_extents_are_seen() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["want", "f"], ["scales"]),
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear"),
    ]
    want = numpy_helper.from_array(np.array([1, 2, 8, 9], np.float32), "want")
    model = _model(_graph(nodes, ["y"], [float_info("x", [1, 2, 4, 6])], [want]))
    assert import_onnx(model).outputs[0].tensor.shape == (1, 2, 8, 9)
    compare(model, {"x": _rand(1, 2, 4, 6)})


def test_branches_capture_what_they_read_and_share_weights() -> None:
    then = _graph([helper.make_node("Mul", ["h", "w"], ["t"])], ["t"])
    other = _graph(
        [helper.make_node("Sub", ["h", "x"], ["u"]), helper.make_node("Add", ["u", "w"], ["e"])],
        ["e"],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other),
    ]
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    weight = numpy_helper.from_array(_rand(3), "w")
    model = _model(_graph(nodes, ["y"], [float_info("x", [2, 3]), flag], [weight]))
    graph = import_onnx(model)
    verify(graph)
    node = graph.nodes[-1]
    assert [value.name for value in node.inputs if value] == ["c", "h", "x"]
    assert [[v.name for v in region.inputs] for region in node.op.regions] == [["h", "x"]] * 2
    for condition in (True, False):
        compare(model, {"x": _rand(2, 3), "c": np.array(condition)})


def test_a_constant_condition_leaves_only_its_branch() -> None:
    then = _graph([helper.make_node("Relu", ["x"], ["t"])], ["t"])
    other = _graph([helper.make_node("Unheard", ["x"], ["e"])], ["e"])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    flag = numpy_helper.from_array(np.array([True]).reshape(()), "c")
    graph = import_onnx(_model(_graph([node], ["y"], [float_info("x", [2])], [flag])))
    assert [item.op.name for item in graph.nodes] == ["relu"]


@pytest.mark.parametrize("trips", [0, 4])
def test_a_loop_carries_states_and_stacks_results(trips: int) -> None:
    body = _graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["a", "step"], ["b"]),
            helper.make_node("Mul", ["b", "b"], ["square"]),
        ],
        ["on", "b", "square"],
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            float_info("a", [3]),
        ],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)
    weights = [
        numpy_helper.from_array(np.array(trips), "n"),
        numpy_helper.from_array(_rand(3), "step"),
    ]
    body.output[0].CopyFrom(helper.make_tensor_value_info("on", TensorProto.BOOL, []))
    body.output[1].CopyFrom(float_info("b", [3]))
    body.output[2].CopyFrom(float_info("square", [3]))
    model = _model(_graph([node], ["last", "all"], [float_info("x", [3])], weights))
    graph = import_onnx(model)
    verify(graph)
    assert graph.outputs[1].tensor.shape == (trips, 3)
    compare(model, {"x": _rand(3)})


def test_functions_of_the_model_are_expanded_with_their_attributes() -> None:
    inner = helper.make_node("Elu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="steepness", type=onnx.AttributeProto.FLOAT)
    body = [inner, helper.make_node("Add", ["b", "c"], ["d"])]
    function = helper.make_function(
        "my", "Bend", ["a", "c"], ["d"], body, [helper.make_opsetid("", 17)], ["steepness"]
    )
    node = helper.make_node("Bend", ["x", "w"], ["y"], name="bend", domain="my", steepness=0.3)
    weight = numpy_helper.from_array(_rand(3), "w")
    model = _model(_graph([node], ["y"], [float_info("x", [2, 3])], [weight]), functions=[function])
    graph = import_onnx(model)
    assert [item.layers for item in graph.nodes] == [("bend",), ("bend",)]
    assert graph.outputs[0].name == "y"
    compare(model, {"x": _rand(2, 3)})


@dataclass(frozen=True)
class Multiplied(Op):
    """The input, so many times."""

    name: ClassVar[str] = "my.Multiplied"

    times: int = 2

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return tuple(operand.type for operand in inputs if operand is not None)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(array * self.times for array in inputs if array is not None)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("numbers", cls(), (np.arange(3),))


def test_a_registered_op_of_another_domain_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smelt.ops._registry._registered", {})
    node = helper.make_node("Multiplied", ["x"], ["y"], domain="my", times=3)
    model = _model(_graph([node], ["y"], [float_info("x", [2])]))
    with pytest.raises(UnsupportedError, match=r"register an op named 'my\.Multiplied'"):
        import_onnx(model)
    register_op(Multiplied)
    (result,) = interpret(import_onnx(model), {"x": np.array([1, 2], np.float32)}).values()
    assert np.array_equal(result, np.array([3, 6], np.float32))


def test_the_number_of_boxes_that_stay_has_a_declared_maximum() -> None:
    boxes, scores = abs(_rand(1, 9, 4)), abs(_rand(1, 2, 9))
    most = np.array([3])
    model = node_model("NonMaxSuppression", 11, [boxes, scores, most], weights=[2])
    graph = import_onnx(model)
    verify(graph)
    (name,) = symbols_of(*graph.outputs[0].tensor.shape)
    assert graph.symbol_bounds == {name: 6}
    compare(model, {"x0": boxes, "x1": scores})


def test_importing_the_room_loads_no_onnx() -> None:
    code = "import sys, smelt.importers.onnx, smelt.network; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_network_from_onnx_has_an_explicit_batch() -> None:
    network = smelt.network_from_onnx(node_model("Relu", 17, [_rand(2, 3)]))
    assert network.batch == "explicit"
    assert [(t.name, t.dtype, t.shape) for t in network.inputs] == [("x0", "float32", (2, 3))]
    assert [(t.name, t.dtype, t.shape) for t in network.outputs] == [("y0", "float32", (2, 3))]
    assert [layer.name for layer in network.layers] == ["the node"]

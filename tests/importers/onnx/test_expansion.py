"""What a small model may become: functions that call functions, sparse tensors, long names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import AttributeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from smelt.errors import ModelFormatError
from smelt.importers.onnx import import_onnx
from smelt.types import Limit
from tests.importers.onnx.one_node import float_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import FunctionProto, ModelProto, NodeProto

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]


def _model(nodes: Sequence[NodeProto], functions: Sequence[FunctionProto] = ()) -> ModelProto:
    graph = helper.make_graph(
        list(nodes), "small", [float_info("x", [2])], [float_info(nodes[-1].output[0], [2])]
    )
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions), ir_version=8)


def _function(name: str, nodes: Sequence[NodeProto], result: str) -> FunctionProto:
    return helper.make_function("my", name, ["a"], [result], list(nodes), OPSETS)


def _calls(name: str, callee: str, count: int) -> FunctionProto:
    """A function that calls another so often, one call behind the other."""
    names = ["a", *(f"t{i}" for i in range(count))]
    nodes = [
        helper.make_node(callee, [names[i]], [names[i + 1]], domain="my") for i in range(count)
    ]
    return _function(name, nodes, names[-1])


def _call(name: str) -> NodeProto:
    return helper.make_node(name, ["x"], ["y"], domain="my")


def test_functions_that_call_each_other_in_a_circle_are_refused_by_name() -> None:
    functions = [_calls("A", "B", 2), _calls("B", "C", 2), _calls("C", "A", 2)]
    with pytest.raises(ModelFormatError, match=r"MAX_REGION_DEPTH is 40.*call itself"):
        import_onnx(_model([_call("A")], functions))


@pytest.mark.parametrize("innermost", ["Neg", None])
def test_functions_that_double_at_every_level_are_refused_by_name(
    innermost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_EXPANDED_NODES, "most", 1000)
    nodes = [] if innermost is None else [helper.make_node(innermost, ["a"], ["b"])]
    functions = [_function("F0", nodes, "b" if nodes else "a")]
    functions += [_calls(f"F{i}", f"F{i - 1}", 2) for i in range(1, 39)]
    with pytest.raises(
        ModelFormatError, match="1,001 nodes; the limit MAX_EXPANDED_NODES is 1,000"
    ):
        import_onnx(_model([_call("F38")], functions))


def test_a_weight_in_a_function_counts_each_time_that_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limit.MAX_EXPANDED_BYTES, "most", 1 << 20)
    weight = numpy_helper.from_array(np.zeros(1 << 14, np.float32))
    constant = helper.make_node("Constant", [], ["w"], value=weight)
    functions = [_function("F", [constant, helper.make_node("Neg", ["a"], ["b"])], "b")]
    functions.append(_calls("G", "F", 17))
    with pytest.raises(ModelFormatError, match="MAX_EXPANDED_BYTES is 1,048,576"):
        import_onnx(_model([_call("G")], functions))


def test_an_attribute_that_is_referred_to_counts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limit.MAX_EXPANDED_BYTES, "most", 1 << 20)
    nodes: list[NodeProto] = []
    for index in range(17):
        node = helper.make_node("Constant", [], [f"w{index}"])
        attribute = node.attribute.add()
        attribute.name, attribute.ref_attr_name = "value", "weight"
        attribute.type = AttributeProto.TENSOR
        nodes.append(node)
    nodes.append(helper.make_node("Neg", ["a"], ["b"]))
    function = helper.make_function("my", "F", ["a"], ["b"], nodes, OPSETS, ["weight"])
    weight = numpy_helper.from_array(np.zeros(1 << 14, np.float32))
    call = helper.make_node("F", ["x"], ["y"], domain="my", weight=weight)
    with pytest.raises(ModelFormatError, match="MAX_EXPANDED_BYTES is 1,048,576"):
        import_onnx(_model([call], [function]))


def test_sparse_tensors_that_together_spread_out_to_too_much_are_refused_by_name() -> None:
    model = _model([helper.make_node("Neg", ["x"], ["y"])])
    for index in range(2):
        values = helper.make_tensor(f"w{index}", TensorProto.FLOAT, [1], [1.0])
        indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
        sparse = SparseTensorProto(values=values, indices=indices, dims=[(1 << 26) + 1])
        model.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelFormatError, match="MAX_EXPANDED_BYTES is 1,073,741,824"):
        import_onnx(model)


def test_names_that_functions_put_before_names_stay_short() -> None:
    functions = [_function("F0", [helper.make_node("Neg", ["a"], ["b"])], "b")]
    functions += [_calls(f"F{i}", f"F{i - 1}", 2) for i in range(1, 7)]
    call = helper.make_node("F6", ["x"], ["y"], name="n" * 8000, domain="my")
    graph = import_onnx(_model([call], functions))
    assert len(graph.nodes) == 64
    assert sum(len(node.name) + len(node.output.name) for node in graph.nodes) < 64 * 4000
    assert graph.outputs[0].name == "y"


def test_many_nodes_of_one_name_are_numbered() -> None:
    nodes = [
        helper.make_node("Neg", ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], name="same")
        for i in range(2000)
    ]
    graph = import_onnx(_model(nodes))
    assert [node.name for node in graph.nodes[:3]] == ["same", "same_2", "same_3"]
    assert graph.nodes[-1].name == "same_2000"


def test_a_name_of_a_megabyte_is_refused_in_a_short_message() -> None:
    model = _model([helper.make_node("Neg", ["x"], ["y"], name="n" * (1 << 20))])
    with pytest.raises(ModelFormatError, match="MAX_NAME_CHARACTERS is 8,192") as caught:
        import_onnx(model)
    assert len(str(caught.value)) < 300


def test_the_initialisers_of_all_graphs_are_counted_before_they_become_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _model([helper.make_node("Add", ["w0", "w1"], ["y"])])
    weights = [numpy_helper.from_array(np.zeros(2, np.float32), f"w{n}") for n in range(6)]
    model.graph.initializer.extend(weights)
    import_onnx(model)
    monkeypatch.setattr(Limit.MAX_IMPORTED_WEIGHTS, "most", 5)
    with pytest.raises(ModelFormatError, match="6 initialisers; the limit MAX_IMPORTED_WEIGHTS"):
        import_onnx(model)


@pytest.mark.parametrize("kind", ["unknown", "behind an unknown one", "in a region of one"])
def test_nodes_that_are_not_supported_are_counted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes are a node, and 60 us pass until its refusal is known."""
    nodes = [helper.make_node("Nope", ["x"], [f"y{n}"]) for n in range(11)]
    if kind == "behind an unknown one":
        nodes[1:] = [helper.make_node("Relu", ["y0"], [f"y{n}"]) for n in range(1, 11)]
    if kind == "in a region of one":
        relus = [helper.make_node("Relu", ["x"], [f"z{n}"]) for n in range(10)]
        region = helper.make_graph(relus, "region", [], [])
        nodes[:] = [helper.make_node("Nope", ["x"], ["y0"], body=region)]
    monkeypatch.setattr(Limit.MAX_IMPORTED_NODES, "most", 10)
    with pytest.raises(ModelFormatError, match="11 nodes; the limit MAX_IMPORTED_NODES is 10"):
        import_onnx(_model(nodes))

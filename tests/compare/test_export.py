"""Graphs written as ONNX, and read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.compare import model_from_graph
from smelt.errors import UnsupportedError
from smelt.importers import network_from_onnx
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import ALL_OPS, Fused, Normalize, Relu
from smelt.passes import pipeline, run_passes
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.small_models import check_model, inception_model

if TYPE_CHECKING:
    from smelt.ir import Array, Case, Value

ABSENT = {"Crop", "DetectionOutput", "Normalize", "PriorBox", "RoundMantissa"}
"""What ONNX has no op for."""
REGIONS = {"If", "Loop"}


def _graph_of(case: Case) -> tuple[Graph, dict[str, Array]]:
    graph, inputs = Graph("case"), dict[str, "Array"]()
    values: list[Value | None] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
        elif index in case.constants:
            values.append(graph.add_constant(array, f"w{index}"))
        else:
            inputs[f"x{index}"] = array
            kind = TensorType(DType.from_numpy(array.dtype), array.shape)
            values.append(graph.add_input(f"x{index}", kind))
    node = graph.add(case.op, *values, name="node")
    graph.outputs = list(node.outputs)
    return graph, inputs


def _cases() -> list[tuple[str, Case]]:
    names = [c for c in ALL_OPS if c.__name__ not in ABSENT | REGIONS]
    return [(op.__name__, case) for op in names for case in op.cases()]


def test_every_case_of_every_op_that_onnx_has_means_the_same_when_it_is_read_again() -> None:
    checked: set[str] = set()
    for name, case in _cases():
        graph, inputs = _graph_of(case)
        try:
            model = model_from_graph(graph)
        except UnsupportedError:
            continue  # an attribute that ONNX does not have; each op has cases without
        check_model(model)
        again = network_from_onnx(model).graph
        wanted = interpret(graph, inputs)
        got = interpret(again, inputs)
        for key, array in wanted.items():
            # Attention is expanded: what is half inside is rounded more often.
            atol = 4e-3 if name == "Attention" and array.dtype == np.float16 else 1e-6
            np.testing.assert_allclose(got[key], array, 1e-5, atol, err_msg=f"{name} {case.name}")
        checked.add(name)
    assert checked >= {op.__name__ for op in ALL_OPS} - ABSENT - REGIONS


def test_a_fused_graph_is_written_as_the_ops_that_it_was_fused_from() -> None:
    graph = network_from_onnx(inception_model()).graph
    run_passes(graph, pipeline())
    assert any(isinstance(node.op, Fused) for node in graph.nodes)
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    model = model_from_graph(graph)
    assert model.opset_import[0].version == 21  # what says all of it; others read no newer one
    again = network_from_onnx(model).graph
    np.testing.assert_allclose(
        interpret(again, {"image": image})["prob"],
        interpret(graph, {"image": image})["prob"],
        atol=1e-6,
    )


def test_every_node_that_onnx_cannot_hold_is_named_at_once() -> None:
    graph = Graph("odd")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 4, 2, 2)))
    scale = graph.add_constant(np.ones(1, np.float32), "scale")
    first = graph.add(Normalize(), x, scale, name="first")
    second = graph.add(Normalize(), first.output, scale, name="second")
    graph.outputs = [second.output]
    with pytest.raises(UnsupportedError) as caught:
        model_from_graph(graph)
    assert len(caught.value.reasons) == 2
    assert "'first'" in caught.value.reasons[0]


def test_symbols_and_values_of_one_name_stay_apart() -> None:
    graph = Graph("names")
    x = graph.add_input("y", TensorType(DType.FLOAT32, (SymbolicDim.symbol("n"), 2)))
    node = graph.add(Relu(), x, name="y")
    graph.outputs = [node.output]
    model = model_from_graph(graph)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    assert model.graph.input[0].name != model.graph.output[0].name

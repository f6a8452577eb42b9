"""What is known while a model is read rests on guards that the graph keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.builder._build import specialise
from smelt.errors import ShapeError
from smelt.importers.onnx import import_onnx
from smelt.interp import interpret

if TYPE_CHECKING:
    from smelt.ir import Array

MESSAGE = r"concat 'Concat': axis 0 of inputs 0 and 1: 5( \(n\))? must equal 4"


def _model() -> bytes:
    """Expands y to the columns of x beside w, of which there are eight, as is known early."""
    column = numpy_helper.from_array(np.array([1], np.int64), "column")
    nodes = [
        helper.make_node("Concat", ["x", "w"], ["joined"], "Concat", axis=1),
        helper.make_node("Shape", ["joined"], ["shape"], "Shape"),
        helper.make_node("Gather", ["shape", "column"], ["columns"], "Gather"),
        helper.make_node("Expand", ["y", "columns"], ["z"], "Expand"),
    ]
    shapes: dict[str, list[int | str]] = {"x": ["n", 4], "w": ["m", 4], "y": [1]}
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "read early", inputs, [z], [column])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def _feeds(n: int, m: int) -> dict[str, Array]:
    return {
        name: np.ones(shape, np.float32)
        for name, shape in {"x": (n, 4), "w": (m, 4), "y": (1,)}.items()
    }


def test_what_the_reader_took_for_known_is_checked_by_the_interpreter() -> None:
    graph = import_onnx(_model())
    assert interpret(graph, _feeds(4, 4))["z"].shape == (8,)
    with pytest.raises(ShapeError, match=MESSAGE):
        interpret(graph, _feeds(5, 4))


def test_it_is_checked_where_symbols_get_values() -> None:
    graph = import_onnx(_model())
    specialise(graph, {"m": 4})
    assert graph.guards
    with pytest.raises(ShapeError, match=MESSAGE):
        specialise(graph, {"n": 5})


def test_an_engine_checks_it_before_it_runs() -> None:
    shapes = {"x": ((1, 4), (4, 4), (9, 4)), "w": ((1, 4), (4, 4), (9, 4))}
    engine = smelt.build(smelt.network_from_onnx(_model()), device="cpu", shapes=shapes)
    with engine.create_context() as context:
        assert context.run(_feeds(4, 4))["z"].shape == (8,)
        with pytest.raises(ShapeError, match=MESSAGE):
            context.run(_feeds(5, 4))

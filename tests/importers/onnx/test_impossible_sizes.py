"""Tensors that no machine can hold, and shapes that wrap around, are refused by name and size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.builder import build
from smelt.errors import GraphError, ShapeError
from smelt.importers.onnx import import_onnx

if TYPE_CHECKING:
    import onnx


MOST = 2**63 - 1
WRAPS = r"'wraps': an element of the result is .*, which does not fit into int64"
HUGE = r"'huge': .* does not fit into memory: [\d,]+ bytes; the limit MAX_TENSOR_BYTES is"


def model(extent: int | str, *steps: tuple[str, str, list[int | float]]) -> onnx.ModelProto:
    """Each step, of an op and a name, takes the last one's result and a constant, ``x`` first."""
    nodes = [helper.make_node("Shape", ["x"], ["shape of x"])]
    weights: list[onnx.TensorProto] = []
    last = "x"
    for op, name, elements in steps:
        dtype = np.int64 if all(isinstance(e, int) for e in elements) else np.float32
        weights.append(numpy_helper.from_array(np.array(elements, dtype), f"{name} by"))
        given = {
            "ConstantOfShape": [last if last != "x" else f"{name} by"],
            "Mul": ["shape of x" if last == "x" else last, f"{name} by"],
            "Range": [f"{name} from", f"{name} to", f"{name} step"],
            "Resize": [last, "", "", f"{name} by"],
        }.get(op, [last, f"{name} by"])
        if op == "Range":
            for role, element in zip(("from", "to", "step"), elements, strict=True):
                weights.append(numpy_helper.from_array(np.array(element), f"{name} {role}"))
        nodes.append(helper.make_node(op, given, [f"{name} made"], name))
        last = f"{name} made"
    graph = helper.make_graph(
        nodes,
        "impossible",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [extent])],
        [helper.make_empty_tensor_value_info(last)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (model(1, ("Expand", "huge", [MOST])), HUGE),
        (model(1, ("Expand", "huge", [2**40, 2**40])), HUGE),
        (model(1, ("ConstantOfShape", "huge", [2**40, 2**40])), HUGE),
        (model(4, ("Tile", "huge", [2**62])), HUGE),
        (model(1, ("Pad", "huge", [MOST, MOST])), HUGE),
        (model(1, ("Range", "huge", [-(2**63), MOST, 1])), HUGE),
        (model(1, ("Resize", "huge", [MOST])), HUGE),
        (model(0, ("Reshape", "huge", [0, MOST, MOST])), HUGE),
        (
            model(
                "n", ("Mul", "many", [2**62]), ("Mul", "wraps", [4]), ("ConstantOfShape", "y", [])
            ),
            WRAPS,
        ),
    ],
)
def test_a_tensor_that_no_machine_can_hold_is_refused_at_import(
    given: onnx.ModelProto, words: str
) -> None:
    with pytest.raises(ShapeError, match=words):
        import_onnx(given)


def test_elements_of_int64_wrap_around_as_at_run_time() -> None:
    """4 * 2**62 is 0 in int64, in ONNX Runtime as well."""
    graph = import_onnx(model(4, ("Mul", "wraps", [2**62]), ("ConstantOfShape", "empty", [])))
    engine = build(graph, tune="none")
    assert [output.shape for output in engine.outputs] == [(0,)]


@pytest.mark.parametrize("shapes", [(2,), ((1,), (2,), (4,))])
def test_a_tensor_that_no_machine_can_hold_is_refused_when_its_symbols_are_known(
    shapes: tuple[int] | tuple[tuple[int], ...],
) -> None:
    graph = import_onnx(model("n", ("Mul", "by", [2**50]), ("ConstantOfShape", "huge", [])))
    with pytest.raises(ShapeError, match=HUGE):
        build(graph, shapes={"x": shapes})


def test_outputs_without_end_are_refused_before_the_nodes_are_read() -> None:
    """Each output was looked for among all others."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    outputs = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [1]) for n in range(5000)]
    nodes = [helper.make_node("Relu", ["x"], [f"y{n}"]) for n in range(5000)]
    graph = helper.make_graph(nodes, "many", [value], outputs)
    with pytest.raises(
        GraphError, match="has 5,000 inputs or outputs; the limit MAX_BINDINGS is 4,096"
    ):
        import_onnx(helper.make_model(graph).SerializeToString())

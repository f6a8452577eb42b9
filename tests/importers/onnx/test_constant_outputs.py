"""A constant may be an output, whatever else reads it, and keeps the name for refits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt import ops
from smelt.builder import _build
from smelt.builder._placement import Placement
from smelt.compare import compare
from smelt.compare._delta_debugging import reduce_graph
from smelt.compare._onnx_export import model_from_graph
from smelt.devices import DEVICE_KINDS
from smelt.inspect import report_of, report_to_text
from smelt.interp import interpret
from tests.importers.onnx.one_node import run_onnxruntime
from tests.support import serial_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import onnx

    from smelt import Engine
    from smelt.ir import Array, Graph

pytestmark = pytest.mark.filterwarnings("ignore")

_C = np.array([1, 2, 3], np.float32)
_X = np.array([1, -1, 2], np.float32)
_YES = np.ones((), np.bool_)
_OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
_Node: Callable[..., Any] = helper.make_node


def _graph(name: str, nodes: Sequence[Any], outputs: str, inputs: Sequence[Any] = ()) -> Any:
    infos = [helper.make_empty_tensor_value_info(output) for output in outputs.split()]
    return helper.make_graph(nodes, name, inputs, infos)


def _model(
    nodes: Sequence[Any],
    outputs: str,
    functions: Sequence[Any] = (),
    c: Array | None = _C,
    extent: int | str = 3,
) -> onnx.ModelProto:
    """A model with the input x and, unless it is None, the initializer c."""
    graph = _graph(
        "g", nodes, outputs, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [extent])]
    )
    if c is not None:
        graph.initializer.append(numpy_helper.from_array(c, "c"))
    graph.initializer.append(numpy_helper.from_array(np.array([3, 1]), "column"))
    graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))
    graph.initializer.append(numpy_helper.from_array(_YES, "yes"))
    return helper.make_model(graph, opset_imports=_OPSETS, ir_version=10, functions=functions)


def _function(name: str, inputs: str, outputs: str, nodes: Sequence[Any]) -> Any:
    return helper.make_function("d", name, inputs.split(), outputs.split(), nodes, _OPSETS)


def _constant(name: str) -> Any:
    return _Node("Constant", [], [name], value=numpy_helper.from_array(_C))


def _loop_body() -> Any:
    """A body that replaces its state by an outer constant, and scans it."""
    info = helper.make_tensor_value_info
    return _graph(
        "body",
        [
            _Node("Identity", ["more"], ["more_out"]),
            _Node("Identity", ["c"], ["state_out"]),
            _Node("Identity", ["c"], ["scan"]),
        ],
        "more_out state_out scan",
        [
            info("i", TensorProto.INT64, []),
            info("more", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, [3]),
        ],
    )


_RELU = _Node("Relu", ["x"], ["y"])
_ADD_C = _Node("Add", ["x", "c"], ["y"])
_ADD_K = _Node("Add", ["x", "k"], ["y"])
_THEN = _graph("then", [_Node("Identity", ["c"], ["a"])], "a")
_ELSE = _graph("else", [_Node("Neg", ["c"], ["b"])], "b")
_FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "an initializer": lambda: _model([_RELU], "c y"),
    "a Constant": lambda: _model([_RELU, _constant("k")], "k y"),
    "an Identity": lambda: _model([_RELU, _Node("Identity", ["c"], ["k"])], "k y"),
    "a large Identity": lambda: _model(
        [_RELU, _Node("Identity", ["c"], ["k"]), _Node("Neg", ["k"], ["z"])],
        "k y c z", c=np.arange(5000, dtype=np.float32),
    ),
    "a folded Relu": lambda: _model([_RELU, _Node("Relu", ["c"], ["k"])], "k y"),
    "two Identities": lambda: _model(
        [_RELU, _Node("Identity", ["c"], ["k"]), _Node("Identity", ["c"], ["k2"])], "k y k2"
    ),
    "it and its Identity": lambda: _model([_RELU, _Node("Identity", ["c"], ["k"])], "c k y"),
    "read": lambda: _model([_ADD_C], "y c"),
    "read twice": lambda: _model([_ADD_C, _Node("Mul", ["y", "c"], ["z"])], "z c"),
    "read Constant": lambda: _model([_constant("k"), _ADD_K], "y k"),
    "read sum": lambda: _model([_Node("Add", ["c", "c"], ["k"]), _ADD_K], "y k"),
    "read Identity": lambda: _model([_Node("Identity", ["c"], ["k"]), _ADD_K], "y k"),
    "Identity of what is read": lambda: _model([_Node("Identity", ["c"], ["k"]), _ADD_C], "y k"),
    "Reshape of what is read": lambda: _model(
        [_Node("Reshape", ["c", "column"], ["k"]), _ADD_C], "y k c"
    ),
    "a Shape": lambda: _model([_Node("Shape", ["x"], ["k"]), _RELU], "k y"),
    "a read Shape": lambda: _model(
        [_Node("Shape", ["x"], ["k"]), _Node("Expand", ["c", "k"], ["y"])], "k y c"
    ),
    "a Loop's first state": lambda: _model(
        [_Node("Loop", ["two", "", "c"], ["s", "t"], body=_loop_body()), _RELU], "s t c y"
    ),
    "a function's result": lambda: _model(
        [_Node("F", ["x"], ["q", "k"], domain="d"), _Node("Add", ["q", "k"], ["y"])],
        "y k",
        [_function("F", "a", "o w", [_constant("w"), _Node("Mul", ["a", "w"], ["o"])])],
    ),
    "what a taken branch returns": lambda: _model(
        [_Node("If", ["yes"], ["k"], then_branch=_THEN, else_branch=_ELSE), _ADD_K], "k y c"
    ),
    "what a branch returns": lambda: _model(
        [_Node("ReduceMax", ["x"], ["m"], keepdims=0), _Node("Cast", ["m"], ["p"], to=9),
         _Node("If", ["p"], ["k"], then_branch=_THEN, else_branch=_ELSE), _ADD_K], "k y c"
    ),
}  # fmt: skip


def _run(engine: Engine, x: Array = _X) -> dict[str, Array]:
    with engine.create_context(threads=1) as context:
        return {name: np.asarray(array) for name, array in context.run({"x": x}).items()}


def _same(actual: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert list(actual) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize(
    "options", [{}, {"precision": "float16"}, {"precision": "bfloat16"}], ids=str
)
@pytest.mark.slow
def test_engine_with_a_constant_output_is_saved_loaded_and_retuned(
    form: str, options: dict[str, Any]
) -> None:
    engine = smelt.build(
        smelt.network_from_onnx(_FORMS[form]()), tune="none", retunable=True, **options
    )
    wanted = _run(engine)
    for sign in (True, False):
        data = engine.serialize(sign=sign)
        _same(_run(smelt.load(data)), wanted)
        retuned = smelt.retune(data, tune="none")
        _same(_run(retuned), wanted)
        _same(_run(smelt.load(retuned.serialize(sign=False))), wanted)


@pytest.mark.parametrize("form", _FORMS)
def test_constant_output_is_what_onnxruntime_returns(form: str) -> None:
    pytest.importorskip("onnxruntime")
    model = _FORMS[form]()
    names = [output.name for output in model.graph.output]
    expected = dict(zip(names, run_onnxruntime(model, {"x": _X}), strict=True))
    network = smelt.network_from_onnx(model)
    _same(interpret(network.graph, {"x": _X}), expected)
    _same(interpret(network.graph, {"x": _X}, outputs=names), expected)
    _same(_run(smelt.build(network, tune="none")), expected)


@pytest.mark.parametrize("form", [form for form in _FORMS if "Loop" not in form])
def test_comparison_covers_constant_outputs(form: str, tmp_path: Path) -> None:
    model = _FORMS[form]()
    x = {"x": _X}
    recorded = tmp_path / "recorded.npz"
    arrays: dict[str, Any] = dict(interpret(smelt.network_from_onnx(model).graph, x))
    np.savez(recorded, **arrays)
    assert compare(model, str(recorded), x, tune="none").passed
    found = compare(model, "reference", x, layers=True, tune="none")
    assert found.passed
    assert {output.name for output in found.outputs} == {o.name for o in model.graph.output}
    if " branch" not in form:
        pytest.importorskip("onnxruntime")
        assert compare(smelt.network_from_onnx(model), "onnxruntime", x, tune="none").passed
        assert compare(model, "onnxruntime", x, layers=True, tune="none").passed


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize("form", ["read", "read twice", "Identity of what is read"])
def test_refit_by_name_changes_a_constant_and_its_output(form: str, sign: bool) -> None:
    engine = smelt.build(smelt.network_from_onnx(_FORMS[form]()), tune="none", retunable=True)
    new = np.array([5, 6, 7], np.float32)
    wanted = {"read": _X + new, "read twice": (_X + new) * new}.get(form, _X + new)
    retuned = smelt.retune(engine.serialize(sign=sign), tune="none")
    for data in (engine.serialize(sign=sign), retuned.serialize(sign=sign)):
        loaded = smelt.load(data)
        assert [array.name for array in loaded.header.given] == ["c"]
        loaded.refit({"c": new})
        first, output = _run(loaded).values()
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(output, new)


@pytest.mark.parametrize(
    "functions",
    [
        [
            _function("F", "a", "a", []),
            _function("G", "b", "o", [_Node("F", ["b"], ["o"], domain="d")]),
        ],
        [
            _function("G", "b", "o", [
                _Node("Constant", [], ["t"], value=numpy_helper.from_array(_YES)),
                _Node(
                    "If", ["t"], ["o"],
                    then_branch=_graph("then", [], "b"),
                    else_branch=_graph("else", [_Node("Neg", ["b"], ["n"])], "n"),
                ),
            ]),
        ],
    ],
    ids=["a call", "a branch"],
)  # fmt: skip
def test_constant_that_a_function_passes_on_is_refitted_by_its_own_name(
    functions: Sequence[Any],
) -> None:
    model = _model([_Node("G", ["c"], ["k"], domain="d"), _ADD_K], "y k", functions)
    engine = smelt.build(smelt.network_from_onnx(model), tune="none")
    loaded = smelt.load(engine.serialize(sign=False))
    loaded.refit({"c": 2 * _C})
    _same(_run(loaded), {"y": _X + 2 * _C, "k": 2 * _C})


def test_output_precedes_the_constant_of_its_name() -> None:
    network = smelt.network_from_onnx(_FORMS["read"]())
    again = smelt.NetworkDefinition.from_graph(network.graph)
    for found in (network, again):
        tensor = found.find("c")
        assert tensor is not None
        assert tensor.value is found.graph.outputs[1]
    tensor = again.find("c")
    assert tensor is not None
    again.mark_output(again.add(ops.Neg(), tensor, name="negative"))  # type: ignore[arg-type]
    assert network.graph.outputs[0].name == "y"
    del network.graph.outputs[:2]
    engine = smelt.load(smelt.build(again, tune="none").serialize(sign=False))
    _same(_run(engine), {"negative": -_C})


def test_result_of_a_constants_name_is_folded_into_another_constant() -> None:
    network = smelt.network_from_onnx(_FORMS["read"]())
    y, c = network.outputs
    network.mark_output(network.add(ops.Mul(), y, c, name="product"))  # type: ignore[arg-type]
    del network.graph.outputs[:2]
    engine = smelt.load(smelt.build(network, tune="none").serialize(sign=False))
    _same(_run(engine), {"product": (_X + _C) * _C})
    engine.refit({"c": 2 * _C})
    _same(_run(engine), {"product": (_X + 2 * _C) * 2 * _C})


def test_reports_show_a_constant_output() -> None:
    report = report_of(smelt.build(smelt.network_from_onnx(_FORMS["read"]()), tune="none"))
    assert report_to_text(report)
    assert [weight.name for weight in report.weights] == ["c"]
    assert [binding.name for binding in report.bindings] == ["x", "y", "c"]


@pytest.mark.parametrize("form", ["read", "an initializer", "read sum", "two Identities"])
@pytest.mark.parametrize("moved", ["y", "/copy"])
def test_constant_output_may_belong_to_another_device(form: str, moved: str) -> None:
    def place(graph: Graph, devices: Any, sizes: Any) -> Placement:
        del devices, sizes
        placement = Placement()
        for node in graph.nodes:
            if node.name.endswith(moved):
                placement.devices[node] = 1
                placement.reasons[node.name] = ["chosen"]
        return placement

    network = smelt.network_from_onnx(_FORMS[form]())
    kind = serial_device.SERIAL
    with (
        mock.patch.dict(DEVICE_KINDS, {kind.name: kind}),
        mock.patch.object(_build, "place", place),
    ):
        engine = smelt.build(network, ["cpu", kind.name], tune="none")
        assert len(engine.file.partitions) == 1
        _same(_run(engine), interpret(network.graph, {"x": _X}))
        _same(_run(smelt.load(engine.serialize(sign=False))), _run(engine))


def test_constant_output_of_several_plans() -> None:
    shapes: Any = {"x": [(1,), (3,)]}
    model = _model([_ADD_C, _Node("Shape", ["x"], ["s"])], "y c s", extent="n")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(_C[:1], "c"))
    engine = smelt.build(smelt.network_from_onnx(model), tune="none", shapes=shapes, retunable=True)
    assert len(engine.header.plans) == 2
    retuned = smelt.retune(engine.serialize(sign=False), tune="none")
    for data in (engine.serialize(sign=False), retuned.serialize(sign=False)):
        loaded = smelt.load(data)
        loaded.refit({"c": 4 * _C[:1]})
        for count in (1, 3):
            x, c = _X[:count], 4 * _C[:1]
            _same(_run(loaded, x), {"y": x + c, "c": c, "s": np.array([count])})


def test_part_of_a_network_keeps_a_constant_output() -> None:
    network = smelt.network_from_onnx(_FORMS["read"]())

    def fails(part: Graph, inputs: Mapping[str, Array]) -> bool:
        expected = interpret(part, inputs)
        model = model_from_graph(part)
        assert [output.name for output in model.graph.output] == list(expected)
        with smelt.build(part, tune="none") as engine:
            _same(dict(engine.run(dict(inputs))), expected)
        return {"y", "c"} <= expected.keys()

    assert reduce_graph(network.graph, {"x": _X}, fails) is not None


def test_constant_that_a_function_returns_twice_has_the_name_of_its_first_result() -> None:
    function = _function("F", "", "v w", [_constant("v"), _Node("Identity", ["v"], ["w"])])
    twice = _function("T", "", "a b", [
        _Node("F", [], ["a", ""], domain="d"),
        _Node("If", ["yes"], ["b"], then_branch=_graph("then", [], "a"),
              else_branch=_graph("else", [_Node("Neg", ["a"], ["n"])], "n")),
    ])  # fmt: skip
    twice.node.insert(0, _Node("Constant", [], ["yes"], value=numpy_helper.from_array(_YES)))
    model = _model(
        [_Node("T", [], ["k", "k2"], domain="d"), _ADD_K], "y k k2", [function, twice], c=None
    )
    engine = smelt.load(
        smelt.build(smelt.network_from_onnx(model), tune="none").serialize(sign=False)
    )
    engine.refit({"k": 2 * _C})
    _same(_run(engine), {"y": _X + 2 * _C, "k": 2 * _C, "k2": 2 * _C})

"""Arrays of bfloat16: numbers, never their bits, wherever they come in or go out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt import ops
from smelt.errors import BindingError, MissingExtraError
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array
    from smelt.runtime import Engine

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_X = np.array([[1.0, -2.5, 0.1], [3e38, -0.0, 7.0]]).astype(BFLOAT16)
_BIAS = np.array([0.5, 100.0, -3.0]).astype(BFLOAT16)


def _graph() -> Graph:
    graph = Graph("sum")
    x = graph.add_input("x", TensorType(DType.BFLOAT16, (2, 3)))
    bias = graph.add_constant(_BIAS, "bias")
    graph.outputs.append(graph.add(ops.Add(), x, bias, name="y").output)
    return graph


def _wanted(bias: Array = _BIAS) -> Array:
    return (_X.astype(np.float32) + bias.astype(np.float32)).astype(BFLOAT16)


def _same(mine: Array, wanted: Array) -> None:
    assert mine.dtype == wanted.dtype
    np.testing.assert_array_equal(mine.astype(np.float32), wanted.astype(np.float32))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with smelt.build(_graph(), tune="none") as made:
        yield made


def test_the_interpreter_takes_and_gives_numbers() -> None:
    (made,) = interpret(_graph(), {"x": _X}).values()
    _same(made, _wanted())
    with pytest.raises(BindingError, match=r"bfloat16\[2, 3\], but its array is uint16"):
        interpret(_graph(), {"x": _X.view(np.uint16)})


def test_an_engine_takes_and_gives_numbers(engine: Engine) -> None:
    with engine.create_context() as context:
        _same(context.run({"x": _X})["y"], _wanted())
        result = np.empty((2, 3), BFLOAT16)
        context.execute(1, [_X, result])
        _same(result, _wanted())


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float16])
def test_other_numbers_of_two_bytes_are_not_taken_for_bits(
    engine: Engine, dtype: type[np.generic]
) -> None:
    with engine.create_context() as context:
        with pytest.raises(BindingError, match=r"expected bfloat16.*astype\('bfloat16'\)"):
            context.run({"x": np.ones((2, 3), dtype)})
        with pytest.raises(BindingError, match="expected bfloat16"):
            context.execute(1, [_X, np.empty((2, 3), dtype)])


def test_a_tensor_of_torch_gives_a_tensor_of_torch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tensor:
        """As much of torch.Tensor as is asked for."""

        def __init__(self, array: Array, dtype: str) -> None:
            self.array, self.dtype = array, dtype

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: Any) -> object:
            assert self.dtype != "bfloat16"  # numpy would refuse it
            return self.array.__dlpack__(**options)

        def view(self, dtype: str) -> Tensor:
            return Tensor(self.array, dtype)

    class Torch:
        """As much of torch."""

        __name__ = "torch"
        int16, bfloat16 = "int16", "bfloat16"

        def from_dlpack(self, array: Array) -> Tensor:
            return Tensor(np.from_dlpack(array), str(array.dtype))

    Tensor.__module__ = "torch"
    torch: Any = Torch()
    torch.Tensor = Tensor
    monkeypatch.setitem(sys.modules, "torch", torch)
    with engine.create_context() as context:
        made = context.run({"x": Tensor(_X.view(np.int16), "bfloat16")})["y"]
        with pytest.raises(BindingError, match="dtype int16, expected bfloat16"):
            context.run({"x": Tensor(_X.view(np.int16), "int16")})
    assert (type(made), made.dtype) == (Tensor, "bfloat16")
    _same(made.array.view(BFLOAT16), _wanted())


def test_a_refit_takes_numbers() -> None:
    fresh = (2 * _BIAS.astype(np.float32)).astype(BFLOAT16)
    with smelt.build(_graph(), tune="none") as engine:
        engine.refit({"bias": fresh})
        with engine.create_context() as context:
            _same(context.run({"x": _X})["y"], _wanted(fresh))


@pytest.mark.parametrize("is_raw", [True, False])
def test_weights_of_a_model_are_read_and_folded_as_numbers(*, is_raw: bool) -> None:
    bias = numpy_helper.from_array(_BIAS, "bias")
    if not is_raw:
        bias = helper.make_tensor("bias", TensorProto.BFLOAT16, [3], _BIAS.astype(np.float32))
    kind = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Add", ["bias", "bias"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["narrow"], to=kind),
        helper.make_node("Add", ["x", "narrow"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, kind, [2, 3]) for name in "xy")
    graph = helper.make_graph(nodes, "folded", [x], [y], [bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    twice = (2 * _BIAS.astype(np.float32)).astype(BFLOAT16)
    with smelt.build(smelt.network_from_onnx(model), tune="none") as engine:
        assert len(engine.header.layers) == 1
        with engine.create_context() as context:
            _same(context.run({"x": _X})["y"], _wanted(twice))


def test_an_engine_keeps_numbers_in_its_file(engine: Engine) -> None:
    again = smelt.load(engine.serialize())
    with again, again.create_context() as context:
        _same(context.run({"x": _X})["y"], _wanted())


@pytest.fixture
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the package."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)


_TOLD = "numpy has no bfloat16, and ml_dtypes is not installed; run: pip install ml_dtypes"


@pytest.mark.usefixtures("_bare")
def test_without_the_package_an_engine_of_bfloat16_says_what_it_needs(engine: Engine) -> None:
    with pytest.raises(MissingExtraError) as caught:
        engine.create_context()
    assert str(caught.value) == _TOLD
    assert caught.value.package == "ml_dtypes"


@pytest.mark.parametrize(
    ("op", "more"),
    [
        (ops.TopK(), (np.array([13]),)),
        (ops.ReduceMax(), (np.array([1]),)),
        (ops.ReduceMin(), (np.array([1]),)),
        (ops.Max(), (np.zeros((), BFLOAT16),)),
        (ops.Clip(), (np.array(-1, BFLOAT16), np.array(1, BFLOAT16))),
        (ops.Neg(), ()),
        (ops.Add(), (np.zeros((), BFLOAT16),)),
    ],
    ids=lambda value: value.name if isinstance(value, ops.Op) else "",
)
def test_denormal_numbers_pass_a_kernel_as_they_are(op: ops.Op, more: tuple[Array, ...]) -> None:
    numbers = np.array([0, 1e-40, -1e-40, 2e-40, -2e-40, 3e-40, 1])
    x = np.random.default_rng(0).choice(numbers, (7, 13)).astype(BFLOAT16)
    graph = Graph("denormal")
    value = graph.add_input("x", TensorType(DType.BFLOAT16, x.shape))
    others = [graph.add_constant(array, f"c{k}") for k, array in enumerate(more)]
    graph.outputs.extend(graph.add(op, value, *others, name="y").outputs)
    wanted = interpret(graph, {"x": x})
    with smelt.build(graph, tune="none") as engine:
        made = engine.run({"x": x})
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name].astype(np.float32), array.astype(np.float32))

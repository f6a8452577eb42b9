"""Products of integers with zero points of every kind: exact, and by the kernels of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import CpuBackend
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.passes import pipeline, run_passes
from smelt.types import DType, TensorType
from tests.support.real_models import reference_steps

if TYPE_CHECKING:
    from smelt.ir import Op

Array = np.ndarray[Any, Any]

_OPS: dict[str, tuple[Op, tuple[int, ...], tuple[int, ...]]] = {
    "product": (ops.MatMulInteger(), (5, 70), (70, 19)),
    "vector": (ops.MatMulInteger(), (70,), (70, 19)),
    "stack": (ops.MatMulInteger(), (2, 3, 40), (40, 19)),
    "padded": (ops.ConvInteger((3, 3), pads=(1, 1, 1, 1)), (2, 9, 7, 7), (20, 9, 3, 3)),
    "bare": (ops.ConvInteger((2, 2), (2, 2)), (1, 9, 7, 7), (20, 9, 2, 2)),
    "depthwise": (
        ops.ConvInteger((3, 3), pads=(1, 1, 1, 1), group=20),
        (1, 20, 7, 7),
        (20, 1, 3, 3),
    ),
}


def _integers(seed: int, kind: Any, *shape: int) -> Array:
    limits = np.iinfo(kind)
    random = np.random.default_rng(seed)
    return random.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


def _network(
    what: str, kinds: tuple[Any, Any], x_zero: str, w_zero: str, *, constant: bool = True
) -> tuple[Graph, dict[str, Array]]:
    """The product as a network, with zero points that are constant, vary, or stand for each row."""
    op, x_shape, w_shape = _OPS[what]
    graph, given = Graph("integers"), dict[str, Array]()

    def add(name: str, array: Array, *, fixed: bool) -> Any:
        if fixed:
            return graph.add_constant(array, name)
        given[name] = array
        return graph.add_input(name, TensorType(DType.from_numpy(array.dtype), array.shape))

    x = add("x", _integers(1, kinds[0], *x_shape), fixed=False)
    weights = add("w", _integers(2, kinds[1], *w_shape), fixed=constant)
    filters = w_shape[0] if isinstance(op, ops.ConvInteger) else w_shape[1]
    several = {"xz": x_shape[-2:-1], "wz": (filters,)}

    def zero(name: str, kind: Any, how: str) -> Any:
        if how == "nothing":
            return add(name, np.zeros(several[name], kind), fixed=True)
        shape = several[name] if how == "each" else ()
        return add(name, _integers(3, kind, *shape), fixed=how != "varying")

    zeros = [
        None if how == "none" else zero(name, kind, how)
        for name, kind, how in (("xz", kinds[0], x_zero), ("wz", kinds[1], w_zero))
    ]
    graph.outputs = [graph.add(op, x, weights, *zeros, name="y").output]
    return graph, given


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("w_zero", ["none", "constant", "varying", "each"])
@pytest.mark.parametrize("x_zero", ["none", "constant", "varying"])
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.uint8)])
@pytest.mark.parametrize("what", _OPS)
def test_the_passes_keep_every_sum(
    what: str, kinds: tuple[Any, Any], x_zero: str, w_zero: str, kernels: bool
) -> None:
    graph, given = _network(what, kinds, x_zero, w_zero)
    made = clone(graph)
    run_passes(made, pipeline(supported_composite_ops=["int8_products"] if kernels else []))
    np.testing.assert_array_equal(interpret(made, given)["y"], interpret(graph, given)["y"])


@pytest.mark.parametrize("w_zero", ["varying", "each"])
@pytest.mark.parametrize("x_zero", ["constant", "varying"])
@pytest.mark.parametrize("what", [what for what in _OPS if what != "vector"])
def test_they_are_computed_by_kernels_exactly(what: str, x_zero: str, w_zero: str) -> None:
    _assert_exact_by_kernels(*_network(what, (np.uint8, np.uint8), x_zero, w_zero))


@pytest.mark.parametrize("what", ["product", "stack"])
def test_zero_points_of_each_row_that_are_all_nothing_are_left_out(what: str) -> None:
    _assert_exact_by_kernels(*_network(what, (np.uint8, np.int8), "nothing", "nothing"))


def _assert_exact_by_kernels(graph: Graph, given: dict[str, Array]) -> None:
    engine = smelt.build(clone(graph), tune="none")
    assert reference_steps(engine) == []
    with engine.create_context() as context:
        made = context.run(given)["y"]
    np.testing.assert_array_equal(made, interpret(graph, given)["y"])


def test_short_sums_of_weights_that_vary_need_no_reference_either() -> None:
    _assert_exact_by_kernels(
        *_network("product", (np.uint8, np.int8), "varying", "varying", constant=False)
    )


def test_engines_for_processors_multiply_bytes() -> None:
    assert "int8_products" in CpuBackend.supported_composite_ops


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint8])
@pytest.mark.parametrize("root", [ops.MatMul(), ops.Gemm(), ops.Add(), ops.Mul(), ops.Div()])
def test_arithmetic_of_integers_behind_a_product_is_not_rearranged(root: Op, kind: Any) -> None:
    """(x @ w) / 3 once was x @ (w / 3), which is right for floats alone."""
    steps = [ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Max(), ops.Min()]
    random = np.random.default_rng(7)
    x = random.integers(0, 50, (5, 4)).astype(kind)
    weights = random.integers(1, 30, (4, 4) if isinstance(root, ops.MatMul | ops.Gemm) else (4,))
    for first in steps:
        for second in steps:
            graph = Graph("arithmetic")
            value = graph.add_input("x", TensorType(DType.from_numpy(x.dtype), x.shape))
            value = graph.add(
                root, value, graph.add_constant(weights.astype(kind), "w"), name="root"
            ).output
            for number, op in enumerate((first, second)):
                constant = graph.add_constant(np.array([3, 4, 5, 7], kind), f"c{number}")
                value = graph.add(op, value, constant, name=f"step {number}").output
            graph.outputs.append(value)
            optimised = clone(graph)
            run_passes(optimised, pipeline())
            (wanted,) = interpret(graph, {"x": x}).values()
            (result,) = interpret(optimised, {"x": x}).values()
            np.testing.assert_array_equal(result, wanted, f"{first.name}, {second.name}")


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_pattern_of_integers_is_no_activation(kind: Any) -> None:
    """X * clip(x + 3, 0, 6) / 6 is HardSwish of floats; the op takes no integers."""
    graph = Graph("pattern")
    x = graph.add_input("x", TensorType(DType.from_numpy(np.dtype(kind)), (14,)))
    three, zero, six = (
        graph.add_constant(np.array(number, kind), str(number)) for number in (3, 0, 6)
    )
    shifted = graph.add(ops.Add(), x, three, name="shifted").output
    gate = graph.add(ops.Clip(), shifted, zero, six, name="gate").output
    product = graph.add(ops.Mul(), x, gate, name="product").output
    graph.outputs.append(graph.add(ops.Div(), product, six, name="y").output)
    given = np.arange(-5, 9, dtype=kind)
    with smelt.build(graph, tune="none") as engine:
        (result,) = engine.run({"x": given}).values()
    (wanted,) = interpret(graph, {"x": given}).values()
    np.testing.assert_array_equal(result, wanted)

"""Passes leave alone what their rewriting would make invalid: types an op refuses, extents of 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.ops import Case, Op
from smelt.passes import run_passes
from smelt.passes.promote_half import PromoteHalf
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ops import Array, Operand
    from smelt.types import ValueType


def _chain(shape: tuple[int, ...], *steps: tuple[Op, list[Any]], dtype: Any = np.float32) -> Graph:
    """A chain of ops, each with further inputs that are constant."""
    graph = Graph("chain")
    value = graph.add_input("x", TensorType(DType.from_numpy(np.dtype(dtype)), shape))
    for number, (op, arrays) in enumerate(steps):
        rest = [graph.add_constant(a, f"c{number}.{i}") for i, a in enumerate(arrays)]
        value = graph.add(op, value, *rest, name=f"{op.name}{number}").output
    graph.outputs = [value]
    return graph


def _check(graph: Graph, x: Array) -> None:
    """An engine computes what the references of the network do."""
    (expected,) = interpret(graph, {"x": x}).values()
    (made,) = smelt.build(clone(graph), tune="none").run({"x": x}).values()
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int8])
@pytest.mark.parametrize("pool", [ops.MaxPool((2, 2)), ops.GlobalMaxPool()], ids=lambda op: op.name)
def test_a_maximum_is_quantised_afterwards_if_its_op_does_not_take_the_integers(
    pool: Op, dtype: Any
) -> None:
    quantize = (ops.QuantizeLinear(), [np.float32(0.5), np.array(3, dtype)])
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    _check(_chain(x.shape, (pool, []), quantize), x)


def test_an_empty_constant_of_lower_rank_is_transposed() -> None:
    turn = (ops.Transpose((0, 2, 1)), list[Any]())
    empty = np.zeros(0, np.float32)
    _check(_chain((2, 0, 3), turn, (ops.Add(), [empty]), turn), np.zeros((2, 0, 3), np.float32))


@pytest.mark.parametrize("shape", [(2, 0, 2, 2), (0, 3, 2, 2)])
def test_a_factor_folds_into_a_deconvolution_without_filters(shape: tuple[int, ...]) -> None:
    channels = shape[1] * 2
    weights, factor = np.ones(shape, np.float32), np.full((channels, 1, 1), 2, np.float32)
    deconv = ops.ConvTranspose((2, 2), group=2)
    steps = ((deconv, [weights]), (ops.Mul(), [factor]))
    _check(_chain((1, shape[0], 3, 3), *steps), np.ones((1, shape[0], 3, 3), np.float32))


@dataclass(frozen=True)
class _OnlyHalf(Op):
    """Twice a tensor of float16.

    Shapes: the input's.

    Dtypes: float16.

    Raises ShapeError: when the input has another type.

    Source: this test.
    """

    name: ClassVar[str] = "only_half"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (operand,) = inputs
        if operand is None or operand.type != TensorType(DType.FLOAT16, (3,)):
            raise smelt.ShapeError("only_half takes three numbers of float16")
        return (operand.type,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (x * np.float16(2),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("three", cls(), (np.ones(3, np.float16),))


def test_an_op_that_takes_nothing_but_float16_keeps_it() -> None:
    steps: list[tuple[Op, list[Any]]] = [(op, []) for op in (ops.Relu(), _OnlyHalf(), ops.Neg())]
    graph = _chain((3,), *steps, dtype=np.float16)
    made = clone(graph)
    run_passes(made, [PromoteHalf()])
    x = np.array([-1, 2, 3], np.float16)
    (expected,), (result,) = interpret(graph, {"x": x}).values(), interpret(made, {"x": x}).values()
    np.testing.assert_array_equal(result, expected)
    kinds = {node.op.name: node.output.tensor.dtype for node in made.nodes}
    assert (kinds["only_half"], kinds["neg"]) == (DType.FLOAT16, DType.FLOAT32)

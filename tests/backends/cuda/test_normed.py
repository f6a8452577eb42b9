"""Normalisations in the products that read them: offered for whole rows, never chosen unseen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ir import Graph
from smelt.ops import Chain, Gemm, LayerNormalization, MatMul, RMSNormalization, Softmax
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from smelt.backends import Tactic
    from smelt.ir import Node, Op

_HOPPER = CudaTarget(90)
_OPEN = SymbolicDim.symbol("rows")
_FAMILY = "normed"


def _nodes(
    norm: Op, product: Op, shape: tuple[Any, ...], weights: tuple[int, int]
) -> tuple[Graph, Node, Node]:
    graph = Graph("two")
    x = graph.add_input("x", TensorType(DType.FLOAT32, shape))
    scale = [graph.add_constant(np.ones(shape[-1:], np.float32), "scale")]
    first = graph.add(norm, x, *scale[: not isinstance(norm, Softmax)], name="first")
    w = graph.add_constant(np.ones(weights, np.float32), "w")
    second = graph.add(product, first.output, w, name="second")
    graph.outputs += second.outputs
    return graph, first, second


def _chained(
    norm: Op,
    product: Op,
    shape: tuple[Any, ...],
    weights: tuple[int, int],
    target: CudaTarget = _HOPPER,
    stored: DType = DType.FLOAT16,
) -> list[Tactic]:
    graph, first, second = _nodes(norm, product, shape, weights)
    op = Chain(first.op, len(first.inputs), second.op)
    node = graph.add(op, *first.inputs, *second.inputs[1:], name="both")
    graph.outputs += node.outputs
    tactics, _ = CudaBackend().candidates(node, target, stored)
    return [tactic for tactic in tactics if tactic.family == _FAMILY]


@pytest.mark.parametrize("norm", [LayerNormalization(), RMSNormalization()])
@pytest.mark.parametrize("rows", [1, 128, _OPEN])
def test_a_launch_less_is_offered_and_not_counted_on(norm: Op, rows: int | SymbolicDim) -> None:
    both = _chained(norm, MatMul(), (1, rows, 384), (384, 384))
    _, first, second = _nodes(norm, MatMul(), (1, rows, 384), (384, 384))
    parts = [CudaBackend().candidates(n, _HOPPER, DType.FLOAT16)[0] for n in (first, second)]
    apart = sum(min(tactic.cost_hint for tactic in tactics) for tactics in parts)
    assert both
    assert min(tactic.cost_hint for tactic in both) >= apart


@pytest.mark.parametrize(
    ("norm", "product", "shape", "weights"),
    [
        (LayerNormalization(1), MatMul(), (2, 64, 64), (64, 64)),
        (LayerNormalization(), Gemm(trans_a=True), (64, 64), (64, 64)),
        (LayerNormalization(), MatMul(), (64, 1024), (1024, 64)),
        (LayerNormalization(), MatMul(), (64, 100), (100, 64)),
    ],
    ids=["planes", "turned", "long rows", "short steps"],
)
def test_other_rows_are_left_to_two_launches(
    norm: Op, product: Op, shape: tuple[int, ...], weights: tuple[int, int]
) -> None:
    assert not _chained(norm, product, shape, weights)


@pytest.mark.parametrize(
    ("target", "stored"),
    [(_HOPPER, DType.FLOAT32), (CudaTarget(80), DType.FLOAT16)],
    ids=["float32", "launches that wait"],
)
def test_where_weights_do_not_come_ahead_there_are_two_launches(
    target: CudaTarget, stored: DType
) -> None:
    shape, weights = (1, 128, 384), (384, 384)
    assert not _chained(LayerNormalization(), MatMul(), shape, weights, target, stored)


def test_few_programs_are_enough_for_many_rows_of_a_larger_gpu() -> None:
    shape, weights = (1, 2048, 384), (384, 384)
    larger = replace(_HOPPER, multiprocessors=1024)
    assert not _chained(LayerNormalization(), MatMul(), shape, weights)
    assert _chained(LayerNormalization(), MatMul(), shape, weights, larger)


@pytest.mark.parametrize(
    ("norm", "may"), [(LayerNormalization(), True), (Softmax(), False)], ids=["norm", "softmax"]
)
def test_normalisations_of_rows_may_be_chained(norm: Op, *, may: bool) -> None:
    _, first, second = _nodes(norm, MatMul(), (1, 128, 384), (384, 384))
    assert CudaBackend().may_chain(first, second) is may

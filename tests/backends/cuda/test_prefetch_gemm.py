"""Programs that have their weights ahead are offered where all run at once, never chosen unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ir import Graph
from smelt.ops import Conv, MatMul
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from smelt.backends import Tactic

_HOPPER = CudaTarget(90)
_OPEN = SymbolicDim.symbol("rows")


def _tactics(
    rows: int | SymbolicDim, depth: int, columns: int, target: CudaTarget, stored: DType
) -> list[Tactic]:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, rows, depth)))
    weights = graph.add_constant(np.ones((depth, columns), np.float32), "w")
    node = graph.add(MatMul(), x, weights, name="node")
    graph.outputs += node.outputs
    return candidates_in(stored, CudaBackend(), node, target)[0]


@pytest.mark.parametrize("rows", [1, 128, _OPEN])
def test_they_are_offered_and_never_the_first_by_estimate(rows: int | SymbolicDim) -> None:
    tactics = _tactics(rows, 384, 384, _HOPPER, DType.FLOAT16)
    assert 1 <= sum(tactic.family == "prefetch" for tactic in tactics) <= 3
    assert min(tactics, key=lambda t: t.estimated_seconds).family == "gemm"


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "target", "stored"),
    [
        (4096, 384, 384, _HOPPER, DType.FLOAT16),
        (128, 32 * 41, 384, _HOPPER, DType.FLOAT16),
        (128, 100, 384, _HOPPER, DType.FLOAT16),
        (128, 384, 384, _HOPPER, DType.FLOAT32),
        (128, 384, 384, CudaTarget(80), DType.FLOAT16),
    ],
    ids=["many rows", "no even pieces", "short steps", "float32", "launches that wait"],
)
def test_they_are_not_offered_where_nothing_is_gained(
    rows: int, depth: int, columns: int, target: CudaTarget, stored: DType
) -> None:
    tactics = _tactics(rows, depth, columns, target, stored)
    assert not [tactic for tactic in tactics if tactic.family == "prefetch"]


def test_long_sums_are_cut_into_pieces_of_whole_steps() -> None:
    tactics = _tactics(128, 1536, 384, _HOPPER, DType.FLOAT16)
    cut: list[dict[str, Any]] = [dict(t.parameters) for t in tactics if t.family == "prefetch"]
    assert cut
    for parameters in cut:
        (*_, step), split_k = parameters["tile"], parameters["split_k"]
        assert split_k > 1
        assert 1536 % (step * split_k) == 0


def test_a_convolution_of_no_channels_has_none_ahead() -> None:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 0, 14, 14)))
    weights = graph.add_constant(np.ones((64, 0, 1, 1), np.float32), "w")
    node = graph.add(Conv((1, 1)), x, weights, name="node")
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(), node, _HOPPER)
    assert all(tactic.is_host_step for tactic in tactics)


@pytest.mark.parametrize(
    ("channels", "op", "groups", "is_offered"),
    [
        (256, Conv((1, 1), (2, 2)), 1, True),
        (256, Conv((3, 3), pads=(1, 1, 1, 1)), 1, True),
        (256, Conv((1, 1), group=2), 2, False),
        (48, Conv((3, 3), pads=(1, 1, 1, 1)), 1, False),
    ],
    ids=["pixels", "windows", "groups", "short steps"],
)
def test_convolutions_of_whole_steps_have_their_weights_ahead(
    channels: int, op: Conv, groups: int, *, is_offered: bool
) -> None:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, channels, 14, 14)))
    weights = np.ones((64, channels // groups, *op.kernel_shape), np.float32)
    node = graph.add(op, x, graph.add_constant(weights, "w"), name="node")
    graph.outputs += node.outputs
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(), node, _HOPPER)
    assert any(tactic.family == "prefetch" for tactic in tactics) == is_offered
    assert min(tactics, key=lambda t: t.estimated_seconds).family == "conv"

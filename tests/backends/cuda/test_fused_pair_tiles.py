"""Tiles of two products in one launch: what is offered compiles on every GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.engine import Launch
from smelt.ir import Graph
from smelt.ops import Conv, ConvSum, FusedPair
from smelt.types import DType, TensorType
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from smelt.ir import Node


def _chain(batch: int, depth: int, between: int, columns: int, side: int) -> tuple[Graph, Node]:
    """Two convolutions of single pixels."""
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (batch, depth, side, side)))
    shapes = (("v", (between, depth, 1, 1)), ("w", (columns, between, 1, 1)))
    v, w = (graph.add_constant(np.zeros(shape, np.float32), name) for name, shape in shapes)
    node = graph.add(FusedPair(Conv((1, 1)), 2, Conv((1, 1))), x, v, w, name="node")
    graph.outputs += node.outputs
    return graph, node


def _offered(node: Node, target: CudaTarget) -> list[Tactic]:
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(jobs=1), node, target)
    return [tactic for tactic in tactics if tactic.family == "fused_pair"]


def _size(tactic: Tactic, depth: int) -> int:
    """More where a program holds more."""
    options: dict[str, Any] = dict(tactic.parameters)
    bm, bn, _ = options["tile"]
    return int(options["num_stages"] * bn * (depth + options["second_tile"]) + bm * (depth + bn))


@pytest.mark.parametrize(
    ("capability", "shape"),
    [
        (86, (64, 144, 160, 160, 56)),
        (89, (64, 144, 160, 160, 56)),
        (90, (32, 144, 192, 256, 56)),
        (120, (128, 144, 480, 256, 56)),
    ],
)
def test_the_largest_chain_that_is_offered_fits_into_shared_memory(
    capability: int, shape: tuple[int, int, int, int, int], compilers: CompilerPool
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    target, backend = CudaTarget(capability), CudaBackend(pool=compilers)
    graph, node = _chain(*shape)
    tiles = [t for t in _offered(node, target) if not dict(t.parameters)["row_programs"]]
    for tactic in {tiles[0], max(tiles, key=lambda t: _size(t, shape[1]))}:
        plan = build_plan(graph, {node: tactic}, backend, WeightStore()).plan
        kernels = [step.kernel for step in plan.steps if isinstance(step, Launch)]
        backend.compile([kernel for kernel in kernels if kernel.family == "fused_pair"], target)


@pytest.mark.parametrize(
    "shape", [(1, 0, 128, 64, 7), (1, 64, 0, 64, 7), (1, 64, 128, 0, 7)], ids=str
)
def test_products_without_elements_are_not_chained(shape: tuple[int, int, int, int, int]) -> None:
    assert not _offered(_chain(*shape)[1], CudaTarget(90))


@pytest.mark.parametrize(
    ("projection", "side"), [(Conv((3, 3)), 11), (Conv((1, 1), pads=(1, 1, 1, 1)), 7)], ids=str
)
def test_a_sum_with_a_projection_of_more_than_pixels_is_not_chained(
    projection: Conv, side: int
) -> None:
    graph = Graph("one")
    x, y = (
        graph.add_input(name, TensorType(DType.FLOAT32, (1, 64, extent, extent)))
        for name, extent in (("x", 9), ("y", side))
    )
    shapes = {"u": (64, 64, 1, 1), "v": (64, 64, *projection.kernel_shape), "w": (64, 64, 1, 1)}
    u, v, w = (graph.add_constant(np.zeros(s, np.float32), n) for n, s in shapes.items())
    fused_pair = FusedPair(ConvSum(Conv((1, 1)), projection), 4, Conv((1, 1)))
    node = graph.add(fused_pair, x, u, y, v, w, name="node")
    assert not _offered(node, CudaTarget(90))

"""Stems whose pixels go from where they lie straight to tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan, with_storage_dtype
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget, target_named
from smelt.devices.cuda import CudaKernel
from smelt.engine import Launch
from smelt.ir import Graph
from smelt.ops import Conv
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from smelt.engine import View
    from smelt.ir import Node
    from smelt.types import Dim

_HOPPER = CudaTarget(90)
_SEVEN = Conv((7, 7), (2, 2), (3, 3, 3, 3))
_HALF = DType.FLOAT16


def _stem(
    op: Conv = _SEVEN, filters: int = 64, width: Dim = 224, channels: int = 3
) -> tuple[Graph, Node]:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, channels, 224, width)))
    array = np.random.default_rng(0).standard_normal((filters, channels, *op.kernel_shape))
    node = graph.add(op, x, graph.add_constant(array.astype(np.float32), "w"), name="node")
    graph.outputs += node.outputs
    return graph, node


def _direct(node: Node, target: CudaTarget = _HOPPER, storage: DType = _HALF) -> list[Tactic]:
    tactics, _ = candidates_in(storage, CudaBackend(), node, target)
    return [t for t in tactics if t.family == "stem_direct"]


def test_they_are_expected_to_be_the_fastest() -> None:
    _, node = _stem()
    tactics, _ = candidates_in(_HALF, CudaBackend(), node, _HOPPER)
    assert min(tactics, key=lambda t: t.estimated_seconds).family == "stem_direct"


@pytest.mark.parametrize("name", ["sm_100", "sm_120", "sm_90,sm_100"])
def test_where_nothing_was_timed_they_are_offered_behind_others(name: str) -> None:
    _, node = _stem()
    target = target_named(name)
    assert _direct(node, target)
    tactics, _ = candidates_in(_HALF, CudaBackend(), node, target)
    assert min(tactics, key=lambda t: t.estimated_seconds).family != "stem_direct"


@pytest.mark.parametrize(
    ("graph", "target", "storage"),
    [
        (_stem(), _HOPPER, DType.FLOAT32),
        (_stem(), CudaTarget(80), _HALF),
        (_stem(filters=20), _HOPPER, _HALF),
        (_stem(width=SymbolicDim.symbol("W")), _HOPPER, _HALF),
        (_stem(Conv((15, 15)), channels=12), _HOPPER, _HALF),
        (_stem(filters=0), _HOPPER, _HALF),
        (_stem(channels=0), _HOPPER, _HALF),
    ],
    ids=["float32", "old", "odd filters", "open width", "deep", "no filters", "no channels"],
)
def test_they_are_not_offered_where_they_cannot_run(
    graph: tuple[Graph, Node], target: CudaTarget, storage: DType
) -> None:
    assert not _direct(graph[1], target, storage)


@pytest.mark.parametrize(
    "op",
    [_SEVEN, Conv((3, 3), (2, 2), (1, 1, 1, 1)), Conv((5, 5), (4, 4)), Conv((3, 3))],
    ids=str,
)
def test_nothing_is_read_that_was_not_copied(op: Conv) -> None:
    graph, node = _stem(op)
    tactics, _ = candidates_in(_HALF, CudaBackend(), node, _HOPPER)
    read = [t for t in tactics if t.family in {"stem", "stem_direct", "persistent"}]
    assert read
    for tactic in read:
        stored = with_storage_dtype(_HALF, node, tactic, narrows_all_outputs=True)
        steps = build_plan(graph, {node: stored}, CudaBackend(), WeightStore()).plan.steps
        launches = [step for step in steps if isinstance(step, Launch)]
        (copy,) = (s for s in launches if "channels" in dict(s.kernel.parameters))
        product = launches[launches.index(copy) + 1]
        assert _end(product.operands[0]) <= _end(copy.operands[1]), tactic


def _end(view: View) -> int:
    """Elements from where a view's buffer begins to behind its last."""
    spans = (
        (cast("int", e) - 1) * cast("int", s) for e, s in zip(view.shape, view.strides, strict=True)
    )
    return cast("int", view.offset) + sum(spans) + 1


def test_pixels_do_not_go_through_shared_memory(compilers: CompilerPool) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    graph, node = _stem()
    backend = CudaBackend(pool=compilers)
    tactic = with_storage_dtype(_HALF, node, _direct(node)[0], narrows_all_outputs=True)
    plan = build_plan(graph, {node: tactic}, backend, WeightStore()).plan
    (kernel,) = (
        s.kernel for s in plan.steps if isinstance(s, Launch) and s.kernel.family == tactic.family
    )
    record = CudaKernel.from_bytes(backend.records(kernel, _HOPPER), 0)
    window, result = 7 * 32, 64
    assert record.dynamic_shared_bytes == 2 * 64 * (window + result)

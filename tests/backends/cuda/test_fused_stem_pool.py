"""Stems whose result is pooled where it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan, with_storage_dtype
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.devices.cuda import CudaKernel
from smelt.engine import Launch
from smelt.ir import Graph
from smelt.ops import Conv, Fused, MaxPool, Op, Relu, Sigmoid, Stage
from smelt.passes import fuse_pair_nodes
from smelt.tuner import propose_fused_pairs
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from smelt.engine import View
    from smelt.ir import Node
    from smelt.types import Dim

_HOPPER = CudaTarget(90)
_HALF = DType.FLOAT16
_SEVEN = Conv((7, 7), (2, 2), (3, 3, 3, 3))
_WINDOW = MaxPool((3, 3), (2, 2), (1, 1, 1, 1))
_CEIL = MaxPool((3, 3), (2, 2), ceil_mode=True)


def _pair(
    pool: MaxPool = _WINDOW,
    batch: Dim = 32,
    conv: Conv = _SEVEN,
    stage: Op | None = None,
    width: Dim = 224,
    filters: int = 64,
) -> tuple[Graph, Node, Node]:
    """A stem with bias, rectified unless told otherwise, and its pooling."""
    graph = Graph("pair")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (batch, 3, 224, width)))
    array = np.random.default_rng(0).standard_normal((filters, 3, *conv.kernel_shape))
    weights = graph.add_constant(array.astype(np.float32), "w")
    bias = graph.add_constant(np.ones(filters, np.float32), "b")
    op = Fused(conv, 3, (Stage(stage or Relu(), (-1,)),))
    first = graph.add(op, x, weights, bias, name="stem")
    second = graph.add(pool, first.output, name="pool")
    graph.outputs += second.outputs
    return graph, first, second


def _chained(*, returns_intermediate: bool = False, **options: Any) -> tuple[Graph, Node]:
    graph, first, second = _pair(**options)
    if returns_intermediate:
        graph.outputs.append(first.output)
    return graph, fuse_pair_nodes(graph, first, second)


def _strips(node: Node, target: CudaTarget = _HOPPER, storage: DType = _HALF) -> list[Tactic]:
    tactics, _ = candidates_in(storage, CudaBackend(), node, target)
    return [t for t in tactics if t.family == "fused_stem_pool"]


@pytest.mark.parametrize("pool", [_WINDOW, _CEIL, MaxPool((2, 2), (2, 2))], ids=str)
def test_the_tuner_proposes_stems_with_their_pooling(pool: MaxPool) -> None:
    graph, first, second = _pair(pool)
    backend = CudaBackend()
    assert backend.can_fuse_pair(first, second)
    found = propose_fused_pairs(
        graph, backend.can_fuse_pair, lambda node: candidates_in(_HALF, backend, node, _HOPPER)[0]
    )
    assert [proposal.chain.name for proposal in found] == ["pool"]


def test_what_is_no_stem_or_no_maximum_is_not_chained() -> None:
    _, first, second = _pair()
    assert not CudaBackend().can_fuse_pair(second, second)
    graph = Graph("wide")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 64, 56, 56)))
    weights = graph.add_constant(np.ones((64, 64, 3, 3), np.float32), "w")
    wide = graph.add(Conv((3, 3)), x, weights, name="wide")
    assert not CudaBackend().can_fuse_pair(wide, graph.add(_WINDOW, wide.output, name="pool"))
    assert not CudaBackend().can_fuse_pair(first, wide)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"returns_intermediate": True}, "has other readers"),
        ({"stage": Sigmoid()}, "more than a bias and a ReLU"),
        ({"pool": MaxPool((3, 3), (1, 1))}, "more than one element"),
        ({"pool": MaxPool((2, 2), (3, 3))}, "leave gaps"),
        ({"pool": MaxPool((3, 3), (2, 2), dilations=(2, 2))}, "is dilated"),
        ({"pool": MaxPool((2, 2), (2, 2), (0, 0, 2, 2))}, "entirely in the padding"),
        ({"width": SymbolicDim.symbol("W")}, "is symbolic"),
        ({"filters": 20}, "20 is not a multiple of 16"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_where_they_are_not_offered_is_said(options: dict[str, Any], reason: str) -> None:
    _, node = _chained(**options)
    tactics, refusals = candidates_in(_HALF, CudaBackend(), node, _HOPPER)
    assert "fused_stem_pool" not in {t.family for t in tactics}
    assert any(reason in r.reason for r in refusals if r.family == "fused_stem_pool")


@pytest.mark.parametrize(
    ("target", "storage"),
    [(_HOPPER, DType.FLOAT32), (CudaTarget(80), _HALF)],
    ids=["float32", "old"],
)
def test_tensor_cores_must_take_pixels_of_16_bits_from_registers(
    target: CudaTarget, storage: DType
) -> None:
    assert not _strips(_chained()[1], target, storage)


@pytest.mark.parametrize(
    ("batch", "heights"), [(1, 1), (32, 3), (SymbolicDim.symbol("N"), 3)], ids=str
)
def test_several_heights_are_offered_each_once(batch: Dim, heights: int) -> None:
    found = [dict(t.parameters)["rows_per_program"] for t in _strips(_chained(batch=batch)[1])]
    assert len(set(found)) == len(found) == heights


@pytest.mark.parametrize("pool", [_WINDOW, _CEIL, MaxPool((2, 2), (2, 2), (1, 1, 0, 0))], ids=str)
@pytest.mark.parametrize("conv", [_SEVEN, Conv((3, 3), (2, 2)), Conv((5, 5), (2, 2))], ids=str)
def test_nothing_is_read_that_was_not_copied(pool: MaxPool, conv: Conv) -> None:
    graph, node = _chained(pool=pool, conv=conv)
    for tactic in _strips(node):
        copy, strip = _launches(graph, node, tactic)
        assert _end(strip.operands[0]) <= _end(copy.operands[1]), tactic
        facts = strip.kernel
        (taps, step, _), _ = facts["pool"]
        last = ((facts["pooled"][0] - 1) * step + taps - 1) * facts["lines"] + facts["taps"]
        assert last <= cast("int", copy.operands[1].shape[1]), tactic


def _launches(graph: Graph, node: Node, tactic: Tactic) -> tuple[Launch, Launch]:
    stored = with_storage_dtype(_HALF, node, tactic, narrows_all_outputs=True)
    steps = build_plan(graph, {node: stored}, CudaBackend(), WeightStore()).plan.steps
    launches = [step for step in steps if isinstance(step, Launch)]
    (copy,) = (s for s in launches if "channels" in dict(s.kernel.parameters))
    (strip,) = (s for s in launches if s.kernel.family == tactic.family)
    return copy, strip


def _end(view: View) -> int:
    """Elements from where a view's buffer begins to behind its last."""
    spans = (
        (cast("int", e) - 1) * cast("int", s) for e, s in zip(view.shape, view.strides, strict=True)
    )
    return cast("int", view.offset) + sum(spans) + 1


def test_neither_pixels_nor_what_is_between_go_through_shared_memory(
    compilers: CompilerPool,
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    graph, node = _chained()
    backend = CudaBackend(pool=compilers)
    kernel = _launches(graph, node, _strips(node)[0])[1].kernel
    window, result = 7 * 32, 64
    record = CudaKernel.from_bytes(backend.records(kernel, _HOPPER), 0)
    assert record.dynamic_shared_bytes == 2 * 64 * (window + result)
    assert record.supports_pdl

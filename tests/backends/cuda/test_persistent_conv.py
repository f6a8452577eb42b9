"""Programs that hold their weights are offered where they may pay, and never chosen unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.devices.cuda import SM_RESOURCES, CudaKernel, resources_of
from smelt.engine import Launch
from smelt.ir import Graph
from smelt.ops import Conv
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from smelt.ir import Node

_HOPPER = CudaTarget(90)


def _convolution(
    batch: int, channels: int, filters: int, op: Conv, size: int = 28, dtype: DType = DType.FLOAT16
) -> tuple[Graph, Node]:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(dtype, (batch, channels, size, size)))
    array = np.random.default_rng(0).standard_normal((filters, channels, *op.kernel_shape))
    node = graph.add(op, x, graph.add_constant(array.astype(dtype.numpy), "w"), name="node")
    graph.outputs += node.outputs
    return graph, node


def _persistent_tactics(node: Node, target: CudaTarget = _HOPPER) -> list[Tactic]:
    return [t for t in CudaBackend().candidates(node, target)[0] if t.family == "persistent"]


@pytest.mark.parametrize("channels", [64, 128, 256])
def test_they_are_never_the_first_by_estimate(channels: int) -> None:
    _, node = _convolution(32, channels, 512, Conv((1, 1)))
    tactics, _ = CudaBackend().candidates(node, _HOPPER)
    assert 1 <= len(_persistent_tactics(node)) <= 3
    assert min(tactics, key=lambda t: t.estimated_seconds).family == "conv"


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "op", "target"),
    [
        (1, 128, 512, Conv((1, 1)), _HOPPER),
        (32, 128, 40, Conv((1, 1)), _HOPPER),
        (32, 1024, 256, Conv((1, 1)), _HOPPER),
        (32, 128, 128, Conv((3, 3), pads=(1, 1, 1, 1)), _HOPPER),
        (32, 20, 64, Conv((1, 1)), _HOPPER),
        (32, 128, 512, Conv((1, 1)), CudaTarget(75)),
    ],
    ids=["few places", "odd filters", "deep", "wide windows", "no vectors", "old"],
)
def test_they_are_not_offered_where_nothing_is_gained(
    batch: int, channels: int, filters: int, op: Conv, target: CudaTarget
) -> None:
    _, node = _convolution(batch, channels, filters, op)
    assert not _persistent_tactics(node, target)


def test_they_multiply_sixteen_bits_alone() -> None:
    _, node = _convolution(32, 128, 512, Conv((1, 1)), dtype=DType.FLOAT32)
    assert not _persistent_tactics(node)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((0, 64, 1, 1), "is empty"),
        ((0, 3, 1, 1), "is empty"),
        ((SymbolicDim.symbol("F"), 3, 1, 1), "are not constant"),
        ((64, SymbolicDim.symbol("C"), 1, 1), "are not constant"),
    ],
    ids=["no filters", "no filters of colours", "open filters", "open channels"],
)
def test_weights_of_no_or_open_extents_are_refused_like_everywhere(
    shape: tuple[Any, ...], reason: str
) -> None:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT16, (32, shape[1], 28, 28)))
    w = graph.add_input("w", TensorType(DType.FLOAT16, shape))
    if all(isinstance(extent, int) for extent in shape):
        w = graph.add_constant(np.zeros(shape, np.float16), "constant")
    tactics, refusals = CudaBackend().candidates(
        graph.add(Conv((1, 1)), x, w, name="node"), _HOPPER
    )
    assert all(tactic.is_host_step for tactic in tactics)
    assert {r.family for r in refusals if reason in r.reason} >= {"conv", "stem"}


def test_what_they_load_ahead_fits_as_often_as_they_are_to_run_beside_each_other(
    compilers: CompilerPool,
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    graph, node = _convolution(32, 256, 1024, Conv((1, 1)), size=14)
    backend = CudaBackend(pool=compilers)
    tactic = _persistent_tactics(node)[0]
    assembled = build_plan(graph, {node: tactic}, backend, WeightStore())
    launches = [s for s in assembled.plan.steps if isinstance(s, Launch)]
    (launch,) = (s for s in launches if s.kernel.family == "persistent")
    record = CudaKernel.from_bytes(backend.records(launch.kernel, _HOPPER), 0)
    programs_per_sm = -(-int(str(launch.chunks)) // _HOPPER.multiprocessors)
    registers = resources_of(record.cubin, record.entry).registers
    room, _ = SM_RESOURCES[90].resident_blocks(
        record.threads, registers, record.dynamic_shared_bytes
    )
    assert programs_per_sm <= room
    assert record.supports_pdl

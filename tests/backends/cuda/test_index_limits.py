"""What has more elements than a kernel can count is left to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.backends import WeightStore, build_plan
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.engine import Launch, View
from smelt.ir import Graph
from smelt.ops import LRN, AveragePool, Conv, MatMul, MaxPool, ReduceSum, Relu, Softmax, Transpose
from smelt.types import DType, Layout, TensorType

if TYPE_CHECKING:
    from smelt.ir import Op


def _families(shape: tuple[int, ...], depth: int, filters: int) -> set[str]:
    """Of the tactics for a convolution of images of this shape."""
    graph = Graph("large")
    x = graph.add_input("x", TensorType(DType.FLOAT16, shape))
    window = (3,) * (len(shape) - 2)
    w = graph.add_constant(np.zeros((filters, depth, *window), np.float16), "w")
    node = graph.add(Conv(window, group=shape[1] // depth), x, w, name="node")
    tactics, refusals = CudaBackend(jobs=1).candidates(node, CudaTarget(90))
    found = {tactic.family for tactic in tactics} - {"reference"}
    for refusal in refusals:
        assert refusal.family not in found, refusal
    return found


@pytest.mark.parametrize(
    ("shape", "depth", "filters", "expected"),
    [
        ((4096, 8, 512, 512), 8, 8, {"conv"}),
        ((1, 8, 512, 512, 513), 8, 8, set[str]()),
        ((1, 8, 512, 512, 513), 1, 8, set[str]()),
        ((1, 1, 16384, 16384), 1, 1, {"conv"}),
        ((1, 3, 4096, 4096), 3, 8, {"conv", "stem"}),
    ],
)
def test_images_of_more_elements_than_32_bits_tell_have_no_kernel_that_counts_so(
    shape: tuple[int, ...], depth: int, filters: int, expected: set[str]
) -> None:
    assert _families(shape, depth, filters) == expected


@pytest.mark.parametrize(("side", "needs_int64_offsets"), [(1 << 12, False), (1 << 14, True)])
def test_copies_count_channels_in_64_bits_where_planes_lie_far_apart(
    side: int, needs_int64_offsets: bool
) -> None:
    plane = side * side
    shape = (1, 64, side, side)
    planes = View(0, 0, DType.FLOAT16, shape, (64 * plane, plane, side, 1))
    pixels = View(1, 0, DType.FLOAT16, shape, (64 * plane, 1, 64 * side, 64))
    backend = CudaBackend(jobs=1)
    (step,) = backend.reformat(planes, pixels)
    assert isinstance(step, Launch)
    assert (
        "e1.to(tl.int64)" in backend.generate(step.kernel, CudaTarget(90))
    ) is needs_int64_offsets


def _kernels(op: Op, *shapes: tuple[int, ...], axes: tuple[int, ...] | None = None) -> str:
    """The text of the kernels of the first tactic for an op."""
    graph = Graph("large")
    inputs = [
        graph.add_input(f"x{k}", TensorType(DType.FLOAT16, shape)) for k, shape in enumerate(shapes)
    ]
    if axes is not None:
        inputs.append(graph.add_constant(np.array(axes), "axes"))
    node = graph.add(op, *inputs, name="node")
    graph.outputs += node.outputs
    backend = CudaBackend(jobs=1)
    tactic = backend.candidates(node, CudaTarget(90))[0][0]
    assert not tactic.is_host_step
    steps = build_plan(graph, {node: tactic}, backend, WeightStore()).plan.steps
    launches = [step for step in steps if isinstance(step, Launch)]
    return "\n".join(backend.generate(launch.kernel, CudaTarget(90)) for launch in launches)


@pytest.mark.parametrize(
    ("op", "shape", "axes", "needs_int64_offsets"),
    [
        (ReduceSum(), (1 << 14, 1 << 18), (0,), True),
        (ReduceSum(), (1 << 14, 1 << 17), (0,), False),
        (ReduceSum(), (1 << 13, 3, 1 << 18), (1, 2), False),
        (ReduceSum(), (1, 1 << 15, 1 << 17), (1,), True),
        (Softmax(0), (3, 1 << 30), None, True),
        (Softmax(1), (1 << 22, 1 << 12), None, False),
    ],
)
def test_rows_that_reach_further_than_32_bits_tell_are_counted_in_64(
    op: Op, shape: tuple[int, ...], axes: tuple[int, ...] | None, *, needs_int64_offsets: bool
) -> None:
    text = _kernels(op, shape, axes=axes)
    assert "row = tl.program_id(0).to(tl.int64)" in text
    steps = [line for line in text.splitlines() if line.strip().startswith("j = ")]
    assert steps
    assert all(line.endswith(".to(tl.int64)") is needs_int64_offsets for line in steps)


@pytest.mark.parametrize("op", [MaxPool((2, 2)), AveragePool((2, 2)), LRN(3), Relu()])
def test_what_walks_over_whole_tensors_counts_programs_in_64_bits(op: Op) -> None:
    text = _kernels(op, (1 << 12, 64, 128, 128))
    assert "tl.program_id(0).to(tl.int64)" in text
    assert "tl.program_id(0)\n" not in text


def test_more_places_than_32_bits_tell_are_no_rows_of_a_product() -> None:
    assert "conv" in _families((1 << 17, 1, 128, 128), 1, 1)  # 2^31 pixels less the windows' ends
    assert not _families((1 << 18, 1, 128, 128), 1, 1)


def test_a_large_factor_that_is_turned_over_is_copied() -> None:
    for width, layout in ((1 << 10, Layout.STRIDED), (1 << 11, Layout.LINEAR)):
        graph = Graph("large")
        x = graph.add_input("x", TensorType(DType.FLOAT16, (1 << 10, 1 << 10, width)))
        turned = graph.add(Transpose((1, 0, 2)), x, name="turned").output
        w = graph.add_constant(np.zeros((width, 8), np.float16), "w")
        node = graph.add(MatMul(), turned, w, name="node")
        tactics, _ = CudaBackend(jobs=1).candidates(node, CudaTarget(90))
        formats = {
            t.input_formats[0].layout for t in tactics if t.family == "gemm" and t.input_formats[0]
        }
        assert formats == {layout}

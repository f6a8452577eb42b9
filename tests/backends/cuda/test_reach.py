"""What has more elements than a kernel can count is left to others."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.engine import Launch, View
from smelt.ir import Graph
from smelt.ops.conv import Conv
from smelt.types import DType, TensorType


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


@pytest.mark.parametrize(("side", "is_far"), [(1 << 12, False), (1 << 14, True)])
def test_copies_count_channels_in_64_bits_where_planes_lie_far_apart(
    side: int, is_far: bool
) -> None:
    plane = side * side
    shape = (1, 64, side, side)
    planes = View(0, 0, DType.FLOAT16, shape, (64 * plane, plane, side, 1))
    pixels = View(1, 0, DType.FLOAT16, shape, (64 * plane, 1, 64 * side, 64))
    backend = CudaBackend(jobs=1)
    (step,) = backend.reformat(planes, pixels)
    assert isinstance(step, Launch)
    assert ("e1.to(tl.int64)" in backend.generate(step.kernel, CudaTarget(90))) is is_far

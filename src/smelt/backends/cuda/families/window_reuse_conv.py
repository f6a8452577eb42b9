"""Window-reuse convolutions: windows slide over shared memory, so each pixel is loaded once.

See `smelt.backends.cuda._window_reuse_kernel`. The kernel is fast where the L2 cache limits a
convolution: windows of several taps, many positions, strides of 1. The estimates were not fitted,
so without measurements these tactics are never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Tactic, refuse_if
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._product_costs import window_reuse_seconds
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda._triton import gluon_unavailable_reason
from smelt.backends.cuda._window_reuse_kernel import WindowReuseWriter, shared_window_layout
from smelt.backends.cuda.families._conv_problem import ConvLowering, conv_problem_of
from smelt.backends.cuda.families._product_family import ProductFamily
from smelt.backends.cuda.families._product_operands import wide_operand_reason
from smelt.types import DType, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._cost_model import GpuSpec
    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape
    from smelt.backends.cuda.families._conv_problem import ConvProblem
    from smelt.engine import KernelSpec
    from smelt.ir import Node, Value

_WGMMA_CAPABILITY: Final = ("sm_90",)
"""Architectures whose tensor cores read both operands from shared memory."""
_TILES: Final = ((256, 64, 4), (256, 64, 8), (128, 128, 4), (128, 64, 4), (256, 128, 8))
"""(positions, filters, warps) of tiles. 256 positions by 64 filters read 80 bytes of shared memory
a clock where 64 by 64 read 128 (docs/lab/products-on-gpus.md); the list is chosen without a
measurement."""
_RINGS: Final = (6, 5, 4)
"""Numbers of weight tiles in the ring, the best first; smaller ones may allow another program per
multiprocessor. Chosen without a measurement."""
_MIN_RING: Final = 4
"""Minimum number of weight tiles in the ring. It is the smallest of `_RINGS`."""
_WIDTHS: Final = (64, 32)
"""Possible channels of a slice. Chosen without a measurement."""
_MIN_FILLED: Final = 0.75
"""Minimum share of the slices that is channels, and of the positions that is the result's. Chosen
without a measurement."""
_MIN_BUSY: Final = 0.5
"""Minimum share of the multiprocessors that have a program. Chosen without a measurement."""
_MAX_CANDIDATES: Final = 4
"""Maximum number of tactics of a node. Chosen without a measurement."""
_OWN_SHARED_BYTES: Final = 1024
"""Shared memory in bytes that a program uses to exchange positions between lanes."""
_OWN_REGISTERS: Final = 40
"""Registers of a thread besides its sums. No measurement is recorded."""


@dataclass(frozen=True, slots=True)
class _WindowReuseProblem:
    """Requirements of a convolution's windows on shared memory."""

    extents: tuple[int, ...]
    """Extents of the padded image."""
    window_span: int
    """Distance from a window's first tap to its last, in positions."""
    taps: int
    slices: int
    width: int
    """Channels of a slice."""
    valid_share: float
    """Share of all positions that belong to the result."""
    channel_share: float
    """Share of the slices that is channels."""


def _programs_per_sm(config: TileConfig, window: _WindowReuseProblem, gpu: GpuSpec) -> int:
    """Return how many programs fit on a multiprocessor at once."""
    places, filters, width = config.tile
    need = places + window.window_span
    memory = shared_window_layout(need, window.taps, window.slices, config.num_stages)
    rows = memory.rows + config.num_stages * filters
    needed_bytes = rows * width * DType.FLOAT16.size_bytes + _OWN_SHARED_BYTES
    registers = places * filters // config.threads + _OWN_REGISTERS
    return gpu.limits.resident_blocks(config.threads, registers, needed_bytes)[0]


class _WindowReuseLowering(ConvLowering):
    """Lowering to a product whose rows are all positions of the padded image."""

    @override
    def window_fields(self) -> dict[str, Any]:
        valid_extents = self.scalars.all_json((self.out.shape[0], *self.out.shape[2:]))
        return {**super().window_fields(), "valid_extents": valid_extents}

    @override
    def rows(self) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
        extents = (self.out.shape[0], *_window_of(self.problem).extents)
        axes = (0, *range(2, len(self.out.shape)))
        rows = (
            Axis(extent, (self.x.strides[axis], 0, *self.strides(axis)))
            for extent, axis in zip(extents, axes, strict=True)
        )
        return tuple(rows), (-1, *range(len(axes) - 1))


class WindowReuseConvFamily(ProductFamily):
    """Family of dense 16-bit convolutions of stride 1 whose channels fill whole vectors."""

    name: ClassVar[str] = "window_reuse"
    lowering: ClassVar[type[ConvLowering]] = _WindowReuseLowering
    requires_contiguous: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        problem = conv_problem_of(node)
        if problem is None or problem.is_sum or problem.dense_reason:
            return  # the other families yield the refusal
        refuse_if(_unsupported_reason(problem, target) or gluon_unavailable_reason())
        shape, window = problem.shape(target), _window_of(problem)
        # Among rings with equal estimates, the longest is kept: it comes first.
        ranked = sorted(_tile_configs(shape, window, target), key=itemgetter(0))
        best = {(c.tile, c.num_warps): (seconds, c) for seconds, c in reversed(ranked)}
        reason = (
            "the windows exceed shared memory or are mostly padding, or the pixels are too few to "
            "occupy the GPU"
        )
        yield from self.unfitted_tactics(
            problem, shape, best.values(), _MAX_CANDIDATES, target, reason
        )

    @override
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        return WindowReuseWriter


def _unsupported_reason(problem: ConvProblem, target: CudaTarget) -> str | None:
    """Return why the family cannot run a convolution, or None."""
    node, root = problem.node, problem.root
    image = required_input(node, 0).tensor
    if target.architectures != _WGMMA_CAPABILITY:
        return (
            f"{target.architecture} has no tensor cores that read both operands from shared "
            "memory (WGMMA)"
        )
    if reason := wide_operand_reason(target.operand_dtype(image.dtype)):
        return reason
    if prod(root.kernel_shape) == 1 or any(step > 1 for step in root.strides):
        return (
            f"the window is {root.kernel_shape} with strides {root.strides}; only windows larger "
            "than 1x1 with stride 1 are supported"
        )
    if root.group > 1 or problem.filter_shape[1] % VECTOR:
        return (
            f"the convolution is grouped, or its channel count {problem.filter_shape[1]} is not a "
            f"multiple of the vector width {VECTOR}"
        )
    if any(_differs_per_pixel(value, node) for value in node.inputs[problem.root_inputs :]):
        return "the epilogue reads a tensor that differs between pixels"
    extents = (*image.shape[2:], *node.output.tensor.shape[2:])
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return "the image size is symbolic or zero"
    return None


def _differs_per_pixel(value: Value | None, node: Node) -> bool:
    """Return whether an epilogue operand differs between positions."""
    if value is None:
        return False
    shape = (1,) * (node.output.tensor.rank - value.tensor.rank) + value.tensor.shape
    return any(extent != 1 for axis, extent in enumerate(shape) if axis != 1)


def _window_of(problem: ConvProblem) -> _WindowReuseProblem:
    """Return the window requirements of a supported convolution."""
    node, root = problem.node, problem.root
    image = fixed_shape(required_input(node, 0).tensor.shape[2:])
    result = fixed_shape(node.output.tensor.shape[2:])
    extents = tuple(
        max(size + max(pads), result_extent)
        for size, pads, result_extent in zip(image, root.pad_pairs, result, strict=True)
    )
    pitches = [prod(extents[at + 1 :]) for at in range(len(extents))]
    window_span = sum(
        (taps - 1) * dilation * pitch
        for taps, dilation, pitch in zip(root.kernel_shape, root.dilations, pitches, strict=True)
    )
    channels = problem.filter_shape[1]
    widths = {width: -(-channels // width) * width for width in _WIDTHS}
    width = min(_WIDTHS, key=lambda width: (widths[width], -width))
    if channels >= _MIN_FILLED * widths[_WIDTHS[0]]:
        width = _WIDTHS[0]
    taps, slices = prod(root.kernel_shape), widths[width] // width
    valid_share = prod(result) / prod(extents)
    channel_share = channels / widths[width]
    return _WindowReuseProblem(
        extents, window_span, taps, slices, width, valid_share, channel_share
    )


def _tile_configs(
    shape: GemmShape, window: _WindowReuseProblem, target: CudaTarget
) -> Iterator[tuple[float, TileConfig]]:
    """Yield every configuration that fits, with its estimated seconds."""
    if min(window.valid_share, window.channel_share) < _MIN_FILLED:
        return
    gpu = gpu_spec_of(target)
    for (places, filters, num_warps), max_ring in product(_TILES, _RINGS):
        ring = min(max_ring, window.taps + 1)
        is_oversized = filters >= 2 * shape.columns or places >= 2 * shape.rows
        programs = ceil(shape.rows / window.valid_share / places) * ceil(shape.columns / filters)
        fills_gpu = programs >= _MIN_BUSY * target.multiprocessors
        if ring < _MIN_RING or not fills_gpu or is_oversized:
            continue
        config = TileConfig((places, filters, window.width), num_warps, ring)
        if programs_per_sm := _programs_per_sm(config, window, gpu):
            seconds = window_reuse_seconds(
                shape,
                config,
                gpu,
                steps=window.taps * window.slices,
                programs=programs,
                programs_per_sm=programs_per_sm,
            )
            yield seconds, config

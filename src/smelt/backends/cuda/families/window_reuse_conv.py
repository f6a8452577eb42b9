"""Window-reuse convolutions: windows slide over shared memory, so each pixel is loaded once.

See `smelt.backends.cuda._window_reuse_kernel`. The kernel is fast where the L2 cache limits a
convolution: windows of several taps, many positions, strides of 1. The estimates were not fitted,
so without measurements these tactics are never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, WARP_LANES, gpu_spec_of
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda._triton import gluon_unavailable_reason
from smelt.backends.cuda._window_reuse_kernel import (
    WindowReuseWriter,
    ring_slots,
    shared_window_layout,
)
from smelt.backends.cuda.families._gemm_launches import GemmIterationSpace
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.backends.cuda.families._gemm_tiles import ranked_after_tiles
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    ConvLowering,
    formats_of,
    is_depthwise,
    product_shape,
    reason_against,
)
from smelt.engine import parameters
from smelt.ops import Conv
from smelt.types import DType, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._cost_model import GpuSpec
    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node, Value

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
_TENSOR_CORE_SHARE: Final = 0.8
"""Share of the tensor cores' peak rate that undisturbed products reach. No measurement is
recorded."""
_FETCH_SECONDS: Final = 1.0e-6
"""Latency of loading a weight tile, in seconds. No measurement is recorded."""
_END_SECONDS: Final = 1.4e-6
"""Time of a program before its first and after its last product, in seconds. No measurement is
recorded."""
_SUM_SECONDS: Final = 1.1e-8
"""Additional time at a program's end for each sum of a thread, in seconds. No measurement is
recorded."""


@dataclass(frozen=True, slots=True)
class _SharedWindow:
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


@dataclass(frozen=True, slots=True)
class _WindowReuseConfig:
    """Parameters of a tactic."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int

    def programs_per_sm(self, window: _SharedWindow, gpu: GpuSpec) -> int:
        """Return how many programs fit on a multiprocessor at once."""
        places, filters, width = self.tile
        need = places + window.window_span
        memory = shared_window_layout(need, window.taps, window.slices, self.num_stages)
        rows = memory.rows + self.num_stages * filters
        needed_bytes = rows * width * DType.FLOAT16.size_bytes + _OWN_SHARED_BYTES
        threads = self.num_warps * WARP_LANES
        registers = places * filters // threads + _OWN_REGISTERS
        return gpu.limits.resident_blocks(threads, registers, needed_bytes)[0]

    def programs(self, shape: GemmShape, window: _SharedWindow) -> int:
        """Return the number of programs of a launch."""
        places, filters, _ = self.tile
        return ceil(shape.rows / window.valid_share / places) * ceil(shape.columns / filters)

    @property
    def parameters(self) -> Parameters:
        """Parameters of the tactic."""
        return parameters(
            tile=self.tile,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            precision="ieee",
            prefetches_epilogue=False,
            split_k=1,
        )


class WindowReuseConvFamily(Family[CudaTarget]):
    """Family of dense 16-bit convolutions of stride 1 whose channels fill whole vectors."""

    name: ClassVar[str] = "window_reuse"
    supports_reduced_precision: ClassVar[bool] = True
    requires_contiguous: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or reason_against(node) or is_depthwise(node, root):
            return  # the other families yield the refusal
        if reason := _unsupported_reason(node, root, target) or gluon_unavailable_reason():
            yield Refusal(self.name, reason)
            return
        shape, window = product_shape(node, root, target), _window_of(node, root)
        ranked_configs = [
            (_seconds(shape, window, c, target), c) for c in _tile_configs(shape, window, target)
        ]
        if not ranked_configs:
            yield Refusal(
                self.name,
                "windows exceed shared memory or are mostly padding, or there are too few pixels",
            )
            return
        inputs, output = formats_of(node)
        # Among rings with equal estimates, the longest is kept: it comes first.
        ranked_configs.sort(key=lambda pair: pair[0])
        best = {(c.tile, c.num_warps): (seconds, c) for seconds, c in reversed(ranked_configs)}
        ranked = sorted(best.values(), key=lambda pair: pair[0])[:_MAX_CANDIDATES]
        for seconds, choice in ranked_after_tiles(ranked, shape, target):
            yield Tactic(self.name, choice.parameters, inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return ConvFamily().pack(node, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(Conv, node)
        return _WindowReuseLowering(node, root, tactic, operands).launches()

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return WindowReuseWriter(kernel).write()


class _WindowReuseLowering(ConvLowering):
    """Lowering to a product whose rows are all positions of the padded image."""

    @override
    def common(self) -> dict[str, Any]:
        shape = self.out.shape
        valid_extents = self.scalars.all_json((shape[0], *shape[2:]))
        return {**super().common(), "valid_extents": valid_extents}

    @override
    def iteration_space(self, columns: Axis, groups: int) -> GemmIterationSpace:
        shape = self.out.shape
        extents = (shape[0], *_window_of(self.node, self.root).extents)
        axes = (0, *range(2, len(shape)))
        rows = (
            Axis(extent, (self.x.strides[axis], 0, *self.strides(axis)))
            for extent, axis in zip(extents, axes, strict=True)
        )
        return GemmIterationSpace(tuple(rows), (-1, *range(len(axes) - 1)), columns, groups)


def _unsupported_reason(node: Node, root: Conv, target: CudaTarget) -> str | None:
    """Return why the family cannot run a convolution, or None."""
    image = required_input(node, 0).tensor
    if target.architectures != _WGMMA_CAPABILITY:
        return (
            f"{target.architecture} has no tensor cores that read both operands from shared "
            f"memory (WGMMA)"
        )
    if reason := wide_operand_reason(target.operand_dtype(image.dtype)):
        return reason
    if prod(root.kernel_shape) == 1 or any(step > 1 for step in root.strides):
        return "1x1 windows and strided windows do not share pixels"
    if root.group > 1 or fixed_extent(required_input(node, 1).tensor.shape[1]) % VECTOR:
        return "grouped convolution, or the channels are not a multiple of the vector width"
    if any(_differs_per_pixel(value, node) for value in node.inputs[root_of(node)[1] :]):
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


def _window_of(node: Node, root: Conv) -> _SharedWindow:
    """Return the window requirements of a supported convolution."""
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
    channels = fixed_extent(required_input(node, 1).tensor.shape[1])
    widths = {width: -(-channels // width) * width for width in _WIDTHS}
    width = min(_WIDTHS, key=lambda width: (widths[width], -width))
    if channels >= _MIN_FILLED * widths[_WIDTHS[0]]:
        width = _WIDTHS[0]
    taps, slices = prod(root.kernel_shape), widths[width] // width
    valid_share = prod(result) / prod(extents)
    return _SharedWindow(
        extents, window_span, taps, slices, width, valid_share, channels / widths[width]
    )


def _tile_configs(
    shape: GemmShape, window: _SharedWindow, target: CudaTarget
) -> Iterator[_WindowReuseConfig]:
    """Yield every configuration that fits."""
    if min(window.valid_share, window.channel_share) < _MIN_FILLED:
        return
    for (places, filters, num_warps), max_ring in product(_TILES, _RINGS):
        ring = ring_slots(window.taps, max_ring)
        choice = _WindowReuseConfig((places, filters, window.width), num_warps, ring)
        is_oversized = filters >= 2 * shape.columns or places >= 2 * shape.rows
        fills_gpu = choice.programs(shape, window) >= _MIN_BUSY * target.multiprocessors
        if (
            ring >= _MIN_RING
            and fills_gpu
            and not is_oversized
            and choice.programs_per_sm(window, gpu_spec_of(target))
        ):
            yield choice


def _seconds(
    shape: GemmShape, window: _SharedWindow, choice: _WindowReuseConfig, target: CudaTarget
) -> float:
    """Return the estimated seconds of a launch, whose programs run in waves."""
    places, filters, width = choice.tile
    gpu = gpu_spec_of(target)
    programs_per_sm = choice.programs_per_sm(window, gpu)
    programs = choice.programs(shape, window)
    steps = window.taps * window.slices
    step_seconds = (
        2.0
        * places
        * filters
        * width
        * gpu.multiprocessors
        / (gpu.tensor_flops * _TENSOR_CORE_SHARE)
    )
    program_seconds = steps * max(step_seconds, _FETCH_SECONDS / (choice.num_stages - 2))
    end_seconds = _END_SECONDS + _SUM_SECONDS * places * filters / (choice.num_warps * WARP_LANES)

    def wave_seconds(programs_each: int) -> float:
        return max(programs_each * steps * step_seconds, program_seconds) + end_seconds

    waves, remaining = divmod(programs, programs_per_sm * gpu.multiprocessors)
    last_wave = wave_seconds(ceil(remaining / gpu.multiprocessors)) if remaining else 0.0
    moved_bytes = (shape.image + shape.rows * shape.columns) * shape.dtype.size_bytes
    return LAUNCH_SECONDS + max(
        waves * wave_seconds(programs_per_sm) + last_wave, moved_bytes / gpu.memory_bytes_per_second
    )

"""Transposed convolution as one convolution per phase of the output.

Along an axis with stride s, the outputs p, p + s, p + 2s, ... are reached by the same taps: those
whose position in the window is congruent to p modulo s, once the padding is included. A phase is
therefore a sum over packed panels of its own taps, in reverse order. Each phase is a launch that
writes every s-th pixel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import NodeRefusedError, Operands, Tactic, root_as, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._emit import FLOAT_BYTES
from smelt.backends.cpu._epilogue import plan_epilogue
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm, ProductFamily
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    cut,
    dot_product_of,
    epilogue_operand_strides,
    int_vector,
    named,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    packed_tactic,
    panel_count,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import CHANNEL_AXIS, check_float_images, spatial_pair
from smelt.backends.cpu.families._tiling import (
    Tiling,
    TilingProblem,
    choose_tile,
    estimate_seconds,
    fitting_tiles,
    parallel_splits,
    static_extent,
)
from smelt.backends.cpu.families.conv import bias_of, check_constant_weights
from smelt.ir import Constant, Node
from smelt.ops import ConvTranspose, Slice
from smelt.types import Dim, ceil_div, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Halo, Launch, Step, View

_MAX_PHASES: Final = 32 * 32
"""Largest number of phases. A phase takes about a millisecond to build, and a model of a hundred
bytes may ask for any number of them. Fully convolutional networks for segmentation have
strides of 32 along two axes (Long, Shelhamer and Darrell, 2015), which is the most of any
known network."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The taps of one phase along one axis, in the order in which the input is read."""

    first: int
    """Output index of the phase's first element."""
    taps: tuple[int, ...]
    """Positions in the window, in descending order."""
    start: int
    """Input index of the first tap of the phase's first element."""
    step: int
    """Input elements from one tap to the next."""


class DeconvFamily(ProductFamily):
    """Transposed convolution as one convolution per phase."""

    name: ClassVar[str] = "deconv"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, ConvTranspose):
            return
        _check(node, root)
        halo = _halo(node, root)
        lanes, problem = target.vector_bits // 32, _problem(node, root)
        for budget, vectors in fitting_tiles(problem, target):
            tile = choose_tile(problem, budget, vectors)
            seconds = estimate_seconds(problem, tile, vectors, target) * math.prod(root.strides)
            split, *_ = parallel_splits(problem, problem.pixels * problem.depth * FLOAT_BYTES)
            options = Tiling(seconds, budget, vectors, split).options(lanes)
            yield packed_tactic(self.name, node, options, seconds, halo=halo)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        root, options = root_as(ConvTranspose, node), tactic.options
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        weights, bias = constant_of(node.inputs[1]), bias_of(node)
        source = _as_filters(weights, root.group)
        packed: tuple[Constant, ...] = ()
        for number, phases in enumerate(product(*_phases(root))):
            part = source
            for axis, phase in enumerate(phases):
                part = _taps(part, 2 + axis, phase.taps or (0,))  # without taps: never read
            part = named(f"{weights.name}.phase{number}", part)
            packed += pack_panels(part, root.group, lanes, vectors, dot_product_of(tactic))
        if bias is not None:
            packed += (pack_bias(constant_of(bias), root.group, lanes),)
        return packed + pack_epilogue_constants(node, CHANNEL_AXIS)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(ConvTranspose, node)
        options = tactic.options
        filters = _filters(node)
        width = options.integer("lanes") * options.integer("vectors")
        panels_per_phase = panel_count(filters, width)
        phases = list(product(*_phases(root)))
        others = operands.packed[panels_per_phase * len(phases) :]
        bias = others[:1] if bias_of(node) is not None else ()
        constants = others[len(bias) :]
        extras = epilogue_operand_strides(node, operands, constants, CHANNEL_AXIS)
        steps: list[Launch] = []
        for number, phase in enumerate(phases):
            panels = operands.packed[panels_per_phase * number : panels_per_phase * (number + 1)]
            convolution, views = _product(node, root, operands, phase, extras)
            convolution = replace(convolution, has_bias=bool(bias))
            operand_views = (input_view(operands, 0), *panels, *bias, *views)
            launch = convolution.launch(self.name, tactic.parameters, operand_views)
            # The phases write different pixels, so only the first waits for earlier steps.
            steps.append(replace(launch, waits=not steps))
        return tuple(steps)


def _check(node: Node, root: ConvTranspose) -> None:
    """Check that the family supports a node."""
    check_float_images(node)
    check_constant_weights(node)
    if 0 in required_input(node, 1).tensor.shape:
        raise NodeRefusedError("the weights are empty")
    if (phases := math.prod(root.strides)) > _MAX_PHASES:
        raise NodeRefusedError(
            f"the strides {root.strides} need {phases} launches, one for each phase of the "
            f"output; at most {_MAX_PHASES} are supported"
        )


def _phases(root: ConvTranspose) -> list[list[_Phase]]:
    """Return the phases of the output along each axis."""
    phases_by_axis: list[list[_Phase]] = []
    for axis, stride in enumerate(root.strides):
        window, dilation = root.kernel_shape[axis], root.dilations[axis]
        before = root.pad_pairs[axis][0]
        phases: list[_Phase] = []
        for first in range(stride):
            taps = [k for k in range(window) if (first + before - k * dilation) % stride == 0]
            taps.reverse()
            start = (first + before - taps[0] * dilation) // stride if taps else 0
            step = dilation // math.gcd(stride, dilation)
            phases.append(_Phase(first, tuple(taps), start, step))
        phases_by_axis.append(phases)
    return phases_by_axis


def _counts(node: Node, root: ConvTranspose, axis: int) -> list[Dim]:
    """Return the number of outputs of each phase along an axis."""
    extent, stride = node.output.tensor.shape[2 + axis], root.strides[axis]
    return [ceil_div(extent - first, stride) for first in range(stride)]


def _halo(node: Node, root: ConvTranspose) -> Halo:
    """Return the halo of zeros that the taps read around the input."""
    x = required_input(node, 0)
    pairs: list[tuple[int, int]] = [(0, 0), (0, 0)]
    for axis, phases in enumerate(_phases(root)):
        before = max(0, *(-phase.start for phase in phases))
        after = 0
        for phase, count in zip(phases, _counts(node, root, axis), strict=True):
            last = count - 1 + phase.start + (len(phase.taps) - 1) * phase.step
            beyond = last - (x.tensor.shape[2 + axis] - 1)
            # With a symbolic extent the difference may keep a rounded quotient; the window's
            # extent is an upper bound.
            bound = (root.kernel_shape[axis] - 1) * root.dilations[axis] + 1
            after = max(after, beyond if isinstance(beyond, int) else bound)
        pairs.append((before, after))
    return tuple(pairs) if any(map(any, pairs)) else ()


def _filters(node: Node) -> int:
    """Return the number of filters of one group."""
    return fixed_extent(constant_of(node.inputs[1]).type.shape[1])


def _problem(node: Node, root: ConvTranspose) -> TilingProblem:
    """Return the extents of one phase, which determine the choice of tiles."""
    shape = node.output.tensor.shape
    weights = constant_of(node.inputs[1]).type.shape
    taps = math.prod(-(-k // s) for k, s in zip(root.kernel_shape, root.strides, strict=True))
    extents = [ceil_div(e, s) for e, s in zip(shape[2:], root.strides, strict=True)]
    images, height, width = map(static_extent, (shape[0], *spatial_pair(extents, 1)))
    depth = fixed_extent(weights[0]) // root.group * taps
    return TilingProblem(images, root.group, height, width, _filters(node), depth)


def _as_filters(weights: Constant, groups: int) -> Constant:
    """Return weights ``[channels, filters / group, *window]`` in a convolution's order."""
    channels, filters, *window = fixed_shape(weights.type.shape)
    by_group = reshape(weights, groups, channels // groups, filters, *window)
    permuted = transpose(by_group, 0, 2, 1, *range(3, 3 + len(window)))
    return reshape(permuted, groups * filters, channels // groups, *window)


def _taps(source: Constant, axis: int, taps: tuple[int, ...]) -> Constant:
    """Return some taps along an axis, evenly spaced and in descending order."""
    if len(taps) == 1:
        return cut(source, axis, taps[0], taps[0] + 1)
    step = taps[1] - taps[0]
    last = taps[-1] + step
    bounds = (taps[0], last if last >= 0 else -(1 << 31), axis, step)
    return Constant.derive(source.name, Slice(), source, *map(int_vector, bounds))


def _product(
    node: Node,
    root: ConvTranspose,
    operands: Operands,
    phase: tuple[_Phase, ...],
    extras: list[tuple[View, tuple[Dim, ...]]],
) -> tuple[ImplicitGemm, list[View]]:
    """Return the sum of one phase, and the views of the extra operands and the result.

    The views start at the phase's first pixel.
    """
    x, out = input_view(operands, 0), operands.outputs[0]
    channels, filters, *_ = fixed_shape(constant_of(node.inputs[1]).type.shape)
    counts = [_counts(node, root, axis)[p.first] for axis, p in enumerate(phase)]
    # A one-dimensional image is one row with one tap along the rows.
    down, across = (_Phase(0, (0,), 0, 0), *phase)[-2:]
    row, column = spatial_pair(x.strides[2:], 0)
    start = across.start * column + down.start * row
    convolution = ImplicitGemm(
        images=(out.shape[0],),
        groups=root.group,
        height=counts[0] if len(phase) == 2 else 1,
        width=counts[-1],
        filters=filters,
        # A phase without taps is an empty sum.
        taps=(len(down.taps), len(across.taps), channels // root.group)
        if all(p.taps for p in phase)
        else (0, 1, channels // root.group),
        a=GemmStrides((x.strides[0],), channels // root.group * x.strides[1], row, column),
        a_start=start,
        a_taps=(row * down.step, column * across.step, x.strides[1]),
        b_images=(0,),
        out=replace(_walk(out.strides, root, filters), channel=1),
        extras=tuple(_walk(strides, root, filters) for _, strides in extras),
        epilogue=plan_epilogue(node),
    )
    strided_operands = [*extras, (out, out.strides)]
    return convolution, [
        _from(view, strides, phase, counts, root) for view, strides in strided_operands
    ]


def _walk(strides: tuple[Dim, ...], root: ConvTranspose, filters: int) -> GemmStrides:
    """Return strides along (N, C, *spatial) as strides over the pixels of one phase."""
    image, channel, *rest = strides
    steps = [s * stride for s, stride in zip(rest, root.strides, strict=True)]
    return GemmStrides((image,), filters * channel, *spatial_pair(steps, 0), channel)


def _from(
    view: View,
    strides: tuple[Dim, ...],
    phase: tuple[_Phase, ...],
    counts: list[Dim],
    root: ConvTranspose,
) -> View:
    """Return the part of an operand's view that a phase touches."""
    if len(view.shape) != len(strides):
        return view
    offset, shape, steps = view.offset, list(view.shape), list(view.strides)
    for axis, (p, count) in enumerate(zip(phase, counts, strict=True), 2):
        if strides[axis] == 0:
            continue
        offset = offset + p.first * view.strides[axis] * view.dtype.size_bytes
        shape[axis] = count
        steps[axis] = view.strides[axis] * root.strides[axis - 2]
    return replace(view, offset=offset, shape=tuple(shape), strides=tuple(steps), halo=())

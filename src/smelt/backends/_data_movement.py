"""Family of ops that only move elements: each becomes one or a few strided copies."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np

from smelt.backends._base import Family, NodeRefusedError, Operands, Tactic, TargetT
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._node_operands import constant_input, input_view, required_input
from smelt.backends._resize_tables import crop_window, resample_columns, resize_arguments
from smelt.backends._view_family import permute_axes, window_along
from smelt.errors import InternalError
from smelt.ops import DepthToSpace, Expand, Pad, Resize, Slice, SpaceToDepth, Tile, Transpose
from smelt.types import TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.engine import Launch, Step, View
    from smelt.ir import Array, Node
    from smelt.types import Dim

_MAX_RAMP_ELEMENTS: Final = 1 << 24
"""Maximum number of output elements of the ramp that shows what a Resize does along an axis:
float32 represents consecutive integers exactly only up to 2**24."""


class CopyLowering(Protocol):
    """Lowering of copies to launches of one backend's kernels."""

    def copy(self, source: View, destination: View) -> Launch:
        """Copy between views of one shape and any strides."""
        ...

    def pad(self, source: View, inside: View, value: Array) -> Iterable[Launch]:
        """Copy to a view, and write the single element of ``value`` into the halo around it."""
        ...


class DataMovementFamily(Family[TargetT]):
    """Transposes, strided slices, broadcasts, tiles, pads and pixel shuffles as copies."""

    name: ClassVar[str] = "data_movement"
    supports_reduced_precision: ClassVar[bool] = True

    def __init__(self, lowering: CopyLowering) -> None:
        """Create a family that moves data by the copy kernels of a backend."""
        self.lowering = lowering

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic]:
        if type(node.op) not in _LOWERINGS:
            return
        if check := _CHECKS.get(type(node.op)):
            check(node)
        source = required_input(node, 0).tensor
        absent = (None,) * (len(node.inputs) - 1)
        for before in reversed(layouts_of(source.rank)):
            for after in reversed(layouts_of(node.output.tensor.rank)):
                yield Tactic(
                    self.name,
                    (),
                    (TensorFormat(source.dtype, before), *absent),
                    (TensorFormat(source.dtype, after),),
                    estimated_seconds=1e-5 if before is after else 2e-5,
                )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source, result = input_view(operands, 0), operands.outputs[0]
        return tuple(_LOWERINGS[type(node.op)](node, source, result, self.lowering))


def _is_absent(node: Node, index: int) -> bool:
    """Return whether an optional input is missing."""
    return index >= len(node.inputs) or node.inputs[index] is None


# ---- lowering of each op


def _transpose(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy a view of the source with permuted axes."""
    perm = getattr(node.op, "perm", None) or tuple(reversed(range(len(source.shape))))
    window = replace(permute_axes(source, perm), shape=result.shape, halo=())
    yield lowering.copy(window, result)


def _expand(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy a view of the source with strides of 0 along broadcast axes."""
    strides = broadcast_strides(source, result.shape)
    yield lowering.copy(replace(source, shape=result.shape, strides=strides, halo=()), result)


def _check_slice(node: Node) -> None:
    """Raise NodeRefusedError if a Slice cannot be lowered to a copy."""
    for index, what in ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")):
        if not _is_absent(node, index) and constant_input(node, index) is None:
            raise NodeRefusedError(f"the {what} are not constant")
    if not required_input(node, 0).tensor.is_static:
        raise NodeRefusedError("the sliced tensor has symbolic extents")


def _slice(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy a strided window of the source."""
    begins, axes, steps = (constant_input(node, i) for i in (1, 3, 4))
    if begins is None:
        raise InternalError(f"{node}: the starts are not constant")
    rank = len(source.shape)
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes]
    offset, strides = source.offset, list(source.strides)
    for number, axis in enumerate(chosen):
        step = 1 if steps is None else int(steps[number])
        extent = source.shape[axis]
        if not isinstance(extent, int):
            raise InternalError(f"{node}: extent {extent} is symbolic")
        begin = int(begins[number])
        begin = begin + extent if begin < 0 else begin
        begin = max(min(begin, extent - 1), 0)  # in range even if the slice is empty
        offset = offset + strides[axis] * begin * source.dtype.size_bytes
        # An axis of at most one element needs no stride, and a step may be as large as 2**63.
        strides[axis] = strides[axis] * (step if result.shape[axis] not in {0, 1} else 1)
    window = replace(source, offset=offset, shape=result.shape, strides=tuple(strides), halo=())
    yield lowering.copy(window, result)


def _repeats_of(node: Node) -> Sequence[Dim]:
    """Return how often each axis is repeated, known at build time as constants or dimensions.

    Raises:
        NodeRefusedError: it is not known.
    """
    repeats = constant_input(node, 1)
    if repeats is not None:
        return [int(count) for count in repeats]
    dims = required_input(node, 1).dims
    if dims is None:
        raise NodeRefusedError("the repeats are not known at build time")
    return dims


def _tile(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy the source with every axis split into repeats, of source stride 0, and elements."""
    repeats = _repeats_of(node)
    for axis in reversed(range(len(repeats))):
        result = _split_axis(result, axis, repeats[axis], source.shape[axis])
    strides = tuple(chain.from_iterable((0, stride) for stride in source.strides))
    yield lowering.copy(replace(source, shape=result.shape, strides=strides, halo=()), result)


def _pads(node: Node, rank: int) -> list[tuple[int, int]]:
    """Return the pads (before, after) of each axis.

    Raises:
        NodeRefusedError: they are not constant.
    """
    pads, axes = constant_input(node, 1), constant_input(node, 3)
    if pads is None or (axes is None and not _is_absent(node, 3)):
        raise NodeRefusedError("the pads or their axes are not constant")
    chosen = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    result = [(0, 0)] * rank
    for number, axis in enumerate(chosen):
        result[axis] = (int(pads[number]), int(pads[number + len(chosen)]))
    return result


def _check_pad(node: Node) -> None:
    """Raise NodeRefusedError if a Pad cannot be lowered to copies."""
    source = required_input(node, 0)
    pads = _pads(node, source.tensor.rank)
    if any(p < 0 for pair in pads for p in pair):
        raise NodeRefusedError("negative pads are not supported")
    mode = getattr(node.op, "mode", "constant")
    if mode == "constant":
        if not _is_absent(node, 2) and constant_input(node, 2) is None:
            raise NodeRefusedError("the padding value is not constant")
        return
    padded_axes = [a for a, pair in enumerate(pads) if any(pair)]
    if not all(isinstance(source.tensor.shape[a], int) for a in padded_axes):
        raise NodeRefusedError(f"a padded extent is symbolic; pads of mode {mode!r} need its value")
    limit = 0 if mode == "reflect" else 1
    for axis in padded_axes:
        extent = source.tensor.shape[axis]
        if isinstance(extent, int) and mode != "edge" and max(pads[axis]) >= extent + limit:
            raise NodeRefusedError(
                f"axis {axis} has extent {extent} and pads {pads[axis]}; mode {mode!r} supports "
                f"pads of at most {extent + limit - 1}"
            )


def _pad(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy the source into the result; then fill the border by a constant or by further copies."""
    pads = _pads(node, len(source.shape))
    offset = result.offset
    for (before, _), stride in zip(pads, result.strides, strict=True):
        offset = offset + stride * before * result.dtype.size_bytes
    inside = replace(result, offset=offset, shape=source.shape, halo=tuple(pads))
    mode = getattr(node.op, "mode", "constant")
    if mode == "constant":
        value = constant_input(node, 2)
        value = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)[:1]
        yield from lowering.pad(source, inside, value)
        return
    yield lowering.copy(source, replace(inside, halo=()))
    # Each axis copies slabs of the region that the axes before it have filled.
    filled = replace(inside, halo=())
    for axis, (before, after) in enumerate(pads):
        for count, at_end in ((before, False), (after, True)):
            if count:
                yield lowering.copy(*_slab(filled, axis, count, mode, at_end=at_end))
        filled = window_along(filled, axis, -before, filled.shape[axis] + before + after)


def _slab(view: View, axis: int, count: int, mode: str, *, at_end: bool) -> tuple[View, View]:
    """Return source and destination of ``count`` padding positions beside a view on an axis."""
    extent = view.shape[axis]
    if not isinstance(extent, int):
        raise InternalError(f"extent {extent} is symbolic")
    first, step = {
        ("reflect", False): (count, -1),
        ("reflect", True): (extent - 2, -1),
        ("edge", False): (0, 0),
        ("edge", True): (extent - 1, 0),
        ("wrap", False): (extent - count, 1),
        ("wrap", True): (0, 1),
    }[mode, at_end]
    strides = tuple(s * step if a == axis else s for a, s in enumerate(view.strides))
    source = replace(window_along(view, axis, first, count), strides=strides)
    return source, window_along(view, axis, extent if at_end else -count, count)


def _split_axis(view: View, axis: int, outer: Dim, inner: Dim) -> View:
    """Return the view with one axis split into ``outer`` blocks of ``inner`` elements."""
    shape = (*view.shape[:axis], outer, inner, *view.shape[axis + 1 :])
    stride = view.strides[axis]
    strides = (*view.strides[:axis], stride * inner, stride, *view.strides[axis + 1 :])
    return replace(view, shape=shape, strides=strides, halo=())


def _split_image(view: View, height: Dim, width: Dim, block: int) -> View:
    """Return the view of an image as ``height`` by ``width`` blocks."""
    return _split_axis(_split_axis(view, 3, width, block), 2, height, block)


def _depth_to_space(
    node: Node, source: View, result: View, lowering: CopyLowering
) -> Iterator[Launch]:
    """Copy blocks of channels to squares of pixels."""
    block = int(getattr(node.op, "blocksize", 1))
    channels, height, width = result.shape[1], *source.shape[2:]
    if getattr(node.op, "mode", "DCR") == "DCR":  # axes: N, block, block, C, H, W
        parts = _split_axis(_split_axis(source, 1, block * block, channels), 1, block, block)
        parts = permute_axes(parts, (0, 3, 4, 1, 5, 2))
    else:  # N, C, block, block, H, W
        parts = _split_axis(_split_axis(source, 1, channels, block * block), 2, block, block)
        parts = permute_axes(parts, (0, 1, 4, 2, 5, 3))
    yield lowering.copy(parts, _split_image(result, height, width, block))


def _space_to_depth(
    node: Node, source: View, result: View, lowering: CopyLowering
) -> Iterator[Launch]:
    """Copy squares of pixels to blocks of channels."""
    block = int(getattr(node.op, "blocksize", 1))
    channels, height, width = source.shape[1], *result.shape[2:]
    parts = permute_axes(_split_image(source, height, width, block), (0, 3, 5, 1, 2, 4))
    split_result = _split_axis(_split_axis(result, 1, block * block, channels), 1, block, block)
    yield lowering.copy(parts, split_result)


def _factors_of(node: Node) -> tuple[int, ...]:
    """Return how often each axis repeats its elements.

    Raises:
        NodeRefusedError: the Resize does anything else.
    """
    factors = _resize_factors(node)
    if not factors:
        raise NodeRefusedError(
            "the resize is not nearest-neighbour upsampling by constant integer factors"
        )
    return factors


def _resize_factors(node: Node) -> tuple[int, ...] | None:
    """Return how often each axis repeats its elements; None if the resize does anything else.

    The op's reference decides, with the node's own scales and region: extents alone do not tell
    4 elements resized by 2.2 to 8 from 4 resized by 2.
    """
    op, source = node.op, node.inputs[0]
    if not isinstance(op, Resize) or source is None:
        return None
    if not source.tensor.is_static or not node.output.tensor.is_static:
        return None
    before, after = source.tensor.shape, node.output.tensor.shape
    axes = op.resized_axes(len(before))
    arguments = resize_arguments(node, op, [before[axis] for axis in axes])
    if isinstance(arguments, str):
        return None
    scales, region = arguments
    if 0 in before:
        return None
    factors = tuple(int(str(b)) // int(str(a)) for a, b in zip(before, after, strict=True))
    if any(a * f != b or f < 1 for a, b, f in zip(before, after, factors, strict=True)):
        return None
    for number, axis in enumerate(axes):
        window = crop_window(op, region, number, len(axes))
        extent = int(str(before[axis]))
        if not _repeats(op, extent, factors[axis], float(scales[number]), window):
            return None
    return factors


def _repeats(
    op: Resize, extent: int, factor: int, scale: float, window: tuple[float, float]
) -> bool:
    """Return whether the op repeats each element of a ramp along an axis ``factor`` times."""
    if scale == 1 and factor == 1 and window == (0.0, 1.0):
        return True
    # Other modes mix elements. A large extent is refused because its ramp takes too much memory
    # and is not exact in float32.
    if op.mode != "nearest" or extent * factor > _MAX_RAMP_ELEMENTS:
        return False
    ramp = np.arange(extent, dtype=np.float32).reshape(1, -1)
    # What is extrapolated differs from every element of the ramp.
    resized = resample_columns(op, ramp, scale, window, -1.0)
    return bool(np.array_equal(resized.reshape(-1), np.repeat(ramp.reshape(-1), factor)))


def _resize(node: Node, source: View, result: View, lowering: CopyLowering) -> Iterator[Launch]:
    """Copy the source with every axis split into elements and their repeats, of source stride 0."""
    factors = _factors_of(node)
    for axis in reversed(range(len(factors))):
        result = _split_axis(result, axis, source.shape[axis], factors[axis])
    strides = tuple(chain.from_iterable((stride, 0) for stride in source.strides))
    yield lowering.copy(replace(source, shape=result.shape, strides=strides, halo=()), result)


_LOWERINGS: dict[type, Callable[[Node, View, View, CopyLowering], Iterator[Launch]]] = {
    DepthToSpace: _depth_to_space,
    Expand: _expand,
    Pad: _pad,
    Resize: _resize,
    Slice: _slice,
    SpaceToDepth: _space_to_depth,
    Tile: _tile,
    Transpose: _transpose,
}
"""Function that writes the copies of each op."""
_CHECKS: dict[type, Callable[[Node], object]] = {
    Pad: _check_pad,
    Resize: _factors_of,
    Slice: _check_slice,
    Tile: _repeats_of,
}
"""Function that refuses nodes of an op that cannot be lowered to copies."""

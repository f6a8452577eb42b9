"""Family of ops that only move elements: each becomes one or a few strided copies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic, TargetT
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._node_operands import constant_input
from smelt.backends._resize_tables import crop_window, resample_columns, resize_arguments
from smelt.errors import InternalError
from smelt.ops import DepthToSpace, Expand, Pad, Resize, Slice, SpaceToDepth, Tile, Transpose
from smelt.types import TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.engine import KernelSpec, Launch, Step, View
    from smelt.ir import Array, Node
    from smelt.types import Dim

_MAX_RAMP_ELEMENTS: Final = 1 << 24
"""Maximum number of output elements of the ramp that shows what a Resize does along an axis:
float32 represents consecutive integers exactly only up to 2**24."""


class Copier(Protocol):
    """Copy kernels of one backend."""

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

    def __init__(self, copier: Copier) -> None:
        """Create a family that moves data by the copy kernels of a backend."""
        self.copier = copier

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        if type(node.op) not in _LOWERINGS:
            return
        if reason := _unsupported_reason(node):
            yield Refusal(self.name, reason)
            return
        source = node.inputs[0]
        if source is None:
            raise InternalError(f"{node} has no input")
        absent = (None,) * (len(node.inputs) - 1)
        dtype = source.tensor.dtype
        for before in reversed(layouts_of(source.tensor.rank)):
            for after in reversed(layouts_of(node.output.tensor.rank)):
                yield Tactic(
                    self.name,
                    (),
                    (TensorFormat(dtype, before), *absent),
                    (TensorFormat(dtype, after),),
                    cost_hint=1e-5 if before is after else 2e-5,
                )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source = operands.inputs[0]
        if source is None:
            raise InternalError(f"{node} has no input")
        return tuple(_LOWERINGS[type(node.op)](node, source, operands.outputs[0], self.copier))

    @override
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        raise InternalError(
            f"{kernel.symbol}: data movement ops are lowered to copy kernels and have no kernel "
            "of their own"
        )


def _is_absent(node: Node, index: int) -> bool:
    """Return whether an optional input is missing."""
    return index >= len(node.inputs) or node.inputs[index] is None


def _unsupported_reason(node: Node) -> str | None:
    """Return why a node cannot be lowered to copies, or None."""
    checks: dict[type, Callable[[Node], str | None]] = {
        Slice: _slice_refusal,
        Pad: _pad_refusal,
        Tile: lambda n: (
            "the repeats are not known at build time" if _repeats_of(n) is None else None
        ),
        Resize: _resize_refusal,
    }
    check = checks.get(type(node.op))
    return None if check is None else check(node)


# ---- lowering of each op


def _transpose(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy a view of the source with permuted axes."""
    perm = getattr(node.op, "perm", None) or tuple(reversed(range(len(source.shape))))
    strides = tuple(source.strides[axis] for axis in perm)
    yield copier.copy(replace(source, shape=result.shape, strides=strides, halo=()), result)


def _expand(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy a view of the source with strides of 0 along broadcast axes."""
    strides = broadcast_strides(source, result.shape)
    yield copier.copy(replace(source, shape=result.shape, strides=strides, halo=()), result)


def _slice_refusal(node: Node) -> str | None:
    """Return why a Slice cannot be lowered to a copy, or None."""
    for index, what in ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")):
        if not _is_absent(node, index) and constant_input(node, index) is None:
            return f"the {what} are not constant"
    source = node.inputs[0]
    if source is None or not source.tensor.is_static:
        return "the sliced tensor has symbolic extents"
    return None


def _slice(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
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
    yield copier.copy(window, result)


def _repeats_of(node: Node) -> Sequence[Dim] | None:
    """Return how often each axis is repeated, if known at build time as constants or dimensions."""
    repeats = constant_input(node, 1)
    if repeats is not None:
        return [int(count) for count in repeats]
    value = node.inputs[1]
    return None if value is None else value.dims


def _tile(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy the source with every axis split into repeats, of source stride 0, and elements."""
    repeats = _repeats_of(node)
    if repeats is None:
        raise InternalError(f"{node}: the repeats are not known at build time")
    shape: list[Dim] = []
    source_strides: list[Dim] = []
    result_strides: list[Dim] = []
    for extent, stride, other, count in zip(
        source.shape, source.strides, result.strides, repeats, strict=True
    ):
        shape += [count, extent]
        source_strides += [0, stride]
        result_strides += [extent * other, other]
    yield copier.copy(
        replace(source, shape=tuple(shape), strides=tuple(source_strides), halo=()),
        replace(result, shape=tuple(shape), strides=tuple(result_strides), halo=()),
    )


def _pads(node: Node, rank: int) -> list[tuple[int, int]] | None:
    """Return the pads (before, after) of each axis, or None if they are not constant."""
    pads, axes = constant_input(node, 1), constant_input(node, 3)
    if pads is None or (axes is None and not _is_absent(node, 3)):
        return None
    chosen = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    result = [(0, 0)] * rank
    for number, axis in enumerate(chosen):
        result[axis] = (int(pads[number]), int(pads[number + len(chosen)]))
    return result


def _pad_refusal(node: Node) -> str | None:
    """Return why a Pad cannot be lowered to copies, or None."""
    source = node.inputs[0]
    pads = None if source is None else _pads(node, source.tensor.rank)
    if source is None or pads is None:
        return "the pads are not constant"
    if any(p < 0 for pair in pads for p in pair):
        return "negative pads are not supported"
    mode = getattr(node.op, "mode", "constant")
    if mode == "constant":
        return (
            None
            if _is_absent(node, 2) or constant_input(node, 2) is not None
            else "the padding value is not constant"
        )
    padded_axes = [a for a, pair in enumerate(pads) if any(pair)]
    if not all(isinstance(source.tensor.shape[a], int) for a in padded_axes):
        return "padded extents are symbolic"
    limit = 0 if mode == "reflect" else 1
    for axis in padded_axes:
        extent = source.tensor.shape[axis]
        if isinstance(extent, int) and mode != "edge" and max(pads[axis]) >= extent + limit:
            return f"pads of {pads[axis]} exceed the axis extent {extent}"
    return None


def _pad(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy the source into the result; then fill the border by a constant or by further copies."""
    pads = _pads(node, len(source.shape))
    if pads is None:
        raise InternalError(f"{node}: the pads are not constant")
    offset = result.offset
    for (before, _), stride in zip(pads, result.strides, strict=True):
        offset = offset + stride * before * result.dtype.size_bytes
    inside = replace(result, offset=offset, shape=source.shape, halo=tuple(pads))
    mode = getattr(node.op, "mode", "constant")
    if mode == "constant":
        value = constant_input(node, 2)
        value = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)[:1]
        yield from copier.pad(source, inside, value)
        return
    yield copier.copy(source, replace(inside, halo=()))
    # Each axis copies slabs of the region that the axes before it have filled.
    filled = replace(inside, halo=())
    for axis, (before, after) in enumerate(pads):
        for count, at_end in ((before, False), (after, True)):
            if count:
                yield copier.copy(*_slab(filled, axis, count, mode, at_end=at_end))
        shape = list(filled.shape)
        shape[axis] = shape[axis] + before + after
        start = filled.offset - filled.strides[axis] * before * filled.dtype.size_bytes
        filled = replace(filled, offset=start, shape=tuple(shape))


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
    size = view.dtype.size_bytes
    shape = tuple(count if a == axis else e for a, e in enumerate(view.shape))
    strides = tuple(s * step if a == axis else s for a, s in enumerate(view.strides))
    target = extent if at_end else -count
    source = replace(
        view, offset=view.offset + view.strides[axis] * first * size, shape=shape, strides=strides
    )
    destination_slab = replace(
        view, offset=view.offset + view.strides[axis] * target * size, shape=shape
    )
    return source, destination_slab


def _split_axis(view: View, axis: int, outer: Dim, inner: Dim) -> View:
    """Return the view with one axis split into ``outer`` blocks of ``inner`` elements."""
    shape = (*view.shape[:axis], outer, inner, *view.shape[axis + 1 :])
    stride = view.strides[axis]
    strides = (*view.strides[:axis], stride * inner, stride, *view.strides[axis + 1 :])
    return replace(view, shape=shape, strides=strides, halo=())


def _split_image(view: View, height: Dim, width: Dim, block: int) -> View:
    """Return the view of an image as ``height`` by ``width`` blocks."""
    return _split_axis(_split_axis(view, 3, width, block), 2, height, block)


def _permute(view: View, order: tuple[int, ...]) -> View:
    """Return the view with its axes in another order."""
    return replace(
        view,
        shape=tuple(view.shape[a] for a in order),
        strides=tuple(view.strides[a] for a in order),
    )


def _depth_to_space(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy blocks of channels to squares of pixels."""
    block = int(getattr(node.op, "blocksize", 1))
    channels, height, width = result.shape[1], *source.shape[2:]
    if getattr(node.op, "mode", "DCR") == "DCR":  # axes: N, block, block, C, H, W
        parts = _split_axis(_split_axis(source, 1, block * block, channels), 1, block, block)
        parts = _permute(parts, (0, 3, 4, 1, 5, 2))
    else:  # N, C, block, block, H, W
        parts = _split_axis(_split_axis(source, 1, channels, block * block), 2, block, block)
        parts = _permute(parts, (0, 1, 4, 2, 5, 3))
    yield copier.copy(parts, _split_image(result, height, width, block))


def _space_to_depth(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy squares of pixels to blocks of channels."""
    block = int(getattr(node.op, "blocksize", 1))
    channels, height, width = source.shape[1], *result.shape[2:]
    parts = _permute(_split_image(source, height, width, block), (0, 3, 5, 1, 2, 4))
    split_result = _split_axis(_split_axis(result, 1, block * block, channels), 1, block, block)
    yield copier.copy(parts, split_result)


def _resize_refusal(node: Node) -> str | None:
    """Return why a Resize cannot be lowered to a copy, or None."""
    return (
        None
        if _resize_factors(node)
        else "only nearest-neighbour upsampling by integer factors can be lowered to copies"
    )


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


def _resize(node: Node, source: View, result: View, copier: Copier) -> Iterator[Launch]:
    """Copy the source with every axis split into elements and their repeats, of source stride 0."""
    factors = _resize_factors(node)
    if factors is None:
        raise InternalError(f"{node} is not nearest-neighbour upsampling by integer factors")
    split_result = result
    shape: list[Dim] = []
    strides: list[Dim] = []
    for axis in reversed(range(len(factors))):
        split_result = _split_axis(split_result, axis, source.shape[axis], factors[axis])
    for extent, stride, factor in zip(source.shape, source.strides, factors, strict=True):
        shape += [extent, factor]
        strides += [stride, 0]
    yield copier.copy(
        replace(source, shape=tuple(shape), strides=tuple(strides), halo=()), split_result
    )


_LOWERINGS: dict[type, Callable[[Node, View, View, Copier], Iterator[Launch]]] = {
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

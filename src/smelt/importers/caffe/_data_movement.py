"""Converters of data movement, reduction and embedding layers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from smelt import ops
from smelt.errors import GraphError
from smelt.importers.caffe._layer_context import BATCH, LayerContext, UnsupportedLayerError
from smelt.types import DType, counted, element_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Op, Value
    from smelt.types import Dim

MAXIMUM_TILES = 1 << 16
"""Largest number of copies of a Tile layer."""


def convert_identity(step: LayerContext) -> list[Value]:
    """Convert Dropout and Split: every top equals the bottom.

    A layer that works in place needs no node.
    """
    tops = step.layer.tops
    if tops == step.layer.bottoms:
        return [step.x]
    return [
        step.add(ops.Identity(), step.x, part=str(number) if number else "")
        for number in range(len(tops))
    ]


def convert_concat(step: LayerContext) -> list[Value]:
    """Concatenate the bottoms along one axis."""
    if not step.inputs:
        raise GraphError("a Concat layer must have at least one bottom", node=step.where)
    p = step.parameters
    if p.HasField("axis") and p.HasField("concat_dim"):
        raise step.shape_error("axis and concat_dim are both given; keep axis")
    axis = step.axis(int(p.concat_dim) if p.HasField("concat_dim") else p.axis)
    return [step.add(ops.Concat(axis=axis), *step.inputs)]


def convert_slice(step: LayerContext) -> list[Value]:
    """Split a blob along an axis at given points, or into equal parts."""
    p = step.parameters
    axis = step.axis(int(p.slice_dim) if p.HasField("slice_dim") else p.axis)
    extent, count = step.shape[axis], len(step.layer.tops)
    if not isinstance(extent, int):
        raise step.shape_error(f"the extent of the sliced axis is {extent}; it must be static")
    points = [0, *map(int, p.slice_point), extent]
    if not p.slice_point:
        if extent % count:
            raise step.shape_error(
                f"axis {axis} has {counted(extent, 'element')}, which cannot be divided equally "
                f"among {count} tops; give slice_point"
            )
        points = list(range(0, extent + 1, extent // count))
    lengths = [stop - start for start, stop in pairwise(points)]
    if len(lengths) != count or min(lengths) < 1:
        raise step.shape_error(
            f"slice_point is {points[1:-1]}; for {counted(count, 'top')} it must have "
            f"{counted(count - 1, 'increasing number')} between 0 and {extent}"
        )
    if count == 1:
        return [step.add(ops.Identity(), step.x)]
    node = step.graph.add(
        ops.Split(axis=axis),
        step.x,
        step.graph.add_constant(step.integers(lengths, "lengths")),
        name=step.layer.name,
    )
    return list(node.outputs)


def convert_flatten(step: LayerContext) -> list[Value]:
    """Combine a range of axes into one."""
    p = step.parameters
    start, stop = step.axis(p.axis), step.axis(p.end_axis) + 1
    if start == 1 and stop == step.rank and step.rank > 1:
        return [step.add(ops.Flatten(axis=1), step.x)]
    if stop <= start:
        raise step.shape_error(f"end_axis {p.end_axis} is before axis {p.axis}")
    joined = element_count(step.shape[start:stop])
    return [step.reshape(step.x, (*step.shape[:start], joined, *step.shape[stop:]))]


def convert_reshape(step: LayerContext) -> list[Value]:
    """Replace the extents from ``axis`` on: 0 copies an extent, -1 is inferred.

    A first extent that equals the declared batch means the batch, whatever its size is at run time.
    """
    p = step.parameters
    start = p.axis if p.axis >= 0 else step.rank + p.axis + 1
    stop = step.rank if p.num_axes == -1 else start + p.num_axes
    if not 0 <= start <= stop <= step.rank:
        raise step.shape_error(
            f"axis {p.axis} and num_axes {p.num_axes} are out of range for an input of rank "
            f"{step.rank}"
        )
    target = list(step.shape[:start])
    target += [_extent(step, axis, int(extent)) for axis, extent in enumerate(p.shape.dim, start)]
    target += step.shape[stop:]
    _infer_extent(step, target)
    return [step.reshape(step.x, target)]


def _extent(step: LayerContext, axis: int, extent: int) -> Dim:
    """Return the extent of an axis after reshaping; -1 if it is inferred."""
    if extent < -1:
        raise step.shape_error(f"`shape` contains the extent {extent}; it must be -1 or larger")
    source = step.shape[axis] if axis < step.rank else None
    if extent == 0:
        if source is None:
            raise step.shape_error(f"extent 0 copies axis {axis}, which the input does not have")
        return source
    if axis == 0 and source is not None and str(source) == BATCH and extent == step.declared_batch:
        return source
    return extent


def _infer_extent(step: LayerContext, target: list[Dim]) -> None:
    """Replace a -1 by the extent that it stands for, or check the number of elements.

    Numbers that only a run can determine are neither inferred nor checked.
    """
    count, others = _remaining(step.shape, target)
    if count is None or others is None:
        return
    if -1 not in target and count != others:
        raise step.shape_error(
            f"the input shape {list(step.shape)} and the result shape {target} have different "
            "numbers of elements"
        )
    if target.count(-1) == 1 and others:
        if count % others:
            raise step.shape_error(
                f"the input shape {list(step.shape)} cannot be reshaped to {target}: the numbers "
                "of elements do not match"
            )
        target[target.index(-1)] = count // others


def _remaining(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[int | None, int | None]:
    """Return the numbers of elements without shared extents; None where symbols remain."""
    unmatched = list(source)
    others: list[Dim] = []
    for extent in target:
        if extent in unmatched:
            unmatched.remove(extent)
        elif extent != -1:
            others.append(extent)
    return _product(unmatched), _product(others)


def _product(extents: Sequence[Dim]) -> int | None:
    known = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(known) if len(known) == len(extents) else None


def convert_permute(step: LayerContext) -> list[Value]:
    """Permute axes; axes that are not named follow in order."""
    order = [int(axis) for axis in step.parameters.order]
    order += [axis for axis in range(step.rank) if axis not in order]
    if sorted(order) != list(range(step.rank)):
        raise step.shape_error(f"order {order} is not a permutation of the axes of {step.x.tensor}")
    return [step.add(ops.Transpose(perm=tuple(order)), step.x)]


def convert_crop(step: LayerContext) -> list[Value]:
    """Crop the first bottom to the extents of the second, from ``axis`` on."""
    p = step.parameters
    axis, target = step.axis(p.axis), step.inputs[1].tensor.shape
    if len(target) != step.rank:
        raise step.shape_error(
            f"the bottoms have different ranks: {step.x.tensor} and {step.inputs[1].tensor}"
        )
    offsets = [int(o) for o in p.offset] or [0]
    axes = list(range(axis, step.rank))
    if len(offsets) not in (1, len(axes)):
        raise step.shape_error(
            f"offset is {offsets}; it must have one number, or one for each axis from {axis} on "
            f"({len(axes)})"
        )
    starts = offsets * len(axes) if len(offsets) == 1 else offsets
    bounds: list[tuple[int, int, int]] = []
    for a, start in zip(axes, starts, strict=True):
        source, extent = step.shape[a], target[a]
        if not start and extent == source:
            continue
        if not (isinstance(extent, int) and isinstance(source, int)):
            raise step.shape_error(
                f"axis {a} is cropped from {source} to {extent}; both must be static"
            )
        if start + extent > source:
            raise step.shape_error(
                f"axis {a} of the input has {counted(source, 'element')}; a crop of {extent} from "
                f"offset {start} does not fit"
            )
        bounds.append((start, start + extent, a))
    if not bounds:
        return [step.add(ops.Identity(), step.x)]
    columns = zip(zip(*bounds, strict=True), ("starts", "ends", "axes"), strict=True)
    vectors = [step.integers(numbers, name) for numbers, name in columns]
    return [step.add(ops.Slice(), step.x, *vectors)]


def convert_tile(step: LayerContext) -> list[Value]:
    """Repeat a blob along one axis."""
    p = step.parameters
    if not 1 <= p.tiles <= MAXIMUM_TILES:
        raise step.shape_error(f"tiles is {p.tiles}; it must be from 1 to {MAXIMUM_TILES}")
    repeats = [1] * step.rank
    repeats[step.axis(p.axis)] = int(p.tiles)
    return [step.add(ops.Tile(), step.x, step.integers(repeats, "repeats"))]


def convert_shuffle_channel(step: LayerContext) -> list[Value]:
    """Interleave the channels of groups."""
    group, channels = int(step.parameters.group), step.shape[step.axis(1)]
    if not isinstance(channels, int) or group < 1 or channels % group:
        raise step.shape_error(
            f"group is {group}; it must be positive, and divide the channel count, {channels}"
        )
    batch, rest = step.shape[0], step.shape[2:]
    grouped = step.reshape(step.x, (batch, group, channels // group, *rest), "parted")
    perm = (0, 2, 1, *range(3, step.rank + 1))
    transposed = step.add(ops.Transpose(perm=perm), grouped, part="dealt")
    return [step.reshape(transposed, (batch, channels, *rest))]


def refuse_arg_max(p: Any) -> str | None:
    """Return why the parameters of an ArgMax are not supported, or None."""
    return f"top_k is {p.top_k}; only 1 is supported" if p.top_k > 1 else None


def convert_arg_max(step: LayerContext) -> list[Value]:
    """Return the position of the maximum as a float, the maximum, or both.

    Without ``axis``, the maximum is that of each image, and the top has at least 3 axes.
    """
    p = step.parameters
    if p.HasField("axis"):
        axis = step.axis(p.axis)
        if p.out_max_val:
            op = ops.ReduceMax(keepdims=True)
            return [step.add(op, step.x, step.integers([axis], "axes"))]
        return [_position(step, step.x, axis, "")]
    flat = step.add(ops.Flatten(axis=1), step.x, part="flatten")
    batch, rest = step.shape[0], [1] * max(1, step.rank - 2)
    if not p.out_max_val:
        return [step.reshape(_position(step, flat, 1, "position"), (batch, 1, *rest))]
    maximum = step.add(
        ops.ReduceMax(keepdims=True), flat, step.integers([1], "axes"), part="maximum"
    )
    both = step.add(ops.Concat(axis=1), _position(step, flat, 1, "position"), maximum, part="both")
    return [step.reshape(both, (batch, 2, *rest))]


def _position(step: LayerContext, value: Value, axis: int, name: str) -> Value:
    """Return the position of the maximum as float32."""
    # Caffe selects the last of equal elements.
    op = ops.ArgMax(axis=axis, keepdims=True, select_last_index=True)
    index = step.add(op, value, part="index")
    return step.add(ops.Cast(DType.FLOAT32), index, part=name)


_REDUCTIONS: Final[Mapping[int, Op]] = {
    1: ops.ReduceSum(keepdims=False),
    2: ops.ReduceL1(keepdims=False),
    3: ops.ReduceSumSquare(keepdims=False),
    4: ops.ReduceMean(keepdims=False),
}


def convert_reduction(step: LayerContext) -> list[Value]:
    """Reduce all axes from ``axis`` on: sum, sum of magnitudes or squares, or mean."""
    p = step.parameters
    axis = step.axis(p.axis)
    if axis == 0:
        raise UnsupportedLayerError(
            "axis is 0, so the reduction includes the batch, which is not supported; set axis to "
            "1 or more"
        )
    axes = step.integers(range(axis, step.rank), "axes")
    scaled = p.coeff != 1
    op = _REDUCTIONS[p.operation]
    result = step.add(op, step.x, axes, part="reduced" if scaled else "")
    if scaled:
        result = step.add(ops.Mul(), result, step.number(p.coeff, "coeff"))
    return [result]


def convert_embed(step: LayerContext) -> list[Value]:
    """Select rows of the weights by index, and optionally add a bias."""
    p = step.parameters
    weights = step.weight(0, (int(p.input_dim), int(p.num_output)))
    index = step.add(ops.Cast(DType.INT64), step.x, part="signed_index")
    # Gather counts negative indices from the end; in Caffe they are out of range.
    is_negative = step.add(ops.Less(), index, step.integers([0], "zero"), part="is_negative")
    outside = step.integers([int(p.input_dim)], "outside")
    index = step.add(ops.Where(), is_negative, outside, index, part="index")
    table = step.graph.add_constant(weights)
    if not p.bias_term:
        return [step.add(ops.Gather(axis=0), table, index)]
    rows = step.add(ops.Gather(axis=0), table, index, part="rows")
    return [step.add(ops.Add(), rows, step.weight(1, (int(p.num_output),)))]

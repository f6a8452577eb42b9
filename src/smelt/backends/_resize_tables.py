"""Resizing by tables: for each axis that changes, which elements make each place, and how much.

The tables follow from the op's own reference, so they mean what it means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.backends._node_operands import constant_input
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Array, Node
    from smelt.types import Dim

_MAX_TABLE_ELEMENTS: Final = 1 << 24
"""Elements of an axis' square of weights that are worth being looked at."""
_MAX_TAPS: Final = 64


@dataclass(frozen=True, slots=True)
class ResizeTable:
    """How each place of one axis of the result follows from places of the input's."""

    axis: int
    indices: Array
    """[extent, taps], int32."""
    weights: Array
    """[extent, taps], float32."""

    @property
    def taps(self) -> int:
        return int(self.indices.shape[1])

    @property
    def is_weighted(self) -> bool:
        """Whether a place is more than a copy of one element."""
        return bool(self.taps > 1 or (self.weights != 1).any())


def tables_of(node: Node) -> list[ResizeTable]:
    """The tables of a node that has tactics."""
    tables = (
        resize_tables(node, node.op) if isinstance(node.op, Resize) else "the node is not a Resize"
    )
    if isinstance(tables, str):
        raise InternalError(f"{node}: {tables}")
    return tables


def resize_tables(node: Node, op: Resize) -> list[ResizeTable] | str:
    """A table for each axis that changes, those that shrink first; or why there are none."""
    source = node.inputs[0]
    if source is None:
        return "the input is missing"
    axes = op.resized_axes(source.tensor.rank)
    given = resize_arguments(node, op, [source.tensor.shape[a] for a in axes])
    if isinstance(given, str):
        return given
    scales, region = given
    tables: list[ResizeTable] = []
    for number, axis in enumerate(axes):
        window = crop_window(op, region, number, len(axes))
        before, after = source.tensor.shape[axis], node.output.tensor.shape[axis]
        made = _axis_weights(op, before, after, float(scales[number]), window)
        if isinstance(made, str):
            return f"axis {axis}: {made}"
        if made is not None:
            tables.append(_compressed(axis, made))
    if any(t.taps > _MAX_TAPS for t in tables):
        return f"more than {_MAX_TAPS} input elements contribute to one output element"
    if not tables:
        return "no axis is resized"
    return sorted(tables, key=lambda t: len(t.indices) / (t.indices.max() + 1))


def resize_arguments(
    node: Node, op: Resize, extents: Sequence[Dim]
) -> tuple[Array, Array | None] | str:
    """Return the scale of each resized axis and the crop region, or why they are not known."""
    region, scales, sizes = (constant_input(node, i) for i in (1, 2, 3))
    for index, array in ((1, region), (2, scales), (3, sizes)):
        if array is None and index < len(node.inputs) and node.inputs[index] is not None:
            return "the region, scales or sizes are not constant"
    if sizes is not None and sizes.size:
        if not all(isinstance(e, int) and e > 0 for e in extents):
            return "a resized extent is symbolic or zero"
        ratios = np.array([int(s) / int(str(e)) for s, e in zip(sizes, extents, strict=True)])
        if op.keep_aspect_ratio_policy != "stretch":
            kept = ratios.min() if op.keep_aspect_ratio_policy == "not_larger" else ratios.max()
            ratios = np.full(len(extents), kept)
        return ratios, region if region is None or region.size else None
    if scales is None:
        return "neither scales nor sizes are given"
    return scales, region if region is None or region.size else None


def crop_window(op: Resize, region: Array | None, number: int, count: int) -> tuple[float, float]:
    """Return where the crop region starts and ends on resized axis ``number`` of ``count``.

    Both are fractions of the extent; without a crop they are 0 and 1.
    """
    if region is None or op.coordinate_transformation_mode != "tf_crop_and_resize":
        return 0.0, 1.0
    return float(region[number]), float(region[number + count])


def _axis_weights(
    op: Resize, before: Dim, after: Dim, scale: float, window: tuple[float, float]
) -> Array | str | None:
    """One row for each place: the weight of every element; None where the axis stays as it is."""
    if scale == 1 and before == after and window == (0.0, 1.0):
        return None
    if not isinstance(before, int) or not isinstance(after, int):
        return "a resized extent is symbolic"
    if not 0 < before * max(before, after) <= _MAX_TABLE_ELEMENTS:
        return f"{before} elements resized to {after}: the resize table would be too large"
    outside = resample_columns(op, np.zeros((before, before)), scale, window, 1.0)
    if outside.shape[1] != after:
        return "the scale does not give the output extent exactly"
    if outside.any():  # no weights make 0 of an infinite element
        return "extrapolation outside the crop region is not supported"
    return resample_columns(op, np.eye(before), scale, window, 0.0).T


def resample_columns(
    op: Resize, data: Array, scale: float, window: tuple[float, float], beyond: float
) -> Array:
    """Resize the rows of a matrix [n, extent] by the op's reference, with ``beyond`` outside."""
    alone = replace(op, axes=(1,), extrapolation_value=beyond, keep_aspect_ratio_policy="stretch")
    (made,) = alone.reference(data, np.array(window), np.array([scale]), None)
    return made


def _compressed(axis: int, weights: Array) -> ResizeTable:
    """The nonzero weights of each row, as many for every row as the fullest has.

    A row with fewer repeats its first element and divides that element's weight by two for each
    further tap. A tap without weight would turn an infinite element into NaN, and dividing by two
    is exact.
    """
    used = weights != 0
    taps = max(1, int(used.sum(1).max(initial=0)))
    order = np.argsort(~used, 1, kind="stable")[:, :taps]
    chosen = np.take_along_axis(weights, order, 1)
    for tap in range(1, taps):
        spare = chosen[:, tap] == 0
        order[spare, tap] = order[spare, 0]
        chosen[spare, 0] /= 2
        chosen[spare, tap] = chosen[spare, 0]
    return ResizeTable(axis, order.astype(np.int32), chosen.astype(np.float32))


def table_constants(node: Node) -> tuple[Constant, ...]:
    """Indices and weights of each axis that changes."""
    packed: list[Constant] = []
    for table in tables_of(node):
        packed.append(Constant(f"{node.name} indices of axis {table.axis}", table.indices))
        packed.append(Constant(f"{node.name} weights of axis {table.axis}", table.weights))
    return tuple(packed)

"""Resize tables: the input elements and weights of each output position along an axis.

The tables are computed by the op's own reference, so kernels that use them agree with it.
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
"""Maximum number of elements of the dense weight matrix of an axis."""
_MAX_TAPS: Final = 64
"""Maximum number of input elements per output element."""


@dataclass(frozen=True, slots=True)
class ResizeTable:
    """Input elements and weights of each output position along one axis."""

    axis: int
    indices: Array
    """[output extent, taps], int32: input positions."""
    weights: Array
    """[output extent, taps], float32: weights of the input positions."""

    @property
    def taps(self) -> int:
        """Number of input elements per output position."""
        return int(self.indices.shape[1])

    @property
    def is_weighted(self) -> bool:
        """Whether any output element is not a copy of one input element."""
        return bool(self.taps > 1 or (self.weights != 1).any())


def tables_of(node: Node) -> list[ResizeTable]:
    """Return the tables of a node that has tactics. Raises InternalError for any other."""
    tables = (
        resize_tables(node, node.op) if isinstance(node.op, Resize) else "the node is not a Resize"
    )
    if isinstance(tables, str):
        raise InternalError(f"{node}: {tables}")
    return tables


def resize_tables(node: Node, op: Resize) -> list[ResizeTable] | str:
    """Return a table for each resized axis, shrinking axes first, or the reason there are none."""
    source = node.inputs[0]
    if source is None:
        return "the input is missing"
    axes = op.resized_axes(source.tensor.rank)
    arguments = resize_arguments(node, op, [source.tensor.shape[a] for a in axes])
    if isinstance(arguments, str):
        return arguments
    scales, region = arguments
    tables: list[ResizeTable] = []
    for number, axis in enumerate(axes):
        window = crop_window(op, region, number, len(axes))
        before, after = source.tensor.shape[axis], node.output.tensor.shape[axis]
        weights = _axis_weights(op, before, after, float(scales[number]), window)
        if isinstance(weights, str):
            return f"axis {axis}: {weights}"
        if weights is not None:
            tables.append(_compress(axis, weights))
    if any(t.taps > _MAX_TAPS for t in tables):
        return f"more than {_MAX_TAPS} input elements per output element are not supported"
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
            return "the crop region, scales or sizes are not constant"
    if sizes is not None and sizes.size:
        if not all(isinstance(e, int) and e > 0 for e in extents):
            return "a resized extent is symbolic or zero"
        ratios = np.array([int(s) / int(str(e)) for s, e in zip(sizes, extents, strict=True)])
        if op.keep_aspect_ratio_policy != "stretch":
            ratio = ratios.min() if op.keep_aspect_ratio_policy == "not_larger" else ratios.max()
            ratios = np.full(len(extents), ratio)
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
    """Return the weights [output extent, input extent] of an axis; None if it is unchanged.

    A string is the reason why there are no weights.
    """
    if scale == 1 and before == after and window == (0.0, 1.0):
        return None
    if not isinstance(before, int) or not isinstance(after, int):
        return "a resized extent is symbolic"
    if not 0 < before * max(before, after) <= _MAX_TABLE_ELEMENTS:
        return (
            f"resizing {before} elements to {after} needs more than {_MAX_TABLE_ELEMENTS:,} "
            "interpolation weights, the supported maximum"
        )
    outside = resample_columns(op, np.zeros((before, before)), scale, window, 1.0)
    if outside.shape[1] != after:
        return (
            f"the scale {scale:g} resizes {before} elements to {outside.shape[1]}, not to {after}"
        )
    if outside.any():  # no weights make 0 of an infinite element
        return "the crop region reaches beyond the input; extrapolation is not supported"
    return resample_columns(op, np.eye(before), scale, window, 0.0).T


def resample_columns(
    op: Resize, data: Array, scale: float, window: tuple[float, float], extrapolation_value: float
) -> Array:
    """Return what the op's own reference computes from the columns of a matrix."""
    axis_op = replace(
        op, axes=(1,), extrapolation_value=extrapolation_value, keep_aspect_ratio_policy="stretch"
    )
    (resized,) = axis_op.reference(data, np.array(window), np.array([scale]), None)
    return resized


def _compress(axis: int, weights: Array) -> ResizeTable:
    """Return the nonzero weights of each row, padded to the number of taps of the longest row.

    A shorter row repeats its first element and halves that element's weight for each further tap. A
    tap of weight 0 would turn an infinite element into NaN, and halving is exact.
    """
    is_nonzero = weights != 0
    taps = max(1, int(is_nonzero.sum(1).max(initial=0)))
    order = np.argsort(~is_nonzero, 1, kind="stable")[:, :taps]
    chosen = np.take_along_axis(weights, order, 1)
    for tap in range(1, taps):
        is_padding = chosen[:, tap] == 0
        order[is_padding, tap] = order[is_padding, 0]
        chosen[is_padding, 0] /= 2
        chosen[is_padding, tap] = chosen[is_padding, 0]
    return ResizeTable(axis, order.astype(np.int32), chosen.astype(np.float32))


def table_constants(node: Node) -> tuple[Constant, ...]:
    """Return indices and weights of each resized axis as constants."""
    packed: list[Constant] = []
    for table in tables_of(node):
        packed.append(Constant(f"{node.name} indices of axis {table.axis}", table.indices))
        packed.append(Constant(f"{node.name} weights of axis {table.axis}", table.weights))
    return tuple(packed)

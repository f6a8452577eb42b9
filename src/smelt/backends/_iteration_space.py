"""Iteration spaces: the axes along which several strided operands are traversed together.

For Gather and GatherElements, these operands are data, indices and result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends._launch_scalars import LaunchScalars
    from smelt.engine import Json, View
    from smelt.types import Dim


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an iteration space: its extent, and each operand's stride in elements."""

    extent: Dim
    strides: tuple[Dim, ...]

    def json(self, scalars: LaunchScalars) -> Json:
        """Return the axis as a spec holds it."""
        return scalars.all_json((self.extent, *self.strides))


def broadcast_strides(view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the strides of a view broadcast to a shape; 0 along repeated axes."""
    missing = len(shape) - len(view.shape)
    strides = [
        0 if extent == 1 else stride
        for extent, stride in zip(view.shape, view.strides, strict=True)
    ]
    return (*([0] * missing), *strides)


def iteration_axes(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]], lead: int
) -> list[Axis]:
    """Return the coalesced axes of an iteration space, in the memory order of operand ``lead``."""
    axes = [
        Axis(extent, tuple(s[i] for s in strides)) for i, extent in enumerate(shape) if extent != 1
    ]
    return coalesce_axes(sort_axes(axes, lead))


def sort_axes(axes: Sequence[Axis], lead: int) -> list[Axis]:
    """Return the axes in the memory order of operand ``lead``, the outermost first."""
    known = [abs(s) for a in axes if isinstance(s := a.strides[lead], int)]
    if len(known) < len(axes):
        # A symbolic stride is a product of inner extents: only the unit stride is known to be
        # innermost.
        return sorted(axes, key=lambda a: a.strides[lead] == 1)
    order = sorted(range(len(axes)), key=lambda i: -known[i])
    return [axes[i] for i in order]


def coalesce_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Merge neighbouring axes wherever they are contiguous in every operand."""
    coalesced: list[Axis] = []
    for axis in axes:
        if coalesced:
            outer_axis = coalesced[-1]
            is_contiguous = all(
                outer == axis.extent * inner
                for outer, inner in zip(outer_axis.strides, axis.strides, strict=True)
            )
            if is_contiguous:
                coalesced[-1] = Axis(outer_axis.extent * axis.extent, axis.strides)
                continue
        coalesced.append(axis)
    return coalesced


def gather_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Return the axes of a Gather; the axes of the indices replace the gathered axis."""
    index_rank = len(indices.shape)
    axes: list[Axis] = []
    for result_axis, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True)):
        if axis <= result_axis < axis + index_rank:
            axes.append(Axis(extent, (0, indices.strides[result_axis - axis], stride)))
        else:
            data_axis = result_axis if result_axis < axis else result_axis - index_rank + 1
            axes.append(Axis(extent, (data.strides[data_axis], 0, stride)))
    return axes


def gather_elements_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Return the axes of a GatherElements, in which every element has its own index."""
    return [
        Axis(extent, (0 if a == axis else data.strides[a], indices.strides[a], stride))
        for a, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True))
    ]

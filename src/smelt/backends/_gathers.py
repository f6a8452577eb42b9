"""Where the elements lie that indices pick: strides of the data, the indices and the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends._axes import Axis

if TYPE_CHECKING:
    from smelt.engine import View


def row_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Axes of a Gather: the indices' stand where the gathered one stood."""
    picks = len(indices.shape)
    axes: list[Axis] = []
    for place, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True)):
        if axis <= place < axis + picks:
            axes.append(Axis(extent, (0, indices.strides[place - axis], stride)))
        else:
            own = place if place < axis else place - picks + 1
            axes.append(Axis(extent, (data.strides[own], 0, stride)))
    return axes


def element_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Axes of a GatherElements: every element has an index of its own."""
    return [
        Axis(extent, (0 if a == axis else data.strides[a], indices.strides[a], stride))
        for a, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True))
    ]

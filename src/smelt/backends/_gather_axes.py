"""Where the elements lie that indices pick: strides of the data, the indices and the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends._iteration_space import Axis

if TYPE_CHECKING:
    from smelt.engine import View


def gather_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Axes of a Gather: the indices' stand where the gathered one stood."""
    index_rank = len(indices.shape)
    axes: list[Axis] = []
    for result_axis, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True)):
        if axis <= result_axis < axis + index_rank:
            axes.append(Axis(extent, (0, indices.strides[result_axis - axis], stride)))
        else:
            own = result_axis if result_axis < axis else result_axis - index_rank + 1
            axes.append(Axis(extent, (data.strides[own], 0, stride)))
    return axes


def gather_elements_axes(data: View, indices: View, result: View, axis: int) -> list[Axis]:
    """Axes of a GatherElements: every element has an index of its own."""
    return [
        Axis(extent, (0 if a == axis else data.strides[a], indices.strides[a], stride))
        for a, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True))
    ]

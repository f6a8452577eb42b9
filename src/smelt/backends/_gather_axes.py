"""Iteration axes of Gather and GatherElements over data, indices and result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends._iteration_space import Axis

if TYPE_CHECKING:
    from smelt.engine import View


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

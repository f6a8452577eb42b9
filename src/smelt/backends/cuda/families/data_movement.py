"""Data movement ops of the CUDA backend, by copy kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import op_as_json
from smelt.backends._view_family import window_along
from smelt.backends.cuda._elementwise_kernel import pointwise_launch
from smelt.ops import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Launch, View
    from smelt.ir import Array

COPY: Final = "copy"
"""Family of copy kernels."""


def copy_launch(source: View, destination: View) -> Launch:
    """Return a launch that copies between views of one shape, any strides and float types."""
    stages = ((op_as_json(Identity()), (0,), (source.dtype.value,)),)
    return pointwise_launch(COPY, [source, destination], stages)


class CudaCopyLowering:
    """Copy kernels of the CUDA backend."""

    def copy(self, source: View, destination: View) -> Launch:
        """Copy between views of one shape and any strides."""
        return copy_launch(source, destination)

    def pad(self, source: View, inside: View, value: Array) -> Iterator[Launch]:
        """Copy to a view, and write the single element of ``value`` into the halo around it."""
        padded = destination = replace(inside, halo=())
        for axis, (before, after) in enumerate(inside.halo):
            padded = window_along(padded, axis, -before, padded.shape[axis] + before + after)
        fill = (("fill", (("value", value.item()),)), (), ())
        yield pointwise_launch(COPY, [padded], (fill,))
        yield copy_launch(source, destination)

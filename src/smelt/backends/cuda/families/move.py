"""Copies of the CUDA backend, for ops that only move elements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends._data_movement import DataMovementFamily
from smelt.backends._fused_programs import op_as_json
from smelt.backends.cuda._pointwise import pointwise_launch
from smelt.ops.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Launch, View
    from smelt.ir import Array

COPY: Final = "copy"


def copy_launch(source: View, destination: View) -> Launch:
    """Copy between windows of one shape, of any strides and floats."""
    stages = ((op_as_json(Identity()), (0,), (source.dtype.value,)),)
    return pointwise_launch(COPY, [source, destination], stages)


class CudaCopier:
    """Copies by the strides of both sides."""

    def copy(self, source: View, destination: View) -> Launch:
        """Copy between windows of one shape and of any strides."""
        return copy_launch(source, destination)

    def pad(self, source: View, inside: View, value: Array) -> Iterator[Launch]:
        """Copy to a window, and write the one element of ``value`` into the halo around it."""
        whole, offset = list(inside.shape), inside.offset
        for axis, (before, after) in enumerate(inside.halo):
            whole[axis] = whole[axis] + before + after
            offset = offset - inside.strides[axis] * before * inside.dtype.size_bytes
        fill = (("fill", (("value", value.item()),)), (), ())
        around = replace(inside, offset=offset, shape=tuple(whole), halo=())
        yield pointwise_launch(COPY, [around], (fill,))
        yield copy_launch(source, replace(inside, halo=()))


def data_movement_family() -> DataMovementFamily[CudaTarget]:
    """The family of ops that only move elements."""
    return DataMovementFamily(CudaCopier())

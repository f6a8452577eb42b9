"""Copies of the CPU backend for ops that only move elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.backends._data_movement import DataMovementFamily
from smelt.backends.cpu.families.reformat import clear_launch, copy_launch

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Launch, View
    from smelt.ir import Array


class CpuCopyLowering:
    """Copies views of any strides, and fills the halos around them."""

    def copy(self, source: View, destination: View) -> Launch:
        """Return the launch that copies between views of one shape and any strides."""
        return copy_launch(source, destination)

    def pad(self, source: View, inside: View, value: Array) -> Iterator[Launch]:
        """Yield the launches that copy to ``inside`` and fill its halo with ``value``."""
        yield clear_launch(inside, _bits(value, inside))
        yield replace(copy_launch(source, replace(inside, halo=())), waits=False)


def _bits(value: Array, view: View) -> int:
    """Return the bits of the element in ``value`` as an element of the view."""
    raw = value.astype(view.dtype.numpy).view(f"u{view.dtype.size_bytes}")
    return int(raw[0])


def data_movement_family() -> DataMovementFamily[CpuTarget]:
    """Return the family of ops that only move elements."""
    return DataMovementFamily(CpuCopyLowering())

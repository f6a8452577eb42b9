"""Copies of the CPU backend, for ops that only move elements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.backends._data_movement import DataMovementFamily
from smelt.backends.cpu.families.copy import clear_launch, copy_launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Launch, View
    from smelt.ir import Array


class CpuCopier:
    """Copies by the strides of both sides, and halos cleared beside them."""

    def copy(self, source: View, destination: View) -> Launch:
        """Copy between windows of one shape and of any strides."""
        return copy_launch(source, destination)

    def pad(self, source: View, inside: View, value: Array) -> Iterator[Launch]:
        """Copy to a window, and write the one element of ``value`` into the halo around it."""
        yield clear_launch(inside, _bits(value, inside))
        yield replace(copy_launch(source, replace(inside, halo=())), waits=False)


def _bits(value: Array, view: View) -> int:
    raw = value.astype(view.dtype.numpy).view(f"u{view.dtype.size_bytes}")
    return int(raw[0])


def data_movement_family() -> DataMovementFamily[CpuTarget]:
    """The family of ops that only move elements."""
    return DataMovementFamily(CpuCopier())

"""Iteration spaces: the axes that several operands are walked along together."""

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
        """What a spec holds."""
        return scalars.all_json((self.extent, *self.strides))


def broadcast_strides(view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of a view along the axes of a shape that it broadcasts to: 0 where it repeats."""
    missing = len(shape) - len(view.shape)
    own = [
        0 if extent == 1 else stride
        for extent, stride in zip(view.shape, view.strides, strict=True)
    ]
    return (*([0] * missing), *own)


def iteration_axes(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]], lead: int
) -> list[Axis]:
    """The axes of an iteration space, in operand ``lead``'s memory order, as few as possible."""
    axes = [
        Axis(extent, tuple(s[i] for s in strides)) for i, extent in enumerate(shape) if extent != 1
    ]
    return coalesce_axes(sort_axes(axes, lead))


def sort_axes(axes: Sequence[Axis], lead: int) -> list[Axis]:
    """The axes, outermost in the memory of operand ``lead`` first."""
    known = [abs(s) for a in axes if isinstance(s := a.strides[lead], int)]
    if len(known) < len(axes):
        # A symbolic stride is a product of inner extents: the unit stride alone is surely
        # innermost.
        return sorted(axes, key=lambda a: a.strides[lead] == 1)
    order = sorted(range(len(axes)), key=lambda i: -known[i])
    return [axes[i] for i in order]


def coalesce_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Neighbours become one axis where, in every operand, the outer steps over all the inner."""
    joined: list[Axis] = []
    for axis in axes:
        if joined:
            above = joined[-1]
            runs_on = all(
                outer == axis.extent * inner
                for outer, inner in zip(above.strides, axis.strides, strict=True)
            )
            if runs_on:
                joined[-1] = Axis(above.extent * axis.extent, axis.strides)
                continue
        joined.append(axis)
    return joined

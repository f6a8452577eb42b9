"""Loads, stores and coordinates that the dense kernels share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends.cpu._emit import Reg, lane_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._emit import Emitter, Int
    from smelt.engine import Json


def load(e: Emitter, kind: str, at: Reg, mask: Reg | None) -> Reg:
    """Load a vector, or the lanes that a mask names."""
    return e.load(kind, at) if mask is None else e.load_masked(kind, at, mask)


def load_channels(e: Emitter, kind: str, at: Reg, stride: Int, mask: Reg | None) -> Reg:
    """Load a vector whose elements lie ``stride`` apart: 0 for one in every lane."""
    lanes = lane_count(kind)
    if stride == 0:
        return e.splat(e.load("float", at), lanes)
    if stride == 1:
        return load(e, kind, at, mask)
    numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    step = e.splat(e.i64(stride), lanes)
    offsets = e.emit(step.type, f"mul {step}, <{numbers}>")
    places = e.emit(f"<{lanes} x ptr>", f"getelementptr float, {at}, {offsets}")
    whole = mask or e.constant(1, f"<{lanes} x i1>")
    function = f"llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    align, rest = Reg("4", "i32"), Reg("zeroinitializer", kind)
    return e.call(kind, function, places, align, whole, rest)


def store(e: Emitter, value: Reg, at: Reg, mask: Reg | None) -> None:
    """Store a vector, or the lanes that a mask names."""
    if mask is None:
        e.store(value, at)
    else:
        e.store_masked(value, at, mask)


def unravel(e: Emitter, index: Int, extents: Sequence[Json]) -> list[Int]:
    """The coordinates of a flat index; those along extents of one are known to be 0."""
    known = [e.extent(x) for x in extents]
    coordinates = iter(e.unravel(index, [x for x in known if x != 1]))
    return [0 if x == 1 else next(coordinates) for x in known]

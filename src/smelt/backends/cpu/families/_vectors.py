"""Vector loads and stores, element conversion and index arithmetic shared by the families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import LLVM_TYPES, Reg, lane_count, type_suffix, vector_type
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._emit import Emitter, Int
    from smelt.engine import Json


def load(e: Emitter, kind: str, at: Reg, mask: Reg | None, dtype: DType = DType.FLOAT32) -> Reg:
    """Load a register of type ``kind`` from elements stored as ``dtype``.

    With a mask, only the lanes whose bit is set are read; the others are 0.
    """
    stored = vector_type(LLVM_TYPES[dtype], lane_count(kind))
    value = e.load(stored, at) if mask is None else e.load_masked(stored, at, mask)
    return to_compute_type(e, value, dtype)


def load_channels(
    e: Emitter, kind: str, at: Reg, stride: Int, mask: Reg | None, dtype: DType = DType.FLOAT32
) -> Reg:
    """Load a vector whose elements lie ``stride`` elements apart in memory.

    A stride of 0 broadcasts one element to every lane, a stride of 1 is a contiguous load, and any
    other stride is a gather. ``kind`` is the register type, ``dtype`` the type in memory.
    """
    lanes, element = lane_count(kind), LLVM_TYPES[dtype]
    if stride == 0:
        return e.splat(to_compute_type(e, e.load(element, at), dtype), lanes)
    if stride == 1:
        return load(e, kind, at, mask, dtype)
    lane_numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    step = e.splat(e.i64(stride), lanes)
    offsets = e.emit(step.type, f"mul {step}, <{lane_numbers}>")
    addresses = e.emit(f"<{lanes} x ptr>", f"getelementptr {element}, {at}, {offsets}")
    gather_mask = mask or e.constant(1, f"<{lanes} x i1>")
    stored = vector_type(element, lanes)
    function = f"llvm.masked.gather.{type_suffix(stored)}.v{lanes}p0"
    align, fill = Reg(str(dtype.size_bytes), "i32"), Reg("zeroinitializer", stored)
    return to_compute_type(e, e.call(stored, function, addresses, align, gather_mask, fill), dtype)


def store(e: Emitter, value: Reg, at: Reg, mask: Reg | None, dtype: DType = DType.FLOAT32) -> None:
    """Store a vector as elements of ``dtype``.

    With a mask, only the lanes whose bit is set are written.
    """
    stored = to_storage_type(e, value, dtype)
    if mask is None:
        e.store(stored, at)
    else:
        e.store_masked(stored, at, mask)


@dataclass(frozen=True, slots=True)
class ElementConversion:
    """Element types on both sides of a copy: equal types copy bytes, others convert."""

    source: DType
    destination: DType

    @staticmethod
    def words(size: int) -> ElementConversion:
        """Return the conversion that copies elements of ``size`` bytes unchanged."""
        dtype = {d.size_bytes: d for d in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)}
        return ElementConversion(dtype[size], dtype[size])

    @staticmethod
    def between(source: DType, destination: DType) -> ElementConversion:
        """Return the conversion from one element type to another.

        Equal types are copied as unsigned words, so the kernel does not depend on the type.
        """
        same = source is destination
        return (
            ElementConversion.words(source.size_bytes)
            if same
            else ElementConversion(source, destination)
        )

    @staticmethod
    def from_json(value: Any) -> ElementConversion:
        """Return the conversion that `as_json` wrote."""
        source, destination = value
        return ElementConversion(DType(source), DType(destination))

    def as_json(self) -> Json:
        """Return the conversion as a JSON value for a kernel spec."""
        return (self.source.value, self.destination.value)

    @property
    def widest(self) -> int:
        """Size in bytes of the larger of the two element types."""
        return max(self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Size in bytes of a source element and of a destination element."""
        return (self.source.size_bytes, self.destination.size_bytes)

    def load(self, e: Emitter, at: Reg, lanes: int = 1) -> Reg:
        """Load ``lanes`` source elements and return them in the destination's storage type."""
        value = e.load(vector_type(LLVM_TYPES[self.source], lanes), at)
        if self.source is self.destination:
            return value
        return to_storage_type(e, to_compute_type(e, value, self.source), self.destination)


def unravel(e: Emitter, index: Int, extents: Sequence[Json]) -> list[Int]:
    """Return the coordinates of a flat index, last extent fastest.

    Axes of extent 1 take no division: their coordinate is the constant 0.
    """
    extent_values = [e.extent(x) for x in extents]
    coordinates = iter(e.unravel(index, [x for x in extent_values if x != 1]))
    return [0 if x == 1 else next(coordinates) for x in extent_values]

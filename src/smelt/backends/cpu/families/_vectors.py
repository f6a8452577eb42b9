"""Loads, stores and coordinates that the dense kernels share."""

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
    """Load a register of ``kind`` from elements of ``dtype``, or the lanes that a mask names."""
    stored = vector_type(LLVM_TYPES[dtype], lane_count(kind))
    found = e.load(stored, at) if mask is None else e.load_masked(stored, at, mask)
    return to_compute_type(e, found, dtype)


def load_channels(
    e: Emitter, kind: str, at: Reg, stride: Int, mask: Reg | None, dtype: DType = DType.FLOAT32
) -> Reg:
    """Load a vector whose elements lie ``stride`` apart: 0 for one in every lane."""
    lanes, element = lane_count(kind), LLVM_TYPES[dtype]
    if stride == 0:
        return e.splat(to_compute_type(e, e.load(element, at), dtype), lanes)
    if stride == 1:
        return load(e, kind, at, mask, dtype)
    numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    step = e.splat(e.i64(stride), lanes)
    offsets = e.emit(step.type, f"mul {step}, <{numbers}>")
    addresses = e.emit(f"<{lanes} x ptr>", f"getelementptr {element}, {at}, {offsets}")
    whole = mask or e.constant(1, f"<{lanes} x i1>")
    stored = vector_type(element, lanes)
    function = f"llvm.masked.gather.{type_suffix(stored)}.v{lanes}p0"
    align, rest = Reg(str(dtype.size_bytes), "i32"), Reg("zeroinitializer", stored)
    return to_compute_type(e, e.call(stored, function, addresses, align, whole, rest), dtype)


def store(e: Emitter, value: Reg, at: Reg, mask: Reg | None, dtype: DType = DType.FLOAT32) -> None:
    """Store a vector as elements of ``dtype``, or the lanes that a mask names."""
    stored = to_storage_type(e, value, dtype)
    if mask is None:
        e.store(stored, at)
    else:
        e.store_masked(stored, at, mask)


@dataclass(frozen=True, slots=True)
class ElementConversion:
    """What a copy moves: elements of one type to elements of another, or just bytes."""

    source: DType
    destination: DType

    @staticmethod
    def words(size: int) -> ElementConversion:
        """Elements that stay as they are."""
        dtype = {d.size_bytes: d for d in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)}
        return ElementConversion(dtype[size], dtype[size])

    @staticmethod
    def between(source: DType, destination: DType) -> ElementConversion:
        """Elements of a tensor, which are converted where the types differ."""
        same = source is destination
        return (
            ElementConversion.words(source.size_bytes)
            if same
            else ElementConversion(source, destination)
        )

    @staticmethod
    def from_json(value: Any) -> ElementConversion:
        """What `as_json` wrote."""
        source, destination = value
        return ElementConversion(DType(source), DType(destination))

    def as_json(self) -> Json:
        """What a spec holds."""
        return (self.source.value, self.destination.value)

    @property
    def widest(self) -> int:
        """Bytes of the larger element."""
        return max(self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of an element in the source and in the destination."""
        return (self.source.size_bytes, self.destination.size_bytes)

    def load(self, e: Emitter, at: Reg, lanes: int = 1) -> Reg:
        """Load elements from the source, as they are to be stored."""
        found = e.load(vector_type(LLVM_TYPES[self.source], lanes), at)
        if self.source is self.destination:
            return found
        return to_storage_type(e, to_compute_type(e, found, self.source), self.destination)


def unravel(e: Emitter, index: Int, extents: Sequence[Json]) -> list[Int]:
    """The coordinates of a flat index; those along extents of one are known to be 0."""
    known = [e.extent(x) for x in extents]
    coordinates = iter(e.unravel(index, [x for x in known if x != 1]))
    return [0 if x == 1 else next(coordinates) for x in known]

"""Reader of weights in caffemodel and binaryproto files that needs no schema.

It reads only fields that have the same numbers in all forks of Caffe: names, types and blobs. All
other fields are skipped by their length. Files of forks that use one number for different layer
parameters are therefore readable, protobuf's limit of 2 GB does not apply, and elements become
arrays at memory speed. The work is bounded: every length is checked against the remaining bytes,
and files with more than ``MAX_WEIGHT_FIELDS`` fields are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import ModelFormatError
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array

MAXIMUM_RANK: Final = 32
"""Largest number of axes of a blob, as in Caffe."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_UNPACKED: Final = (5, 9)
"""Size in bytes of an unpacked float and of an unpacked double, each with its tag."""
_RAW_TYPES: Final = {0: "<f8", 1: "<f4", 2: "<f2"}


@dataclass(slots=True)
class Blob:
    """A blob as stored in the file; ``array`` copies the elements, so the file can be freed."""

    where: str
    dims: list[int] | None = None
    legacy_dims: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    parts: list[Array] = field(default_factory=list[Any])
    raw: memoryview | None = None
    raw_type: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared extents: ``shape``, or the four legacy extents if it is missing."""
        return tuple(self.legacy_dims if self.dims is None else self.dims)

    def array(self) -> Array:
        """Return the elements as float32, or as float16 if the file stores that.

        Raises:
            ModelFormatError: the shape is invalid or does not match the number of elements.
        """
        shape, parts = self.shape, self._parts()
        count = sum(part.size for part in parts)
        if len(shape) > MAXIMUM_RANK or any(extent < 0 for extent in shape):
            raise ModelFormatError(f"{self.where} has the impossible shape {list(shape[:40])}")
        if math.prod(shape) != count:
            raise ModelFormatError(
                f"{self.where} declares {list(shape)}, {math.prod(shape)} elements, but has "
                f"{count}: the file is damaged; download it again"
            )
        half = bool(parts) and all(part.dtype.itemsize == 2 for part in parts)
        dtype = np.float16 if half else np.float32
        result = np.empty(count, dtype)
        if parts:
            # Doubles out of float32's range become infinite; the importer warns about infinities.
            with np.errstate(over="ignore"):
                np.concatenate(parts, out=result, casting="same_kind")
        return result.reshape(shape)

    def _parts(self) -> list[Array]:
        """Return the arrays that hold the elements, from typed fields or from raw bytes."""
        if self.raw is None:
            return self.parts
        kind = _RAW_TYPES.get(self.raw_type)
        if kind is None:
            raise ModelFormatError(
                f"{self.where} stores elements of raw type {self.raw_type}; only floating-point "
                "types are supported"
            )
        return [_elements(self.raw, kind, self.where)]


@dataclass(slots=True)
class StoredLayer:
    """A layer of a caffemodel, as needed to find the weights of a prototxt's layer."""

    name: str = ""
    type: str = ""
    blobs: list[Blob] = field(default_factory=list[Blob])
    is_v0: bool = False


class Reader:
    """Reader of one file; ``what`` is its name in errors."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = memoryview(data)
        self._what = what
        self._fields = 0

    def read_layers(self) -> list[StoredLayer]:
        """Return the layers of a serialised network, in order.

        Raises:
            ModelFormatError: the data is malformed.
        """
        layers: list[StoredLayer] = []
        for number, value in self._walk(0, len(self._data)):
            if number in (2, 100) and isinstance(value, range):
                layers.append(self._read_layer(value, v1=number == 2))
        return layers

    def read_blob(self, span: range | None = None, where: str = "the blob") -> Blob:
        """Return one blob, by default from the whole file.

        Raises:
            ModelFormatError: the data is malformed.
        """
        blob = Blob(f"{self._what}: {where}")
        span = range(len(self._data)) if span is None else span
        for number, value in self._walk(span.start, span.stop):
            if isinstance(value, range):
                self._read_blob_part(blob, number, value)
            elif number in (1, 2, 3, 4):
                blob.legacy_dims[number - 1] = _signed(value)
            elif number == 10:
                blob.raw_type = value
            elif number in (5, 8):
                raise self._error(span.start, "elements do not have a wire type of floats")
        return blob

    def _read_layer(self, span: range, *, v1: bool) -> StoredLayer:
        """Return one layer; its field numbers differ in the V1 format."""
        layer = StoredLayer()
        name, kind, blobs = (4, 5, 6) if v1 else (1, 2, 7)
        spans: list[range] = []
        for number, value in self._walk(span.start, span.stop):
            if isinstance(value, range):
                if number == name:
                    layer.name = self._text(value)
                elif number == kind:
                    layer.type = self._text(value)
                elif number == blobs:
                    spans.append(value)
                elif v1 and number == 1:
                    layer.is_v0 = True
            elif number == kind:
                layer.type = str(value)
        layer.blobs = [
            self.read_blob(part, f"blob {index} of layer {layer.name!r}")
            for index, part in enumerate(spans)
        ]
        return layer

    def _read_blob_part(self, blob: Blob, number: int, span: range) -> None:
        """Add one field of a blob."""
        if number in (5, 8):
            kind = "<f4" if number == 5 else "<f8"
            width = np.dtype(kind).itemsize
            data = self._data[span.start : span.stop]
            if span.step == 1:
                blob.parts.append(_elements(data, kind, blob.where))
            elif span.step == width + 1:
                rows = np.frombuffer(data, np.uint8).reshape(-1, span.step)[:, 1:]
                blob.parts.append(np.ascontiguousarray(rows).view(kind).reshape(-1))
            else:
                raise self._error(span.start, "elements have the wrong width")
        elif number == 12:
            blob.raw = self._data[span.start : span.stop]
        elif number == 7:
            blob.dims = self._dims(span)

    def _dims(self, span: range) -> list[int]:
        """Return the extents of a shape, packed or not."""
        dims: list[int] = []
        for number, value in self._walk(span.start, span.stop):
            if number != 1:
                continue
            if isinstance(value, int):
                dims.append(_signed(value))
                continue
            position = value.start
            while position < value.stop:
                extent, position = self._varint(position, value.stop)
                dims.append(_signed(extent))
                if len(dims) > MAXIMUM_RANK:
                    break
        return dims

    def _text(self, span: range) -> str:
        return bytes(self._data[span.start : min(span.stop, span.start + 4096)]).decode(
            "utf-8", "replace"
        )

    def _walk(self, position: int, end: int) -> Iterator[tuple[int, int | range]]:
        """Yield each field's number with its integer, or with the range of its bytes."""
        while position < end:
            self._fields += 1
            if self._fields > Limit.MAX_WEIGHT_FIELDS.most:
                detail = Limit.MAX_WEIGHT_FIELDS.excess(self._fields)
                raise self._error(position, f"there are at least {detail}: this is not a network")
            start = position
            tag, position = self._varint(position, end)
            number, wire = tag >> 3, tag & 7
            if number == 0:
                raise self._error(start, "a field has the invalid number 0")
            if wire == _VARINT:
                value, position = self._varint(position, end)
                yield number, value
            elif wire in (_FIXED32, _FIXED64):
                span = self._run(start, position + (4 if wire == _FIXED32 else 8), end)
                position = span.stop
                yield number, span
            elif wire == _BYTES:
                length, position = self._varint(position, end)
                if length > end - position:
                    raise self._error(
                        start, f"a field has {length} bytes where {end - position} are left"
                    )
                yield number, range(position, position + length)
                position += length
            else:
                raise self._error(start, f"a field has the unknown wire type {wire}")

    def _run(self, start: int, stop: int, end: int) -> range:
        """Return the range of consecutive equal fields of one width, such as unpacked floats.

        The step of the range is the size of one field.
        """
        step = stop - start
        if stop > end:
            raise self._error(start, f"a field has {step} bytes where {end - start} are left")
        if step not in _UNPACKED:
            return range(start, stop, step)
        tag, block_size = self._data[start], 1
        # Blocks grow, so that the work is proportional to the length of the run and not to the rest
        # of the file.
        while (count := min(block_size, (end - stop) // step)) > 0:
            tags = np.frombuffer(self._data[stop : stop + count * step], np.uint8)[::step]
            run_length = int(np.argmax(tags != tag)) if bool(np.any(tags != tag)) else count
            stop += run_length * step
            if run_length < count:
                break
            block_size *= 4
        return range(start, stop, step)

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return an integer of variable length, and the position after it."""
        value = shift = 0
        data = self._data
        while position < end and shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position
            shift += 7
        raise self._error(position, "a varint has no end")

    def _error(self, position: int, problem: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self._what}: {problem} at byte {position} of {len(self._data)}: the file is "
            "truncated or damaged, or is not a Caffe file; download it again"
        )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _elements(data: memoryview, kind: str, where: str) -> Array:
    width = np.dtype(kind).itemsize
    if len(data) % width:
        raise ModelFormatError(
            f"{where} has {len(data)} bytes, which is not a multiple of {width}: the file is "
            "damaged; download it again"
        )
    return np.frombuffer(data, kind)

"""Reader of weights in caffemodel and binaryproto files that needs no schema.

It reads only fields that have the same numbers in all forks of Caffe: names and blobs. All
other fields are skipped by their length. Files of forks that use one number for different layer
parameters are therefore readable, protobuf's limit of 2 GB does not apply, and elements become
arrays at memory speed. The work is bounded: every length is checked against the remaining bytes,
and files with more than ``MAX_WEIGHT_FIELDS`` fields are refused.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import ModelFormatError
from smelt.importers._protobuf_wire import BYTES, VARINT, WireError, read_field, read_varint
from smelt.types import Limit, counted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from smelt.ir import Array

MAXIMUM_RANK: Final = 32
"""Largest number of axes of a blob, as in Caffe."""
_UNPACKED: Final = (5, 9)
"""Size in bytes of an unpacked float and of an unpacked double, each with its tag."""
_RAW_TYPES: Final = {0: "<f8", 1: "<f4", 2: "<f2"}
_MAX_EXTENT: Final = (1 << 31) - 1
"""Largest extent of a blob in Caffe."""


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
            raise self._shape_error()
        if math.prod(shape) != count:
            raise ModelFormatError(
                f"{self.where} declares {list(shape)}, {counted(math.prod(shape), 'element')}, but "
                f"has {count}: the file is damaged; download it again"
            )
        if any(extent > _MAX_EXTENT for extent in shape):  # beside an extent of 0
            raise self._shape_error()
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
                f"{self.where} has raw_data_type {self.raw_type}; only 0 (double), 1 (float) and "
                "2 (float16) are supported"
            )
        return [_elements(self.raw, kind, self.where)]

    def _shape_error(self) -> ModelFormatError:
        return ModelFormatError(
            f"{self.where} has the shape {list(self.shape[:40])}; its extents must be from 0 to "
            f"{_MAX_EXTENT}, and its rank at most {MAXIMUM_RANK}: the file is damaged; download it "
            "again"
        )


@dataclass(slots=True)
class StoredLayer:
    """A layer of a caffemodel, as needed to find the weights of a prototxt's layer."""

    name: str = ""
    blobs: list[Blob] = field(default_factory=list[Blob])
    is_v0: bool = False


class CaffemodelReader:
    """Reader of one caffemodel or binaryproto file; ``what`` is its name in errors."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = memoryview(data)
        self._what = what
        self._fields = 0

    def read_layers(self) -> list[StoredLayer]:
        """Return the layers of a serialised network, in order.

        Raises:
            ModelFormatError: the data is malformed.
        """
        with self._described_errors():
            return [
                self._read_layer(value, v1=number == 2)
                for number, value in self._walk(range(len(self._data)))
                if number in (2, 100) and isinstance(value, range)
            ]

    def read_blob(self, where: str) -> Blob:
        """Return the blob that the whole file is.

        Raises:
            ModelFormatError: the data is malformed.
        """
        with self._described_errors():
            return self._read_blob(range(len(self._data)), where)

    def _read_layer(self, span: range, *, v1: bool) -> StoredLayer:
        """Return one layer; its field numbers differ in the V1 format."""
        layer = StoredLayer()
        name, blobs = (4, 6) if v1 else (1, 7)
        spans: list[range] = []
        for number, value in self._walk(span):
            if isinstance(value, range):
                if number == name:
                    layer.name = self._text(value)
                elif number == blobs:
                    spans.append(value)
                elif v1 and number == 1:
                    layer.is_v0 = True
        layer.blobs = [
            self._read_blob(part, f"blob {index} of layer {layer.name!r}")
            for index, part in enumerate(spans)
        ]
        return layer

    def _read_blob(self, span: range, where: str) -> Blob:
        """Return one blob."""
        blob = Blob(f"{self._what}: {where}")
        for number, value in self._walk(span):
            if isinstance(value, range):
                self._read_blob_part(blob, number, value)
            elif number in (1, 2, 3, 4):
                blob.legacy_dims[number - 1] = _signed(value)
            elif number == 10:
                blob.raw_type = value
            elif number in (5, 8):
                raise WireError("the elements of a blob are not encoded as floats", span.start)
        return blob

    def _read_blob_part(self, blob: Blob, number: int, span: range) -> None:
        """Add one field of a blob."""
        data = self._data[span.start : span.stop]
        if number in (5, 8):
            kind = "<f4" if number == 5 else "<f8"
            width = np.dtype(kind).itemsize
            if span.step == 1:
                blob.parts.append(_elements(data, kind, blob.where))
            elif span.step == width + 1:
                rows = np.frombuffer(data, np.uint8).reshape(-1, span.step)[:, 1:]
                blob.parts.append(np.ascontiguousarray(rows).view(kind).reshape(-1))
            else:
                raise WireError(f"an element of a blob does not have {width} bytes", span.start)
        elif number == 12:
            blob.raw = data
        elif number == 7:
            blob.dims = self._dims(span)

    def _dims(self, span: range) -> list[int]:
        """Return the extents of a shape, packed or not."""
        dims: list[int] = []
        for number, value in self._walk(span):
            if number != 1:
                continue
            if isinstance(value, int):
                dims.append(_signed(value))
                continue
            position = value.start
            while position < value.stop and len(dims) <= MAXIMUM_RANK:
                extent, position = read_varint(self._data, position, value.stop)
                dims.append(_signed(extent))
        return dims

    def _text(self, span: range) -> str:
        return bytes(self._data[span.start : span.stop][:4096]).decode("utf-8", "replace")

    def _walk(self, span: range) -> Iterator[tuple[int, int | range]]:
        """Yield each field's number with its integer, or with the range of its bytes."""
        position = span.start
        while position < span.stop:
            self._fields += 1
            if self._fields > Limit.MAX_WEIGHT_FIELDS.most:
                detail = Limit.MAX_WEIGHT_FIELDS.excess(self._fields)
                raise WireError(f"the file has at least {detail}", position)
            start = position
            number, wire, value, position = read_field(self._data, start, span.stop)
            if wire == VARINT:
                yield number, value
            elif wire == BYTES:
                yield number, range(position - value, position)
            else:
                run = self._run(start, position, span.stop)
                position = run.stop
                yield number, run

    def _run(self, start: int, stop: int, end: int) -> range:
        """Return the range of consecutive equal fields of one width, such as unpacked floats.

        The step of the range is the size of one field.
        """
        step = stop - start
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

    @contextmanager
    def _described_errors(self) -> Generator[None]:
        """Raise malformed data as an error that names the file."""
        try:
            yield
        except WireError as error:
            raise ModelFormatError(
                f"{self._what}, byte {error.position} of {len(self._data)}: {error.problem}; the "
                "file is truncated or damaged, or is not a Caffe file; download it again"
            ) from error


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _elements(data: memoryview, kind: str, where: str) -> Array:
    width = np.dtype(kind).itemsize
    if len(data) % width:
        raise ModelFormatError(
            f"{where} has {counted(len(data), 'byte')}, which is not a multiple of {width}: the "
            "file is damaged; download it again"
        )
    return np.frombuffer(data, kind)

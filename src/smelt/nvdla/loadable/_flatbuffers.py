"""Reader and writer of FlatBuffers tables, by the slots that `_model` declares.

Files are not trusted: every offset, size and count is checked before use, no two parts may overlap,
and each string is decoded once. The reader therefore never reads more bytes than the file has.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import MissingExtraError, ModelFormatError
from smelt.nvdla.loadable._model import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla.loadable._model import FieldSlot, Table

_SCALARS: Final = {
    "u8": ("Uint8", 1),
    "u16": ("Uint16", 2),
    "i16": ("Int16", 2),
    "u32": ("Uint32", 4),
    "i32": ("Int32", 4),
    "u64": ("Uint64", 8),
}
"""Name in the flatbuffers package and size in bytes of each scalar type."""
_VERSION_BYTES: Final = 3
"""Size of a version: three numbers of one byte."""
_MAX_BYTES: Final = 1 << 31
"""Size that files must stay below: offsets have 32 bits and some are signed."""
_MAX_SHARING: Final = 64
"""Characters of all strings for each byte of the file: several fields may refer to one string."""


def import_flatbuffers() -> Any:
    """Return the flatbuffers package; raise MissingExtraError if it is not installed."""
    try:
        return importlib.import_module("flatbuffers")
    except ImportError as error:
        raise MissingExtraError("flatbuffers", "nvdla") from error


class TableReader:
    """Reader of one file; an invalid file raises a ModelFormatError that names the invalid part."""

    def __init__(self, data: bytes) -> None:
        if len(data) >= _MAX_BYTES:
            raise ModelFormatError(
                f"the loadable has {len(data)} bytes; it must be smaller than 2 GiB"
            )
        package = import_flatbuffers()
        self._table: Callable[[bytes, int], Any] = package.table.Table
        self._flags = package.number_types
        self._data = data
        self._parts: list[tuple[int, int, str]] = []
        self._unused_bytes = len(data)
        self._strings: dict[int, str] = {}
        self._shared_characters = 0

    def read_root(self, cls: type[Table]) -> dict[str, Any]:
        """Return the fields of the root table by name.

        Raises:
            ModelFormatError: If the file is malformed.
        """
        if len(self._data) < 8:
            raise ModelFormatError(f"the loadable is truncated: it has {len(self._data)} bytes")
        root = self._scalar("u32", 0)
        if root + 4 > len(self._data):
            raise ModelFormatError(
                f"the loadable has no FlatBuffers header: the root offset is {root}, but the file "
                f"has {len(self._data)} bytes"
            )
        fields_read = self._read_table(cls, root, "loadable")
        self._check_overlaps()
        return fields_read

    def _read_table(self, cls: type[Table], position: int, where: str) -> dict[str, Any]:
        table, size = self._open_table(position, where)
        values: dict[str, Any] = {}
        for name, slot in cls.field_slots.items():
            offset = table.Offset(4 + 2 * slot.number)
            if offset:
                values[name] = self._read_slot(position, offset, size, slot, f"{where}.{name}")
        return values

    def _open_table(self, position: int, where: str) -> tuple[Any, int]:
        """Check a table and its vtable; return the table and its size in bytes."""
        self._require(position, 4, where)
        table = self._table(self._data, position)
        vtable = position - table.Get(self._flags.Int32Flags, position)
        self._require(vtable, 4, f"the vtable of {where}")
        length = table.Get(self._flags.Uint16Flags, vtable)
        size = table.Get(self._flags.Uint16Flags, vtable + 2)
        if length < 4 or length % 2:
            raise ModelFormatError(f"the vtable of {where} has the invalid size {length}")
        self._require(vtable, length, f"the vtable of {where}")
        if size < 4:
            raise ModelFormatError(f"{where} has the invalid size {size}")
        self._claim(position, size, where)
        return table, size

    def _read_slot(self, table: int, offset: int, size: int, slot: FieldSlot, where: str) -> Any:
        """Return the value of a field at an offset of its table."""
        at, width = table + offset, self._width(slot)
        if offset < 4:
            raise ModelFormatError(f"{where} is at byte {offset} of its table, before the fields")
        if offset >= size:  # compilers of 2018 put the version after the end of the table
            self._claim(at, width, where)
        elif offset + width > size:
            raise ModelFormatError(
                f"{where} lies outside its table: it has {width} bytes at byte {offset}, but the "
                f"table has {size}"
            )
        kind = slot.kind
        if not isinstance(kind, str):
            return self._read_tables(kind, at, where)
        if kind == "string":
            return self._read_string(at, where)
        if kind == "version":
            return Version(*self._data[at : at + _VERSION_BYTES])
        if kind.startswith("["):
            return self._read_vector(kind[1:-1], at, where)
        return self._scalar(kind, at)

    def _read_tables(self, cls: type[Table], at: int, where: str) -> tuple[Any, ...]:
        start, count = self._open_vector(at, 4, where)
        return tuple(
            cls(**self._read_table(cls, self._follow(start + 4 * i, where), f"{where}[{i}]"))
            for i in range(count)
        )

    def _read_vector(self, kind: str, at: int, where: str) -> Any:
        if kind == "string":
            start, count = self._open_vector(at, 4, where)
            return tuple(self._read_string(start + 4 * i, f"{where}[{i}]") for i in range(count))
        _, width = _SCALARS[kind]
        start, count = self._open_vector(at, width, where)
        if kind == "u8":
            return self._data[start : start + count]
        return tuple(np.frombuffer(self._data, _dtype(kind), count, start).tolist())

    def _read_string(self, at: int, where: str) -> str:
        position = self._follow(at, where)
        if position not in self._strings:
            start, count = self._open_vector(at, 1, where)
            try:
                self._strings[position] = self._data[start : start + count].decode()
            except UnicodeDecodeError as error:
                raise ModelFormatError(f"{where} is not UTF-8 text: {error}") from error
        text = self._strings[position]
        self._shared_characters += len(text)
        if self._shared_characters > _MAX_SHARING * len(self._data):
            raise ModelFormatError(
                f"{where} shares its text with other fields; the texts of all fields together have "
                f"more than {_MAX_SHARING} times as many characters as the file has bytes"
            )
        return text

    def _open_vector(self, at: int, width: int, where: str) -> tuple[int, int]:
        position = self._follow(at, where)
        count = self._scalar("u32", position)
        self._require(position + 4, count * width, f"{where}, which declares {count} elements,")
        self._claim(position, 4 + count * width, where)
        return position + 4, count

    def _follow(self, at: int, where: str) -> int:
        position = at + self._scalar("u32", at)
        self._require(position, 4, where)
        return position

    def _scalar(self, kind: str, at: int) -> int:
        end = at + _SCALARS[kind][1]
        return int.from_bytes(self._data[at:end], "little", signed=kind[0] == "i")

    def _width(self, slot: FieldSlot) -> int:
        if slot.kind == "version":
            return _VERSION_BYTES
        return _SCALARS[str(slot.kind)][1] if str(slot.kind) in _SCALARS else 4

    def _require(self, position: int, size: int, where: str) -> None:
        if position < 0 or position + size > len(self._data):
            raise ModelFormatError(
                f"{where} lies outside the file: it has {size} bytes at byte {position}, but the "
                f"file has {len(self._data)}"
            )

    def _claim(self, position: int, size: int, where: str) -> None:
        """Record that a part of the file is used; refuse more parts than the file has bytes."""
        self._require(position, size, where)
        self._unused_bytes -= size
        if self._unused_bytes < 0:
            raise ModelFormatError(f"{where} overlaps another part of the file")
        self._parts.append((position, position + size, where))

    def _check_overlaps(self) -> None:
        """Refuse a file with two parts that overlap."""
        end, owner = 0, ""
        for start, stop, where in sorted(self._parts):
            if start < end:
                raise ModelFormatError(f"{where} overlaps {owner}, at byte {start}")
            end, owner = stop, where


def _dtype(kind: str) -> np.dtype[Any]:
    """Return the numpy dtype of a scalar type, such as ``u16``."""
    return np.dtype(f"<{kind[0]}{_SCALARS[kind][1]}")


class TableWriter:
    """Writer of one file."""

    def __init__(self) -> None:
        self._builder: Any = import_flatbuffers().Builder(1024)
        self.where = ""
        """Class and name of the field that is written, for messages."""

    def write_root(self, cls: type[Table], value: Any, identifier: bytes | None) -> bytes:
        """Write the root table and return the bytes of the file."""
        self._builder.Finish(self._write_table(cls, value), identifier)
        return bytes(self._builder.Output())

    def _write_table(self, cls: type[Table], value: Any) -> int:
        """Write a table and everything that it refers to; return its offset."""
        builder = self._builder
        layout = cls.field_slots.items()
        parts: dict[str, int | None] = {}
        for name, slot in layout:
            if not isinstance(slot.kind, str) or slot.kind[0] in "[s":
                self.where = f"{cls.__name__}.{name}"
                parts[name] = self._write_part(slot, getattr(value, name))
        builder.StartObject(1 + max(slot.number for _, slot in layout))
        for name, slot in layout:
            self.where = f"{cls.__name__}.{name}"
            if name in parts:
                if parts[name] is not None:
                    builder.PrependUOffsetTRelativeSlot(slot.number, parts[name], 0)
            elif slot.kind == "version":
                self._write_version(slot.number, getattr(value, name))
            else:
                prepend = getattr(builder, f"Prepend{_SCALARS[str(slot.kind)][0]}Slot")
                prepend(slot.number, getattr(value, name), 0)
        return int(builder.EndObject())

    def _write_version(self, number: int, version: Version) -> None:
        self._builder.Prep(1, _VERSION_BYTES)
        for part in reversed(version):
            self._builder.PrependUint8(part)
        self._builder.PrependStructSlot(number, self._builder.Offset(), 0)

    def _write_part(self, slot: FieldSlot, value: Any) -> int | None:
        """Write a value outside its table; return its offset, or None for an empty value."""
        if not value:
            return None
        builder = self._builder
        if not isinstance(slot.kind, str):
            tables = [self._write_table(slot.kind, item) for item in value]
            return self._write_offsets(tables)
        if slot.kind == "string":
            return int(builder.CreateString(value))
        if slot.kind == "[string]":
            return self._write_offsets([builder.CreateString(item) for item in value])
        if slot.kind == "[u8]":
            return int(builder.CreateByteVector(value))
        return int(builder.CreateNumpyVector(np.array(value, _dtype(slot.kind[1:-1]))))

    def _write_offsets(self, offsets: list[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

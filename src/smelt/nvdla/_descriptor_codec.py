"""Codec for C structures in memory: one declaration reads, writes and prints a structure.

A structure is a frozen dataclass whose fields declare their offsets and types::

    class Consumer(Descriptor):
        index: int = at(0, "i16")
        event: int = at(2, "u8")

Offsets are those of the newest layout. A field that older firmware lacks is marked with ``new``;
in the older layout the fields after it move to lower offsets. One declaration serves both layouts.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar

from smelt.nvdla._status import NvdlaError, NvError
from smelt.types import is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_STRUCT_CODES: Final = {
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "f32": "f",
}

Kind: TypeAlias = "str | type[Descriptor]"
DescriptorT = TypeVar("DescriptorT", bound="Descriptor")


class DescriptorVersion(IntEnum):
    """The two incompatible layouts of descriptors in memory."""

    WITHOUT_OFFSETS = 0
    """Firmware interface 0.11 and earlier: a cube has 28 bytes and no ``offset`` field."""
    WITH_OFFSETS = 1
    """Firmware interface 0.12 and later: a cube has 32 bytes, with an ``offset`` field."""

    @classmethod
    def of_version(cls, major: int, minor: int) -> DescriptorVersion:
        """Return the layout of a firmware interface version."""
        return cls.WITHOUT_OFFSETS if (major, minor) < (0, 12) else cls.WITH_OFFSETS


@dataclass(frozen=True, slots=True)
class _FieldSpec:
    """Position and type of a structure's field."""

    offset: int
    """Offset in bytes in the newest layout."""
    kind: Kind
    count: int
    is_new: bool
    """Whether structures without offsets lack the field."""


def at(offset: int, kind: Kind, count: int = 1, *, new: bool = False, default: Any = 0) -> Any:
    """Declare a field of a structure.

    Args:
        offset: Offset in bytes in the newest layout.
        kind: Element type: ``u8`` to ``i64``, ``f32``, or a nested structure.
        count: Number of elements; the field's value is a tuple if there is more than one.
        new: Whether structures of the layout without offsets lack the field.
        default: Default value of one element of a scalar type.
    """
    metadata = {"field_spec": _FieldSpec(offset, kind, count, new)}
    if isinstance(kind, str):
        value = default if count == 1 else (default,) * count
        return field(default=value, metadata=metadata)
    make = kind if count == 1 else lambda: tuple(kind() for _ in range(count))
    return field(default_factory=make, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Base class of the little-endian structures that hardware, firmware or emulator read."""

    padded_bytes: ClassVar[int] = 0
    """Size of the structure in bytes where padding follows the last field; otherwise 0."""

    @classmethod
    def size_bytes(cls, layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS) -> int:
        """Return the size in memory, in bytes."""
        return _codec(cls, layout).size

    @classmethod
    def from_bytes(
        cls,
        data: Buffer,
        offset: int = 0,
        layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS,
    ) -> Self:
        """Read a structure at a byte offset of ``data``.

        Raises:
            NvdlaError: INVALID_SIZE if the structure does not lie inside ``data``.
        """
        codec = _codec(cls, layout)
        view = memoryview(data)
        if offset < 0 or offset + codec.size > view.nbytes:
            raise NvdlaError(
                NvError.INVALID_SIZE,
                f"{cls.__name__} at byte {offset} needs {codec.size} bytes, but its memory has "
                f"only {view.nbytes}",
            )
        return _build(cls, layout, iter(codec.unpack_from(view, offset)))

    def to_bytes(self, layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS) -> bytes:
        """Return the structure's bytes.

        Raises:
            NvdlaError: BAD_VALUE if a value does not fit its field; COUNT_MISMATCH if a tuple has
                the wrong number of elements.
        """
        codec = _codec(type(self), layout)
        try:
            return codec.pack(*_flatten(self, layout))
        except struct.error as error:
            raise NvdlaError(
                NvError.BAD_VALUE, f"{type(self).__name__}: a value does not fit its field: {error}"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, for reports, without reserved fields."""
        return {
            name: _plain(getattr(self, name))
            for name, _ in _field_specs(type(self))
            if not name.startswith("reserved")
        }


def _field_specs(cls: type[Descriptor]) -> tuple[tuple[str, _FieldSpec], ...]:
    key: Any = cls  # mypy does not regard a frozen dataclass type as hashable
    return _find_field_specs(key)


def _codec(cls: type[Descriptor], layout: DescriptorVersion) -> struct.Struct:
    key: Any = cls
    return _make_codec(key, layout)


@functools.cache
def _find_field_specs(cls: Any) -> tuple[tuple[str, _FieldSpec], ...]:
    return tuple((item.name, item.metadata["field_spec"]) for item in fields(cls))


def _is_present(field_spec: _FieldSpec, layout: DescriptorVersion) -> bool:
    return not field_spec.is_new or layout is DescriptorVersion.WITH_OFFSETS


def _size_of(kind: Kind, layout: DescriptorVersion) -> int:
    if isinstance(kind, str):
        return struct.calcsize("<" + _STRUCT_CODES[kind])
    return kind.size_bytes(layout)


@functools.cache
def _make_codec(cls: Any, layout: DescriptorVersion) -> struct.Struct:
    """Return the ``struct`` codec of a structure, with padding between its fields."""
    newest = DescriptorVersion.WITH_OFFSETS
    parts = ["<"]
    end = missing = 0
    for name, field_spec in _field_specs(cls):
        size = _size_of(field_spec.kind, layout) * field_spec.count
        start = field_spec.offset - missing
        if not _is_present(field_spec, layout):
            missing += size
            continue
        if start < end:
            raise TypeError(f"{cls.__name__}.{name} overlaps the field before it")
        parts.append(f"{start - end}x")
        parts.append(_format(field_spec, layout))
        end = start + size
        missing += _size_of(field_spec.kind, newest) * field_spec.count - size
    padding = cls.padded_bytes - end if cls.padded_bytes else 0
    return struct.Struct("".join([*parts, f"{padding}x"]))


def _format(field_spec: _FieldSpec, layout: DescriptorVersion) -> str:
    if isinstance(field_spec.kind, str):
        return (
            f"{field_spec.count}{_STRUCT_CODES[field_spec.kind]}"
            if field_spec.count > 1
            else _STRUCT_CODES[field_spec.kind]
        )
    return _codec(field_spec.kind, layout).format.removeprefix("<") * field_spec.count


def _build(cls: type[DescriptorT], layout: DescriptorVersion, values: Iterator[Any]) -> DescriptorT:
    """Build a structure, and the structures nested in it, from its scalar values in order."""
    field_values: dict[str, Any] = {}
    for name, field_spec in _field_specs(cls):
        if not _is_present(field_spec, layout):
            continue
        items = [
            next(values)
            if isinstance(field_spec.kind, str)
            else _build(field_spec.kind, layout, values)
            for _ in range(field_spec.count)
        ]
        field_values[name] = items[0] if field_spec.count == 1 else tuple(items)
    return cls(**field_values)


def _flatten(value: Descriptor, layout: DescriptorVersion) -> Iterator[Any]:
    """Yield the scalar values of a structure and of those nested in it, in order.

    Raises:
        NvdlaError: BAD_VALUE if a field that the layout lacks is not 0; COUNT_MISMATCH if a tuple
            has the wrong number of elements.
    """
    for name, field_spec in _field_specs(type(value)):
        part = getattr(value, name)
        if not _is_present(field_spec, layout):
            if part:
                raise NvdlaError(
                    NvError.BAD_VALUE,
                    f"{type(value).__name__}.{name} is {part}, but firmware before 0.12 has no "
                    "such field: it must be 0",
                )
            continue
        items = (part,) if field_spec.count == 1 else part
        if len(items) != field_spec.count:
            raise NvdlaError(
                NvError.COUNT_MISMATCH,
                f"{type(value).__name__}.{name} has {len(items)} values instead of "
                f"{field_spec.count}",
            )
        for item in items:
            if isinstance(item, Descriptor):
                yield from _flatten(item, layout)
            else:
                yield item


def _plain(value: Any) -> Any:
    if isinstance(value, Descriptor):
        return value.to_dict()
    if is_tuple(value):
        return [_plain(item) for item in value]
    return value

"""Codec for C structures in memory: one declaration reads, writes and prints a structure.

A structure is a frozen dataclass (its base class makes it one) whose fields declare their offsets
and types::

    class Consumer(Descriptor):
        index: int = at(0, "i16")
        event: int = at(2, "u8")

Offsets are those of the newest layout. A field that firmware interfaces before 0.12 lack is marked
with ``since_0_12``; in their layout the fields after it move to lower offsets. One declaration
serves both layouts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from smelt.nvdla._errors import NvError
from smelt.types import counted, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    since_0_12: bool
    """Whether structures without offsets lack the field."""
    source_register: str
    """Register that the field is a copy of, or an empty text."""


def at(
    offset: int,
    kind: Kind,
    count: int = 1,
    *,
    since_0_12: bool = False,
    default: Any = 0,
    source_register: str = "",
) -> Any:
    """Declare a field of a structure.

    Args:
        offset: Offset in bytes in the newest layout.
        kind: Element type: ``u8`` to ``i64``, ``f32``, or a nested structure.
        count: Number of elements; the field's value is a tuple if there is more than one.
        since_0_12: Whether structures of the layout without offsets lack the field.
        default: Default value of one element of a scalar type.
        source_register: Register that the firmware copies to the field; ``{group}`` in it is the
            group.
    """
    metadata = {"field_spec": _FieldSpec(offset, kind, count, since_0_12, source_register)}
    if isinstance(kind, str):
        value = default if count == 1 else (default,) * count
        return field(default=value, metadata=metadata)
    make = kind if count == 1 else lambda: tuple(kind() for _ in range(count))
    return field(default_factory=make, metadata=metadata)


_ScalarField: TypeAlias = tuple["type[Descriptor]", str, str, "Sequence[Any]"]
"""Structure, name, type and values of a field of scalars."""


@dataclass_transform(frozen_default=True)
class Descriptor:
    """Base class of the little-endian structures that hardware, firmware or emulator read."""

    padded_bytes: ClassVar[Mapping[DescriptorVersion, int]] = {}
    """Size of the structure in bytes, by layout, where padding follows the last field."""
    field_specs: ClassVar[Mapping[str, _FieldSpec]]
    codecs: ClassVar[Mapping[DescriptorVersion, struct.Struct]]

    def __init_subclass__(cls) -> None:
        """Make each structure a frozen dataclass, and its codecs."""
        made: Any = dataclass(frozen=True)(cls)
        cls.field_specs = {item.name: item.metadata["field_spec"] for item in fields(made)}
        cls.codecs = {layout: _make_codec(cls, layout) for layout in DescriptorVersion}

    @classmethod
    def size_bytes(cls, layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS) -> int:
        """Return the size in memory, in bytes."""
        return cls.codecs[layout].size

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
        codec = cls.codecs[layout]
        view = memoryview(data)
        if offset < 0 or offset + codec.size > view.nbytes:
            raise NvError.INVALID_SIZE.error(
                f"{cls.__name__} at byte {offset} needs {codec.size} bytes, but its memory has "
                f"only {view.nbytes}"
            )
        return _build(cls, layout, iter(codec.unpack_from(view, offset)))

    def to_bytes(self, layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS) -> bytes:
        """Return the structure's bytes.

        Raises:
            NvdlaError: BAD_VALUE if a value does not fit its field; COUNT_MISMATCH if a tuple has
                the wrong number of elements.
        """
        parts = list(_flatten(self, layout))
        try:
            return self.codecs[layout].pack(*chain.from_iterable(part[3] for part in parts))
        except struct.error as error:
            raise NvError.BAD_VALUE.error(
                f"{_misfit(parts)} has a value that its field cannot hold: {error}"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, for reports, without reserved fields."""
        return {
            name: _plain(getattr(self, name))
            for name in self.field_specs
            if not name.startswith("reserved")
        }


def _is_present(field_spec: _FieldSpec, layout: DescriptorVersion) -> bool:
    return not field_spec.since_0_12 or layout is DescriptorVersion.WITH_OFFSETS


def _size_of(kind: Kind, layout: DescriptorVersion) -> int:
    if isinstance(kind, str):
        return struct.calcsize("<" + _STRUCT_CODES[kind])
    return kind.size_bytes(layout)


def _make_codec(cls: type[Descriptor], layout: DescriptorVersion) -> struct.Struct:
    """Return the ``struct`` codec of a structure, with padding between its fields."""
    newest = DescriptorVersion.WITH_OFFSETS
    parts = ["<"]
    end = missing = 0
    for name, field_spec in cls.field_specs.items():
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
    padding = cls.padded_bytes.get(layout, end) - end
    return struct.Struct("".join([*parts, f"{padding}x"]))


def _format(field_spec: _FieldSpec, layout: DescriptorVersion) -> str:
    if isinstance(field_spec.kind, str):
        return f"{field_spec.count}{_STRUCT_CODES[field_spec.kind]}"
    return field_spec.kind.codecs[layout].format.removeprefix("<") * field_spec.count


def _build(cls: type[DescriptorT], layout: DescriptorVersion, values: Iterator[Any]) -> DescriptorT:
    """Build a structure, and the structures nested in it, from its scalar values in order."""
    field_values: dict[str, Any] = {}
    for name, field_spec in cls.field_specs.items():
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


def _flatten(value: Descriptor, layout: DescriptorVersion) -> Iterator[_ScalarField]:
    """Yield the fields of scalars of a structure and of those nested in it, in order.

    Raises:
        NvdlaError: BAD_VALUE if a field that the layout lacks is not 0; COUNT_MISMATCH if a tuple
            has the wrong number of elements.
    """
    for name, field_spec in value.field_specs.items():
        part = getattr(value, name)
        items = (part,) if field_spec.count == 1 else part
        if not _is_present(field_spec, layout):
            if any(items):
                raise NvError.BAD_VALUE.error(
                    f"{type(value).__name__}.{name} is {part}, but descriptors before firmware "
                    "0.12 have no such field: it must be 0"
                )
            continue
        if len(items) != field_spec.count:
            raise NvError.COUNT_MISMATCH.error(
                f"{type(value).__name__}.{name} has {counted(len(items), 'value')} instead of "
                f"{field_spec.count}"
            )
        if isinstance(field_spec.kind, str):
            yield type(value), name, field_spec.kind, items
        else:
            for item in items:
                yield from _flatten(item, layout)


def _misfit(parts: Sequence[_ScalarField]) -> str:
    """Return class and name of the first field that cannot hold its values."""
    for structure, name, kind, values in parts:
        try:
            struct.pack(f"<{len(values)}{_STRUCT_CODES[kind]}", *values)
        except struct.error:
            return f"{structure.__name__}.{name}"
    return "the structure"


def _plain(value: Any) -> Any:
    if isinstance(value, Descriptor):
        return value.to_dict()
    if is_tuple(value):
        return [_plain(item) for item in value]
    return value

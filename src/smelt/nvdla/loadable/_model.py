"""Entries of a loadable as immutable values, which declare their slots in FlatBuffers tables."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Mapping


class Version(NamedTuple):
    """Version of a loadable, or of a blob's interface."""

    major: int
    minor: int
    sub_minor: int

    def __str__(self) -> str:
        return ".".join(str(part) for part in self)


LOADABLE_VERSION: Final = Version(0, 7, 0)
"""Version of the loadable format that is read and written."""


class Interface(IntEnum):
    """Interface that reads a blob or runs a task."""

    NONE = 0
    DLA1 = 1
    EMU1 = 2


class SubInterface(IntEnum):
    """Role of a blob in the DLA1 or EMU1 interface; EMU1 uses ADDR0, OPS and SURFS."""

    NONE = 0
    ADDR0 = 1
    DEPS = 2
    OPS = 3
    SURFS = 4
    LUTS = 5


class MemoryDomain(IntEnum):
    """Memory that holds a region."""

    SYSTEM = 0
    SRAM = 1


class MemoryFlags(IntFlag):
    """Treatment of a region when the network is loaded."""

    NONE = 0
    ALLOC = 1
    SET = 2
    INPUT = 4
    OUTPUT = 8
    DEBUG = 16


class DataFormat(IntEnum):
    """Order of a tensor's axes in memory."""

    UNKNOWN = 0
    NCHW = 1
    NHWC = 2
    NCXHWX = 3
    """Channels in atoms; compilers use this format, but the format's schema does not list it."""


class DataType(IntEnum):
    """Type of a tensor's elements."""

    UNKNOWN = 0
    FLOAT = 1
    HALF = 2
    INT16 = 3
    INT8 = 4
    UINT8 = 5
    UINT16 = 6


class DataCategory(IntEnum):
    """Role of a tensor."""

    IMAGE = 0
    WEIGHT = 1
    FEATURE = 2
    PLANAR = 3
    BIAS = 4


class RelocationType(IntEnum):
    """Stride that a relocation rewrites."""

    LINE = 1
    SURFACE = 2


def name_of(kind: type[IntEnum], value: int) -> str:
    """Return the name of an enumeration's value, or the value if it is unknown."""
    try:
        return kind(value).name
    except ValueError:
        return str(value)


@dataclass(frozen=True, slots=True)
class FieldSlot:
    """Slot number and type of a field of a FlatBuffers table."""

    number: int
    kind: str | type[Table]
    """``u8`` to ``u64``, ``i16``, ``i32``, ``string``, ``version``, one of ``[u8]``, ``[u16]``,
    ``[u64]``, ``[string]``, or a class, which means a vector of its tables."""


def slot(number: int, kind: str | type[Table], default: Any = None) -> Any:
    """Declare a field by its slot number and type; by default it is empty or 0."""
    metadata = {"slot": FieldSlot(number, kind)}
    if default is not None:
        return field(default=default, metadata=metadata)
    if not isinstance(kind, str) or kind.startswith("["):
        return field(default=b"" if kind == "[u8]" else (), metadata=metadata)
    empty: Any = {"string": "", "version": Version(0, 0, 0)}.get(kind, 0)
    return field(default=empty, metadata=metadata)


@dataclass_transform(frozen_default=True)
class Table:
    """Base class of FlatBuffers tables, which makes each subclass a frozen dataclass."""

    field_slots: ClassVar[Mapping[str, FieldSlot]]

    def __init_subclass__(cls) -> None:
        """Make a table a frozen dataclass, and find the slots of its fields."""
        made: Any = dataclass(frozen=True)(cls)
        slots = {item.name: item.metadata.get("slot") for item in fields(made)}
        cls.field_slots = {name: slot for name, slot in slots.items() if slot is not None}


class Task(Table):
    """Task for one interface; all its descriptors refer to its address list by index."""

    id: int = slot(0, "u16")
    interface: int = slot(1, "u32")
    instance: int = slot(2, "i16")
    """Instance that must run the task; -1 for any instance."""
    address_list: tuple[int, ...] = slot(3, "[u16]")
    pre_actions: tuple[int, ...] = slot(4, "[u16]")
    post_actions: tuple[int, ...] = slot(5, "[u16]")


class Memory(Table):
    """Memory region to allocate, fill or bind."""

    id: int = slot(0, "u16")
    domain: int = slot(1, "u8")
    flags: int = slot(2, "u16")
    size: int = slot(3, "u64")
    alignment: int = slot(4, "u32")
    contents: tuple[str, ...] = slot(5, "[string]")
    """Names of the blobs that fill the region."""
    offsets: tuple[int, ...] = slot(6, "[u64]")
    """Offset of each blob in bytes."""
    bind_id: int = slot(7, "u16")
    tensor_desc_id: int = slot(8, "u16")

    @property
    def is_bindable(self) -> bool:
        """Whether the application provides this memory."""
        bindable = MemoryFlags.INPUT | MemoryFlags.OUTPUT | MemoryFlags.DEBUG
        return bool(self.flags & bindable)


class Address(Table):
    """Part of a memory region; a size of 0 means up to the end of the region."""

    id: int = slot(0, "u16")
    mem_id: int = slot(1, "u16")
    offset: int = slot(2, "u64")
    size: int = slot(3, "u64")


class Event(Table):
    """Synchronisation between tasks."""

    id: int = slot(0, "u16")
    type: int = slot(1, "u8")
    target: int = slot(2, "u16")
    val: int = slot(3, "u32")
    op: int = slot(4, "u8")


class Blob(Table):
    """Named bytes: descriptors, weights, tables."""

    name: str = slot(0, "string")
    size: int = slot(1, "u64")
    interface: int = slot(2, "u32")
    sub_interface: int = slot(3, "u32")
    version: Version = slot(4, "version")
    """Interface version, which determines the layout of descriptors."""
    data: bytes = slot(5, "[u8]")


class TensorDescriptor(Table):
    """Tensor that the application may bind."""

    name: str = slot(0, "string")
    id: int = slot(1, "u16")
    mem_id: int = slot(2, "u16")
    size: int = slot(3, "u64")
    offset: int = slot(4, "u64")
    data_format: int = slot(5, "u8")
    data_type: int = slot(6, "u8")
    data_category: int = slot(7, "u8")
    pixel_format: int = slot(8, "u8")
    pixel_mapping: int = slot(9, "u8")
    n: int = slot(10, "i32")
    c: int = slot(11, "i32")
    h: int = slot(12, "i32")
    w: int = slot(13, "i32")
    stride_0: int = slot(14, "u32")
    stride_1: int = slot(15, "u32")
    stride_2: int = slot(16, "u32")
    stride_3: int = slot(17, "u32")
    stride_4: int = slot(18, "u32")
    stride_5: int = slot(19, "u32")
    stride_6: int = slot(20, "u32")
    stride_7: int = slot(21, "u32")

    @property
    def strides(self) -> tuple[int, ...]:
        """The eight strides in bytes; compilers set those of an element, a line and a surface."""
        return tuple(getattr(self, f"stride_{index}") for index in range(8))


class Relocation(Table):
    """Stride in a descriptor that must equal a stride of a bound tensor."""

    address_id: int = slot(0, "u16")
    """Id of the address of the bound tensor."""
    write_id: int = slot(1, "u16")
    """Id of the memory that holds the descriptor."""
    offset: int = slot(2, "u64")
    """Byte offset of the stride in that memory."""
    interface: int = slot(3, "u32")
    sub_interface: int = slot(4, "u32")
    reloc_type: int = slot(5, "u8")


class Submit(Table):
    """Set of tasks; sets are submitted one after the other in the order of their ids."""

    id: int = slot(0, "u16")
    task_id: tuple[int, ...] = slot(1, "[u16]")

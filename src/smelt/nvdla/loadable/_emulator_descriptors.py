"""Descriptors of the user-mode driver's emulator, for layers that the accelerator lacks.

Two layouts have the same version number, 0.0.1; the size of an operation distinguishes them.
Source: nvdla/sw, emu_interface.h.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._descriptor_codec import Descriptor, DescriptorVersion, at
from smelt.nvdla._errors import NvError
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

EMU_OPERATION_BYTES: Final = {
    DescriptorVersion.WITHOUT_OFFSETS: 16,
    DescriptorVersion.WITH_OFFSETS: 24,
}
"""Size of an operation in each layout."""
EMU_BUFFERS_BYTES: Final = 512
"""Size of the source and destination buffers of one operation."""


class EmuOperationType(IntEnum):
    """Type of an emulated layer."""

    POWER = 0
    SOFTMAX = 1


class EmuFormat(IntEnum):
    """Type and layout of an emulated layer's elements."""

    INT8 = 0
    """Atoms of 32 channels."""
    INT8_8 = 1
    """Atoms of 8 channels."""
    INT16 = 2
    FF16 = 3
    """Half precision in atoms of 16 channels."""
    UINT8 = 4
    UINT16 = 5


class EmuNetworkDescriptor(Descriptor):
    """Network descriptor of an emulated task."""

    padded_bytes: ClassVar[Mapping[DescriptorVersion, int]] = dict.fromkeys(DescriptorVersion, 256)

    operation_desc_index: int = at(0, "i16", default=-1)
    operation_buffer_desc_index: int = at(2, "i16", default=-1)
    num_operations: int = at(4, "u16")


class _EmuLayer(Descriptor):
    """What all emulated layers begin with; in the older layout their other fields follow at 1."""

    padded_bytes: ClassVar[Mapping[DescriptorVersion, int]] = EMU_OPERATION_BYTES

    op_type: int = at(0, "u8", default=EmuOperationType.POWER)
    reserved: tuple[int, ...] = at(1, "u8", 3, since_0_12=True)
    input_scale_factor: float = at(4, "f32", since_0_12=True, default=1.0)
    output_scale_factor: float = at(8, "f32", since_0_12=True, default=1.0)


class EmuPowerOperation(_EmuLayer):
    """Power layer: y = (shift + scale * x) ** power."""

    power: float = at(12, "f32", default=1.0)
    scale: float = at(16, "f32", default=1.0)
    shift: float = at(20, "f32", default=0.0)


class EmuSoftmaxOperation(_EmuLayer):
    """Softmax layer, over channels."""

    op_type: int = at(0, "u8", default=EmuOperationType.SOFTMAX)
    axis: int = at(12, "u8")


EmuOperation = EmuPowerOperation | EmuSoftmaxOperation


class EmuBuffer(Descriptor):
    """Tensor of an emulated layer; strides are in bytes."""

    address_index: int = at(0, "i16", default=-1)
    address_index_offset: int = at(2, "u32", since_0_12=True)
    size: int = at(6, "u32")
    format: int = at(10, "u16")
    width: int = at(12, "u16")
    height: int = at(14, "u16")
    channel: int = at(16, "u16")
    line_stride: int = at(18, "u32")
    surf_stride: int = at(22, "u32")

    padded_bytes: ClassVar[Mapping[DescriptorVersion, int]] = dict.fromkeys(DescriptorVersion, 256)


class EmuBuffers(Descriptor):
    """Source and destination of an emulated layer."""

    src_data: EmuBuffer = at(0, EmuBuffer)
    dst_data: EmuBuffer = at(256, EmuBuffer)


_OLD_FORMATS: Final = (EmuFormat.INT8, EmuFormat.INT16, EmuFormat.FF16)
"""Formats by number in the layout without offsets, before atoms of 8 channels were added."""


def find_emu_format(number: int, layout: DescriptorVersion) -> EmuFormat:
    """Return the format with a number in a layout.

    Raises:
        NvdlaError: NOT_SUPPORTED if the number is unknown.
    """
    formats = tuple(EmuFormat) if layout is DescriptorVersion.WITH_OFFSETS else _OLD_FORMATS
    if number >= len(formats):
        raise NvError.NOT_SUPPORTED.error(
            f"format {number} is unknown; the format must be 0 to {len(formats) - 1}"
        )
    return formats[number]


def find_emu_layout(operation_list_bytes: int, num_operations: int) -> DescriptorVersion:
    """Return the layout of an emulated task, by the size of its operation list.

    Raises:
        NvdlaError: INVALID_SIZE if the list is too small for the operations in any layout.
    """
    needed = {layout: num_operations * size for layout, size in EMU_OPERATION_BYTES.items()}
    if operation_list_bytes == needed[DescriptorVersion.WITHOUT_OFFSETS]:
        return DescriptorVersion.WITHOUT_OFFSETS
    if operation_list_bytes >= needed[DescriptorVersion.WITH_OFFSETS]:
        return DescriptorVersion.WITH_OFFSETS
    if operation_list_bytes < needed[DescriptorVersion.WITHOUT_OFFSETS]:
        raise NvError.INVALID_SIZE.error(
            f"an emulated task of {counted(num_operations, 'operation')} has an operation list of "
            f"{operation_list_bytes} bytes; each operation needs at least "
            f"{EMU_OPERATION_BYTES[DescriptorVersion.WITHOUT_OFFSETS]} bytes"
        )
    return DescriptorVersion.WITHOUT_OFFSETS


def read_emu_operation(data: bytes, index: int, layout: DescriptorVersion) -> EmuOperation:
    """Read one operation of an emulated task.

    Raises:
        NvdlaError: INVALID_SIZE if the operation lies outside ``data``; NOT_SUPPORTED if its type
            is unknown.
    """
    offset = index * EMU_OPERATION_BYTES[layout]
    if not 0 <= offset < len(data):
        raise NvError.INVALID_SIZE.error(
            f"emulated operation {index} lies outside the operation list"
        )
    match data[offset]:
        case EmuOperationType.POWER:
            return EmuPowerOperation.from_bytes(data, offset, layout)
        case EmuOperationType.SOFTMAX:
            return EmuSoftmaxOperation.from_bytes(data, offset, layout)
        case kind:
            raise NvError.NOT_SUPPORTED.error(
                f"emulated operation {index} has type {kind}; expected 0 (power) or 1 (softmax)"
            )

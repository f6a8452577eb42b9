"""Descriptors of the user-mode driver's emulator, for layers that the accelerator lacks.

Two layouts have the same version number, 0.0.1; the size of an operation distinguishes them.
Source: nvdla/sw, emu_interface.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final

from smelt.nvdla._descriptor_codec import Descriptor, DescriptorVersion, at
from smelt.nvdla._status import NvdlaError, NvError

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


@dataclass(frozen=True, slots=True)
class EmuNetworkDescriptor(Descriptor):
    """Network descriptor of an emulated task."""

    padded_bytes: ClassVar[int] = 256

    operation_desc_index: int = at(0, "i16", default=-1)
    operation_buffer_desc_index: int = at(2, "i16", default=-1)
    num_operations: int = at(4, "u16")


@dataclass(frozen=True, slots=True)
class EmuPowerOperation(Descriptor):
    """Power layer: y = (shift + scale * x) ** power."""

    padded_bytes: ClassVar[int] = 24

    op_type: int = at(0, "u8", default=EmuOperationType.POWER)
    input_scale_factor: float = at(4, "f32", default=1.0)
    output_scale_factor: float = at(8, "f32", default=1.0)
    power: float = at(12, "f32", default=1.0)
    scale: float = at(16, "f32", default=1.0)
    shift: float = at(20, "f32", default=0.0)


@dataclass(frozen=True, slots=True)
class EmuSoftmaxOperation(Descriptor):
    """Softmax layer, over channels."""

    padded_bytes: ClassVar[int] = 24

    op_type: int = at(0, "u8", default=EmuOperationType.SOFTMAX)
    input_scale_factor: float = at(4, "f32", default=1.0)
    output_scale_factor: float = at(8, "f32", default=1.0)
    axis: int = at(12, "u8")


@dataclass(frozen=True, slots=True)
class _OldPowerOperation(Descriptor):
    """Power layer in the layout without offsets."""

    padded_bytes: ClassVar[int] = 16

    op_type: int = at(0, "u8", default=EmuOperationType.POWER)
    power: float = at(1, "f32", default=1.0)
    scale: float = at(5, "f32", default=1.0)
    shift: float = at(9, "f32", default=0.0)


@dataclass(frozen=True, slots=True)
class _OldSoftmaxOperation(Descriptor):
    """Softmax layer in the layout without offsets."""

    padded_bytes: ClassVar[int] = 16

    op_type: int = at(0, "u8", default=EmuOperationType.SOFTMAX)
    axis: int = at(1, "u8")


EmuOperation = EmuPowerOperation | EmuSoftmaxOperation


@dataclass(frozen=True, slots=True)
class EmuBuffer(Descriptor):
    """Tensor of an emulated layer; strides are in bytes."""

    address_index: int = at(0, "i16", default=-1)
    address_index_offset: int = at(2, "u32", new=True)
    size: int = at(6, "u32")
    format: int = at(10, "u16")
    width: int = at(12, "u16")
    height: int = at(14, "u16")
    channel: int = at(16, "u16")
    line_stride: int = at(18, "u32")
    surf_stride: int = at(22, "u32")

    padded_bytes: ClassVar[int] = 256


@dataclass(frozen=True, slots=True)
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
        raise NvdlaError(
            NvError.NOT_SUPPORTED,
            f"format {number} is unknown; the format must be 0 to {len(formats) - 1}",
        )
    return formats[number]


def find_emu_layout(operation_list_bytes: int, num_operations: int) -> DescriptorVersion:
    """Return the layout of an emulated task, by the size of its operation list.

    Raises:
        NvdlaError: INVALID_SIZE if the list is too small for the operations in any layout.
    """
    for layout, size in EMU_OPERATION_BYTES.items():
        if num_operations * size == operation_list_bytes:
            return layout
    if num_operations * EMU_OPERATION_BYTES[DescriptorVersion.WITH_OFFSETS] <= operation_list_bytes:
        return DescriptorVersion.WITH_OFFSETS
    if (
        num_operations * EMU_OPERATION_BYTES[DescriptorVersion.WITHOUT_OFFSETS]
        > operation_list_bytes
    ):
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"an emulated task of {num_operations} operations has an operation list of "
            f"{operation_list_bytes} bytes; each operation needs at least 16",
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
        raise NvdlaError(
            NvError.INVALID_SIZE, f"emulated operation {index} lies outside the operation list"
        )
    is_new = layout is DescriptorVersion.WITH_OFFSETS
    match data[offset]:
        case EmuOperationType.POWER if is_new:
            return EmuPowerOperation.from_bytes(data, offset)
        case EmuOperationType.POWER:
            power = _OldPowerOperation.from_bytes(data, offset)
            return EmuPowerOperation(power=power.power, scale=power.scale, shift=power.shift)
        case EmuOperationType.SOFTMAX if is_new:
            return EmuSoftmaxOperation.from_bytes(data, offset)
        case EmuOperationType.SOFTMAX:
            return EmuSoftmaxOperation(axis=_OldSoftmaxOperation.from_bytes(data, offset).axis)
        case kind:
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"emulated operation {index} has type {kind}; expected 0 (power) or 1 (softmax)",
            )


def write_emu_operation(operation: EmuOperation, layout: DescriptorVersion) -> bytes:
    """Return the bytes of an emulated operation; the layout without offsets drops its scales."""
    if layout is DescriptorVersion.WITH_OFFSETS:
        return operation.to_bytes()
    if isinstance(operation, EmuSoftmaxOperation):
        return _OldSoftmaxOperation(axis=operation.axis).to_bytes()
    return _OldPowerOperation(
        power=operation.power, scale=operation.scale, shift=operation.shift
    ).to_bytes()

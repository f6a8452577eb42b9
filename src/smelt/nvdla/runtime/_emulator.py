"""Emulator of the layers that the accelerator lacks: power and softmax on the CPU.

The arithmetic is that of the official emulator: single precision, sums over channels in order,
conversion to half precision with ties away from zero, integers truncated after saturation.
Exponentials and powers are computed in double precision and rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.loadable import (
    EMU_BUFFERS_BYTES,
    EMU_OPERATION_BYTES,
    DescriptorVersion,
    EmuBuffer,
    EmuBuffers,
    EmuFormat,
    EmuNetworkDescriptor,
    EmuOperation,
    EmuPowerOperation,
    find_emu_format,
    find_emu_layout,
    read_emu_operation,
)
from smelt.nvdla.runtime._atoms import AtomLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.nvdla.port import Bytes

    Halves = NDArray[np.float16]
    Floats = NDArray[np.float32]

_NETWORK_BYTES: Final = 6
"""Size in bytes of the fields of the network descriptor; the rest of it is padding."""
_ATOM_BYTES: Final = {EmuFormat.FF16: 32, EmuFormat.INT8: 32, EmuFormat.INT8_8: 8}
"""Size of an atom in bytes, for the formats that the emulator supports."""


def run_emulated_task(addresses: Sequence[Bytes]) -> None:
    """Run a task of the emulator.

    Args:
        addresses: The memory at each entry of the task's address list.

    Raises:
        NvdlaError: INVALID_ADDRESS or INVALID_SIZE if a descriptor refers to bytes outside the
            memory; NOT_SUPPORTED if an operation or format is not supported.
    """
    head = bytes(_memory_at(addresses, 0, "the network")[:_NETWORK_BYTES])
    network = EmuNetworkDescriptor.from_bytes(head.ljust(EmuNetworkDescriptor.size_bytes(), b"\0"))
    count = network.num_operations
    if not count:
        return
    operations = _memory_at(addresses, network.operation_desc_index, "the operation list")
    buffers = _memory_at(addresses, network.operation_buffer_desc_index, "the buffer list")
    layout = find_emu_layout(operations.nbytes, count)
    operation_bytes = bytes(operations[: count * EMU_OPERATION_BYTES[layout]])
    buffer_bytes = bytes(buffers[: count * EMU_BUFFERS_BYTES])
    for index in range(count):
        operation = read_emu_operation(operation_bytes, index, layout)
        tensors = EmuBuffers.from_bytes(buffer_bytes, index * EMU_BUFFERS_BYTES, layout)
        try:
            _run(operation, tensors, layout, addresses)
        except NvdlaError as error:
            raise error.within(f"emulated operation {index}") from error


def _memory_at(addresses: Sequence[Bytes], index: int, what: str) -> Bytes:
    if not 0 <= index < len(addresses):
        raise NvError.INVALID_ADDRESS.error(
            f"the address index of {what} of an emulated task is {index}, but the task's address "
            f"list has length {len(addresses)}"
        )
    return addresses[index]


def _run(
    operation: EmuOperation,
    buffers: EmuBuffers,
    layout: DescriptorVersion,
    addresses: Sequence[Bytes],
) -> None:
    """Run one operation.

    Raises:
        NvdlaError: INVALID_ADDRESS or INVALID_SIZE if a tensor lies outside its memory or the two
            tensors have different extents; NOT_SUPPORTED if the formats are not supported.
    """
    source, target = buffers.src_data, buffers.dst_data
    kind = _find_format(source, layout)
    if target.format != source.format:
        raise NvError.NOT_SUPPORTED.error(
            f"the operation reads format {source.format} and writes format {target.format}; the "
            "formats must be equal"
        )
    if kind not in _ATOM_BYTES:
        raise NvError.NOT_SUPPORTED.error(f"the emulator does not support format {kind.name}")
    values = _load(source, kind, addresses)
    offsets = _byte_offsets(target, kind, addresses, "target")
    if offsets.shape[:3] != values.shape:
        raise NvError.INVALID_SIZE.error(
            f"the operation reads shape {list(values.shape)} (CxHxW) and writes shape "
            f"{list(offsets.shape[:3])}; the shapes must be equal"
        )
    with np.errstate(all="ignore"):
        if isinstance(operation, EmuPowerOperation):
            result = _power(values, operation, kind)
        else:
            result = _softmax(values, operation.input_scale_factor, kind)
        stored = _to_memory(result, operation, kind)
    addresses[target.address_index][offsets] = stored.reshape(offsets.shape)


def _find_format(source: EmuBuffer, layout: DescriptorVersion) -> EmuFormat:
    try:
        return find_emu_format(source.format, layout)
    except NvdlaError as error:
        raise error.within(f"source tensor at address {source.address_index}") from error


def _byte_offsets(
    buffer: EmuBuffer, kind: EmuFormat, addresses: Sequence[Bytes], what: str
) -> NDArray[np.int64]:
    """Return the offset of every byte of a tensor, [channel, line, column, byte]."""
    memory = _memory_at(addresses, buffer.address_index, f"the {what}")
    element_bytes = 2 if kind is EmuFormat.FF16 else 1
    layout = AtomLayout(
        (buffer.channel, buffer.height, buffer.width),
        (buffer.line_stride, buffer.surf_stride),
        _ATOM_BYTES[kind] // element_bytes,
        element_bytes,
        buffer.address_index_offset,
    )
    return layout.byte_offsets(memory.nbytes, f"the {what}")


def _load(buffer: EmuBuffer, kind: EmuFormat, addresses: Sequence[Bytes]) -> Floats:
    """Return the elements of a source tensor, [channel, line, column]."""
    offsets = _byte_offsets(buffer, kind, addresses, "source")
    elements = addresses[buffer.address_index][offsets].view(
        np.float16 if kind is EmuFormat.FF16 else np.int8
    )
    return elements[..., 0].astype(np.float32)


def _power(x: Floats, operation: EmuPowerOperation, kind: EmuFormat) -> Floats:
    if kind is not EmuFormat.FF16:
        x = x * np.float32(operation.input_scale_factor)
    base = np.float32(operation.shift) + np.float32(operation.scale) * x
    return np.power(base.astype(np.float64), operation.power).astype(np.float32)


def _softmax(x: Floats, input_scale: float, kind: EmuFormat) -> Floats:
    """Return the softmax over channels; scaled integer inputs are rounded to half precision."""
    if kind is not EmuFormat.FF16:
        x = round_to_half(x * np.float32(input_scale)).astype(np.float32)
    if not x.size:
        return x
    largest = np.fmax.reduce(x, axis=0, initial=-np.inf, keepdims=True)
    powers = np.exp((x - largest.astype(np.float32)).astype(np.float64)).astype(np.float32)
    total = np.cumsum(powers, axis=0, dtype=np.float32)[-1:]
    return (powers / total).astype(np.float32)


def _to_memory(result: Floats, operation: EmuOperation, kind: EmuFormat) -> Bytes:
    """Return the bytes of results in the destination's format."""
    if kind is EmuFormat.FF16:
        return np.ascontiguousarray(round_to_half(result)).view(np.uint8)
    if not isinstance(operation, EmuPowerOperation):
        result = round_to_half(result).astype(np.float32)
    scaled = result / np.float32(operation.output_scale_factor)
    limited = np.trunc(np.clip(np.nan_to_num(scaled, nan=0.0), -128, 127))
    return np.ascontiguousarray(limited.astype(np.int8)).view(np.uint8)


def round_to_half(values: Floats) -> Halves:
    """Round to half precision: to nearest, ties away from zero."""
    with np.errstate(all="ignore"):
        nearest = values.astype(np.float16)
        away = np.nextafter(nearest, np.copysign(np.float16(np.inf), values.astype(np.float16)))
        exact = values.astype(np.float64)
        below = np.abs(exact - nearest.astype(np.float64))
        above = np.abs(away.astype(np.float64) - exact)
        is_tie = (below == above) & (np.abs(nearest.astype(np.float64)) < np.abs(exact))
    return np.where(is_tie, away, nearest)

"""Memory of the machine model, feature surfaces as arrays, and banks of the convolution buffer.

A surface is stored in atoms of A channels; element (c, y, x) is at ``address + (c // A) *
surface_stride + y * line_stride + x * atom + (c % A) * element``. Arrays of whole surfaces have the
axes [height, width, channels], with channels rounded up to whole atoms: as in hardware, engines
read, compute and write the lanes beyond the last channel too.

The data and weights of a convolution must fit into the buffer banks that it programs.

The convolution buffer holds data line by line, each line in a programmed number of entries; an
entry is as wide as a bank. The atoms of a pixel fill whole entries; its remaining atoms share an
entry with those of other pixels. All lines of all batch elements must fit, because the sequencer
starts when the last one has arrived. Weights pass through the buffer in groups of kernels. One
group must fit; if the operation keeps or reuses weights, all groups must. The mask of compressed
weights occupies the last bank. Hardware that runs out of space hangs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import MemorySpace, Precision
from smelt.nvdla.hardware._running_operation import AddressSpan, ceil_div
from smelt.types import Limit, counted

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Configuration
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._running_operation import Operation, TaskAccessLimits


Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
FloatArray = np.ndarray[tuple[Any, ...], np.dtype[Any]]
DTYPES: dict[Precision, type[np.generic]] = {
    Precision.INT8: np.int8,
    Precision.INT16: np.int16,
    Precision.FP16: np.float16,
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one memory space, from the address ``base`` on."""

    space: MemorySpace
    base: int
    data: Bytes

    def window(self, address: int, size_bytes: int, what: str) -> Bytes:
        """Return a writable view of a byte range; ``what`` names the access in messages.

        Raises:
            NvdlaError: INVALID_ADDRESS if part of the range lies outside memory.
        """
        offset = address - self.base
        if size_bytes < 0 or offset < 0 or offset + size_bytes > self.data.size:
            raise NvError.INVALID_ADDRESS.error(
                f"{what}: {self.space.name} bytes {address:#x} to {address + size_bytes:#x} lie"
                f" outside memory, which is {self.base:#x} to {self.base + self.data.size:#x}"
            )
        return self.data[offset : offset + size_bytes]


@dataclass(frozen=True, slots=True)
class Surface:
    """Location and extents of a cube of atoms in memory; strides are in bytes."""

    space: MemorySpace
    address: int
    line_stride: int
    surface_stride: int
    width: int
    height: int
    surfaces: int
    atom_bytes: int
    register: str
    """Register that holds the address, for messages."""

    @property
    def size_bytes(self) -> int:
        """Size of all atoms in bytes."""
        return self.width * self.height * self.surfaces * self.atom_bytes

    @property
    def extent_bytes(self) -> int:
        """Bytes from the start of the first atom to the end of the last one."""
        last_line = (self.surfaces - 1) * self.surface_stride + (self.height - 1) * self.line_stride
        return last_line + self.width * self.atom_bytes

    def batches(self, count: int, stride: int) -> list[Surface]:
        """Return the surfaces of a batch, ``stride`` bytes apart; this one is the first."""
        return [replace(self, address=self.address + i * stride) for i in range(count)]


class Dma:
    """Memory accesses of one operation: checked against the task's limits and counted."""

    def __init__(
        self, memories: dict[MemorySpace, Memory], limits: TaskAccessLimits | None = None
    ) -> None:
        self._memories = memories
        self._limits = limits
        self.bytes_moved = dict.fromkeys(MemorySpace, 0)

    def check_time(self) -> None:
        """Check the task's deadline; raise NvdlaError(TIMEOUT) if it has passed."""
        if self._limits is not None:
            self._limits.check_time()

    def _memory(self, space: MemorySpace, register: str) -> Memory:
        try:
            return self._memories[space]
        except KeyError:
            raise NvError.INVALID_ADDRESS.error(
                f"{register}: this machine has no {space.name}"
            ) from None

    def _window(
        self, space: MemorySpace, address: int, size_bytes: int, register: str, *, writes: bool
    ) -> Bytes:
        window = self._memory(space, register).window(address, size_bytes, register)
        if self._limits is not None:
            self._limits.check_time()
            check = self._limits.check_write if writes else self._limits.check
            check(AddressSpan(space, address, address + size_bytes), register)
        return window

    def read_bytes(self, space: MemorySpace, address: int, size_bytes: int, register: str) -> Bytes:
        """Return a copy of a byte range; ``register`` names the address in messages."""
        window = self._window(space, address, size_bytes, register, writes=False)
        self.bytes_moved[space] += size_bytes
        return window.copy()

    @property
    def memory_bytes(self) -> int:
        """Size of all memory in bytes."""
        return sum(memory.data.size for memory in self._memories.values())

    def check_target(self, surface: Surface) -> None:
        """Check a destination before an engine computes its contents.

        Raises:
            NvdlaError: INVALID_ADDRESS if part of the surface lies outside memory or the task must
                not write it; INVALID_SIZE if it is larger than memory or than a cube may be.
        """
        self._extent(surface, writes=True)
        _check_size(surface)

    def _extent(self, surface: Surface, *, writes: bool) -> Bytes:
        """Return a view of the bytes from a surface's first atom to the end of its last one."""
        memory = self._memory(surface.space, surface.register)
        if surface.size_bytes > memory.data.size:
            raise NvError.INVALID_SIZE.error(
                f"{surface.register}: a surface of {surface.size_bytes} bytes is larger than the "
                f"memory of {memory.data.size} bytes, so it overlaps itself; check its sizes and "
                "strides"
            )
        return self._window(
            surface.space, surface.address, surface.extent_bytes, surface.register, writes=writes
        )

    def _atoms(self, surface: Surface, *, writes: bool) -> Bytes:
        """Return a view [surface, line, column, byte] of a surface's atoms."""
        window = self._extent(surface, writes=writes)
        self.bytes_moved[surface.space] += surface.size_bytes
        return np.lib.stride_tricks.as_strided(
            window,
            (surface.surfaces, surface.height, surface.width, surface.atom_bytes),
            (surface.surface_stride, surface.line_stride, surface.atom_bytes, 1),
        )

    def read_atoms(self, surface: Surface) -> Bytes:
        """Return a copy [surface, line, column, byte] of a surface's atoms."""
        return np.array(self._atoms(surface, writes=False), order="C")

    def write_atoms(self, surface: Surface, atoms: Bytes) -> None:
        """Write [surface, line, column, byte] to a surface."""
        self._atoms(surface, writes=True)[...] = atoms

    def read_cube(self, surface: Surface, dtype: type[np.generic]) -> np.ndarray:
        """Return a copy [height, width, channels of all atoms] of a surface.

        Raises:
            NvdlaError: INVALID_SIZE if the surface is too large; INVALID_ADDRESS if part of it
                lies outside memory.
        """
        view = self._atoms(surface, writes=False)
        _check_size(surface)
        atoms = np.ascontiguousarray(view).view(dtype)
        return np.ascontiguousarray(atoms.transpose(1, 2, 0, 3)).reshape(
            surface.height, surface.width, -1
        )

    def write_cube(self, surface: Surface, cube: np.ndarray) -> None:
        """Write [height, width, channels of all atoms] to a surface."""
        lanes = cube.shape[2] // surface.surfaces
        atoms = cube.reshape(surface.height, surface.width, surface.surfaces, lanes)
        self.write_atoms(surface, np.ascontiguousarray(atoms.transpose(2, 0, 1, 3)).view(np.uint8))


def _check_size(surface: Surface) -> None:
    if surface.size_bytes > Limit.MAX_CUBE_BYTES.most:
        raise NvError.INVALID_SIZE.error(
            f"{surface.register}: a cube has {Limit.MAX_CUBE_BYTES.excess(surface.size_bytes)};"
            " split the cube, or check its sizes"
        )


def check_buffer(operation: Operation, shape: ConvolutionShape) -> None:
    """Check the banks and entries of a convolution.

    Raises:
        NvdlaError: BAD_VALUE if CDMA and CSC are programmed differently; INVALID_SIZE if data or
            weights do not fit.
    """
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    data_banks = common_field(operation, "DATA_BANK") + 1
    weight_banks = common_field(operation, "WEIGHT_BANK") + 1
    entries = common_field(operation, "ENTRIES") + 1
    has_mask = cdma.get("WEIGHT_FORMAT")
    if data_banks + weight_banks + has_mask > configuration.buffer_banks:
        raise NvError.INVALID_SIZE.error(
            f"D_BANK: the operation uses {data_banks + weight_banks + has_mask} banks (data:"
            f" {data_banks}, weights: {weight_banks}, weight mask: {has_mask}), but the convolution"
            f" buffer has only {configuration.buffer_banks}"
        )
    needed = _entries_per_line(operation, shape.precision)
    if entries < needed:
        raise NvError.INVALID_SIZE.error(
            f"D_ENTRY_PER_SLICE: a line of data needs {needed} entries of the convolution buffer,"
            f" but the register allows {entries}"
        )
    lines = (cdma.get("DATAIN_HEIGHT") + 1) * (cdma.get("BATCHES") + 1)
    if lines * entries > data_banks * configuration.buffer_depth:
        raise NvError.INVALID_SIZE.error(
            f"D_BANK: the data needs {lines * entries} entries (lines: {lines}, entries per line:"
            f" {entries}), but {counted(data_banks, 'data bank')} can hold only"
            f" {data_banks * configuration.buffer_depth}"
        )
    _check_weights(operation, shape, weight_banks)


def common_field(operation: Operation, field: str) -> int:
    """Return a field that must have the same value in CDMA and CSC."""
    cdma, csc = operation.registers["CDMA"], operation.registers["CSC"]
    first, second = cdma.get(field), csc.get(field)
    if first != second:
        raise NvError.BAD_VALUE.error(
            f"{cdma.full_name(field)} is {first}, but CSC's is {second}; they must be equal"
        )
    return first


def _entries_per_line(operation: Operation, precision: Precision) -> int:
    """Return the entries that a line of data needs."""
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    width, _, channels = cdma.extents("DATAIN_")
    is_image = cdma.get("DATAIN_FORMAT")
    padded = width + sum(cdma.get(f"PAD_{side}") for side in ("LEFT", "RIGHT"))
    if is_image:
        line_bytes = padded * channels * precision.size_bytes
        return ceil_div(line_bytes, configuration.buffer_width_bytes)
    atoms = ceil_div(channels * precision.size_bytes, configuration.atom_bytes)
    if cdma.get("CONV_MODE"):  # tiles of 4 x 4, strides folded into channels
        folded = atoms * (cdma.get("CONV_Y_STRIDE") + 1)
        line_bytes = padded * folded * configuration.atom_bytes
        return ceil_div(line_bytes, configuration.buffer_width_bytes)
    return _entries_of_atoms(atoms, width, configuration)


def _entries_of_atoms(atoms: int, width: int, configuration: Configuration) -> int:
    """Return the entries of a line of ``width`` pixels of some atoms each."""
    per_entry = max(1, configuration.buffer_width_bytes // configuration.atom_bytes)
    whole, rest = divmod(atoms, per_entry)
    pixels = per_entry // rest if rest else 1
    return whole * width + (ceil_div(width, pixels) if rest else 0)


def _check_weights(operation: Operation, shape: ConvolutionShape, banks: int) -> None:
    """Check that the weights that must be in the buffer at once fit into their banks."""
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    bank_bytes = configuration.buffer_depth * configuration.buffer_width_bytes
    are_kept = any(cdma.get(name) for name in ("WEIGHT_REUSE", "SKIP_WEIGHT_RLS"))
    kernels = shape.kernels
    if not are_kept:
        kernels = min(kernels, configuration.kernel_group(shape.precision))
    elements = shape.kernel_height * shape.kernel_width * shape.channels * kernels
    size, capacity, what = elements * shape.precision.size_bytes, banks * bank_bytes, "weights"
    if cdma.get("WEIGHT_FORMAT"):
        size, capacity, what, banks = ceil_div(elements, 8), bank_bytes, "mask bits", 1
    if size > capacity:
        raise NvError.INVALID_SIZE.error(
            f"D_BANK: the {what} of {counted(kernels, 'kernel')} of {elements // kernels} elements"
            f" need {size} bytes, but {counted(banks, 'bank')} can hold only {capacity}"
        )

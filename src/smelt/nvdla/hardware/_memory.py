"""Memory of the machine, and feature surfaces in it as arrays.

A surface is stored as atoms: ``address + (c // A) * surface_stride + y * line_stride
+ x * atom + (c % A) * element``. Arrays of whole surfaces have the axes [height, width, channels],
channels rounded up to whole atoms: the lanes beyond the last channel are real bytes that the
engines read, compute and write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._configuration import Precision

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_WEIGHT_BYTES = 1 << 28
"""The largest kernels that the convolution expands; compressed ones take less in memory."""

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
    """The bytes of one memory space, from ``base`` on."""

    space: MemorySpace
    base: int
    data: Bytes

    def window(self, address: int, size_bytes: int) -> Bytes:
        """Return a writable view of some bytes.

        Raises:
            NvdlaError: some lie outside (INVALID_ADDRESS).
        """
        offset = address - self.base
        if size_bytes < 0 or offset < 0 or offset + size_bytes > self.data.size:
            raise NvdlaError(
                NvError.INVALID_ADDRESS,
                f"{self.space.name} bytes {address:#x} to {address + size_bytes:#x} lie outside"
                f" memory, which is {self.base:#x} to {self.base + self.data.size:#x}",
            )
        return self.data[offset : offset + size_bytes]


@dataclass(frozen=True, slots=True)
class Surface:
    """Where a cube of atoms lies in memory."""

    space: MemorySpace
    address: int
    line_stride: int
    surface_stride: int
    width: int
    height: int
    surfaces: int
    atom_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all atoms."""
        return self.width * self.height * self.surfaces * self.atom_bytes

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first atom to the end of the last."""
        return (
            (self.surfaces - 1) * self.surface_stride
            + (self.height - 1) * self.line_stride
            + self.width * self.atom_bytes
        )


class Dma:
    """Reads and writes of one operation, counted for its cycle estimate."""

    def __init__(self, memories: dict[MemorySpace, Memory]) -> None:
        self._memories = memories
        self.bytes_moved = dict.fromkeys(MemorySpace, 0)

    def _memory(self, space: MemorySpace) -> Memory:
        try:
            return self._memories[space]
        except KeyError:
            raise NvdlaError(
                NvError.INVALID_ADDRESS, f"this machine has no {space.name} interface"
            ) from None

    def read_bytes(self, space: MemorySpace, address: int, size_bytes: int) -> Bytes:
        """Return a copy of some bytes."""
        window = self._memory(space).window(address, size_bytes)
        self.bytes_moved[space] += size_bytes
        return window.copy()

    def write_bytes(self, space: MemorySpace, address: int, data: Buffer) -> None:
        """Set some bytes."""
        source = np.frombuffer(memoryview(data).cast("B"), np.uint8)
        self._memory(space).window(address, source.size)[:] = source
        self.bytes_moved[space] += source.size

    @property
    def memory_bytes(self) -> int:
        """Bytes of all memory."""
        return sum(memory.data.size for memory in self._memories.values())

    def check(self, surface: Surface) -> Bytes:
        """Return the bytes from a surface's first atom to its last.

        Raises:
            NvdlaError: some lie outside (INVALID_ADDRESS), or the surface has more atoms than
                memory (INVALID_SIZE).
        """
        memory = self._memory(surface.space)
        if surface.size_bytes > memory.data.size:
            raise _oversize(surface.size_bytes, memory.data.size)
        return memory.window(surface.address, surface.extent_bytes)

    def atoms(self, surface: Surface) -> Bytes:
        """Return a writable view [surface, line, column, byte] of a surface's atoms."""
        window = self.check(surface)
        self.bytes_moved[surface.space] += surface.size_bytes
        return np.lib.stride_tricks.as_strided(
            window,
            (surface.surfaces, surface.height, surface.width, surface.atom_bytes),
            (surface.surface_stride, surface.line_stride, surface.atom_bytes, 1),
        )

    def read_cube(self, surface: Surface, dtype: type[np.generic]) -> np.ndarray:
        """Return [height, width, channels of all atoms] of a surface."""
        atoms = np.ascontiguousarray(self.atoms(surface)).view(dtype)
        return np.ascontiguousarray(atoms.transpose(1, 2, 0, 3)).reshape(
            surface.height, surface.width, -1
        )

    def write_cube(self, surface: Surface, cube: np.ndarray) -> None:
        """Write [height, width, channels of all atoms] to a surface."""
        lanes = cube.shape[2] // surface.surfaces
        atoms = cube.reshape(surface.height, surface.width, surface.surfaces, lanes)
        packed = np.ascontiguousarray(atoms.transpose(2, 0, 1, 3)).view(np.uint8)
        self.atoms(surface)[...] = packed


def _oversize(size_bytes: int, memory_bytes: int) -> NvdlaError:
    return NvdlaError(
        NvError.INVALID_SIZE,
        f"a surface of {size_bytes} bytes is more than memory has, {memory_bytes}; its strides"
        " make it overlap itself, check its sizes",
    )


def require_space(ram_type: int) -> MemorySpace:
    """Return the memory space of a RAM_TYPE field."""
    return MemorySpace.DRAM if ram_type else MemorySpace.SRAM

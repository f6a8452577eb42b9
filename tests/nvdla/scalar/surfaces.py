"""Where the elements of a data cube lie in memory.

Source: NVDLA documentation, In-memory data formats, "Feature Data Format" (atoms of 32 bytes; an
implementation may have atoms of 8 or 16), "Bias Data Format" to "Element-Wise Data Format"
(BytesPerAtom), "Pixel Format" (planes) and, for planes without channels, Unit Description, RUBIK.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.nvdla.scalar.arithmetic import Cube, HalfCube, Precision, sign_extend


@dataclass(frozen=True, slots=True)
class FeatureSurface:
    """A feature cube in memory: channels in atoms, then columns, lines and surfaces."""

    address: int
    line_stride: int
    surface_stride: int
    atom_bytes: int
    precision: Precision

    @property
    def channels_per_atom(self) -> int:
        """How many channels one atom holds."""
        return self.atom_bytes // self.precision.byte_count

    def element_address(self, channel: int, line: int, column: int) -> int:
        """Return the address of one element (section "Feature Data Format": C' > W > H > C)."""
        surface, lane = divmod(channel, self.channels_per_atom)
        return (
            self.address
            + surface * self.surface_stride
            + line * self.line_stride
            + column * self.atom_bytes
            + lane * self.precision.byte_count
        )


@dataclass(frozen=True, slots=True)
class OperandSurface:
    """An operand cube of the single-point processor, one or two components to an element.

    Source: In-memory data formats, the closing table of "Element-Wise Data Format":
    BytesPerAtom = ElementPerAtom * ComponentsPerElement * BytesPerComponent, where ElementPerAtom
    follows the processing precision. Of two components the adder's stands first (section "Batch
    Normalization Data Format": M0 V0 M1 V1).
    """

    address: int
    line_stride: int
    surface_stride: int
    elements_per_atom: int
    component_count: int
    component_bytes: int
    is_per_kernel: bool

    @property
    def element_bytes(self) -> int:
        """The bytes of all components of one element."""
        return self.component_count * self.component_bytes

    def component_address(self, channel: int, line: int, column: int, component: int) -> int:
        """Return the address of one component; per kernel, line and column do not count."""
        inside = component * self.component_bytes
        if self.is_per_kernel:
            return self.address + channel * self.element_bytes + inside
        surface, lane = divmod(channel, self.elements_per_atom)
        return (
            self.address
            + surface * self.surface_stride
            + line * self.line_stride
            + (column * self.elements_per_atom + lane) * self.element_bytes
            + inside
        )


@dataclass(frozen=True, slots=True)
class PlanarSurface:
    """One plane for each channel, pitch linear (Unit Description, "Split and Merge")."""

    address: int
    line_stride: int
    planar_stride: int
    precision: Precision

    def element_address(self, channel: int, line: int, column: int) -> int:
        """Return the address of one element."""
        inside = line * self.line_stride + column * self.precision.byte_count
        return self.address + channel * self.planar_stride + inside


def read_integer(memory: bytes | bytearray, address: int, byte_count: int) -> int:
    """Read a signed little-endian number."""
    raw = int.from_bytes(memory[address : address + byte_count], "little")
    return sign_extend(raw, 8 * byte_count)


def write_integer(memory: bytearray, address: int, byte_count: int, value: int) -> None:
    """Write the low bytes of a number, little-endian."""
    raw = value & (1 << 8 * byte_count) - 1
    memory[address : address + byte_count] = raw.to_bytes(byte_count, "little")


def bits_from_halves(cube: HalfCube) -> Cube:
    """Return the bit patterns of halves."""
    return cube.view(np.uint16).astype(np.int64)


def halves_from_bits(cube: Cube) -> HalfCube:
    """Return the halves of bit patterns, whose sign does not count."""
    return (cube & 0xFFFF).astype(np.uint16).view(np.float16)


def read_feature(
    memory: bytes | bytearray,
    surface: FeatureSurface | PlanarSurface,
    shape: tuple[int, int, int],
) -> Cube:
    """Read a cube of raw elements (halves as their bits), as channel, line, column."""
    cube = np.zeros(shape, np.int64)
    for index in np.ndindex(shape):
        address = surface.element_address(*index)
        cube[index] = read_integer(memory, address, surface.precision.byte_count)
    return cube


def write_feature(memory: bytearray, surface: FeatureSurface | PlanarSurface, cube: Cube) -> None:
    """Write a cube of raw elements (halves as their bits)."""
    for index in np.ndindex(cube.shape):
        channel, line, column = index
        address = surface.element_address(channel, line, column)
        write_integer(memory, address, surface.precision.byte_count, int(cube[index]))


def read_operands(
    memory: bytes | bytearray, surface: OperandSurface, shape: tuple[int, int, int]
) -> tuple[Cube, ...]:
    """Read the operand cubes of every component, each as channel, line, column.

    One that is per kernel is repeated over lines and columns.
    """
    cubes = [np.zeros(shape, np.int64) for _ in range(surface.component_count)]
    for component, cube in enumerate(cubes):
        for index in np.ndindex(shape):
            channel, line, column = index
            address = surface.component_address(channel, line, column, component)
            cube[index] = read_integer(memory, address, surface.component_bytes)
    return tuple(cubes)


def write_operands(memory: bytearray, surface: OperandSurface, cubes: tuple[Cube, ...]) -> None:
    """Write operand cubes; one that is per kernel is taken from line and column zero."""
    for component, cube in enumerate(cubes):
        channels, lines, columns = cube.shape
        if surface.is_per_kernel:
            lines = columns = 1
        for index in np.ndindex(channels, lines, columns):
            channel, line, column = index
            address = surface.component_address(channel, line, column, component)
            write_integer(memory, address, surface.component_bytes, int(cube[index]))

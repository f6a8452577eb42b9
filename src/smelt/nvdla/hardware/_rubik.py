"""RUBIK engine: contract (channels to pixels), split (cube to planes), merge (planes to cube)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla.hardware._memory import Surface
from smelt.nvdla.hardware._running_operation import ceil_div

if TYPE_CHECKING:
    from smelt.nvdla._protocols import Precision
    from smelt.nvdla.hardware._running_operation import Operation


def run_rubik(operation: Operation) -> None:
    """Run one reshape from memory to memory.

    Raises:
        NvdlaError: BAD_VALUE if the mode does not exist; INVALID_ADDRESS or INVALID_SIZE if a cube
            does not lie in memory.
    """
    registers = operation.registers["RBK"]
    mode = registers.get("RUBIK_MODE")
    precision = operation.precision("RBK", "IN_PRECISION", "RUBIK")
    reshapes = (_contract, _split, _merge)  # by the value of the field
    if mode >= len(reshapes):
        raise NvError.BAD_VALUE.error(
            f"the mode of RUBIK is {mode}; it must be 0 to {len(reshapes) - 1}"
        )
    reshapes[mode](operation, precision)


def _cube(operation: Operation, side: str, count: int, height: int, width: int) -> Surface:
    """Return the input (``IN``) or output (``OUT``) as ``count`` surfaces of atoms."""
    registers, name = operation.registers["RBK"], f"D_DA{side}"
    return Surface(
        registers.space(f"DATA{side}_RAM_TYPE"),
        registers.address(f"{name}_ADDR_LOW", f"{name}_ADDR_HIGH"),
        registers.word(f"{name}_LINE_STRIDE"),
        registers.word(f"{name}_SURF_STRIDE"),
        width,
        height,
        count,
        operation.configuration.atom_bytes,
        f"RBK.{name}_ADDR",
    )


def _planes(operation: Operation, side: str, count: int, height: int, line_bytes: int) -> Surface:
    """Return the input (``IN``) or output (``OUT``) as ``count`` planes of lines."""
    stride = operation.registers["RBK"].word(f"D_DA{side}_PLANAR_STRIDE")
    cube = _cube(operation, side, count, height, 1)
    return replace(cube, surface_stride=stride, atom_bytes=line_bytes)


def _contract(operation: Operation, precision: Precision) -> None:
    """Move channel block (sy * stride_x + sx) of pixel (y, x) to pixel (y * sy', x * sx')."""
    registers = operation.registers["RBK"]
    width, height, _ = registers.extents("DATAIN_")
    stride_x = registers.get("DECONV_X_STRIDE") + 1
    stride_y = registers.get("DECONV_Y_STRIDE") + 1
    channels = registers.get("DATAOUT_CHANNEL") + 1
    count = ceil_div(channels, operation.configuration.atom_elements(precision))
    atom = operation.configuration.atom_bytes
    source = _cube(operation, "IN", stride_y * stride_x * count, height, width)
    atoms = operation.dma.read_atoms(source)
    blocks = atoms.reshape(stride_y, stride_x, count, height, width, atom)
    # to [y, stride_y, surface, x, stride_x, byte]
    ordered = blocks.transpose(3, 0, 2, 4, 1, 5)
    first = _cube(operation, "OUT", count, height, width * stride_x)
    step = registers.word("D_CONTRACT_STRIDE_1")
    rows = replace(first, line_stride=step).batches(stride_y, first.line_stride)
    for row, target in enumerate(rows):
        lines = ordered[:, row].transpose(1, 0, 2, 3, 4)
        operation.dma.write_atoms(target, lines.reshape(count, height, width * stride_x, atom))
    operation.mac_cycles = atoms.size // atom


def _line_bytes(operation: Operation, width: int, element_bytes: int) -> int:
    """Return the bytes of a plane's line, rounded up to whole atoms."""
    atom = operation.configuration.atom_bytes
    return ceil_div(width * element_bytes, atom) * atom


def _split(operation: Operation, precision: Precision) -> None:
    """Write each channel as a plane; zeros pad its lines to whole atoms."""
    registers = operation.registers["RBK"]
    width, height, _ = registers.extents("DATAIN_")
    channels = registers.get("DATAOUT_CHANNEL") + 1
    size = precision.size_bytes
    count = ceil_div(channels, operation.configuration.atom_elements(precision))
    source = _cube(operation, "IN", count, height, width)
    dtype = np.dtype(f"u{size}")
    cube = operation.dma.read_cube(source, dtype.type)
    line = _line_bytes(operation, width, size)
    planes = np.zeros((channels, height, line // size), dtype)
    planes[..., :width] = cube.transpose(2, 0, 1)[:channels]
    target = _planes(operation, "OUT", channels, height, line)
    operation.dma.write_atoms(target, planes.view(np.uint8)[..., None, :])
    operation.mac_cycles = cube.size // operation.configuration.atom_bytes + 1


def _merge(operation: Operation, precision: Precision) -> None:
    """Read each channel from a plane; lanes beyond the last channel become 0."""
    registers = operation.registers["RBK"]
    width, height, channels = registers.extents("DATAIN_")
    size = precision.size_bytes
    elements = operation.configuration.atom_elements(precision)
    count = ceil_div(channels, elements)
    line = _line_bytes(operation, width, size)
    source = _planes(operation, "IN", channels, height, line)
    dtype = np.dtype(f"u{size}")
    planes = operation.dma.read_atoms(source)[:, :, 0].view(dtype)
    cube = np.zeros((height, width, count * elements), dtype)
    cube[..., :channels] = planes[..., :width].transpose(1, 2, 0)
    target = _cube(operation, "OUT", count, height, width)
    operation.dma.write_cube(target, cube)
    operation.mac_cycles = height * width * count

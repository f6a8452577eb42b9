"""RUBIK engine: contract (channels to pixels), split (cube to planes), merge (planes to cube)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._memory import Surface
from smelt.nvdla.hardware._operation import ceil_div

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Precision
    from smelt.nvdla.hardware._operation import Operation

CONTRACT, SPLIT, MERGE = 0, 1, 2
"""Values of the RUBIK_MODE field."""


def run_rubik(operation: Operation) -> None:
    """Run one reshape from memory to memory.

    Raises:
        NvdlaError: BAD_VALUE if the mode does not exist; INVALID_ADDRESS or INVALID_SIZE if a cube
            does not lie in memory.
    """
    registers = operation.registers["RBK"]
    mode = registers.get("D_MISC_CFG", "RUBIK_MODE")
    precision = registers.precision("D_MISC_CFG", "IN_PRECISION")
    operation.require_precision(precision, "RUBIK")
    if mode == CONTRACT:
        _contract(operation, precision)
    elif mode == SPLIT:
        _split(operation, precision)
    elif mode == MERGE:
        _merge(operation, precision)
    else:
        raise NvdlaError(NvError.BAD_VALUE, f"the RUBIK mode {mode} is not defined")


def _surface(
    operation: Operation, *, is_input: bool, shape: tuple[int, int, int], block: int, step: str
) -> Surface:
    """Return the input or output as a surface of ``shape`` [surfaces or planes, height, width]."""
    registers = operation.registers["RBK"]
    side, size = ("DAIN", "DATAIN") if is_input else ("DAOUT", "DATAOUT")
    count, height, width = shape
    return Surface(
        registers.space(f"D_{side}_RAM_TYPE", f"{size}_RAM_TYPE"),
        registers.address(f"D_{side}_ADDR_LOW", f"D_{side}_ADDR_HIGH"),
        registers.word(f"D_{side}_LINE_STRIDE"),
        registers.word(f"D_{side}_{step}_STRIDE"),
        width,
        height,
        count,
        block,
        f"RBK.D_{side}_ADDR",
    )


def _input_size(operation: Operation) -> tuple[int, int]:
    registers = operation.registers["RBK"]
    return (
        registers.get("D_DATAIN_SIZE_0", "DATAIN_HEIGHT") + 1,
        registers.get("D_DATAIN_SIZE_0", "DATAIN_WIDTH") + 1,
    )


def _contract(operation: Operation, precision: Precision) -> None:
    """Move channel block (sy * stride_x + sx) of pixel (y, x) to pixel (y * sy', x * sx')."""
    registers = operation.registers["RBK"]
    height, width = _input_size(operation)
    stride_x = registers.get("D_DECONV_STRIDE", "DECONV_X_STRIDE") + 1
    stride_y = registers.get("D_DECONV_STRIDE", "DECONV_Y_STRIDE") + 1
    channels = registers.get("D_DATAOUT_SIZE_1", "DATAOUT_CHANNEL") + 1
    count = ceil_div(channels, operation.configuration.atom_elements(precision))
    atom = operation.configuration.atom_bytes
    source = _surface(
        operation,
        is_input=True,
        shape=(stride_y * stride_x * count, height, width),
        block=atom,
        step="SURF",
    )
    atoms = operation.dma.read_atoms(source)
    blocks = atoms.reshape(stride_y, stride_x, count, height, width, atom)
    # to [y, stride_y, surface, x, stride_x, byte]
    ordered = blocks.transpose(3, 0, 2, 4, 1, 5)
    base = registers.address("D_DAOUT_ADDR_LOW", "D_DAOUT_ADDR_HIGH")
    for row in range(stride_y):
        target = Surface(
            registers.space("D_DAOUT_RAM_TYPE", "DATAOUT_RAM_TYPE"),
            base + row * registers.word("D_DAOUT_LINE_STRIDE"),
            registers.word("D_CONTRACT_STRIDE_1"),
            registers.word("D_DAOUT_SURF_STRIDE"),
            width * stride_x,
            height,
            count,
            atom,
            "RBK.D_DAOUT_ADDR",
        )
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
    height, width = _input_size(operation)
    channels = registers.get("D_DATAOUT_SIZE_1", "DATAOUT_CHANNEL") + 1
    size = precision.size_bytes
    count = ceil_div(channels, operation.configuration.atom_elements(precision))
    source = _surface(
        operation,
        is_input=True,
        shape=(count, height, width),
        block=operation.configuration.atom_bytes,
        step="SURF",
    )
    dtype = np.dtype(f"u{size}")
    cube = operation.dma.read_cube(source, dtype.type)
    line = _line_bytes(operation, width, size)
    planes = np.zeros((channels, height, line // size), dtype)
    planes[..., :width] = cube.transpose(2, 0, 1)[:channels]
    target = _surface(
        operation, is_input=False, shape=(channels, height, 1), block=line, step="PLANAR"
    )
    operation.dma.write_atoms(target, planes.view(np.uint8)[..., None, :])
    operation.mac_cycles = cube.size // operation.configuration.atom_bytes + 1


def _merge(operation: Operation, precision: Precision) -> None:
    """Read each channel from a plane; lanes beyond the last channel become 0."""
    registers = operation.registers["RBK"]
    height, width = _input_size(operation)
    channels = registers.get("D_DATAIN_SIZE_1", "DATAIN_CHANNEL") + 1
    size = precision.size_bytes
    elements = operation.configuration.atom_elements(precision)
    count = ceil_div(channels, elements)
    line = _line_bytes(operation, width, size)
    source = _surface(
        operation, is_input=True, shape=(channels, height, 1), block=line, step="PLANAR"
    )
    dtype = np.dtype(f"u{size}")
    planes = operation.dma.read_atoms(source)[:, :, 0].view(dtype)
    cube = np.zeros((height, width, count * elements), dtype)
    cube[..., :channels] = planes[..., :width].transpose(1, 2, 0)
    target = _surface(
        operation,
        is_input=False,
        shape=(count, height, width),
        block=operation.configuration.atom_bytes,
        step="SURF",
    )
    operation.dma.write_cube(target, cube)
    operation.mac_cycles = height * width * count

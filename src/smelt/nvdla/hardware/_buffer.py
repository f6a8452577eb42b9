"""Check that the data and weights of a convolution fit into the buffer banks it programs.

The convolution buffer holds data line by line, each line in a programmed number of entries; an
entry is as wide as a bank. The atoms of a pixel fill whole entries; its remaining atoms share an
entry with those of other pixels. All lines of all batch elements must fit, because the sequencer
starts when the last one has arrived. Weights pass through the buffer in groups of kernels. One
group must fit; if the operation keeps or reuses weights, all groups must. The mask of compressed
weights occupies the last bank. Hardware that runs out of space hangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._operation import ceil_div

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Configuration, Precision
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._operation import Operation


def check_buffer(operation: Operation, shape: ConvolutionShape, precision: Precision) -> None:
    """Check the banks and entries of a convolution.

    Raises:
        NvdlaError: BAD_VALUE if CDMA and CSC are programmed differently; INVALID_SIZE if data or
            weights do not fit.
    """
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    data_banks = _common_field(operation, "D_BANK", "DATA_BANK") + 1
    weight_banks = _common_field(operation, "D_BANK", "WEIGHT_BANK") + 1
    entries = _common_field(operation, "D_ENTRY_PER_SLICE", "ENTRIES") + 1
    has_mask = cdma.get("D_WEIGHT_FORMAT", "WEIGHT_FORMAT")
    if data_banks + weight_banks + has_mask > configuration.buffer_banks:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"D_BANK: {data_banks} banks of data and {weight_banks} of weights"
            f"{' and one of their mask' if has_mask else ''} are more than the buffer's"
            f" {configuration.buffer_banks} banks",
        )
    needed = _entries_per_line(operation, precision)
    if entries < needed:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"D_ENTRY_PER_SLICE: a line of data needs {needed} entries of the convolution buffer,"
            f" but {entries} are programmed",
        )
    lines = cdma.get("D_DATAIN_SIZE_0", "DATAIN_HEIGHT") + 1
    lines *= cdma.get("D_BATCH_NUMBER", "BATCHES") + 1
    if lines * entries > data_banks * configuration.buffer_depth:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"{lines} lines of {entries} entries do not fit into D_BANK's {data_banks} data banks,"
            f" which have {data_banks * configuration.buffer_depth} entries",
        )
    _check_weights(operation, shape, precision, weight_banks)


def _common_field(operation: Operation, register: str, field: str) -> int:
    """Return a field that must have the same value in CDMA and CSC."""
    first, second = (operation.registers[block].get(register, field) for block in ("CDMA", "CSC"))
    if first != second:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"CDMA.{register}.{field} is {first}, but CSC's is {second}; they must be equal",
        )
    return first


def _entries_per_line(operation: Operation, precision: Precision) -> int:
    """Return the entries that a line of data needs."""
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    width = cdma.get("D_DATAIN_SIZE_0", "DATAIN_WIDTH") + 1
    channels = cdma.get("D_DATAIN_SIZE_1", "DATAIN_CHANNEL") + 1
    is_image = cdma.get("D_DATAIN_FORMAT", "DATAIN_FORMAT")
    padded = width + sum(cdma.get("D_ZERO_PADDING", f"PAD_{side}") for side in ("LEFT", "RIGHT"))
    if is_image:
        line_bytes = padded * channels * precision.size_bytes
        return ceil_div(line_bytes, configuration.buffer_width_bytes)
    atoms = ceil_div(channels * precision.size_bytes, configuration.atom_bytes)
    if cdma.get("D_MISC_CFG", "CONV_MODE"):  # tiles of 4 x 4, strides folded into channels
        folded = atoms * (cdma.get("D_CONV_STRIDE", "CONV_Y_STRIDE") + 1)
        return ceil_div(
            padded * folded * configuration.atom_bytes, configuration.buffer_width_bytes
        )
    return _entries_of_atoms(atoms, width, configuration)


def _entries_of_atoms(atoms: int, width: int, configuration: Configuration) -> int:
    """Return the entries of a line of ``width`` pixels of some atoms each."""
    per_entry = max(1, configuration.buffer_width_bytes // configuration.atom_bytes)
    whole, rest = divmod(atoms, per_entry)
    pixels = per_entry // rest if rest else 1
    return whole * width + (ceil_div(width, pixels) if rest else 0)


def _check_weights(
    operation: Operation, shape: ConvolutionShape, precision: Precision, banks: int
) -> None:
    """Check that the weights that must be in the buffer at once fit into their banks."""
    cdma, configuration = operation.registers["CDMA"], operation.configuration
    bank_bytes = configuration.buffer_depth * configuration.buffer_width_bytes
    are_kept = any(cdma.get("D_MISC_CFG", name) for name in ("WEIGHT_REUSE", "SKIP_WEIGHT_RLS"))
    kernels = shape.kernels
    if not are_kept:
        kernels = min(kernels, configuration.kernel_group(precision))
    elements = shape.kernel_height * shape.kernel_width * shape.channels * kernels
    size, capacity, what = elements * precision.size_bytes, banks * bank_bytes, "weights"
    if cdma.get("D_WEIGHT_FORMAT", "WEIGHT_FORMAT"):
        size, capacity, what = ceil_div(elements, 8), bank_bytes, "their mask bits"
    if size > capacity:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"{kernels} kernels of {elements // kernels} elements do not fit into D_BANK's {banks}"
            f" banks of weights: {what} need {size} bytes, but only {capacity} are available",
        )

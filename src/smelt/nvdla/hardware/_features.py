"""CDMA's feature input: cubes, the converter and the padding value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import saturate, shift_right_saturated, sign_extend
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._float import round_to_fp16
from smelt.nvdla.hardware._memory import DTYPES, Surface
from smelt.nvdla.hardware._operation import ceil_div

if TYPE_CHECKING:
    from smelt.nvdla.hardware._operation import Operation


def pad_value(operation: Operation, precision: Precision, unit: Literal["CDMA", "CSC"]) -> float:
    """Return the value of a unit's padding; int8 uses only the low byte of the register."""
    word = operation.registers[unit].word("D_ZERO_PADDING_VALUE")
    if precision is Precision.FP16:
        return float(np.array(word & 0xFFFF, np.uint16).view(np.float16))
    return sign_extend(word, 8 if precision is Precision.INT8 else 16)


def read_features(operation: Operation, precision: Precision) -> list[np.ndarray]:
    """Return the converted input [height, width, channels] of each batch element.

    In Winograd mode the channels are rounded up to whole atoms.

    Raises:
        NvdlaError: NOT_SUPPORTED if the configuration lacks a mode or precision; BAD_VALUE if the
            conversion does not exist; INVALID_ADDRESS or INVALID_SIZE if the cube is not in memory.
    """
    cdma = operation.registers["CDMA"]
    batches = cdma.get("D_BATCH_NUMBER", "BATCHES") + 1
    if batches > 1 and not operation.configuration.has_batch:
        raise NvdlaError(
            NvError.NOT_SUPPORTED, f"{operation.configuration.name} has no multi-batch mode"
        )
    stored = cdma.precision("D_MISC_CFG", "IN_PRECISION")
    operation.require_precision(stored, "CDMA's input")
    if stored is Precision.FP16 and precision is not Precision.FP16:
        raise NvdlaError(NvError.BAD_VALUE, "CDMA does not convert fp16 to integers")
    channels = cdma.get("D_DATAIN_SIZE_1", "DATAIN_CHANNEL") + 1
    if cdma.get("D_MISC_CFG", "CONV_MODE"):
        elements = operation.configuration.atom_elements(stored)
        channels = ceil_div(channels, elements) * elements
    cubes: list[np.ndarray] = []
    for batch in range(batches):
        surface = Surface(
            cdma.space("D_DAIN_RAM_TYPE", "DATAIN_RAM_TYPE"),
            cdma.address("D_DAIN_ADDR_LOW_0", "D_DAIN_ADDR_HIGH_0")
            + batch * cdma.word("D_BATCH_STRIDE"),
            cdma.word("D_LINE_STRIDE"),
            cdma.word("D_SURF_STRIDE"),
            cdma.get("D_DATAIN_SIZE_0", "DATAIN_WIDTH") + 1,
            cdma.get("D_DATAIN_SIZE_0", "DATAIN_HEIGHT") + 1,
            ceil_div(channels, operation.configuration.atom_elements(stored)),
            operation.configuration.atom_bytes,
            "CDMA.D_DAIN_ADDR_0",
        )
        cube = operation.dma.read_cube(surface, DTYPES[stored])[..., :channels]
        cubes.append(_convert(operation, cube, precision))
    return cubes


def _convert(operation: Operation, cube: np.ndarray, precision: Precision) -> np.ndarray:
    """Run CDMA's converter on a feature cube."""
    cdma = operation.registers["CDMA"]
    if cube.dtype == np.float16:
        if cdma.get("D_NAN_FLUSH_TO_ZERO", "NAN_TO_ZERO"):
            return np.where(np.isnan(cube), np.float16(0), cube)
        return cube
    bits = 8 if precision is Precision.INT8 else 16
    if precision is Precision.FP16 and not cdma.get("D_CVT_CFG", "CVT_EN"):
        raise NvdlaError(
            NvError.BAD_VALUE, "CDMA converts integers to fp16 only if its converter is enabled"
        )
    if not cdma.get("D_CVT_CFG", "CVT_EN"):
        return cube if cube.dtype == DTYPES[precision] else saturate(cube.astype(np.int64), bits)
    offset = cdma.signed("D_CVT_OFFSET", "CVT_OFFSET")
    scale = cdma.signed("D_CVT_SCALE", "CVT_SCALE")
    product = (cube.astype(np.int64) - offset) * scale
    converted = shift_right_saturated(product, cdma.get("D_CVT_CFG", "CVT_TRUNCATE"), 17)
    if precision is Precision.FP16:
        return round_to_fp16(converted.astype(np.float64))
    return saturate(converted, bits)

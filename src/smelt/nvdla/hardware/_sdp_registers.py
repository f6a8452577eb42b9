"""SDP's registers decoded into stages, converters and lookup tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import sign_extend
from smelt.nvdla.hardware._lut import Lut, read_lut

if TYPE_CHECKING:
    import numpy as np

    from smelt.nvdla.hardware._state import GroupRegisters

MAXIMUM, MINIMUM, SUM, EQUAL = 0, 1, 2, 3
"""Values of the ALU_ALGO fields."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands that a stage reads from memory."""

    alu: np.ndarray | None
    mul: np.ndarray | None

    def cut(self, lines: slice, columns: slice) -> Operands:
        """Return the operands of a part of the cube."""
        return Operands(*(_cut(operand, lines, columns) for operand in (self.alu, self.mul)))

    def require_alu(self, stage: str) -> np.ndarray:
        """Return the ALU operand; raise NvdlaError(BAD_VALUE) if it is not read."""
        return _required(self.alu, stage, "ALU")

    def require_mul(self, stage: str) -> np.ndarray:
        """Return the multiplier's operand; raise NvdlaError(BAD_VALUE) if it is not read."""
        return _required(self.mul, stage, "multiplier")


def _cut(operand: np.ndarray | None, lines: slice, columns: slice) -> np.ndarray | None:
    """Return a part of [height or 1, width or 1, lanes]; 1 x 1 applies to all positions."""
    if operand is None or operand.shape[:2] == (1, 1):
        return operand
    return operand[lines, columns]


def _required(operand: np.ndarray | None, stage: str, unit: str) -> np.ndarray:
    if operand is None:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"SDP's {stage} stage takes its {unit} operand from memory, but no read DMA is "
            "enabled for the operand; the hardware would wait forever",
        )
    return operand


@dataclass(frozen=True, slots=True)
class XStage:
    """Parameters of stage X1 or X2."""

    is_active: bool
    alu_bypassed: bool
    alu: int
    alu_from_register: bool
    alu_register: int
    alu_shift: int
    mul_bypassed: bool
    mul_from_register: bool
    mul_register: int
    mul_shift: int
    prelu: bool
    relu: bool


@dataclass(frozen=True, slots=True)
class YConverter:
    """Parameters of the converter of an operand of stage Y."""

    bypassed: bool
    offset: int
    scale: int
    truncate: int


@dataclass(frozen=True, slots=True)
class YStage:
    """Parameters of stage Y."""

    is_active: bool
    mul_bypassed: bool
    mul_from_register: bool
    mul_register: int
    mul_converter: YConverter
    truncate: int
    prelu: bool
    alu_bypassed: bool
    alu: int
    alu_from_register: bool
    alu_register: int
    alu_converter: YConverter
    uses_lut: bool

    @property
    def compares(self) -> bool:
        """Whether the operation only reports whether all elements are equal, and writes nothing."""
        return self.is_active and not self.alu_bypassed and self.alu == EQUAL


def read_x_stage(registers: GroupRegisters, name: str) -> XStage:
    """Return the parameters of stage X1 (``BS``) or X2 (``BN``)."""
    config = f"D_DP_{name}_CFG"
    return XStage(
        is_active=not registers.get(config, f"{name}_BYPASS"),
        alu_bypassed=bool(registers.get(config, f"{name}_ALU_BYPASS")),
        alu=registers.get(config, f"{name}_ALU_ALGO"),
        alu_from_register=not registers.get(f"D_DP_{name}_ALU_CFG", f"{name}_ALU_SRC"),
        alu_register=sign_extend(registers.word(f"D_DP_{name}_ALU_SRC_VALUE"), 16),
        alu_shift=registers.get(f"D_DP_{name}_ALU_CFG", f"{name}_ALU_SHIFT_VALUE"),
        mul_bypassed=bool(registers.get(config, f"{name}_MUL_BYPASS")),
        mul_from_register=not registers.get(f"D_DP_{name}_MUL_CFG", f"{name}_MUL_SRC"),
        mul_register=sign_extend(registers.word(f"D_DP_{name}_MUL_SRC_VALUE"), 16),
        mul_shift=registers.get(f"D_DP_{name}_MUL_CFG", f"{name}_MUL_SHIFT_VALUE") & 0x3F,
        prelu=bool(registers.get(config, f"{name}_MUL_PRELU")),
        relu=not registers.get(config, f"{name}_RELU_BYPASS"),
    )


def _read_converter(registers: GroupRegisters, unit: str) -> YConverter:
    return YConverter(
        bypassed=bool(registers.get(f"D_DP_EW_{unit}_CFG", f"EW_{unit}_CVT_BYPASS")),
        offset=sign_extend(registers.word(f"D_DP_EW_{unit}_CVT_OFFSET_VALUE"), 32),
        scale=sign_extend(registers.word(f"D_DP_EW_{unit}_CVT_SCALE_VALUE"), 16),
        truncate=registers.get(f"D_DP_EW_{unit}_CVT_TRUNCATE_VALUE", f"EW_{unit}_CVT_TRUNCATE"),
    )


def read_y_stage(registers: GroupRegisters) -> YStage:
    """Return the parameters of stage Y."""
    config = "D_DP_EW_CFG"
    active = not registers.get(config, "EW_BYPASS")
    return YStage(
        is_active=active,
        mul_bypassed=bool(registers.get(config, "EW_MUL_BYPASS")),
        mul_from_register=not registers.get("D_DP_EW_MUL_CFG", "EW_MUL_SRC"),
        mul_register=sign_extend(registers.word("D_DP_EW_MUL_SRC_VALUE"), 32),
        mul_converter=_read_converter(registers, "MUL"),
        truncate=registers.get("D_DP_EW_TRUNCATE_VALUE", "EW_TRUNCATE"),
        prelu=bool(registers.get(config, "EW_MUL_PRELU")),
        alu_bypassed=bool(registers.get(config, "EW_ALU_BYPASS")),
        alu=registers.get(config, "EW_ALU_ALGO"),
        alu_from_register=not registers.get("D_DP_EW_ALU_CFG", "EW_ALU_SRC"),
        alu_register=sign_extend(registers.word("D_DP_EW_ALU_SRC_VALUE"), 32),
        alu_converter=_read_converter(registers, "ALU"),
        uses_lut=active and not registers.get(config, "EW_LUT_BYPASS"),
    )


def read_sdp_lut(registers: GroupRegisters, tables: tuple[list[int], list[int]]) -> Lut:
    """Return SDP's tables, whose starts and ends have 32 bits."""
    ends = {
        name: sign_extend(registers.word(f"S_LUT_{name}"), 32)
        for name in ("LE_START", "LE_END", "LO_START", "LO_END")
    }
    return read_lut(registers, tables, ends)

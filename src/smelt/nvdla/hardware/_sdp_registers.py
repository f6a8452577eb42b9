"""SDP's registers decoded into stages and converters, and the operands of the stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.nvdla._errors import NvError
from smelt.nvdla.hardware._arithmetic import sign_extend

if TYPE_CHECKING:
    import numpy as np

    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._lut import Lut

SUM, EQUAL = 2, 3
"""Values of the ALU_ALGO fields; 0 is the maximum and 1 the minimum."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands that a stage reads from memory."""

    alu: np.ndarray | None
    mul: np.ndarray | None

    def cut(self, lines: slice, columns: slice) -> Operands:
        """Return the operands of a part of the cube."""
        return Operands(*(_cut(operand, lines, columns) for operand in (self.alu, self.mul)))


def _cut(operand: np.ndarray | None, lines: slice, columns: slice) -> np.ndarray | None:
    """Return a part of [height or 1, width or 1, lanes]; 1 x 1 applies to all positions."""
    if operand is None or operand.shape[:2] == (1, 1):
        return operand
    return operand[lines, columns]


@dataclass(frozen=True, slots=True)
class UnitOperand:
    """Operand of the ALU or the multiplier of a stage."""

    stage: str
    """Stage in messages: X or Y."""
    name: str
    """Unit in messages: ALU or multiplier."""
    is_bypassed: bool
    from_register: bool
    register: int

    @property
    def reads_memory(self) -> bool:
        """Whether the unit is used and takes its operand from memory."""
        return not self.is_bypassed and not self.from_register

    def require(self, operand: np.ndarray | None) -> np.ndarray:
        """Return the operand in memory; raise NvdlaError(BAD_VALUE) if it is not read."""
        if operand is None:
            raise NvError.BAD_VALUE.error(
                f"SDP's {self.stage} stage takes its {self.name} operand from memory, but no read "
                "DMA is enabled for the operand; the hardware would wait forever"
            )
        return operand


@dataclass(frozen=True, slots=True)
class Stage:
    """Parameters that all stages have."""

    is_active: bool
    alu: UnitOperand
    algorithm: int
    mul: UnitOperand
    prelu: bool

    @property
    def reads_memory(self) -> bool:
        """Whether the stage takes an operand from memory."""
        return self.is_active and (self.alu.reads_memory or self.mul.reads_memory)


@dataclass(frozen=True, slots=True)
class XStage(Stage):
    """Parameters of stage X1 or X2."""

    alu_shift: int
    mul_shift: int
    relu: bool


@dataclass(frozen=True, slots=True)
class YConverter:
    """Parameters of the converter of an operand of stage Y."""

    bypassed: bool
    offset: int
    scale: int
    truncate: int


@dataclass(frozen=True, slots=True)
class YStage(Stage):
    """Parameters of stage Y."""

    alu_converter: YConverter
    mul_converter: YConverter
    truncate: int
    uses_lut: bool

    @property
    def compares(self) -> bool:
        """Whether the operation only reports whether all elements are equal, and writes nothing."""
        return self.is_active and not self.alu.is_bypassed and self.algorithm == EQUAL


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one operation."""

    x: tuple[XStage, XStage]
    y: YStage
    lut: Lut | None


def _read_unit(registers: GroupRegisters, name: str, unit: str, bits: int) -> UnitOperand:
    return UnitOperand(
        "Y" if name == "EW" else "X",
        "ALU" if unit == "ALU" else "multiplier",
        bool(registers.get(f"{name}_{unit}_BYPASS")),
        not registers.get(f"{name}_{unit}_SRC"),
        sign_extend(registers.word(f"D_DP_{name}_{unit}_SRC_VALUE"), bits),
    )


def _read_stage(
    registers: GroupRegisters, name: str, bits: int
) -> tuple[bool, UnitOperand, int, UnitOperand, bool]:
    """Return the fields of `Stage`; ``bits`` is the width of operands in registers."""
    return (
        not registers.get(f"{name}_BYPASS"),
        _read_unit(registers, name, "ALU", bits),
        registers.get(f"{name}_ALU_ALGO"),
        _read_unit(registers, name, "MUL", bits),
        bool(registers.get(f"{name}_MUL_PRELU")),
    )


def read_x_stage(registers: GroupRegisters, name: str) -> XStage:
    """Return the parameters of stage X1 (``BS``) or X2 (``BN``)."""
    return XStage(
        *_read_stage(registers, name, 16),
        alu_shift=registers.get(f"{name}_ALU_SHIFT_VALUE"),
        mul_shift=registers.get(f"{name}_MUL_SHIFT_VALUE") & 0x3F,
        relu=not registers.get(f"{name}_RELU_BYPASS"),
    )


def _read_converter(registers: GroupRegisters, unit: str) -> YConverter:
    return YConverter(
        bypassed=bool(registers.get(f"EW_{unit}_CVT_BYPASS")),
        offset=sign_extend(registers.word(f"D_DP_EW_{unit}_CVT_OFFSET_VALUE"), 32),
        scale=sign_extend(registers.word(f"D_DP_EW_{unit}_CVT_SCALE_VALUE"), 16),
        truncate=registers.get(f"EW_{unit}_CVT_TRUNCATE"),
    )


def read_y_stage(registers: GroupRegisters) -> YStage:
    """Return the parameters of stage Y."""
    common = _read_stage(registers, "EW", 32)
    return YStage(
        *common,
        alu_converter=_read_converter(registers, "ALU"),
        mul_converter=_read_converter(registers, "MUL"),
        truncate=registers.get("EW_TRUNCATE"),
        uses_lut=common[0] and not registers.get("EW_LUT_BYPASS"),
    )

"""Programming of the RUBIK engine: contract, split and merge."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import OperationType, Precision
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import RubikOperation, RubikSurface

_ATOM_BYTES: Final = 32
"""Size of an atom; all hardware configurations with this engine have atoms of 32 bytes."""


class RubikMode(IntEnum):
    """Modes of a reshape; descriptor and register use the same numbers."""

    CONTRACT = 0
    SPLIT = 1
    MERGE = 2


class RubikDriver(UnitDriver):
    """The reshape engine."""

    op_type: ClassVar[OperationType] = OperationType.RUBIK
    blocks: ClassVar[tuple[str, ...]] = ("RBK",)
    counter_switches: ClassVar[str] = "RBK.D_PERF_ENABLE"

    @override
    def program(
        self, context: OperationContext, operation: RubikOperation, surface: RubikSurface
    ) -> None:
        context.require_support(context.configuration.has_rubik, "reshape engine")
        context.check_cube(surface.src_data, "the source")
        context.check_cube(surface.dst_data, "the destination")
        mode = context.check_enum(operation.mode, len(RubikMode), "the reshape mode")
        precision = context.check_precision(operation.precision, "the precision")
        context.write("RBK", RUBIK_MODE=mode, IN_PRECISION=precision)
        _program_input(context, operation, surface)
        _program_output(context, operation, surface)


def _program_input(
    context: OperationContext, operation: RubikOperation, surface: RubikSurface
) -> None:
    """Program the source."""
    source = surface.src_data
    context.write("RBK", DATAIN_RAM_TYPE=context.ram_type(source.type, "the source"))
    address = context.resolve_input(source, "the source")
    context.write_extents("RBK", source, "DATAIN_")
    context.write_address("RBK.D_DAIN_ADDR_LOW", "RBK.D_DAIN_ADDR_HIGH", address)
    if operation.mode == RubikMode.MERGE:
        context.require(
            source.plane_stride != 0 and source.plane_stride % _ATOM_BYTES == 0,
            f"the source has a plane stride of {source.plane_stride} bytes; it must be a positive "
            f"multiple of {_ATOM_BYTES}",
        )
        context.write_word("RBK.D_DAIN_PLANAR_STRIDE", source.plane_stride)
    else:
        context.write_word("RBK.D_DAIN_SURF_STRIDE", source.surf_stride)
    context.write_word("RBK.D_DAIN_LINE_STRIDE", source.line_stride)


def _program_output(
    context: OperationContext, operation: RubikOperation, surface: RubikSurface
) -> None:
    """Program the destination."""
    target = surface.dst_data
    ram_type = context.ram_type(target.type, "the destination")
    address = context.resolve_cube(target, "the destination")
    context.write("RBK", DATAOUT_RAM_TYPE=ram_type, DATAOUT_CHANNEL=target.channel - 1)
    context.write_address("RBK.D_DAOUT_ADDR_LOW", "RBK.D_DAOUT_ADDR_HIGH", address)
    context.write_word("RBK.D_DAOUT_LINE_STRIDE", target.line_stride)
    if operation.mode == RubikMode.SPLIT:
        context.write_word("RBK.D_DAOUT_PLANAR_STRIDE", target.plane_stride)
        return
    context.write_word("RBK.D_DAOUT_SURF_STRIDE", target.surf_stride)
    if operation.mode == RubikMode.CONTRACT:
        stride_x, stride_y = operation.stride_x, operation.stride_y
        context.require(
            stride_x >= 1 and stride_y >= 1,
            f"the strides are {stride_x} and {stride_y}; each must be at least 1",
        )
        surfaces = -(-target.channel * Precision(operation.precision).size_bytes // _ATOM_BYTES)
        context.write_word("RBK.D_CONTRACT_STRIDE_0", surfaces * surface.src_data.surf_stride)
        context.write_word("RBK.D_CONTRACT_STRIDE_1", stride_y * target.line_stride)
        context.write("RBK", DECONV_X_STRIDE=stride_x - 1, DECONV_Y_STRIDE=stride_y - 1)

"""Programming of the CDP engine: normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._status import NvError
from smelt.nvdla.firmware._lut import write_lut
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import CdpStatistics, MemoryType, OperationType
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import CdpOperation, CdpSurface
    from smelt.nvdla.registers import RegisterFile

_LOCAL_SIZES: Final = (3, 5, 7, 9)
"""Numbers of channels that the engine can sum."""


class CdpDriver(UnitDriver):
    """The channel data processor (CDP), for local response normalisation."""

    op_type: ClassVar[OperationType] = OperationType.CDP
    blocks: ClassVar[tuple[str, ...]] = ("CDP",)
    rdma_block: ClassVar[str | None] = "CDP_RDMA"

    @override
    def needs_rdma(self, operation: CdpOperation, surface: CdpSurface) -> bool:
        return True

    @override
    def lut_index(self, operation: CdpOperation) -> int:
        return operation.lut_index

    @override
    def program(
        self, context: OperationContext, operation: CdpOperation, surface: CdpSurface
    ) -> None:
        _check(context, operation, surface)
        _program_rdma(context, operation, surface)
        if operation.lut_index >= 0 and not context.is_lut_loaded:
            lut = context.read_lut(operation.lut_index)
            write_lut(context, "CDP", lut, operation.in_precision)
        _program_output(context, operation, surface)
        _program_function(context, operation)

    @override
    def enable_counters(self, registers: RegisterFile) -> None:
        registers.write_fields("CDP.D_PERF_ENABLE", DMA_EN=1, LUT_EN=1)

    @override
    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> CdpStatistics:
        return CdpStatistics(
            nan_input_num=registers.read("CDP.D_NAN_INPUT_NUM"),
            inf_input_num=registers.read("CDP.D_INF_INPUT_NUM"),
            nan_output_num=registers.read("CDP.D_NAN_OUTPUT_NUM"),
            write_stall=registers.read("CDP.D_PERF_WRITE_STALL"),
            lut_uflow=registers.read("CDP.D_PERF_LUT_UFLOW"),
            lut_oflow=registers.read("CDP.D_PERF_LUT_OFLOW"),
            lut_hybrid=registers.read("CDP.D_PERF_LUT_HYBRID"),
            lut_le_hit=registers.read("CDP.D_PERF_LUT_LE_HIT"),
            lut_lo_hit=registers.read("CDP.D_PERF_LUT_LO_HIT"),
            saturation_count=registers.read("CDP.D_OUT_SATURATION"),
            runtime=runtime_us,
        )


def _check(context: OperationContext, operation: CdpOperation, surface: CdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    if not context.configuration.has_cdp:
        context.refuse(f"{context.configuration.name} has no CDP", NvError.NOT_SUPPORTED)
    source, target = surface.src_data, surface.dst_data
    for cube, what in ((source, "the source"), (target, "the destination")):
        context.check_cube(cube, what)
        context.require(
            cube.type != MemoryType.ON_THE_FLY, f"{what} must be in memory, not on the fly"
        )
        context.check_stored(cube, what)
    context.require(
        (source.width, source.height, source.channel)
        == (target.width, target.height, target.channel),
        f"the source is {source.width} x {source.height} x {source.channel}, the destination "
        f"{target.width} x {target.height} x {target.channel}; they must be equal",
    )
    context.require(
        operation.in_precision == operation.out_precision,
        f"the input precision is {operation.in_precision} and the output precision is "
        f"{operation.out_precision}; they must be equal",
    )
    context.check_precision(operation.in_precision, "the precision")
    context.require(
        operation.local_size in _LOCAL_SIZES,
        f"the number of summed channels is {operation.local_size}; it must be one of "
        f"{', '.join(map(str, _LOCAL_SIZES))}",
    )


def _program_rdma(context: OperationContext, operation: CdpOperation, surface: CdpSurface) -> None:
    """Program the block that reads the source."""
    source = surface.src_data
    address = context.resolve_input(source, "the source")
    context.write_extents("CDP_RDMA.D_DATA_CUBE", source)
    context.write_surface("CDP_RDMA.D_SRC", source, address)
    ram_type = context.ram_type(source.type, "the source")
    context.write("CDP_RDMA.D_SRC_DMA_CFG", SRC_RAM_TYPE=ram_type)
    context.write("CDP_RDMA.D_DATA_FORMAT", INPUT_DATA=operation.in_precision)


def _program_output(
    context: OperationContext, operation: CdpOperation, surface: CdpSurface
) -> None:
    """Program the destination."""
    target = surface.dst_data
    address = context.resolve_cube(target, "the destination")
    context.write_surface("CDP.D_DST", target, address)
    ram_type = context.ram_type(target.type, "the destination")
    context.write("CDP.D_DST_DMA_CFG", DST_RAM_TYPE=ram_type)
    context.write("CDP.D_DATA_FORMAT", INPUT_DATA_TYPE=operation.in_precision)


def _program_function(context: OperationContext, operation: CdpOperation) -> None:
    """Program the window, the converters and the bypasses."""
    context.write("CDP.D_LRN_CFG", NORMALZ_LEN=(operation.local_size - 1) // 2 - 1)
    context.write_signed("CDP.D_DATIN_OFFSET", operation.in_cvt.offset)
    context.write_signed("CDP.D_DATIN_SCALE", operation.in_cvt.scale)
    context.write("CDP.D_DATIN_SHIFTER", DATIN_SHIFTER=operation.in_cvt.truncate)
    context.write_signed("CDP.D_DATOUT_OFFSET", operation.out_cvt.offset)
    context.write_signed("CDP.D_DATOUT_SCALE", operation.out_cvt.scale)
    context.write("CDP.D_DATOUT_SHIFTER", DATOUT_SHIFTER=operation.out_cvt.truncate)
    context.write(
        "CDP.D_FUNC_BYPASS",
        SQSUM_BYPASS=int(operation.bypass_sqsum != 0),
        MUL_BYPASS=int(operation.bypass_out_mul != 0),
    )

"""Programming of the CDP engine: normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla.firmware._lut import write_lut
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType, Precision, name_of
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import CdpOperation, CdpSurface

_LOCAL_SIZES: Final = (3, 5, 7, 9)
"""Numbers of channels that the engine can sum."""


class CdpDriver(UnitDriver):
    """The channel data processor (CDP), for local response normalisation."""

    op_type: ClassVar[OperationType] = OperationType.CDP
    blocks: ClassVar[tuple[str, ...]] = ("CDP",)
    rdma_block: ClassVar[str | None] = "CDP_RDMA"
    has_lut: ClassVar[bool] = True
    counter_switches: ClassVar[str] = "CDP.D_PERF_ENABLE"

    @override
    def program(
        self, context: OperationContext, operation: CdpOperation, surface: CdpSurface
    ) -> None:
        _check(context, operation, surface)
        context.write_extents("CDP_RDMA", surface.src_data)
        context.write_source("CDP_RDMA", surface.src_data)
        context.write("CDP_RDMA", INPUT_DATA=operation.in_precision)
        write_lut(context, "CDP", operation.lut_index, operation.in_precision)
        context.write_target("CDP", surface.dst_data)
        context.write(
            "CDP",
            INPUT_DATA_TYPE=operation.in_precision,
            NORMALZ_LEN=(operation.local_size - 1) // 2 - 1,
        )
        context.write_converter("CDP", "DATIN", operation.in_cvt, "SHIFTER")
        context.write_converter("CDP", "DATOUT", operation.out_cvt, "SHIFTER")
        context.write(
            "CDP",
            SQSUM_BYPASS=int(operation.bypass_sqsum != 0),
            MUL_BYPASS=int(operation.bypass_out_mul != 0),
        )


def _check(context: OperationContext, operation: CdpOperation, surface: CdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    context.require_support(context.configuration.has_cdp, "CDP")
    source, target = surface.src_data, surface.dst_data
    context.check_cubes(surface)
    for cube, what in ((source, "the source"), (target, "the destination")):
        context.require(
            cube.type != MemoryType.ON_THE_FLY, f"{what} must be in memory, not on the fly"
        )
    context.require(
        (source.width, source.height, source.channel)
        == (target.width, target.height, target.channel),
        f"the source is {source.width} x {source.height} x {source.channel} (width, height, "
        f"channels) and the destination is {target.width} x {target.height} x {target.channel}; "
        "they must be equal",
    )
    context.require(
        operation.in_precision == operation.out_precision,
        f"the input precision is {name_of(Precision, operation.in_precision)} and the output "
        f"precision is {name_of(Precision, operation.out_precision)}; they must be equal",
    )
    context.check_precision(operation.in_precision, "the precision")
    context.require(
        operation.local_size in _LOCAL_SIZES,
        f"the number of summed channels is {operation.local_size}; it must be one of "
        f"{', '.join(map(str, _LOCAL_SIZES))}",
    )

"""Programming of the bridge DMA (BDMA): two-dimensional copies between memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._status import NvError
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MAX_BDMA_TRANSFERS, BdmaStatistics, OperationType
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import BdmaOperation, BdmaSurface, BdmaTransfer
    from smelt.nvdla.registers import RegisterFile

_UNIT_BYTES: Final = 32
"""Granularity of addresses and line sizes in bytes."""
_MAX_REPEATS: Final = 8192
"""Maximum number of lines in a surface, and of surfaces in a transfer."""
_POLLS: Final = 10_000
"""Number of status reads after which a full queue counts as stuck."""


class BdmaDriver(UnitDriver):
    """The bridge DMA; its groups are queues of copies that share one set of registers."""

    op_type: ClassVar[OperationType] = OperationType.BDMA
    blocks: ClassVar[tuple[str, ...]] = ()
    has_shadow_groups: ClassVar[bool] = False

    @override
    def needs_rdma(self, operation: BdmaOperation, surface: BdmaSurface) -> bool:
        return False

    @override
    def is_empty(self, surface: BdmaSurface) -> bool:
        return surface.num_transfers == 0

    @override
    def find_group(self, registers: RegisterFile) -> int:
        return registers.read_field("BDMA.STATUS", "GRP0_BUSY")

    @override
    def is_group_idle(self, registers: RegisterFile, group: int) -> bool:
        return not registers.read_field("BDMA.STATUS", f"GRP{group}_BUSY")

    @override
    def program(
        self, context: OperationContext, operation: BdmaOperation, surface: BdmaSurface
    ) -> None:
        if not context.configuration.has_bdma:
            context.refuse(f"{context.configuration.name} has no bridge DMA", NvError.NOT_SUPPORTED)
        context.require(
            surface.num_transfers <= MAX_BDMA_TRANSFERS,
            f"the operation has {surface.num_transfers} transfers; at most {MAX_BDMA_TRANSFERS} "
            "are allowed",
        )
        for number, transfer in enumerate(surface.transfers[: surface.num_transfers]):
            _check_transfer(context, transfer, f"transfer {number}")
            _program_transfer(context, surface, transfer, f"transfer {number}")

    @override
    def enable(self, registers: RegisterFile, group: int, *, with_rdma: bool) -> None:
        registers.write_fields(f"BDMA.CFG_LAUNCH{group}", **{f"GRP{group}_LAUNCH": 1})

    @override
    def enable_counters(self, registers: RegisterFile) -> None:
        registers.write_fields("BDMA.CFG_STATUS", STALL_COUNT_EN=1)

    @override
    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> BdmaStatistics:
        return BdmaStatistics(
            read_stall=registers.read(f"BDMA.STATUS_GRP{group}_READ_STALL"),
            write_stall=registers.read(f"BDMA.STATUS_GRP{group}_WRITE_STALL"),
            runtime=runtime_us,
        )

    @override
    def describe(self, registers: RegisterFile) -> str:
        busy = [registers.read_field("BDMA.STATUS", f"GRP{n}_BUSY") for n in (0, 1)]
        return f"BDMA groups {'/'.join('busy' if item else 'idle' for item in busy)}"


def _check_transfer(context: OperationContext, transfer: BdmaTransfer, what: str) -> None:
    """Check the sizes and strides of a transfer."""
    for name in ("line_repeat", "surface_repeat"):
        repeats = getattr(transfer, name)
        context.require(
            1 <= repeats <= _MAX_REPEATS,
            f"{what} has a {name} of {repeats}; it must be 1 to {_MAX_REPEATS}",
        )
    context.require(
        transfer.line_size > 0 and transfer.line_size % _UNIT_BYTES == 0,
        f"{what} copies lines of {transfer.line_size} bytes; the size must be a positive multiple "
        f"of {_UNIT_BYTES}",
    )
    for side in ("source", "destination"):
        line, surface = getattr(transfer, f"{side}_line"), getattr(transfer, f"{side}_surface")
        context.require(
            line >= transfer.line_size,
            f"{what} has a {side} line stride of {line}, less than the line's "
            f"{transfer.line_size} bytes",
        )
        context.require(
            surface >= line * transfer.line_repeat,
            f"{what} has a {side} surface stride of {surface}, less than its "
            f"{transfer.line_repeat} lines of {line} bytes",
        )


def _program_transfer(
    context: OperationContext, surface: BdmaSurface, transfer: BdmaTransfer, what: str
) -> None:
    """Put a transfer into the queue of the group that the next launch starts."""
    _wait_for_slot(context)
    source = context.resolve(
        surface.source_type, transfer.source_address, 0, f"{what}'s source", alignment=_UNIT_BYTES
    )
    destination = context.resolve(
        surface.destination_type,
        transfer.destination_address,
        0,
        f"{what}'s destination",
        alignment=_UNIT_BYTES,
    )
    context.write_address("BDMA.CFG_SRC_ADDR_LOW", "BDMA.CFG_SRC_ADDR_HIGH", source)
    context.write_address("BDMA.CFG_DST_ADDR_LOW", "BDMA.CFG_DST_ADDR_HIGH", destination)
    context.write("BDMA.CFG_LINE", SIZE=transfer.line_size // _UNIT_BYTES - 1)
    context.write(
        "BDMA.CFG_CMD",
        SRC_RAM_TYPE=context.ram_type(surface.source_type, "the source"),
        DST_RAM_TYPE=context.ram_type(surface.destination_type, "the destination"),
    )
    context.write("BDMA.CFG_LINE_REPEAT", NUMBER=transfer.line_repeat - 1)
    context.write_word("BDMA.CFG_SRC_LINE", transfer.source_line)
    context.write_word("BDMA.CFG_DST_LINE", transfer.destination_line)
    context.write("BDMA.CFG_SURF_REPEAT", NUMBER=transfer.surface_repeat - 1)
    context.write_word("BDMA.CFG_SRC_SURF", transfer.source_surface)
    context.write_word("BDMA.CFG_DST_SURF", transfer.destination_surface)
    context.write("BDMA.CFG_OP", EN=1)


def _wait_for_slot(context: OperationContext) -> None:
    for _ in range(_POLLS):
        if context.registers.read_field("BDMA.STATUS", "FREE_SLOT"):
            return
    context.refuse("the queue of the bridge DMA stays full", NvError.TIMEOUT)

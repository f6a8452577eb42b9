"""Programming of the bridge DMA (BDMA): two-dimensional copies between memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MAX_BDMA_TRANSFERS, OperationType
from smelt.types import counted, override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import BdmaOperation, BdmaSurface, BdmaTransfer
    from smelt.nvdla.registers import RegisterFile

_UNIT_BYTES: Final = 32
"""Granularity of addresses and line sizes in bytes."""
_MAX_REPEATS: Final = 8192
"""Maximum number of lines in a surface, and of surfaces in a transfer."""
_SIDES: Final = {"SRC": "source", "DST": "destination"}
"""Both sides of a transfer, by their names in registers."""


class BdmaDriver(UnitDriver):
    """The bridge DMA; its groups are queues of copies that share one set of registers."""

    op_type: ClassVar[OperationType] = OperationType.BDMA
    blocks: ClassVar[tuple[str, ...]] = ()
    has_shadow_groups: ClassVar[bool] = False
    counter_switches: ClassVar[str] = "BDMA.CFG_STATUS"

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
        context.require_support(context.configuration.has_bdma, "bridge DMA")
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
    for side in _SIDES.values():
        line, surface = getattr(transfer, f"{side}_line"), getattr(transfer, f"{side}_surface")
        context.require(
            line >= transfer.line_size,
            f"{what} has a {side} line stride of {line} bytes, less than the "
            f"{transfer.line_size} bytes of a line",
        )
        context.require(
            surface >= line * transfer.line_repeat,
            f"{what} has a {side} surface stride of {surface} bytes, less than the surface's "
            f"{counted(transfer.line_repeat, 'line')} of {line} bytes",
        )


def _program_transfer(
    context: OperationContext, surface: BdmaSurface, transfer: BdmaTransfer, what: str
) -> None:
    """Put a transfer into the queue of the group that the next launch starts."""
    context.wait_for("BDMA.STATUS", "FREE_SLOT", "the queue of the bridge DMA stays full")
    for name, side in _SIDES.items():
        address = context.resolve(
            getattr(surface, f"{side}_type"),
            getattr(transfer, f"{side}_address"),
            0,
            f"{what}'s {side}",
            alignment=_UNIT_BYTES,
        )
        context.write_address(f"BDMA.CFG_{name}_ADDR_LOW", f"BDMA.CFG_{name}_ADDR_HIGH", address)
        context.write_word(f"BDMA.CFG_{name}_LINE", getattr(transfer, f"{side}_line"))
        context.write_word(f"BDMA.CFG_{name}_SURF", getattr(transfer, f"{side}_surface"))
    context.write(
        "BDMA",
        SIZE=transfer.line_size // _UNIT_BYTES - 1,
        SRC_RAM_TYPE=context.ram_type(surface.source_type, "the source"),
        DST_RAM_TYPE=context.ram_type(surface.destination_type, "the destination"),
    )
    context.write_word("BDMA.CFG_LINE_REPEAT", transfer.line_repeat - 1)
    context.write_word("BDMA.CFG_SURF_REPEAT", transfer.surface_repeat - 1)
    context.write("BDMA", EN=1)

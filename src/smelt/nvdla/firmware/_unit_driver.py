"""Interface between the scheduler and the engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.nvdla.loadable import DESCRIPTOR_CLASSES

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import Descriptor, OperationType
    from smelt.nvdla.registers import RegisterFile

_IDLE = 0
"""Value of a status field for a group without an operation."""


class UnitDriver(ABC):
    """Base class for programming one of the six engines through its registers."""

    op_type: ClassVar[OperationType]
    blocks: ClassVar[tuple[str, ...]]
    """The register blocks with a producer pointer, in the order in which they are enabled."""
    rdma_block: ClassVar[str | None] = None
    """Block that reads memory for the engine (RDMA); its groups alternate independently."""
    has_shadow_groups: ClassVar[bool] = True
    """Whether one group can be programmed while the other waits to be enabled."""
    has_lut: ClassVar[bool] = False
    """Whether operations may use a lookup table."""
    counter_switches: ClassVar[str]
    """Register each bit of which enables some of the counters."""

    def needs_rdma(self, operation: Any, surface: Any) -> bool:
        """Return whether an operation uses the engine's RDMA block."""
        return self.rdma_block is not None

    def lut_index(self, operation: Any) -> int:
        """Return the index of the lookup table that an operation uses, or -1."""
        return int(operation.lut_index) if self.has_lut else -1

    @abstractmethod
    def program(self, context: OperationContext, operation: Any, surface: Any) -> None:
        """Write an operation to the registers of the group that the producer pointer selects.

        Raises:
            NvdlaError: If the hardware cannot run the operation.
        """

    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> Descriptor:
        """Return the statistics of an operation that has completed in a group."""
        statistics = DESCRIPTOR_CLASSES[self.op_type].statistics
        values = {
            name: registers.read(field.source_register.format(group=group))
            for name, field in statistics.field_specs.items()
            if field.source_register
        }
        return statistics(**values | {"runtime": runtime_us})

    def enable_counters(self, registers: RegisterFile) -> None:
        """Enable the performance counters of the operation that is being programmed."""
        register = registers.map.register(self.counter_switches)
        registers.bus.write(register.address, register.write_mask)

    def is_empty(self, surface: Any) -> bool:
        """Return whether an operation has no work; hardware never reports its completion."""
        return False

    def find_group(self, registers: RegisterFile) -> int:
        """Return the group that hardware runs next if both are free."""
        return registers.read_field(f"{self.blocks[0]}.S_POINTER", "CONSUMER")

    def find_rdma_group(self, registers: RegisterFile) -> int:
        """Return the RDMA block's group that hardware runs next; 0 without an RDMA block."""
        if self.rdma_block is None:
            return 0
        return registers.read_field(f"{self.rdma_block}.S_POINTER", "CONSUMER")

    def is_group_idle(self, registers: RegisterFile, group: int) -> bool:
        """Return whether a group is idle in all blocks of the engine."""
        return all(
            registers.read_field(f"{block}.S_STATUS", f"STATUS_{group}") == _IDLE
            for block in self.blocks
        )

    def set_producer(self, registers: RegisterFile, group: int, rdma_group: int) -> None:
        """Select the group that register writes go to."""
        for block in self.blocks:
            registers.write_fields(f"{block}.S_POINTER", PRODUCER=group)
        if self.rdma_block is not None:
            registers.write_fields(f"{self.rdma_block}.S_POINTER", PRODUCER=rdma_group)

    def enable(self, registers: RegisterFile, group: int, *, with_rdma: bool) -> None:
        """Enable the operation in the group that the producer pointer selects."""
        if with_rdma and self.rdma_block is not None:
            registers.write_fields(f"{self.rdma_block}.D_OP_ENABLE", OP_EN=1)
        for block in self.blocks:
            registers.write_fields(f"{block}.D_OP_ENABLE", OP_EN=1)

    def describe(self, registers: RegisterFile) -> str:
        """Return the hardware state of the engine for error messages."""
        names = ("idle", "running", "pending")
        parts: list[str] = []
        for block in (*self.blocks, *((self.rdma_block,) if self.rdma_block else ())):
            states = [registers.read_field(f"{block}.S_STATUS", f"STATUS_{n}") for n in (0, 1)]
            words = "/".join(names[state] if state < len(names) else "?" for state in states)
            consumer = registers.read_field(f"{block}.S_POINTER", "CONSUMER")
            parts.append(f"{block} groups {words}, consumer {consumer}")
        return "; ".join(parts)

"""What the scheduler asks of an engine; each engine's file answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import Descriptor, OperationType
    from smelt.nvdla.registers import RegisterFile

_IDLE = 0


class Engine(ABC):
    """One of the six processors, as registers."""

    op_type: ClassVar[OperationType]
    blocks: ClassVar[tuple[str, ...]]
    """The register blocks with a producer pointer, in the order in which they are enabled."""
    rdma_block: ClassVar[str | None] = None
    """The block that reads for it, whose groups turn independently."""
    has_shadow_groups: ClassVar[bool] = True
    """Whether one group can be programmed while the other waits to be enabled."""

    @abstractmethod
    def needs_rdma(self, operation: Any, surface: Any) -> bool:
        """Whether an operation uses the block that reads for the engine."""

    def lut_index(self, operation: Any) -> int:
        """The lookup table that an operation uses, or -1."""
        return -1

    @abstractmethod
    def program(self, context: OperationContext, operation: Any, surface: Any) -> None:
        """Write an operation into the registers of the group that the producer points at."""

    @abstractmethod
    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> Descriptor:
        """Read what the engine counted while it ran."""

    @abstractmethod
    def enable_counters(self, registers: RegisterFile) -> None:
        """Ask the engine to count."""

    def is_empty(self, surface: Any) -> bool:
        """Whether an operation has nothing to do: then hardware never reports its end."""
        return False

    def find_group(self, registers: RegisterFile) -> int:
        """The group that hardware takes next, when both are free."""
        return registers.read_field(f"{self.blocks[0]}.S_POINTER", "CONSUMER")

    def find_rdma_group(self, registers: RegisterFile) -> int:
        """The reading block's group that hardware takes next."""
        if self.rdma_block is None:
            return 0
        return registers.read_field(f"{self.rdma_block}.S_POINTER", "CONSUMER")

    def is_group_idle(self, registers: RegisterFile, group: int) -> bool:
        """Whether hardware has let go of a group."""
        return all(
            registers.read_field(f"{block}.S_STATUS", f"STATUS_{group}") == _IDLE
            for block in self.blocks
        )

    def set_producer(self, registers: RegisterFile, group: int, rdma_group: int) -> None:
        """Choose the group that register writes go to."""
        for block in self.blocks:
            registers.write_fields(f"{block}.S_POINTER", PRODUCER=group)
        if self.rdma_block is not None:
            registers.write_fields(f"{self.rdma_block}.S_POINTER", PRODUCER=rdma_group)

    def enable(self, registers: RegisterFile, group: int, *, with_rdma: bool) -> None:
        """Start the programmed operation."""
        if with_rdma and self.rdma_block is not None:
            registers.write_fields(f"{self.rdma_block}.D_OP_ENABLE", OP_EN=1)
        for block in self.blocks:
            registers.write_fields(f"{block}.D_OP_ENABLE", OP_EN=1)

    def describe(self, registers: RegisterFile) -> str:
        """What the hardware says of itself, for diagnoses."""
        names = ("idle", "running", "pending")
        parts: list[str] = []
        for block in (*self.blocks, *((self.rdma_block,) if self.rdma_block else ())):
            states = [registers.read_field(f"{block}.S_STATUS", f"STATUS_{n}") for n in (0, 1)]
            words = "/".join(names[state] if state < len(names) else "?" for state in states)
            consumer = registers.read_field(f"{block}.S_POINTER", "CONSUMER")
            parts.append(f"{block} {words}, takes group {consumer}")
        return "; ".join(parts)

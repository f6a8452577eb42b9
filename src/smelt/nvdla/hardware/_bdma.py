"""BDMA engine: copies of lines and surfaces between memories, queued and launched in two groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.nvdla.hardware._blocks import Block
from smelt.nvdla.hardware._memory import Surface

if TYPE_CHECKING:
    from smelt.nvdla.hardware._running_operation import Operation
    from smelt.nvdla.registers import Register

SLOTS = 20
"""Number of copies that the queue holds."""
_UNIT_BYTES = 32
"""Granularity of copies in bytes."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy, with the values of its registers at the time it was queued."""

    source: Surface
    target: Surface


class BdmaBlock(Block):
    """BDMA's registers: CFG_OP queues the configured copy, CFG_LAUNCH0 or 1 starts the queue."""

    queued: list[Transfer]
    launched: list[tuple[int, list[Transfer]]]

    def start(self) -> None:
        """Start with empty queues."""
        self.queued = []
        self.launched = []

    @property
    def is_ready(self) -> bool:
        """Whether a group has been launched."""
        return not self.is_hung and bool(self.launched)

    def complete(self) -> None:
        """Complete the launched group and raise its interrupt."""
        group, _ = self.launched.pop(0)
        self.glb.raise_done("BDMA", group)
        self.consumer = self.launched[0][0] if self.launched else 0

    def read(self, register: Register) -> int:
        """Return a register."""
        if register.name != "STATUS":
            return super().read(register)
        busy = [any(group == index for group, _ in self.launched) for index in range(2)]
        is_idle = not self.queued and not self.launched
        used = len(self.queued) + sum(len(transfers) for _, transfers in self.launched)
        return max(0, SLOTS - used) | is_idle << 8 | busy[0] << 9 | busy[1] << 10

    def write(self, register: Register, value: int) -> bool:
        """Set a register; return True if this launched a group."""
        if register.name == "CFG_OP":
            if value & 1 and len(self.queued) < SLOTS:
                self.queued.append(self._capture())
            return False
        if register.name in {"CFG_LAUNCH0", "CFG_LAUNCH1"}:
            if value & 1:
                self.launched.append((int(register.name[-1]), self.queued))
                self.queued = []
                self.consumer = self.launched[0][0]
            return bool(value & 1)
        return super().write(register, value)

    def _capture(self) -> Transfer:
        """Return the copy that the registers describe."""
        registers = self.view()

        def surface(side: str) -> Surface:
            """Return the source (``SRC``) or destination (``DST``)."""
            return Surface(
                registers.space(f"{side}_RAM_TYPE"),
                registers.address(f"CFG_{side}_ADDR_LOW", f"CFG_{side}_ADDR_HIGH"),
                registers.word(f"CFG_{side}_LINE"),
                registers.word(f"CFG_{side}_SURF"),
                registers.get("SIZE") + 1,
                registers.word("CFG_LINE_REPEAT") + 1,
                registers.word("CFG_SURF_REPEAT") + 1,
                _UNIT_BYTES,
                f"BDMA.CFG_{side}_ADDR",
            )

        return Transfer(surface("SRC"), surface("DST"))


def run_bdma(operation: Operation, transfers: list[Transfer]) -> None:
    """Run the copies of a group in the order of the queue.

    Raises:
        NvdlaError: INVALID_ADDRESS if a copy leaves memory; INVALID_SIZE if it is larger than
            memory.
    """
    for transfer in transfers:
        lines = operation.dma.read_atoms(transfer.source)
        operation.dma.write_atoms(transfer.target, lines)
        operation.mac_cycles += lines.size // _UNIT_BYTES

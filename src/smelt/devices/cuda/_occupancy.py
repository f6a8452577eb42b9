"""What a multiprocessor of each GPU architecture has room for.

Source: CUDA Programming Guide, "Compute Capabilities", tables of multiprocessors and of memory; how
room is rounded up: CUDA's occupancy calculator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIZE_FEATURE: Final = "multiprocessors"
"""The feature of an engine that tells for how large a GPU it was tuned: no requirement."""
_LANES: Final = 32
_REGISTER_UNIT: Final = 256
"""A warp gets registers by so many."""
_PARTITIONS: Final = 4
"""A warp's registers come from one of so many parts of a multiprocessor."""
_SHARED_UNIT_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class SmResources:
    """A multiprocessor's room."""

    threads: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1
    """Shared memory that the system takes of each block's."""
    registers: int = 1 << 16

    @property
    def block_shared_bytes(self) -> int:
        """Shared memory that a block may have."""
        return (self.shared_kib - self.reserved_kib) << 10

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
        """How many blocks a multiprocessor holds at once, and what it lacks for more.

        Args:
            threads: of a block.
            registers: of a thread.
            shared_bytes: of a block, static and dynamic.
        """
        warps = -(-threads // _LANES) or 1
        each = max(_rounded(registers * _LANES, _REGISTER_UNIT), _REGISTER_UNIT)
        held = self.registers // _PARTITIONS // each * _PARTITIONS
        taken = _rounded(shared_bytes + (self.reserved_kib << 10), _SHARED_UNIT_BYTES)
        room = {
            "threads": self.threads // _LANES // warps,
            "registers": held // warps,
            "shared memory": (self.shared_kib << 10) // taken if taken else self.threads,
            "blocks": self.blocks,
        }
        least = min(room, key=lambda what: room[what])
        return room[least], least


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


SM_RESOURCES: Final = {
    75: SmResources(1024, 16, 64, reserved_kib=0),
    80: SmResources(2048, 32, 164),
    86: SmResources(1536, 16, 100),
    87: SmResources(1536, 16, 164),
    89: SmResources(1536, 24, 100),
    90: SmResources(2048, 32, 228),
    100: SmResources(2048, 32, 228),
    103: SmResources(2048, 32, 228),
    110: SmResources(1536, 24, 228),
    120: SmResources(1536, 24, 100),
    121: SmResources(1536, 24, 100),
}
"""By compute capability, ten times: every architecture that code is made for."""

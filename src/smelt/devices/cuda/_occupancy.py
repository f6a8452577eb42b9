"""Occupancy: resources of a multiprocessor of each GPU architecture.

Source: CUDA Programming Guide, "Compute Capabilities", tables of multiprocessors and of memory; how
room is rounded up: CUDA's occupancy calculator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIZE_FEATURE: Final = "multiprocessors"
"""Feature name for the number of multiprocessors tuned for; it is not a requirement."""
_WARP_SIZE: Final = 32
_REGISTER_UNIT: Final = 256
"""Allocation granularity of registers per warp."""
_PARTITIONS: Final = 4
"""Number of partitions of a multiprocessor; a warp's registers come from one of them."""
_SHARED_UNIT_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class SmResources:
    """Resources of a multiprocessor."""

    threads: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1
    """Shared memory per block that the system reserves, in KiB."""
    registers: int = 1 << 16

    @property
    def block_shared_bytes(self) -> int:
        """Maximum shared memory of a block in bytes."""
        return (self.shared_kib - self.reserved_kib) << 10

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
        """Return the number of resident blocks per multiprocessor, and the limiting resource.

        Args:
            threads: threads per block.
            registers: registers per thread.
            shared_bytes: static and dynamic shared memory per block in bytes.
        """
        warps = -(-threads // _WARP_SIZE) or 1
        warp_registers = max(_rounded(registers * _WARP_SIZE, _REGISTER_UNIT), _REGISTER_UNIT)
        resident_warps = self.registers // _PARTITIONS // warp_registers * _PARTITIONS
        block_bytes = _rounded(shared_bytes + (self.reserved_kib << 10), _SHARED_UNIT_BYTES)
        blocks_by_resource = {
            "threads": self.threads // _WARP_SIZE // warps,
            "registers": resident_warps // warps,
            "shared memory": (self.shared_kib << 10) // max(block_bytes, 1),
            "blocks": self.blocks,
        }
        least = min(blocks_by_resource, key=lambda what: blocks_by_resource[what])
        return blocks_by_resource[least], least


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
"""Resources by ten times the compute capability, for every supported architecture."""

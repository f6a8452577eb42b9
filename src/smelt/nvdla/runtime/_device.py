"""A device instance that the runtime has opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.nvdla.port import NvDlaHeap, NvDlaTask, PinnedMemory, Port


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """An open device of a session, with the operations that the runtime needs."""

    port: Port
    session_handle: int
    device_handle: int

    def allocate(self, size: int, heap: NvDlaHeap) -> PinnedMemory:
        """Allocate zeroed memory of ``size`` bytes."""
        return self.port.alloc_mem(self.session_handle, self.device_handle, size, heap)

    def free(self, pinned: PinnedMemory) -> None:
        """Free memory."""
        self.port.free_mem(
            self.session_handle,
            self.device_handle,
            pinned.mem_handle,
            pinned.data,
            pinned.data.nbytes,
        )

    def submit(self, task: NvDlaTask) -> None:
        """Run a task; return when the task has ended."""
        self.port.submit(self.session_handle, self.device_handle, [task])

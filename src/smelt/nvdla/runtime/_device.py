"""A device instance that the runtime has opened, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.nvdla.port import NvDlaHeap, NvDlaTask, PinnedMemory, Port


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device of a session."""

    port: Port
    session_handle: int
    device_handle: int

    def allocate(self, size: int, heap: NvDlaHeap) -> PinnedMemory:
        """Allocate memory."""
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
        """Run a task to its end."""
        self.port.submit(self.session_handle, self.device_handle, [task])

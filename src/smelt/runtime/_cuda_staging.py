"""Places on the GPU, and in pinned memory, for arrays that kernels cannot read where they are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaMemory,
    CudaReservation,
    PinnedAllocation,
    copy_memory,
    reserve_memory,
)
from smelt.runtime._cuda_array_interop import ALIGNED_BYTES, GpuArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.devices import Allocation, AllocationTracker
    from smelt.devices.cuda import CudaAllocation, CudaDevice, CudaStream
    from smelt.runtime._context import IndexedBinding
    from smelt.runtime._plan_selection import ResolvedCall

_CHUNK_BYTES: Final = 4 << 20
"""A large array is sent in such pieces: one is sent while the next is brought to pinned memory."""
DIRECT_OUTPUT_BYTES: Final = 64 << 10
"""Up to so many bytes kernels write to pinned memory themselves, which is sooner done than a copy.
Inputs are copied whatever their size: kernels may read them many times."""


class CudaStaging:
    """One context's places, a binding's each; they grow when a larger array comes."""

    def __init__(
        self,
        device: CudaDevice,
        tracker: AllocationTracker | None,
        arena: CudaAllocation | CudaReservation,
    ) -> None:
        """Have no places yet. ``arena`` is the context's, for `commit`; it stays the caller's."""
        self._device = device
        self._arena = arena
        self._memory = CudaMemory(device, tracker)
        self._device_buffers: dict[int, CudaAllocation | CudaReservation] = {}
        self._pinned: dict[int, PinnedAllocation] = {}
        self._pending_outputs: list[tuple[NDArray[Any], NDArray[np.uint8]]] = []
        self._has_moved = False
        """Whether places without memory have come, maybe at addresses that had it."""

    def stage(
        self,
        ports: Sequence[IndexedBinding],
        call: ResolvedCall,
        arrays: Sequence[Any],
        stream: CudaStream,
        wait: Callable[[], None],
    ) -> tuple[list[int], list[tuple[int, Any, int]]]:
        """The address of each array on the GPU, and the outputs to be copied from there.

        ``wait`` is called before memory that a run may still read is written.
        """
        is_decided = bool(call.decided)
        addresses = [0] * len(arrays)
        commit: list[tuple[int, Any, int]] = []
        for index, binding, _ in ports:
            array = arrays[index]
            address = array.address if isinstance(array, GpuArray) else array
            if isinstance(address, int) and address % ALIGNED_BYTES == 0:
                addresses[index] = address
                continue
            size = prod(call.shapes[index]) * binding.dtype.size_bytes
            if binding.is_input:
                wait()
                addresses[index] = self.upload_input(index, address, size, stream)
            elif address is None:  # an output that nobody asked for
                addresses[index] = self.device_buffer(index, size, is_decided=is_decided)
            else:
                addresses[index] = self.reserve(index, address, size, is_decided=is_decided)
                commit.append((index, address, size))
        return addresses, commit

    def take_moved(self) -> bool:
        """Whether memory has moved since this was last asked."""
        has_moved, self._has_moved = self._has_moved, False
        return has_moved

    def reserve(self, index: int, target: object, size_bytes: int, *, is_decided: bool) -> int:
        """Return the address of the place for an output that will be brought to ``target``.

        That is an array of the host, or something on the GPU.

        Raises:
            DeviceError: there is too little memory.
        """
        if isinstance(target, np.ndarray) and size_bytes <= DIRECT_OUTPUT_BYTES:
            return self._pin(index, size_bytes).address
        return self.device_buffer(index, size_bytes, is_decided=is_decided)

    def device_buffer(self, index: int, size_bytes: int, *, is_decided: bool = False) -> int:
        """Return the address of a binding's place on the GPU, made or enlarged if need be.

        Where the run itself decides how much of it is used, memory comes when `commit` is called.

        Raises:
            DeviceError: there is too little memory.
        """
        buffer = self._device_buffers.get(index)
        if buffer is None or buffer.size_bytes < size_bytes:
            if buffer is not None:
                del self._device_buffers[index]
                buffer.close()
            if is_decided:
                self._has_moved = True
                buffer = reserve_memory(self._memory, size_bytes, "staging")
            else:
                buffer = self._memory.allocate(size_bytes, "staging")
            self._device_buffers[index] = buffer
        return buffer.address

    def commit(self, address: int, size_bytes: int, stream: CudaStream) -> None:
        """Give memory to those of the addresses that are a place's or the arena's and have none.

        Raises:
            DeviceError: there is too little.
        """
        for buffer in (self._arena, *self._device_buffers.values()):
            if isinstance(buffer, CudaReservation):
                buffer.commit(address, size_bytes, stream)

    def _pin(self, index: int, size_bytes: int) -> PinnedAllocation:
        buffer = self._pinned.get(index)
        if buffer is None or buffer.size_bytes < size_bytes:
            if buffer is not None:
                del self._pinned[index]
                buffer.close()
            buffer = self._pinned[index] = PinnedAllocation(self._device, size_bytes, "staging")
        return buffer

    def upload_input(
        self, index: int, source: NDArray[Any] | int, size_bytes: int, stream: CudaStream
    ) -> int:
        """Queue a copy of an input to its place; return the place's address.

        Nothing that was queued for this place may still be going on.
        """
        if isinstance(source, int):
            target = self.device_buffer(index, size_bytes)
            copy_memory(self._device, target, source, size_bytes, stream)
            return target
        pinned = self._pin(index, size_bytes)
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        target = self.device_buffer(index, size_bytes)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            end = min(start + _CHUNK_BYTES, size_bytes)
            pinned.bytes[start:end] = flat[start:end]
            copy_memory(self._device, target + start, pinned.address + start, end - start, stream)
        return target

    def download_output(
        self,
        index: int,
        target: Any,
        capacity_bytes: int,
        made_bytes: int,
        stream: CudaStream,
    ) -> None:
        """Queue a copy of an output from its place to an address or an array of the host.

        For the latter `deliver` does the rest.

        A run that decides how large the output is made less of it than there was room for.
        """
        if isinstance(target, int):
            source = self.device_buffer(index, capacity_bytes)
            copy_memory(self._device, target, source, made_bytes, stream)
            return
        pinned = self._pin(index, made_bytes)
        if capacity_bytes > DIRECT_OUTPUT_BYTES:
            source = self.device_buffer(index, capacity_bytes)
            copy_memory(self._device, pinned.address, source, made_bytes, stream)
        self._pending_outputs.append((target, pinned.bytes[:made_bytes]))

    @property
    def has_pending_outputs(self) -> bool:
        """Whether arrays on the host wait for `deliver`."""
        return bool(self._pending_outputs)

    def forget(self) -> None:
        """Owe nothing: the run failed."""
        self._pending_outputs.clear()

    def deliver(self) -> None:
        """Bring what is complete to the host's arrays."""
        for target, data in self._pending_outputs:
            target.reshape(-1).view(np.uint8)[: data.size] = data
        self._pending_outputs.clear()

    def close(self) -> None:
        """Give the places back; nothing may use them."""
        buffers: list[Allocation] = [*self._device_buffers.values(), *self._pinned.values()]
        self._device_buffers.clear()
        self._pinned.clear()
        for buffer in buffers:
            buffer.close()
        self._pending_outputs.clear()

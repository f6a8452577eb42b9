"""Staging buffers on the GPU and in pinned memory for arrays that kernels cannot use in place."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaMemory,
    GpuArrayView,
    PinnedAllocation,
    ReservedAddressRange,
    copy_memory,
    reserve_memory,
)
from smelt.runtime._cuda_array_interop import ALIGNED_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cuda import CudaAllocation, CudaDevice, CudaStream
    from smelt.engine import EngineHeader
    from smelt.runtime._plan_executor import IndexedBinding
    from smelt.runtime._plan_selection import ResolvedCall

_CHUNK_BYTES: Final = 4 << 20
"""Chunk size of uploads: one chunk is transferred while the next is copied to pinned memory."""
DIRECT_OUTPUT_BYTES: Final = 64 << 10
"""Outputs up to this size are written to pinned memory by kernels, which is faster than a copy.
Inputs of all sizes are copied, because kernels may read them several times."""


class CudaStaging:
    """Staging buffers of one context, one per binding; they grow with the arrays."""

    def __init__(
        self,
        device: CudaDevice,
        tracker: AllocationTracker | None,
        arena: CudaAllocation | ReservedAddressRange,
    ) -> None:
        """Create empty staging; `commit` also serves ``arena``, which the caller owns."""
        self._device = device
        self._arena = arena
        self._memory = CudaMemory(device, tracker)
        self._device_buffers: dict[int, CudaAllocation | ReservedAddressRange] = {}
        self._pinned: dict[int, PinnedAllocation] = {}
        self._pending_outputs: list[tuple[NDArray[Any], NDArray[np.uint8]]] = []
        self._has_moved = False
        """Whether buffers were reserved anew, possibly at addresses that were committed before."""

    def stage(
        self,
        indexed_bindings: Sequence[IndexedBinding],
        call: ResolvedCall,
        arrays: Sequence[Any],
        stream: CudaStream,
        wait: Callable[[], None],
    ) -> tuple[list[int], list[tuple[int, Any, int]]]:
        """Return the GPU address of each array, and the outputs to be copied from there.

        An output to be copied is given as binding index, target and size in bytes. ``wait`` is
        called before writing memory that a run may still read.
        """
        is_data_dependent = bool(call.data_dependent_symbols)
        addresses = [0] * len(arrays)
        commit: list[tuple[int, Any, int]] = []
        for index, binding, _ in indexed_bindings:
            array = arrays[index]
            address = array.address if isinstance(array, GpuArrayView) else array
            if isinstance(address, int) and address % ALIGNED_BYTES == 0:
                addresses[index] = address
                continue
            size = prod(call.shapes[index]) * binding.dtype.size_bytes
            if binding.is_input:
                wait()
                addresses[index] = self.upload_input(index, address, size, stream)
            elif address is None:  # an output that is not requested
                addresses[index] = self.device_buffer(
                    index, size, is_data_dependent=is_data_dependent
                )
            else:
                addresses[index] = self.reserve(
                    index, address, size, is_data_dependent=is_data_dependent
                )
                commit.append((index, address, size))
        return addresses, commit

    def poll_moved(self) -> bool:
        """Return whether buffers have moved since the last call."""
        has_moved, self._has_moved = self._has_moved, False
        return has_moved

    def reserve(
        self, index: int, target: object, size_bytes: int, *, is_data_dependent: bool
    ) -> int:
        """Return the address of the buffer for an output that will be copied to ``target``.

        ``target`` is an array on the host, or an address or array on the GPU.

        Raises:
            DeviceError: memory is insufficient.
        """
        if isinstance(target, np.ndarray) and size_bytes <= DIRECT_OUTPUT_BYTES:
            return self._pin(index, size_bytes).address
        return self.device_buffer(index, size_bytes, is_data_dependent=is_data_dependent)

    def device_buffer(self, index: int, size_bytes: int, *, is_data_dependent: bool = False) -> int:
        """Return the address of a binding's GPU buffer; allocate or enlarge it if necessary.

        With ``is_data_dependent``, the run determines the size that is used: addresses are
        reserved, and `commit` maps memory to them.

        Raises:
            DeviceError: memory is insufficient.
        """
        buffer = self._device_buffers.get(index)
        if buffer is None or buffer.size_bytes < size_bytes:
            if buffer is not None:
                del self._device_buffers[index]
                buffer.close()
            if is_data_dependent:
                self._has_moved = True
                buffer = reserve_memory(self._memory, size_bytes, "staging")
            else:
                buffer = self._memory.allocate(size_bytes, "staging")
            self._device_buffers[index] = buffer
        return buffer.address

    def commit(self, address: int, size_bytes: int, stream: CudaStream) -> None:
        """Commit memory to addresses that belong to a reserved buffer or the arena.

        Raises:
            DeviceError: memory is insufficient.
        """
        for buffer in (self._arena, *self._device_buffers.values()):
            if isinstance(buffer, ReservedAddressRange):
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
        """Enqueue a copy of an input to its buffer; return the buffer's address.

        Earlier work on this buffer must be complete.
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
        self, index: int, target: Any, capacity_bytes: int, size_bytes: int, stream: CudaStream
    ) -> None:
        """Enqueue a copy of an output from its buffer to a GPU address or to the host.

        An array on the host is copied to pinned memory; `deliver` copies it to the array.

        Args:
            index: index of the binding.
            target: GPU address, or array on the host.
            capacity_bytes: size of the staging buffer.
            size_bytes: size of the output, which may be less if the run determines it.
            stream: stream of the run.
        """
        if isinstance(target, int):
            source = self.device_buffer(index, capacity_bytes)
            copy_memory(self._device, target, source, size_bytes, stream)
            return
        pinned = self._pin(index, size_bytes)
        if capacity_bytes > DIRECT_OUTPUT_BYTES:
            source = self.device_buffer(index, capacity_bytes)
            copy_memory(self._device, pinned.address, source, size_bytes, stream)
        self._pending_outputs.append((target, pinned.bytes[:size_bytes]))

    @property
    def has_pending_outputs(self) -> bool:
        """Whether outputs on the host are pending until `deliver`."""
        return bool(self._pending_outputs)

    def drop_outputs(self) -> None:
        """Discard pending outputs of a failed run."""
        self._pending_outputs.clear()

    def deliver(self) -> None:
        """Copy completed outputs from pinned memory to the arrays on the host."""
        for target, data in self._pending_outputs:
            target.reshape(-1).view(np.uint8)[: data.size] = data
        self._pending_outputs.clear()

    def close(self) -> None:
        """Release the buffers; no run may use them any more."""
        buffers = (*self._device_buffers.values(), *self._pinned.values())
        self._device_buffers.clear()
        self._pinned.clear()
        for buffer in buffers:
            buffer.close()
        self._pending_outputs.clear()


def allocate_arena(
    header: EngineHeader, memory: CudaMemory
) -> CudaAllocation | ReservedAddressRange:
    """Allocate the arena of the plans; with data-dependent sizes, memory is committed on demand."""
    size_bytes = max(plan.arena_bytes for plan in header.plans)
    if any(plan.data_dependent_symbols for plan in header.plans):
        return reserve_memory(memory, size_bytes, "arena")
    return memory.allocate(size_bytes, "arena")

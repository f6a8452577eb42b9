"""Places on the GPU, and in pinned memory, for arrays that kernels cannot read where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaMemory,
    CudaReservation,
    PinnedAllocation,
    copy_memory,
    reserve_memory,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices import Allocation, AllocationTracker
    from smelt.devices.cuda import CudaAllocation, CudaDevice, CudaStream

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
        """Have no places yet. ``arena`` is the context's, for `back`; it stays the caller's."""
        self._device = device
        self._arena = arena
        self._memory = CudaMemory(device, tracker)
        self._there: dict[int, CudaAllocation | CudaReservation] = {}
        self._pinned: dict[int, PinnedAllocation] = {}
        self._owed: list[tuple[NDArray[Any], NDArray[np.uint8]]] = []
        self.have_moved = False
        """Whether places without memory have come, maybe at addresses that had it."""

    def reserve(self, index: int, target: object, size_bytes: int, *, is_decided: bool) -> int:
        """Return the address of the place for an output that will be brought to ``target``.

        That is an array of the host, or something on the GPU.

        Raises:
            DeviceError: there is too little memory.
        """
        if isinstance(target, np.ndarray) and size_bytes <= DIRECT_OUTPUT_BYTES:
            return self._pin(index, size_bytes).address
        return self.room(index, size_bytes, is_decided=is_decided)

    def room(self, index: int, size_bytes: int, *, is_decided: bool = False) -> int:
        """Return the address of a binding's place on the GPU, made or enlarged if need be.

        Where the run itself decides how much of it is used, memory comes when `back` is called.

        Raises:
            DeviceError: there is too little memory.
        """
        place = self._there.get(index)
        if place is None or place.size_bytes < size_bytes:
            if place is not None:
                del self._there[index]
                place.close()
            if is_decided:
                self.have_moved = True
                place = reserve_memory(self._memory, size_bytes, "staging")
            else:
                place = self._memory.allocate(size_bytes, "staging")
            self._there[index] = place
        return place.address

    def back(self, address: int, size_bytes: int, stream: CudaStream) -> None:
        """Give memory to those of the addresses that are a place's or the arena's and have none.

        Raises:
            DeviceError: there is too little.
        """
        for place in (self._arena, *self._there.values()):
            if isinstance(place, CudaReservation):
                place.back(address, size_bytes, stream)

    def _pin(self, index: int, size_bytes: int) -> PinnedAllocation:
        place = self._pinned.get(index)
        if place is None or place.size_bytes < size_bytes:
            if place is not None:
                del self._pinned[index]
                place.close()
            place = self._pinned[index] = PinnedAllocation(self._device, size_bytes, "staging")
        return place

    def bring(
        self, index: int, source: NDArray[Any] | int, size_bytes: int, stream: CudaStream
    ) -> int:
        """Queue a copy of an input to its place; return the place's address.

        Nothing that was queued for this place may still be going on.
        """
        if isinstance(source, int):
            target = self.room(index, size_bytes)
            copy_memory(self._device, target, source, size_bytes, stream)
            return target
        pinned = self._pin(index, size_bytes)
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        target = self.room(index, size_bytes)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            end = min(start + _CHUNK_BYTES, size_bytes)
            pinned.bytes[start:end] = flat[start:end]
            copy_memory(self._device, target + start, pinned.address + start, end - start, stream)
        return target

    def take_back(
        self,
        index: int,
        target: Any,
        room_bytes: int,
        made_bytes: int,
        stream: CudaStream,
    ) -> None:
        """Queue a copy of an output from its place to an address or an array of the host.

        For the latter `deliver` does the rest.

        A run that decides how large the output is made less of it than there was room for.
        """
        if isinstance(target, int):
            source = self.room(index, room_bytes)
            copy_memory(self._device, target, source, made_bytes, stream)
            return
        pinned = self._pin(index, made_bytes)
        if room_bytes > DIRECT_OUTPUT_BYTES:
            source = self.room(index, room_bytes)
            copy_memory(self._device, pinned.address, source, made_bytes, stream)
        self._owed.append((target, pinned.bytes[:made_bytes]))

    @property
    def is_owed(self) -> bool:
        """Whether arrays on the host wait for `deliver`."""
        return bool(self._owed)

    def forget(self) -> None:
        """Owe nothing: the run failed."""
        self._owed.clear()

    def deliver(self) -> None:
        """Bring what is complete to the host's arrays."""
        for target, data in self._owed:
            target.reshape(-1).view(np.uint8)[: data.size] = data
        self._owed.clear()

    def close(self) -> None:
        """Give the places back; nothing may use them."""
        places: list[Allocation] = [*self._there.values(), *self._pinned.values()]
        self._there.clear()
        self._pinned.clear()
        for place in places:
            place.close()
        self._owed.clear()

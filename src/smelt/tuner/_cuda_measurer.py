"""Primitives of GPU benches: poisoned memory, comparisons on the GPU, timing of graphs."""

from __future__ import annotations

import hashlib
import statistics
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.backends.cuda import (
    RESULT_CHECK_BLOCK,
    cache_flush_kernel,
    error_kernel,
    mismatch_kernel,
)
from smelt.devices.cuda import (
    CudaEvent,
    CudaLaunch,
    CudaMemory,
    CudaRunList,
    CudaStream,
    KernelLoader,
    copy_memory,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.devices.cuda import CudaDevice, LoadedCall, LoadedKernel, RunListGraph
    from smelt.engine import KernelSpec
    from smelt.types import DType

POISON: Final = 0xFF
"""Byte that fills memory before kernels write it; NaN in floats and invalid as a bool."""
_WORD_BYTES: Final = 4
"""Size in bytes of the words that the checking kernels compare."""
_PADDED_BYTES: Final = 256
"""Allocations are padded to a multiple of this size; the padding detects overruns. Chosen without a
measurement."""
_FLUSH_SIZE_FACTOR: Final = 2
"""Bytes read to flush the L2 cache, as a multiple of its size. Chosen without a measurement."""


class PoisonedMemory:
    """GPU memory filled with poison and padded to a multiple of `_PADDED_BYTES`."""

    __slots__ = ("_allocation", "_measurer", "address", "padded_bytes", "size_bytes")

    def __init__(self, measurer: CudaMeasurer, size_bytes: int) -> None:
        self._measurer = measurer
        self.size_bytes = size_bytes
        self.padded_bytes = -(-max(size_bytes, 1) // _PADDED_BYTES) * _PADDED_BYTES
        self._allocation = measurer.memory.allocate(self.padded_bytes, "trial")
        self.address = self._allocation.address
        measurer.fill(self, POISON)

    def fill_from(self, content: NDArray[np.uint8]) -> None:
        """Copy host bytes to the start; the remaining bytes are unchanged."""
        self._measurer.upload(self.address, content)

    def fill_with_copies(self, content: NDArray[np.uint8], stride: int, count: int) -> None:
        """Write ``count`` copies of host bytes, ``stride`` bytes apart."""
        self._measurer.upload(self.address, content)
        device, stream = self._measurer.device, self._measurer.stream
        for k in range(1, count):
            copy_memory(device, self.address + k * stride, self.address, content.size, stream)

    def copy_from(self, other: PoisonedMemory) -> None:
        """Copy memory of the same size, including its padding."""
        device, stream = self._measurer.device, self._measurer.stream
        copy_memory(device, self.address, other.address, self.padded_bytes, stream)

    def close(self) -> None:
        """Release the memory; work that uses it must be complete."""
        self._allocation.close()


class CudaMeasurer:
    """Compares memory and times graphs on one GPU, on a stream of its own."""

    def __init__(self, backend: CudaBackend, target: CudaTarget, device: CudaDevice) -> None:
        self.backend, self.target, self.device = backend, target, device
        self.stream = CudaStream(device)
        self.memory = CudaMemory(device)
        self._loader = KernelLoader(device)
        self._loaded: dict[bytes, LoadedKernel | LoadedCall] = {}
        self._block_results: PoisonedMemory | None = None
        self._flush_buffer: PoisonedMemory | None = None
        self._events: list[CudaEvent] = []

    def loaded(self, record: bytes) -> LoadedKernel | LoadedCall:
        """Load a compiled kernel or library call onto the GPU, once per record."""
        key = hashlib.sha256(record).digest()
        if key not in self._loaded:
            self._loaded[key] = self._loader.load(record)
        return self._loaded[key]

    # ---- memory

    def allocation(self, size_bytes: int) -> PoisonedMemory:
        """Allocate memory filled with poison."""
        return PoisonedMemory(self, size_bytes)

    def fill(self, memory: PoisonedMemory, value: int) -> None:
        """Set every byte of an allocation, including its padding, to ``value``."""
        self.device.call(
            "cuMemsetD8Async", memory.address, value, memory.padded_bytes, self.stream.handle
        )

    def upload(self, address: int, content: NDArray[np.uint8]) -> None:
        """Copy host bytes to GPU address ``address`` and wait for the copy."""
        flat = np.ascontiguousarray(content)
        copy_memory(self.device, address, int(flat.ctypes.data), flat.size, self.stream)
        self.stream.synchronize()

    # ---- comparisons

    def error(
        self, memory: PoisonedMemory, reference: PoisonedMemory, dtype: DType, count: int
    ) -> float:
        """Return the largest absolute difference from float32 reference values."""
        return self._max_over_blocks(
            error_kernel(dtype), [memory.address, reference.address], count
        )

    def differs(self, memory: PoisonedMemory, other: PoisonedMemory) -> bool:
        """Return whether any bit differs, including the padding."""
        words = memory.padded_bytes // _WORD_BYTES
        return self._max_over_blocks(mismatch_kernel(), [memory.address, other.address], words) != 0

    def _max_over_blocks(self, kernel: KernelSpec, operands: list[int], count: int) -> float:
        """Run a check kernel on ``count`` elements; return the maximum of its block results."""
        blocks = -(-count // RESULT_CHECK_BLOCK)
        if blocks == 0:
            return 0.0
        if self._block_results is None or self._block_results.size_bytes < blocks * _WORD_BYTES:
            self._block_results = self.allocation(2 * blocks * _WORD_BYTES)
        self._run(kernel, [*operands, self._block_results.address], count)
        maxima = np.empty(blocks, np.float32)
        address = int(maxima.ctypes.data)
        copy_memory(self.device, address, self._block_results.address, maxima.nbytes, self.stream)
        self.stream.synchronize()
        return float(maxima.max())

    def _run(self, kernel: KernelSpec, operands: list[int], count: int) -> None:
        loaded = self.loaded(self.backend.records(kernel, self.target))
        words = np.array([*operands, count], np.int64)
        rows = CudaRunList(
            [CudaLaunch(loaded, len(words), 0)], words, [-(-count // RESULT_CHECK_BLOCK)]
        )
        rows.launch_all(self.stream)

    # ---- time

    def flush(self) -> None:
        """Evict everything from the GPU's L2 cache and leave no dirty lines in it."""
        if self._flush_buffer is None:
            self._flush_buffer = self.allocation(
                _FLUSH_SIZE_FACTOR * self.device.properties.l2_bytes
            )
        words = self._flush_buffer.padded_bytes // _WORD_BYTES
        self._run(
            cache_flush_kernel(), [self._flush_buffer.address, self._flush_buffer.address], words
        )

    def median_ms(self, warm_up: RunListGraph, timed: RunListGraph, count: int) -> float:
        """Return the median milliseconds of ``timed`` with a cache that only ``warm_up`` filled."""
        while len(self._events) < 2 * count:
            self._events.append(CudaEvent(self.device))
        pairs = list(zip(self._events[:count], self._events[count : 2 * count], strict=True))
        for start, end in pairs:
            self.flush()
            warm_up.launch(self.stream)
            start.record(self.stream)
            timed.launch(self.stream)
            end.record(self.stream)
        self.stream.synchronize()
        return statistics.median(start.elapsed(end) for start, end in pairs)

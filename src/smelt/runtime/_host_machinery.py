"""Machinery of contexts on the CPU and the null device; small arrays are staged by copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy import ndarray

from smelt.devices.cpu import (
    CompletionFlag,
    CpuEvent,
    CpuMemory,
    CpuStream,
    DeferredError,
    Scratch,
    default_thread_count,
    worker_pool,
)
from smelt.devices.null import NullMemory
from smelt.errors import ContextError
from smelt.runtime._array_interop import (
    address_of,
    array_from_value,
    contiguous_array,
    exporter_for,
    trimmed,
    writable_array,
)
from smelt.runtime._index_errors import error_words
from smelt.runtime._machinery import Machinery, wait_for
from smelt.runtime._segments import CpuSegmentFactory, NullSegmentFactory
from smelt.runtime._staging import Staging
from smelt.runtime._streams import Event, Stream, native_event, native_stream
from smelt.types import override, require_int

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cpu import CpuAllocation
    from smelt.devices.null import NullAllocation
    from smelt.engine import Binding, EngineHeader
    from smelt.runtime._engine import Engine
    from smelt.runtime._host_code import CpuCode
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._loaded_code import LoadedCode
    from smelt.runtime._machinery import IndexedBinding
    from smelt.runtime._segments import SegmentFactory
    from smelt.runtime._staging import StagedCall

_MAX_THREADS: Final = 1024
"""Largest number of threads that a context accepts."""


@dataclass(frozen=True, slots=True)
class HostResources:
    """What a context in the memory of the process consists of, apart from its segments."""

    segment_factory: SegmentFactory
    staging: Staging
    arena: CpuAllocation | NullAllocation
    others: Sequence[CpuAllocation | Scratch] = ()
    """Further memory that the context releases when it is closed."""
    errors: ErrorWords | None = None
    """Error words that launches write on indices out of range; None if they are not checked."""
    new_array: Callable[..., NDArray[Any]] = np.empty
    """Allocates an output; a device that computes nothing returns zeros."""


def cpu_resources(code: CpuCode, threads: int, tracker: AllocationTracker | None) -> HostResources:
    """Allocate the memory of a context on the CPU."""
    header, memory = code.header, CpuMemory(tracker)
    arena = memory.allocate(arena_bytes(header), "arena")
    scratch = Scratch(memory, max(plan.scratch_bytes for plan in header.plans), threads)
    staging = Staging(memory, header)
    errors = error_words(header, partial(memory.allocate, tag="error words"))
    segment_factory = CpuSegmentFactory(
        code.functions,
        code.runtime,
        worker_pool(),
        memory,
        threads,
        scratch,
        header.layers,
        errors,
    )
    return HostResources(segment_factory, staging, arena, (scratch, *staging.allocations), errors)


def null_resources(header: EngineHeader, tracker: AllocationTracker | None) -> HostResources:
    """Return the resources of a context that computes nothing."""
    arena = NullMemory(tracker).allocate(arena_bytes(header), "arena")
    return HostResources(NullSegmentFactory(), Staging(None, header), arena, new_array=np.zeros)


def arena_bytes(header: EngineHeader) -> int:
    """Return the size in bytes of the arena that the plans of an engine share."""
    return max(plan.arena_bytes for plan in header.plans)


class HostMachinery(Machinery):
    """Runs plans in the memory of the process."""

    def __init__(
        self, engine: Engine, code: LoadedCode, threads: int, resources: HostResources
    ) -> None:
        self.threads = threads
        self._resources = resources
        super().__init__(engine, code, resources.segment_factory, resources.staging)
        self._memories.arena = resources.arena.address
        if resources.errors is not None:
            self._memories.errors = resources.errors.address

    @override
    def input_array(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> NDArray[Any]:
        return array_from_value(value, binding, dtype)

    @override
    def output_array(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> NDArray[Any]:
        return writable_array(value, binding, dtype)

    @override
    def run(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        requested: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        call = staged_call.call
        for index, staged in staged_call.outputs:
            if staged is None:
                dtype = self.indexed_bindings[index][2]
                arrays[index] = self._resources.new_array(call.shapes[index], dtype)
        values = self._perform(staged_call, arrays, None)
        results: dict[str, Any] = {}
        for index, binding, _ in requested:
            staged = staged_call.staged_arrays[index]
            results[binding.name] = arrays[index] if staged is None else staged.copy()
        if values is not call.values:
            for index, binding, _ in requested:
                result = results[binding.name]
                results[binding.name] = trimmed(call.extents[index], result, values)
        for value in inputs.values():
            if type(value) is not ndarray and (export := exporter_for(value)) is not None:
                return {b.name: export(results[b.name], b.dtype) for _, b, _ in requested}
        return results

    @override
    def execute(self, staged_call: StagedCall, arrays: list[Any]) -> None:
        self._execute(staged_call, arrays, None)

    def _execute(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag | None
    ) -> None:
        self._perform(staged_call, arrays, consumed)
        for index, staged in staged_call.outputs:
            if staged is not None:
                arrays[index][...] = staged

    @override
    def check_stream(
        self, stream: object, input_consumed: object
    ) -> tuple[CpuStream, CpuEvent | None]:
        queue, event = native_stream(stream), native_event(input_consumed)
        if not isinstance(queue, CpuStream):
            kind = _describe(stream)
            raise ContextError(f"enqueue requires a smelt.Stream of the CPU, not {kind}")
        if not isinstance(event, CpuEvent | None):
            kind = _describe(input_consumed)
            raise ContextError(f"input_consumed must be a smelt.Event of the CPU, not {kind}")
        return queue, event

    @override
    def enqueue(
        self, staged_call: StagedCall, arrays: list[Any], stream: CpuStream, event: CpuEvent | None
    ) -> None:
        # Views: later changes of an array's shape or flags by the application have no effect.
        arrays = [a if isinstance(a, int) else a.view() for a in arrays]
        failures = self.failures
        self.raise_failure()
        self.forget_completed()
        previous, done, consumed = list(self.enqueued), CompletionFlag(), CompletionFlag()

        def work() -> None:
            try:
                wait_for(previous)
                self.lock.hold_in_turn(self._execute_queued, staged_call, arrays, consumed)
            except Exception as error:  # noqa: BLE001  (raised by the stream or the next call)
                failure = DeferredError(error)
                failures.append(failure)
                stream.defer(failure)
            finally:
                arrays.clear()

        self.enqueued.append(done)
        try:
            stream.submit(work, consumed, done)
        except BaseException:
            if not stream.has_taken(done):
                consumed.signal()
                done.signal()  # which `enqueued` then ignores
            raise
        if event is not None:  # not before: a call that is refused records nothing
            event.mark = consumed

    def _execute_queued(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag
    ) -> None:
        """Run on the application's memory, in a stream's thread; the caller holds the lock."""
        self.lock.check_open()
        self._execute(staged_call, arrays, consumed)

    @override
    def check_thread(self) -> None:
        """Do nothing: every thread may use the memory of its process."""

    @override
    def check_address(self, binding: Binding, address: int) -> None:
        """Do nothing: addresses of the process are not validated."""

    def _perform(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag | None
    ) -> dict[str, int]:
        """Run on arrays or addresses by binding; staged outputs stay in their staging buffers."""
        addresses = staged_call.addresses
        if not staged_call.is_staged:
            addresses = addresses.copy()
            for index, staged in enumerate(staged_call.staged_arrays):
                if staged is None:
                    addresses[index], arrays[index] = _address(arrays[index])
        for index, staged in staged_call.inputs:
            if staged is not None:
                staged[...] = arrays[index]
        call = staged_call.call
        values = call.values.copy() if call.decided else call.values
        self._run_plan(call.plan, values, addresses, consumed)
        self.last_completed = call, values
        return values

    @override
    def close(self) -> None:
        self._close_segments()
        resources = self._resources
        resources.arena.close()
        for allocation in resources.others:
            allocation.close()
        if resources.errors is not None:
            resources.errors.close()


def _describe(thing: object) -> str:
    name = type(thing).__name__
    return f"{name} of {thing.device}" if isinstance(thing, Stream | Event) else name


def _address(array: NDArray[Any] | int) -> tuple[int, NDArray[Any] | int]:
    """Return the address of an array for kernels, and the object that keeps it alive."""
    if isinstance(array, int):
        return array, array
    array = contiguous_array(array)
    return address_of(array), array


def thread_count(threads: int | None) -> int:
    """Return the number of threads of a context. Raises ContextError: it is not positive."""
    if threads is None:
        return default_thread_count()
    return require_int(threads, "threads", ContextError, least=1, most=_MAX_THREADS)

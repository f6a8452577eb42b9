"""PlanExecutor of contexts on the CPU and the null device; small arrays are staged by copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cpu import (
    CompletionFlag,
    CpuEvent,
    CpuStream,
    DeferredError,
    Scratch,
    default_thread_count,
)
from smelt.errors import ContextError
from smelt.runtime._array_interop import address_of, contiguous_array, trimmed
from smelt.runtime._plan_executor import PlanExecutor, wait_for
from smelt.runtime._streams import Event, Stream, native_event, native_stream
from smelt.types import override, require_int

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuAllocation
    from smelt.runtime._engine import Engine
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._loaded_code import LoadedCode
    from smelt.runtime._plan_executor import NamedRun
    from smelt.runtime._segments import SegmentFactory
    from smelt.runtime._staging import StagedCall, Staging

_MAX_THREADS: Final = 1024
"""Largest number of threads that a context accepts."""


@dataclass(frozen=True, slots=True)
class HostResources:
    """Memory, staging and segment factory of a context in the memory of the process."""

    segment_factory: SegmentFactory
    staging: Staging
    arena: CpuAllocation
    others: Sequence[CpuAllocation | ErrorWords | Scratch] = ()
    """Further memory that the context releases when it is closed."""
    errors_address: int = 0
    """Address of the words that launches write on indices out of range; 0 if none are checked."""
    new_array: Callable[..., NDArray[Any]] = np.empty
    """Allocates an output; a device that computes nothing returns zeros."""


class HostExecutor(PlanExecutor):
    """Runs plans in the memory of the process."""

    def __init__(
        self, engine: Engine, code: LoadedCode, threads: int, resources: HostResources
    ) -> None:
        self.threads = threads
        self._resources = resources
        super().__init__(engine, code, resources.segment_factory, resources.staging)
        self._memories.arena = resources.arena.address
        self._memories.errors = resources.errors_address

    @override
    def run(self, run: NamedRun) -> dict[str, Any]:
        staged_call, arrays = run.staged_call, run.arrays
        call = staged_call.call
        for index, staged in staged_call.outputs:
            if staged is None:
                dtype = self.indexed_bindings[index][2]
                arrays[index] = self._resources.new_array(call.shapes[index], dtype)
        values = self._perform(staged_call, arrays, None)
        results: dict[str, Any] = {}
        for index, binding, _ in run.requested:
            staged = staged_call.staged_arrays[index]
            results[binding.name] = arrays[index] if staged is None else staged.copy()
        if values is not call.values:
            for index, binding, _ in run.requested:
                result = results[binding.name]
                results[binding.name] = trimmed(call.extents[index], result, values)
        return run.exported(results)

    @override
    def execute(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag | None = None
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
        # A run waits for those that are in their streams already. Another call may be about to
        # submit its run behind this one, which would then wait for itself.
        previous = [flag for flag in list(self.enqueued) if flag.is_submitted]
        done, consumed = CompletionFlag(), CompletionFlag()

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

        try:
            self.enqueued.append(done)
            stream.submit(work, consumed, done)
        except BaseException:
            if not stream.has_taken(done):
                consumed.signal()
                done.signal()  # which `enqueued` then ignores
            raise
        finally:
            done.is_submitted = True  # no call, so no interrupt comes before it
        if event is not None:  # not before: a call that is refused records nothing
            event.mark = consumed

    def _execute_queued(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag
    ) -> None:
        """Run on the application's memory, in a stream's thread; the caller holds the lock."""
        self.lock.check_open()
        self.execute(staged_call, arrays, consumed)

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
        values = call.values.copy() if call.data_dependent_symbols else call.values
        self._memories.addresses = addresses
        self._run_plan(call.plan, values, consumed)
        self.last_completed = call, values
        return values

    @override
    def close(self) -> None:
        self._close_segments()
        for memory in (self._resources.arena, *self._resources.others):
            memory.close()


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
    return require_int(threads, "threads", ContextError, minimum=1, maximum=_MAX_THREADS)

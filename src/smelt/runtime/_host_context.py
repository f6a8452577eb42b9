"""Execution contexts on the CPU and the null device; small arrays are staged by copies."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from threading import get_ident
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
    is_awaited_by,
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
from smelt.runtime._context import RUN, ExecutionContext
from smelt.runtime._index_errors import error_words
from smelt.runtime._segments import CpuSegmentFactory, NullSegmentFactory
from smelt.runtime._staging import Staging
from smelt.runtime._streams import Event, Stream, native_event, native_stream
from smelt.types import out_of_memory, override, require_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cpu import CpuAllocation
    from smelt.devices.null import NullAllocation
    from smelt.engine import Binding
    from smelt.runtime._context import IndexedBinding
    from smelt.runtime._engine import Engine
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._loaded_code import HostCode
    from smelt.runtime._segments import SegmentFactory
    from smelt.runtime._staging import StagedCall

_MAX_THREADS: Final = 1024
"""Largest number of threads that a context accepts."""
_POLL_S: Final = 2e-4
"""Seconds between checks whether a run in another thread is complete."""


class HostContext(ExecutionContext):
    """Runs an engine on the CPU or on the null device."""

    def __init__(
        self,
        engine: Engine,
        code: HostCode,
        threads: int | None,
        tracker: AllocationTracker | None,
    ) -> None:
        self.threads = _thread_count(threads)
        header = code.header
        arena_bytes = max(plan.arena_bytes for plan in header.plans)
        self._allocations: list[CpuAllocation | NullAllocation | Scratch | ErrorWords]
        segment_factory: SegmentFactory
        errors = None
        if code.runtime is None:
            self._allocations = [NullMemory(tracker).allocate(arena_bytes, "arena")]
            segment_factory, staging = NullSegmentFactory(), Staging(None, header)
        else:
            memory = CpuMemory(tracker)
            arena = memory.allocate(arena_bytes, "arena")
            scratch = Scratch(memory, max(p.scratch_bytes for p in header.plans), self.threads)
            staging = Staging(memory, header)
            self._allocations = [arena, scratch, *staging.allocations]
            errors = error_words(header, partial(memory.allocate, tag="error words"))
            pool, threads = worker_pool(), self.threads
            segment_factory = CpuSegmentFactory(
                code.functions, code.runtime, pool, memory, threads, scratch, header.layers, errors
            )
        super().__init__(engine, code, segment_factory, staging)
        self._memories.arena = self._allocations[0].address
        if errors is not None:
            self._memories.errors = errors.address
            self._allocations.append(errors)
        self._new = np.zeros if code.runtime is None else np.empty

    @override
    def reset(self) -> None:
        super().reset()
        self._pending: CompletionFlag | None = None
        """Completion flag of the last enqueued run."""
        self._failures: deque[DeferredError] = deque()
        """Errors of enqueued runs; each is raised by its stream or by the next call."""

    @override
    def _input(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> NDArray[Any]:
        return array_from_value(value, binding, dtype)

    @override
    def _output(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> NDArray[Any]:
        return writable_array(value, binding, dtype)

    @override
    def _compute(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        requested: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        call = staged_call.call
        for index, staged in staged_call.outputs:
            if staged is None:
                dtype = self._indexed_bindings[index][2]
                arrays[index] = self._new(call.shapes[index], dtype)
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
    def enqueue(
        self,
        batch_size: int,
        bindings: Sequence[Any],
        stream: Any,
        input_consumed: Any = None,
    ) -> None:
        queue, event = _checked_stream(stream, input_consumed)
        staged_call, arrays = self._bind(batch_size, bindings)
        # Views: later changes of an array's shape or flags by the application have no effect.
        arrays = [a if isinstance(a, int) else a.view() for a in arrays]
        failures = self._failures
        _check_all(failures)
        previous, done, consumed = self._pending, CompletionFlag(), CompletionFlag()

        def work() -> None:
            try:
                self._execute_queued(staged_call, arrays, previous, consumed)
            except Exception as error:  # noqa: BLE001  (raised by the stream or the next call)
                failure = DeferredError(error)
                failures.append(failure)
                queue.defer(failure)
            finally:
                arrays.clear()

        if event is not None:
            event.mark = consumed
        self._pending = done
        try:
            queue.submit(work, consumed, done)
        except BaseException:
            if not queue.has_taken(done):
                consumed.signal()
                done.signal()
            raise

    def _execute_queued(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        previous: CompletionFlag | None,
        consumed: CompletionFlag,
    ) -> None:
        """Run on the application's memory, in a stream's thread."""
        if previous is not None:
            previous.wait()
        token = [get_ident()]
        try:
            self._acquire(token)
            self._check_open()
            self._execute_bound(staged_call, arrays, consumed)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]

    @override
    def _execute_bound(
        self, staged_call: StagedCall, arrays: list[Any], consumed: CompletionFlag | None = None
    ) -> None:
        self._perform(staged_call, arrays, consumed)
        for index, staged in staged_call.outputs:
            if staged is not None:
                arrays[index][...] = staged

    @override
    def _enter(self, token: list[int]) -> None:
        pending = self._pending
        if pending is not None:
            pending.wait()
            _check_all(self._failures)
        # Inlined from the base class: for small networks a call is a notable part of the run.
        if self._owner.setdefault(RUN, token) is not token or self._is_closed:
            self._raise_not_available()

    def _acquire(self, token: list[int]) -> None:
        """Acquire the context for ``token`` once the current run is complete."""
        while (owner := self._owner.setdefault(RUN, token)) is not token:
            if owner == token:
                raise ContextError(
                    "a context cannot be closed during its own run in the same thread; close it "
                    "after the run has returned"
                )
            if is_awaited_by(owner[0]):  # the run's profiler or a signal handler enqueued this one
                raise ContextError(
                    "this run waits for the end of another run of its context, in which the thread "
                    "waits for this one; create another context for a run that is started within "
                    "a run"
                )
            time.sleep(_POLL_S)  # rare: a synchronous run in another thread

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
        self._execute(call.plan, values, addresses, consumed)
        self._last_completed = call, values
        return values

    @override
    def close(self) -> None:
        if self._is_closed:
            return
        pending = self._pending
        if pending is not None:
            pending.wait()
        token = [get_ident()]
        try:
            self._acquire(token)
            self._close_segments()
            for allocation in self._allocations:
                allocation.close()
        finally:
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]


def _check_all(failures: deque[DeferredError]) -> None:
    """Raise the oldest failure that was not raised yet; the next call raises the one after it."""
    while failures:
        try:
            failure = failures.popleft()
        except IndexError:  # another thread took it
            return
        failure.check()


def _checked_stream(stream: object, event: object) -> tuple[CpuStream, CpuEvent | None]:
    """Return the CPU's native stream and event. Raises ContextError: one is of another kind."""
    queue, mark = native_stream(stream), native_event(event)
    if not isinstance(queue, CpuStream):
        raise ContextError(f"enqueue requires a smelt.Stream of the CPU, not {_describe(stream)}")
    if not isinstance(mark, CpuEvent | None):
        raise ContextError(
            f"input_consumed must be a smelt.Event of the CPU, not {_describe(event)}"
        )
    return queue, mark


def _describe(thing: object) -> str:
    name = type(thing).__name__
    return f"{name} of {thing.device}" if isinstance(thing, Stream | Event) else name


def _address(array: NDArray[Any] | int) -> tuple[int, NDArray[Any] | int]:
    """Return the address of an array for kernels, and the object that keeps it alive."""
    if isinstance(array, int):
        return array, array
    array = contiguous_array(array)
    return address_of(array), array


def _thread_count(threads: int | None) -> int:
    if threads is None:
        return default_thread_count()
    return require_int(threads, "threads", ContextError, least=1, most=_MAX_THREADS)

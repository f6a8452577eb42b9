"""Execution on a GPU: on the application's stream or our own, beside the host."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from math import prod
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaEvent,
    CudaMemory,
    CudaReservation,
    CudaStream,
    HostTask,
    PinnedAllocation,
    fill_memory,
    handle_of,
)
from smelt.errors import ContextError, DeviceError
from smelt.runtime._array_interop import array_from_value, exporter_for, trimmed, writable_array
from smelt.runtime._context import RUN, ExecutionContext
from smelt.runtime._cuda_array_interop import (
    CheckedAddresses,
    GpuArray,
    ResultMaker,
    check_selected,
    gpu_array,
    libraries_of,
)
from smelt.runtime._cuda_code import arena_of
from smelt.runtime._cuda_graph_segments import (
    CudaSegmentFactory,
    InputsConsumedEvent,
    PendingProfile,
)
from smelt.runtime._cuda_staging import CudaStaging
from smelt.runtime._index_errors import error_words
from smelt.runtime._nvtx import load_nvtx
from smelt.runtime._staging import Staging
from smelt.runtime._streams import native_event, native_stream
from smelt.types import evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import Binding
    from smelt.runtime._context import IndexedBinding
    from smelt.runtime._cuda_array_interop import ArrayLibrary
    from smelt.runtime._cuda_code import CudaCode
    from smelt.runtime._engine import Engine
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._segments import InputsConsumed
    from smelt.runtime._staging import StagedCall

_LOG = logging.getLogger(__name__)
_MAX_KNOWN: Final = 256
_THREADS_OWN: Final = 2
"""Handle of the default stream of whichever thread asks: two threads' are two streams."""


class CudaContext(ExecutionContext):
    """Runs an engine on one GPU."""

    def __init__(self, engine: Engine, code: CudaCode, tracker: AllocationTracker | None) -> None:
        self.threads = 1
        self.device = device = code.device
        with ExitStack() as made:
            arena = arena_of(code, CudaMemory(device, tracker))
            made.callback(arena.close)
            # Its work follows what the default stream does, where torch and others work unasked.
            self._stream = made.enter_context(CudaStream(device, follows_default=True))
            recorder = made.enter_context(CudaStream(device))
            self._done = CudaEvent(device, times=False)
            made.callback(self._done.close)
            if not isinstance(arena, CudaReservation):
                fill_memory(device, arena.address, arena.size_bytes, self._stream)
                self._stream.synchronize()
            self._gpu_staging = CudaStaging(device, tracker, arena)
            made.callback(self._gpu_staging.close)
            # Memory of the host: launches write there when there is an error, and only then.
            pinned = partial(PinnedAllocation, device, tag="error words")
            self._errors = error_words(code.header, pinned)
            if self._errors is not None:
                made.callback(self._errors.close)
            self._held = made.pop_all()
        self._machine = CudaSegmentFactory(
            device,
            code.kernels,
            recorder,
            self._stream,
            code.weights,
            code.header.layers,
            self._errors,
        )
        if any(plan.decided for plan in code.header.plans):
            self._machine.commit = self._gpu_staging.commit
        super().__init__(engine, code, self._machine, Staging(None, code.header))
        self._memories.arena = arena.address
        self._memories.errors = 0 if self._errors is None else self._errors.address
        self._ranges = load_nvtx()
        self._foreigners: dict[int, CudaStream] = {}
        self._known = CheckedAddresses(device)

    @override
    def reset(self) -> None:
        super().reset()
        self._last: int | None = None
        """Handle of the stream of the latest run, if that may be going on."""
        self._is_cut_off = False
        """Whether the latest run was begun and never finished: it may be going on."""
        self._kept: deque[tuple[CudaEvent, list[Any]]] = deque()
        """Arrays of runs that may be going on, and what says when they are done."""
        self._free: list[CudaEvent] = []
        self._timed: PendingProfile | None = None
        self._reporter: HostTask | None = None

    # ---- arrays

    @override
    def _input(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        found = gpu_array(value, binding, self._stream)
        return array_from_value(value, binding, dtype) if found is None else found

    @override
    def _output(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        found = gpu_array(value, binding, self._stream)
        return writable_array(value, binding, dtype) if found is None else found

    @override
    def _bind(self, batch_size: int, bindings: Sequence[Any]) -> tuple[StagedCall, list[Any]]:
        check_selected(self.device)
        ready, arrays = super()._bind(batch_size, bindings)
        for (_, binding, _), array in zip(self._ports, arrays, strict=True):
            if isinstance(array, int):
                self._known.check(binding, array)
        return ready, arrays

    # ---- by name

    @override
    def _compute(
        self,
        ready: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        wanted: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        previous = self.device.select()
        try:
            for index, _, _ in self._inputs:
                if isinstance(arrays[index], GpuArray):
                    name = self._ports[index][1].name
                    return self._compute_on_gpu(ready, arrays, inputs[name], wanted)
            return self._compute_to_host(ready, arrays, inputs, wanted)
        finally:
            self.device.restore(previous)

    def _compute_on_gpu(
        self, ready: StagedCall, arrays: list[Any], like: Any, wanted: Sequence[IndexedBinding]
    ) -> dict[str, Any]:
        """Results beside the inputs, in the order of their library's work.

        They are not waited for, unless launches may tell of indices out of range.
        """
        maker = ResultMaker(like, self.device)
        handle = maker.current_stream()
        stream = self._stream if handle is None else self._foreign(handle)
        made: dict[int, Any] = {}

        def make(index: int, binding: Binding, shape: Sequence[int]) -> int:
            made[index], address = maker.empty(binding, shape)
            return address

        for index, binding, _ in wanted:
            later = partial(make, index, binding)
            arrays[index] = later if ready.call.decided else later(ready.call.shapes[index])
        values = self._queue(ready, arrays, stream, None, maker.framework)
        # What is ordered on this very stream is given back in its order as well.
        own = maker.framework
        self._finish_queued(
            stream,
            [a for a in arrays if own is None or not isinstance(a, GpuArray) or a.framework != own],
            is_awaited=self._errors is not None,
        )
        if self._errors is not None:
            self._done.synchronize()
            self._errors.check()
            self._is_cut_off = False
        for other in libraries_of(arrays) - {own, None}:  # whose arrays may be written now
            assert other is not None  # noqa: S101  (left out above)
            self._foreign(other.current_stream(self.device)).wait(self._done)
        extents = ready.call.extents
        return {
            binding.name: maker.finish(
                made[index], [evaluate_dim(dim, values) for dim in extents[index]], stream
            )
            for index, binding, _ in wanted
        }

    def _compute_to_host(
        self,
        ready: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        wanted: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        """Results on the host."""
        shapes, extents = ready.call.shapes, ready.call.extents
        for index, _, dtype in wanted:
            arrays[index] = np.empty(shapes[index], dtype)
        values = self._queue(ready, arrays, self._stream, None)
        self._finish(arrays)
        results: dict[str, NDArray[Any]] = {
            binding.name: trimmed(extents[index], arrays[index], values)
            for index, binding, _ in wanted
        }
        for value in inputs.values():
            if (export := exporter_for(value)) is not None:
                return {b.name: export(results[b.name], b.dtype) for _, b, _ in wanted}
        return results

    # ---- by index

    @override
    def _execute_bound(self, ready: StagedCall, arrays: list[Any]) -> None:
        previous = self.device.select()
        try:
            self._queue(ready, arrays, self._stream, None)
            self._finish(arrays)
        finally:
            self.device.restore(previous)

    @override
    def enqueue(
        self, batch_size: int, bindings: Sequence[Any], stream: Any, input_consumed: Any = None
    ) -> None:
        queue = self._queue_of(stream)
        event = self._event_of(input_consumed)
        ready, arrays = self._bind(batch_size, bindings)
        token = [get_ident()]
        previous = self.device.select()
        try:
            self._enter(token)
            consumed = None if event is None else InputsConsumedEvent(event, queue)
            self._queue(ready, arrays, queue, consumed)
            self._finish_queued(queue, arrays)
        finally:
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]
            self.device.restore(previous)

    def _queue_of(self, stream: Any) -> CudaStream:
        found = native_stream(stream)
        if isinstance(found, CudaStream):
            if found.device is not self.device:
                raise ContextError(
                    f"the engine is bound to cuda:{self.device.index}, and the stream is "
                    f"cuda:{found.device.index}'s"
                )
            return found
        try:
            return self._foreign(handle_of(found))
        except DeviceError as error:
            raise ContextError(f"enqueue needs a stream: {error}") from error

    def _event_of(self, input_consumed: Any) -> CudaEvent | None:
        event = native_event(input_consumed)
        if not isinstance(event, CudaEvent | None):
            raise ContextError(
                f"input_consumed is a smelt.Event of cuda, not {type(input_consumed).__name__}"
            )
        if event is not None and event.device is not self.device:
            raise ContextError(
                f"the engine is bound to cuda:{self.device.index}, and input_consumed is "
                f"cuda:{event.device.index}'s"
            )
        return event

    def _foreign(self, handle: int) -> CudaStream:
        """Another library's stream."""
        stream = self._foreigners.get(handle)
        if stream is None:
            if len(self._foreigners) >= _MAX_KNOWN:
                self._foreigners.clear()
            stream = self._foreigners[handle] = CudaStream(self.device, handle)
        return stream

    # ---- one run

    def _queue(
        self,
        ready: StagedCall,
        arrays: list[Any],
        stream: CudaStream,
        consumed: InputsConsumedEvent | None,
        library: ArrayLibrary | None = None,
    ) -> dict[str, int]:
        """Queue a run on arrays and addresses by binding; return the symbols' values.

        Of an output that nobody asked for there is None; it stays on the GPU. A function makes the
        array on the GPU of an output whose shape the run decides, and gives its address.
        ``library`` is one whose current stream it is.

        Raises:
            IndexRangeError: a run that was queued before has met an index out of range.
        """
        self._await_failed_run()
        if self._errors is not None:
            self._check_queued(self._errors)
        self._machine.stream = stream
        self._gpu_staging.forget()
        self._follow(arrays, stream, library)
        self._is_cut_off = True  # until it is finished
        try:
            return self._queue_steps(ready, arrays, stream, consumed)
        except BaseException:
            self._gpu_staging.forget()
            with suppress(DeviceError):  # part of the run may be going on: the next waits for it
                self._note_end(stream, arrays)
            raise

    def _queue_steps(
        self,
        ready: StagedCall,
        arrays: list[Any],
        stream: CudaStream,
        consumed: InputsConsumedEvent | None,
    ) -> dict[str, int]:
        """Queue the copies and segments of a run."""
        call, is_decided = ready.call, bool(ready.call.decided)
        staged = self._gpu_staging.stage(self._ports, call, arrays, stream, self._wait_for_staging)
        addresses, commit = staged
        if self._gpu_staging.take_moved():
            self._await_report()
            self._forget_addresses()
        values = call.values.copy() if is_decided else call.values
        self._execute(call.plan, values, addresses, consumed)
        if consumed is not None:
            consumed.signal()
        for index, target, size in commit:
            shape, made = call.shapes[index], size
            if is_decided:
                shape = tuple([evaluate_dim(dim, values) for dim in call.extents[index]])
                made = prod(shape) * self._ports[index][1].dtype.size_bytes
            if callable(target):
                target = arrays[index] = target(shape)
            self._gpu_staging.download_output(index, target, size, made, stream)
        self._latest = call, values
        return values

    def _await_failed_run(self) -> None:
        """Wait for a run that failed or was interrupted, and forget what its launches told of."""
        if self._is_cut_off:
            self.device.call("cuStreamSynchronize", self._stream.handle)  # its end may be unnoted
            self._done.synchronize()
            if self._errors is not None:
                self._errors.forget()
            self._is_cut_off = False

    def _check_queued(self, errors: ErrorWords) -> None:
        """Raise what runs told of that were queued and have ended; nobody may have waited."""
        if self._last is not None and errors.are_set and self._done.query():
            errors.check()

    def _wait_for_staging(self) -> None:
        """Pinned memory is written anew only when the run before has read it."""
        if self._last is not None:
            self._done.synchronize()

    def _follow(self, arrays: list[Any], stream: CudaStream, library: ArrayLibrary | None) -> None:
        """Let the stream wait for the run before, and for what still writes the arrays."""
        handle = int(stream.handle)
        if self._last is not None and (self._last != handle or handle == _THREADS_OWN):
            stream.wait(self._done)
        for other in libraries_of(arrays) - {library}:
            rival = self._stream
            if other is not None:
                rival = self._foreign(other.current_stream(self.device))
            if int(rival.handle) != handle:
                ready = CudaEvent(self.device, times=False)
                ready.record(rival)
                stream.wait(ready)

    def _finish(self, arrays: list[Any]) -> None:
        """Wait until a run on the context's own stream is complete."""
        try:
            self._last = int(self._stream.handle)  # until it is known to have ended
            self._stream.synchronize()
        except BaseException:
            with suppress(DeviceError):  # it may be going on, and works on the arrays
                self._note_end(self._stream, arrays)
            raise
        self._last = None
        self._kept.clear()
        self._gpu_staging.deliver()
        if self._timed is not None:
            self._report_times(self._timed)
        if self._errors is not None:
            self._errors.check()
        self._is_cut_off = False

    def _finish_queued(
        self, stream: CudaStream, arrays: list[Any], *, is_awaited: bool = False
    ) -> None:
        """Note the end of a run that is queued; bring what the host waits for.

        With ``is_awaited`` the caller itself waits for the run, and hears what it tells of.
        """
        self._note_end(stream, arrays)
        if self._gpu_staging.has_pending_outputs:
            self._done.synchronize()  # not the stream, which raises what others' runs have met
            self._gpu_staging.deliver()
        if self._timed is not None:
            self._report_later(stream, self._timed)
        if self._errors is not None and not is_awaited:
            stream.follow(self._errors)
            self._errors.expect_check()
        self._is_cut_off = is_awaited

    def _note_end(self, stream: CudaStream, arrays: list[Any]) -> None:
        """Mark the end of what is queued; keep what it works on until then."""
        self._done.record(stream)
        self._last = int(stream.handle)
        self._keep_alive_until_done(stream, [a for a in arrays if not isinstance(a, int)])

    def _keep_alive_until_done(self, stream: CudaStream, arrays: list[Any]) -> None:
        """Let arrays live until what is queued now is done."""
        while self._kept and self._kept[0][0].query():
            self._free.append(self._kept.popleft()[0])
        if arrays:
            end = self._free.pop() if self._free else CudaEvent(self.device, times=False)
            end.record(stream)
            self._kept.append((end, arrays))

    # ---- profiling

    @override
    def _execute(
        self,
        number: int,
        values: dict[str, int],
        addresses: list[int],
        consumed: InputsConsumed | None,
    ) -> None:
        if self._ranges is None:
            super()._execute(number, values, addresses, consumed)
            return
        self._ranges.push_range(self._header.name)
        try:
            super()._execute(number, values, addresses, consumed)
        finally:
            self._ranges.pop_range()

    @override
    def _execute_watched(
        self,
        number: int,
        values: dict[str, int],
        addresses: list[int],
        consumed: InputsConsumed | None,
    ) -> None:
        segments, profiler = self._segments[number], self._profiler
        if profiler is not None:
            self._await_report()
        last = max((i for i, s in enumerate(segments) if s.reads_input), default=-1)
        for position, segment in enumerate(segments):
            self._machine.consumed = consumed if position == last else None
            segment.run(values, self._memories, addresses, timed=profiler is not None)
        self._machine.consumed = None
        if profiler is not None:
            self._timed = PendingProfile(number, profiler)

    def _report_times(self, timed: PendingProfile) -> None:
        """Report the times of a run once it is complete."""
        self._timed = None
        times: dict[int, float] = {}
        for segment in self._segments[timed.plan]:
            for layer, milliseconds in segment.milliseconds():
                times[layer] = times.get(layer, 0.0) + milliseconds
        self._report(timed.profiler, timed.plan, times)

    def _report_later(self, stream: CudaStream, timed: PendingProfile) -> None:
        """Report on another thread; whoever synchronizes our stream waits for that too."""
        self._timed = None
        self._reporter = reporter = HostTask(lambda: self._report_times(timed))
        stream.follow(reporter)

    def _await_report(self) -> None:
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.wait()

    @override
    def _use_new_weights(self) -> None:
        self._await_report()
        self._wait()  # what is queued reads the old ones
        self._machine.weights = self._code.weights
        super()._use_new_weights()

    # ---- the end

    def _wait(self) -> None:
        if self._last is not None:
            self._done.synchronize()

    @override
    def close(self) -> None:
        if self._is_closed:
            return
        token = [get_ident()]
        try:
            self._enter(token)
            try:
                self._await_failed_run()
                self._wait()
                self._await_report()
            except DeviceError as error:  # whoever waits for the run hears of it
                _LOG.debug("a context is closed after %s", error)
            self._close_segments()
            self._kept.clear()
            self._held.close()
        finally:
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]

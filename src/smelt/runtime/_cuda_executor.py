"""PlanExecutor of contexts on a GPU: runs on the application's stream or the context's own."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaEvent,
    CudaMemory,
    CudaStream,
    GpuArrayView,
    HostTask,
    PinnedAllocation,
    ReservedAddressRange,
    fill_memory,
    handle_of,
)
from smelt.errors import ContextError, DeviceError
from smelt.runtime._array_interop import trimmed
from smelt.runtime._cuda_array_interop import (
    CheckedAddresses,
    OutputAllocator,
    check_selected,
    gpu_array,
    libraries_of,
)
from smelt.runtime._cuda_graph_segments import (
    CudaSegmentFactory,
    InputsConsumedEvent,
    PendingProfile,
)
from smelt.runtime._cuda_staging import CudaStaging, allocate_arena
from smelt.runtime._index_errors import error_words
from smelt.runtime._nvtx import load_nvtx
from smelt.runtime._plan_executor import PlanExecutor, add_times, last_reader
from smelt.runtime._staging import Staging
from smelt.runtime._streams import native_event, native_stream
from smelt.types import evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import Binding
    from smelt.runtime._cuda_array_interop import ArrayLibrary
    from smelt.runtime._cuda_code import CudaCode
    from smelt.runtime._engine import Engine
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._plan_executor import NamedRun
    from smelt.runtime._segments import InputsConsumed
    from smelt.runtime._staging import StagedCall

_LOG = logging.getLogger(__name__)
_MAX_FOREIGN_STREAMS: Final = 256
"""Number of streams of other libraries that are remembered."""
_PER_THREAD_STREAM: Final = 2
"""Handle of the per-thread default stream (CU_STREAM_PER_THREAD): each thread has its own."""


class CudaExecutor(PlanExecutor):
    """Runs plans on one GPU."""

    def __init__(self, engine: Engine, code: CudaCode, tracker: AllocationTracker | None) -> None:
        self.threads, self.device = 1, (device := code.device)
        with ExitStack() as resources:
            arena = allocate_arena(code.header, CudaMemory(device, tracker))
            resources.callback(arena.close)
            # It synchronises with the default stream, which PyTorch and others use by default.
            self._stream = resources.enter_context(CudaStream(device, follows_default=True))
            recorder = resources.enter_context(CudaStream(device))
            copies = resources.enter_context(CudaStream(device)) if engine.partitions else None
            self._done = CudaEvent(device, times=False)
            resources.callback(self._done.close)
            if not isinstance(arena, ReservedAddressRange):
                fill_memory(device, arena.address, arena.size_bytes, self._stream)
                self._stream.synchronize()
            self._gpu_staging = CudaStaging(device, tracker, arena)
            resources.callback(self._gpu_staging.close)
            # Pinned host memory: launches write to it only when there is an error.
            pinned = partial(PinnedAllocation, device, tag="index error records")
            self._errors = errors = error_words(code.header, pinned)
            if errors is not None:
                resources.callback(errors.close)
            self._resources = resources.pop_all()
        self._factory = CudaSegmentFactory(
            device,
            code.kernels,
            recorder,
            self._stream,
            code.weights,
            code.header.layers,
            errors,
            copies=copies,
        )
        if any(plan.data_dependent_symbols for plan in code.header.plans):
            self._factory.commit = self._gpu_staging.commit
        super().__init__(engine, code, self._factory, Staging(None, code.header))
        self._memories.arena = arena.address
        self._memories.errors = 0 if errors is None else errors.address
        self._nvtx = load_nvtx()
        self._foreign_streams: dict[int, CudaStream] = {}
        self._checked_addresses = CheckedAddresses(device)

    @override
    def reset(self) -> None:
        super().reset()
        self._last: int | None = None
        """Handle of the stream of the last run; None if that run is complete."""
        self._is_unfinished = False
        """Whether the last run was interrupted or failed: parts of it may still be running."""
        self._kept_alive: deque[tuple[CudaEvent, list[Any]]] = deque()
        """Events at the ends of runs that may still be running, with the arrays of each run."""
        self._free_events: list[CudaEvent] = []
        self._pending_profile: PendingProfile | None = None
        self._reporter: HostTask | None = None

    # ---- arrays

    @override
    def array_of(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        array = gpu_array(value, binding, self._stream)
        return super().array_of(value, binding, dtype) if array is None else array

    @override
    def check_thread(self) -> None:
        check_selected(self.device)

    @override
    def check_address(self, binding: Binding, address: int) -> None:
        self._checked_addresses.check(binding, address)

    # ---- by name

    @override
    def run(self, run: NamedRun) -> dict[str, Any]:
        with self.device.selected():
            for index, binding, _ in self.indexed_bindings:
                if binding.is_input and isinstance(run.arrays[index], GpuArrayView):
                    return self._compute_on_gpu(run, run.inputs[binding.name])
            return self._compute_to_host(run)

    def _compute_on_gpu(self, run: NamedRun, like: Any) -> dict[str, Any]:
        """Run with results on the GPU, on the current stream of the inputs' library.

        The run is not waited for, unless launches may report indices out of range.
        """
        allocator = OutputAllocator(like, self.device)
        handle = allocator.current_stream()
        stream = self._stream if handle is None else self._foreign_stream(handle)
        call, arrays, results = run.staged_call.call, run.arrays, dict[int, Any]()

        def make(index: int, binding: Binding, shape: Sequence[int]) -> int:
            results[index], address = allocator.empty(binding, shape)
            return address

        for index, binding, _ in run.requested:
            empty = partial(make, index, binding)
            arrays[index] = empty if call.data_dependent_symbols else empty(call.shapes[index])
        values = self._enqueue_run(run.staged_call, arrays, stream, None, allocator.framework)
        # Memory of arrays of the same library is released in the order of its stream.
        own = allocator.framework
        self._finish_queued(
            stream,
            [a for a in arrays if own is None or getattr(a, "framework", None) is not own],
            is_awaited=self._errors is not None,
        )
        if self._errors is not None:
            self._done.synchronize()
            self._errors.check()
            self._is_unfinished = False
        for other in libraries_of(arrays) - {own, None}:  # they may reuse their arrays
            assert other is not None  # noqa: S101  (left out above)
            self._foreign_stream(other.current_stream(self.device)).wait(self._done)
        return {
            binding.name: allocator.finish(
                results[index], [evaluate_dim(dim, values) for dim in call.extents[index]], stream
            )
            for index, binding, _ in run.requested
        }

    def _compute_to_host(self, run: NamedRun) -> dict[str, Any]:
        """Run with results on the host."""
        call, arrays = run.staged_call.call, run.arrays
        for index, _, dtype in run.requested:
            arrays[index] = np.empty(call.shapes[index], dtype)
        values = self._enqueue_run(run.staged_call, arrays, self._stream, None)
        self._finish(arrays)
        results: dict[str, NDArray[Any]] = {
            binding.name: trimmed(call.extents[index], arrays[index], values)
            for index, binding, _ in run.requested
        }
        return run.exported(results)

    # ---- by index

    @override
    def execute(self, staged_call: StagedCall, arrays: list[Any]) -> None:
        with self.device.selected():
            self._enqueue_run(staged_call, arrays, self._stream, None)
            self._finish(arrays)

    @override
    def check_stream(
        self, stream: object, input_consumed: object
    ) -> tuple[CudaStream, CudaEvent | None]:
        return self._stream_of(stream), self._event_of(input_consumed)

    @override
    def enqueue(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        stream: CudaStream,
        event: CudaEvent | None,
    ) -> None:
        def work() -> None:
            consumed = None if event is None else InputsConsumedEvent(event, stream)
            self._enqueue_run(staged_call, arrays, stream, consumed)
            self._finish_queued(stream, arrays)

        with self.device.selected():
            self.lock.hold(work)

    def _stream_of(self, stream: Any) -> CudaStream:
        native = native_stream(stream)
        if isinstance(native, CudaStream):
            if native.device is not self.device:
                raise ContextError(
                    f"the engine is bound to cuda:{self.device.index}, but the stream is on "
                    f"cuda:{native.device.index}; create the stream on the engine's device"
                )
            return native
        try:
            return self._foreign_stream(handle_of(native))
        except DeviceError as error:
            raise ContextError(f"enqueue requires a stream: {error}") from error

    def _event_of(self, input_consumed: Any) -> CudaEvent | None:
        event = native_event(input_consumed)
        if not isinstance(event, CudaEvent | None):
            raise ContextError(
                "input_consumed must be a smelt.Event of a GPU, not "
                f"{type(input_consumed).__name__}"
            )
        if event is not None and event.device is not self.device:
            raise ContextError(
                f"the engine is bound to cuda:{self.device.index}, but input_consumed is on "
                f"cuda:{event.device.index}; create the event on the engine's device"
            )
        return event

    def _foreign_stream(self, handle: int) -> CudaStream:
        """Return a wrapper of another library's stream."""
        stream = self._foreign_streams.get(handle)
        if stream is None:
            if len(self._foreign_streams) >= _MAX_FOREIGN_STREAMS:
                self._foreign_streams.clear()
            stream = self._foreign_streams[handle] = CudaStream(self.device, handle)
        return stream

    # ---- one run

    def _enqueue_run(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        stream: CudaStream,
        consumed: InputsConsumedEvent | None,
        library: ArrayLibrary | None = None,
    ) -> dict[str, int]:
        """Enqueue a run on arrays and addresses by binding; return the symbol values.

        An entry of ``arrays`` is None for an output that is not requested. It is a function for an
        output with a data-dependent shape; the function allocates the array on the GPU and returns
        its address. ``library`` is the library whose current stream ``stream`` is.

        Raises:
            IndexRangeError: a run that was enqueued before met an index out of range.
        """
        self._wait_for_failed_run()
        if self._errors is not None:
            self._check_queued(self._errors)
        self._factory.stream = stream
        self._gpu_staging.drop_outputs()
        self._wait_for_arrays(arrays, stream, library)
        self._is_unfinished = True  # until it is finished
        try:
            return self._queue_steps(staged_call, arrays, stream, consumed)
        except BaseException:
            self._gpu_staging.drop_outputs()
            with suppress(DeviceError):  # part of the run may be running: the next run waits for it
                self._record_end(stream, arrays)
            raise

    def _queue_steps(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        stream: CudaStream,
        consumed: InputsConsumedEvent | None,
    ) -> dict[str, int]:
        """Enqueue the copies and segments of a run."""
        call, is_data_dependent = staged_call.call, bool(staged_call.call.data_dependent_symbols)
        self._memories.addresses, commit = self._gpu_staging.stage(
            self.indexed_bindings, call, arrays, stream, self._wait
        )
        if self._gpu_staging.poll_moved():
            self._wait_for_report()
            self._forget_addresses()
        values = call.values.copy() if is_data_dependent else call.values
        self._run_plan(call.plan, values, consumed)
        if consumed is not None:
            consumed.signal()
        for index, target, size in commit:
            shape, written_bytes = call.shapes[index], size
            if is_data_dependent:
                shape = tuple([evaluate_dim(dim, values) for dim in call.extents[index]])
                written_bytes = prod(shape) * self.indexed_bindings[index][1].dtype.size_bytes
            if callable(target):
                target = arrays[index] = target(shape)
            self._gpu_staging.download_output(index, target, size, written_bytes, stream)
        self.last_completed = call, values
        return values

    def _wait_for_failed_run(self) -> None:
        """Wait for a run that failed or was interrupted, and discard its index errors."""
        if self._is_unfinished:
            # Its end may not be recorded.
            self.device.call("cuStreamSynchronize", self._stream.handle)
            self._done.synchronize()
            if self._errors is not None:
                self._errors.forget()
            self._is_unfinished = False

    def _check_queued(self, errors: ErrorWords) -> None:
        """Raise an index error of an enqueued run that has ended."""
        if self._last is not None and errors.are_set and self._done.query():
            errors.check()

    def _wait_for_arrays(
        self, arrays: list[Any], stream: CudaStream, library: ArrayLibrary | None
    ) -> None:
        """Make the stream wait for the previous run and for pending writes to the arrays."""
        handle = int(stream.handle)
        if self._last is not None and (self._last != handle or handle == _PER_THREAD_STREAM):
            stream.wait(self._done)
        for other in libraries_of(arrays) - {library}:
            writer_stream = self._stream
            if other is not None:
                writer_stream = self._foreign_stream(other.current_stream(self.device))
            stream.wait_for(writer_stream)

    def _finish(self, arrays: list[Any]) -> None:
        """Wait until a run on the context's own stream is complete."""
        try:
            self._last = int(self._stream.handle)  # until it is known to be complete
            self._stream.synchronize()
        except BaseException:
            with suppress(DeviceError):  # it may still be running and use the arrays
                self._record_end(self._stream, arrays)
            raise
        self._last = None
        self._kept_alive.clear()
        self._gpu_staging.deliver()
        if self._pending_profile is not None:
            self._report_times(self._pending_profile)
        if self._errors is not None:
            self._errors.check()
        self._is_unfinished = False

    def _finish_queued(
        self, stream: CudaStream, arrays: list[Any], *, is_awaited: bool = False
    ) -> None:
        """Record the end of an enqueued run; deliver outputs on the host.

        With ``is_awaited`` the caller waits for the run and checks its index errors.
        """
        self._record_end(stream, arrays)
        if self._gpu_staging.has_pending_outputs:
            self._done.synchronize()  # not the stream: it raises other runs' errors
            self._gpu_staging.deliver()
        if self._pending_profile is not None:
            self._report_later(stream, self._pending_profile)
        if self._errors is not None and not is_awaited:
            stream.follow(self._errors)
            self._errors.expect_check()
        self._is_unfinished = is_awaited

    def _record_end(self, stream: CudaStream, arrays: list[Any]) -> None:
        """Record the end of the run and keep its arrays alive until then."""
        self._done.record(stream)
        self._last = int(stream.handle)
        self._keep_alive_until_done(stream, [a for a in arrays if not isinstance(a, int)])

    def _keep_alive_until_done(self, stream: CudaStream, arrays: list[Any]) -> None:
        """Keep arrays alive until the work that is enqueued now is complete."""
        free_events = self._free_events
        while self._kept_alive and self._kept_alive[0][0].query():
            free_events.append(self._kept_alive.popleft()[0])
        if arrays:
            end = free_events.pop() if free_events else CudaEvent(self.device, times=False)
            end.record(stream)
            self._kept_alive.append((end, arrays))

    # ---- profiling

    @override
    def _run_plan(
        self, number: int, values: dict[str, int], consumed: InputsConsumed | None
    ) -> None:
        if self._nvtx is None:
            super()._run_plan(number, values, consumed)
            return
        self._nvtx.push_range(self._header.name)
        try:
            super()._run_plan(number, values, consumed)
        finally:
            self._nvtx.pop_range()

    @override
    def _run_segments(
        self, number: int, values: dict[str, int], consumed: InputsConsumed | None
    ) -> None:
        segments, profiler = self._segments[number], self.profiler
        if profiler is not None:
            self._wait_for_report()
        last = last_reader(segments)
        for position, segment in enumerate(segments):
            self._factory.consumed = consumed if position == last else None
            segment.run(values, self._memories, timed=profiler is not None)
        self._factory.consumed = None
        if profiler is not None:
            self._pending_profile = PendingProfile(number, profiler)

    def _report_times(self, timed: PendingProfile) -> None:
        """Report the times of a run once it is complete."""
        self._pending_profile = None
        times: dict[int, float] = {}
        for segment in self._segments[timed.plan]:
            add_times(times, segment)
        self._report(timed.profiler, timed.plan, times)

    def _report_later(self, stream: CudaStream, timed: PendingProfile) -> None:
        """Report layer times on another thread; synchronising the stream also waits for it."""
        self._pending_profile = None
        self._reporter = reporter = HostTask(lambda: self._report_times(timed))
        stream.follow(reporter)

    def _wait_for_report(self) -> None:
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.wait()

    @override
    def _use_new_weights(self) -> None:
        self._wait_for_report()
        self._wait()  # enqueued runs read the old weights
        self._factory.weights = self._weights_holder.weights
        super()._use_new_weights()

    # ---- release

    def _wait(self) -> None:
        """Wait for the previous run, which reads pinned memory and weights."""
        if self._last is not None:
            self._done.synchronize()

    @override
    def close(self) -> None:
        try:
            self._wait_for_failed_run()
            self._wait()
            self._wait_for_report()
        except DeviceError as error:  # synchronising the stream raises it
            _LOG.debug("a context is closed after %s", error)
        self._close_segments()
        self._kept_alive.clear()
        self._resources.close()

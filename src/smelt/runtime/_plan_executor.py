"""``PlanExecutor``: runs plans for one context, with memory, segments and streams of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from numpy import ndarray

from smelt.engine import CachedRuntimeChecks
from smelt.runtime._array_interop import array_from_value, exporter_for, writable_array
from smelt.runtime._host_step_memory import MemoryMap
from smelt.runtime._plan_selection import call_from_values
from smelt.runtime._plan_splitter import split_plan
from smelt.runtime._run_lock import RunLock
from smelt.signal_errors import is_direct
from smelt.types import taken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from smelt.devices import AllocationTracker
    from smelt.devices.cpu import CompletionFlag, DeferredError
    from smelt.engine import Binding
    from smelt.runtime._engine import Engine
    from smelt.runtime._loaded_code import LoadedCode, LoadedWeights
    from smelt.runtime._plan_selection import ResolvedCall
    from smelt.runtime._segments import InputsConsumed, Segment, SegmentFactory
    from smelt.runtime._staging import StagedCall, Staging

    IndexedBinding = tuple[int, Binding, np.dtype[Any]]
    """A binding with its index and its dtype."""


class Profiler(Protocol):
    """Receives the time of each layer after every execution."""

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        """Receive the time of one layer of the optimised network."""
        ...


@dataclass(slots=True)
class NamedRun:
    """A run by name."""

    staged_call: StagedCall
    arrays: list[Any]
    """Array of each binding; None for an output. The run sets those of the outputs."""
    inputs: Mapping[str, Any]
    """Arrays that the application passed, by name."""
    requested: Sequence[IndexedBinding]
    """Outputs to return."""

    def exported(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return results as arrays of the first library among the inputs that is not numpy."""
        for value in self.inputs.values():
            if type(value) is not ndarray and (export := exporter_for(value)) is not None:
                return {b.name: export(results[b.name], b.dtype) for _, b, _ in self.requested}
        return results


class PlanExecutor(ABC):
    """Runs an engine's plans for one context on its device.

    The context checks arguments and selects the call; its executor converts arrays, runs the plan
    and waits for its results. There is one class for each kind of memory: the process's and a
    GPU's.
    """

    threads: int
    """Maximum number of host threads that a run uses."""

    def __init__(
        self, engine: Engine, code: LoadedCode, segment_factory: SegmentFactory, staging: Staging
    ) -> None:
        self._code = code  # keeps the machine code alive after the engine is closed
        self._weights_holder: LoadedCode | _PartitionWeights = code
        self._header = code.header
        self._segment_factory = segment_factory
        self.staging = staging
        self.profiler: Profiler | None = None
        self.indexed_bindings: list[IndexedBinding] = [
            (i, b, b.dtype.numpy) for i, b in enumerate(self._header.bindings)
        ]
        self.runtime_checks = [
            None if c is None else CachedRuntimeChecks(c) for c in engine.conditions
        ]
        self.last_completed: tuple[ResolvedCall, dict[str, int]] | None = None
        """The last completed run: its call, and the symbol values including those it determined."""
        self.lock: RunLock = RunLock()
        self._segments: dict[int, list[Segment]] = {}
        self._weights = code.weights
        self._memories = MemoryMap(0, self._weights.address)
        self.partitions: Sequence[PlanExecutor] = ()
        """PlanExecutor of each partition of the engine; `close` releases it as well."""
        self._submitted: tuple[dict[str, int], StagedCall] | None = None
        """Symbol values of the last `submit`, and its call."""
        self.reset()

    @property
    def current_weights(self) -> LoadedWeights:
        """The weights of the current run, or of the last one."""
        return self._weights

    def reset(self) -> None:
        """Discard the state of runs of other threads, which do not exist in a forked child."""
        self.lock.reset()
        self.enqueued: deque[CompletionFlag] = deque()
        """Completion flags of enqueued runs that need the lock; `deque` has atomic operations."""
        self.failures: deque[DeferredError] = deque()
        """Errors of such runs; each is raised by its stream or by the next call."""
        for partition in self.partitions:
            partition.reset()

    # ---- arrays

    def array_of(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """Return an input, or an output to be written, as an array that the device understands.

        Raises BindingError: the array cannot be used for the binding.
        """
        convert = array_from_value if binding.is_input else writable_array
        return convert(value, binding, dtype)

    def check_thread(self) -> None:
        """Check that the calling thread may pass bindings. Raises ContextError: it may not.

        Every thread may use the memory of its process.
        """
        return

    def check_address(self, binding: Binding, address: int) -> None:
        """Check an address of the application. Raises BindingError: the device cannot use it.

        Addresses of the process are not validated.
        """
        del binding, address

    # ---- runs

    def wait_for_enqueued(self) -> None:
        """Wait for enqueued runs that need the lock, before a call acquires it."""
        wait_for(list(self.enqueued))
        self.forget_completed()

    def forget_completed(self) -> None:
        """Remove the flags of the oldest enqueued runs that are complete."""
        enqueued = self.enqueued
        try:
            while enqueued and (flag := enqueued[0]).is_signaled:
                enqueued.remove(flag)  # not the first, which may be another one meanwhile
        except (IndexError, ValueError) as error:  # another thread removes them as well
            if not is_direct(error):
                raise

    def check_enqueued(self) -> None:
        """Wait as `wait_for_enqueued` does, and raise the error of an enqueued run."""
        self.wait_for_enqueued()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the oldest failure that was not raised yet; the next call raises the one after."""
        while (failure := taken(self.failures.popleft)) is not None:
            failure.check()

    @abstractmethod
    def run(self, run: NamedRun) -> dict[str, Any]:
        """Run on arrays by binding index; return new arrays of the requested outputs by name."""

    @abstractmethod
    def execute(self, staged_call: StagedCall, arrays: list[Any]) -> None:
        """Run on the application's memory and return when the outputs are complete."""

    def use_weights_of(self, whole: PlanExecutor, index: int) -> None:
        """Use the weights that a run of the whole engine uses; this one is its partition ``index``.

        A refit during the run must not change them: it would mix old and new weights.
        """
        self._weights_holder = _PartitionWeights(whole, index)

    def submit(self, values: Mapping[str, int], arrays: list[Any]) -> None:
        """Run the only plan on contiguous host arrays, for the engine that contains this one.

        Args:
            values: value of every symbol of that engine; the names of symbols are the same.
            arrays: an array for each binding.

        Raises:
            ShapeError: a guard or a check of the plan does not hold at these values.
            IndexRangeError: an index is out of range.
        """
        own = {name: values[name] for name, _, _ in self._header.plans[0].symbols}
        if self._submitted is None or self._submitted[0] != own:
            if (runtime_checks := self.runtime_checks[0]) is not None:
                runtime_checks.check(own)
            call = call_from_values(self._header, own)
            shapes = [array.shape for array in arrays]
            self._submitted = own, self.staging.staged_call(call, shapes)
        self.execute(self._submitted[1], arrays)

    @abstractmethod
    def check_stream(self, stream: object, input_consumed: object) -> tuple[Any, Any]:
        """Return the native stream and event. Raises ContextError: one is of another kind."""

    @abstractmethod
    def enqueue(self, staged_call: StagedCall, arrays: list[Any], stream: Any, event: Any) -> None:
        """Enqueue a run on the application's memory; stream and event are native."""

    @abstractmethod
    def close(self) -> None:
        """Release all memory after enqueued runs are complete; the caller holds the lock."""

    # ---- plans

    def _run_plan(
        self, number: int, values: dict[str, int], consumed: InputsConsumed | None
    ) -> None:
        """Run plan ``number``; values that the run determines are set in ``values``."""
        if self._weights is not self._weights_holder.weights:
            self._use_new_weights()
        segments = self._segments.get(number)
        if segments is None:
            plan, runtime_checks = self._header.plans[number], self.runtime_checks[number]
            segments = split_plan(plan, self._segment_factory, runtime_checks, self.partitions)
            self._segments[number] = segments
        if consumed is None and self.profiler is None and len(segments) == 1:
            segments[0].run(values, self._memories, timed=False)
        else:
            self._run_segments(number, values, consumed)

    def _run_segments(
        self, number: int, values: dict[str, int], consumed: InputsConsumed | None
    ) -> None:
        """Run a plan by segments, timed for a profiler or signalling when inputs are consumed."""
        segments, profiler = self._segments[number], self.profiler
        timed = profiler is not None
        times: dict[int, float] = {}
        last = last_reader(segments)
        for position, segment in enumerate(segments):
            segment.run(values, self._memories, timed=timed)
            if timed:
                add_times(times, segment)
            if consumed is not None and position == last:
                consumed.signal()
        if profiler is not None:
            self._report(profiler, number, times)

    def _report(self, profiler: Profiler, number: int, times: Mapping[int, float]) -> None:
        """Report each layer of the plan once; a layer without steps takes no time."""
        layers = self._header.layers
        if len(self._header.plans) == 1:
            layer_indices: Sequence[int] = range(len(layers))
        else:
            steps = self._header.plans[number].steps
            layer_indices = list(dict.fromkeys(step.layer for step in steps))
        for layer in layer_indices:
            profiler.report_layer_time(layers[layer].name, times.get(layer, 0.0))

    def _use_new_weights(self) -> None:
        """Switch to refitted weights.

        If it is interrupted, the next run repeats it; until then the old weights stay alive.
        """
        weights = self._weights_holder.weights
        self._memories.weights = weights.address
        self._forget_addresses()
        self._weights = weights

    def _forget_addresses(self) -> None:
        """Make segments evaluate addresses again."""
        for segments in self._segments.values():
            for segment in segments:
                segment.forget()

    def _close_segments(self) -> None:
        """Close all segments and partitions."""
        for segments in self._segments.values():
            for segment in segments:
                segment.close()
        self._segments.clear()
        for partition in self.partitions:
            partition.close()


def create_executor(
    engine: Engine, threads: int | None = None, tracker: AllocationTracker | None = None
) -> PlanExecutor:
    """Create the executor of a context, with that of the engine's partitions.

    Arguments and errors are those of `Engine.create_context`.
    """
    with ExitStack() as created:
        executor = engine.loaded_code.create_executor(engine, threads, tracker)
        created.callback(executor.close)
        partitions: list[PlanExecutor] = []
        executor.partitions = partitions  # closed with it
        for index, part in enumerate(engine.partitions):
            partitions.append(create_executor(part, threads, tracker))
            partitions[-1].use_weights_of(executor, index)
        created.pop_all()
    return executor


class _PartitionWeights:
    """Has the weights of a partition, among those of the run of the whole engine."""

    def __init__(self, whole: PlanExecutor, index: int) -> None:
        self._whole, self._index = whole, index

    @property
    def weights(self) -> LoadedWeights:
        return self._whole.current_weights.partitions[self._index]


def wait_for(flags: Sequence[CompletionFlag]) -> None:
    """Wait for the flags of submitted runs.

    A flag whose run is not submitted yet belongs to a call that a handler has interrupted, and that
    goes on only when the handler returns.
    """
    for flag in flags:
        if flag.is_awaited:
            flag.wait()


def last_reader(segments: Sequence[Segment]) -> int:
    """Return the position of the last segment that reads the application's inputs, or -1."""
    return max((i for i, segment in enumerate(segments) if segment.reads_input), default=-1)


def add_times(times: dict[int, float], segment: Segment) -> None:
    """Add the times of a segment's last run, in milliseconds, to those of the layers."""
    for layer, milliseconds in segment.milliseconds():
        times[layer] = times.get(layer, 0.0) + milliseconds

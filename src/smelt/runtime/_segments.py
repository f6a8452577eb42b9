"""Segments: a plan cut where the host must work, each ready to run on given memory.

Argument words are evaluated when symbol values change, and kept for the values met lately; from run
to run only the addresses of the application's arrays are written, and only when they are others.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from smelt.devices.cpu import Row, RunList
from smelt.devices.null import NullRunList
from smelt.engine import Launch, Space
from smelt.errors import InternalError, ShapeError
from smelt.ir import count_excess, evaluate
from smelt.runtime._index_errors import reports_index_errors
from smelt.types import evaluate_dim, one_file_of_formulas, symbols_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuMemory, NativeRuntime, Scratch, WorkerPool
    from smelt.engine import CachedRuntimeChecks, HostCall, LayerInfo, Plan, View
    from smelt.runtime._index_errors import ErrorWords
    from smelt.types import Dim

Check = Callable[[Mapping[str, int]], None]
"""Checks what depends on symbols that a step has just decided."""

MAX_CACHED_SHAPES: Final = 16
"""Sets of symbol values for which words are kept."""


@dataclass(slots=True)
class MemoryMap:
    """Where a context's memory is."""

    arena: int
    weights: int
    errors: int = 0
    """The error words, if there are any."""


class InputsConsumed(Protocol):
    """Hears that the inputs of a run are no longer needed."""

    def signal(self) -> None:
        """Take note."""
        ...


class Segment(Protocol):
    """A stretch of a plan, ready to run."""

    @property
    def reads_input(self) -> bool:
        """Whether it reads the application's inputs."""
        ...

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Run; ``addresses`` are the application's, by binding.

        Symbols that the results decide are set in ``values``. Who changes ``values`` or
        ``addresses`` afterwards passes others the next time.
        """
        ...

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return layers and times of the last timed run."""
        ...

    def forget(self) -> None:
        """Evaluate everything again: the memories have moved."""
        ...

    def close(self) -> None:
        """Give back what the segment holds."""
        ...


class SegmentFactory(Protocol):
    """What a device makes segments with."""

    def native(self, steps: Sequence[Launch], plan: Plan) -> Segment:
        """The launches as one segment."""
        ...

    def host(self, step: HostCall, plan: Plan, check: Check) -> Segment | None:
        """A step that Python does; None where nothing is done at all."""
        ...


class MemoryAccessor(Protocol):
    """How Python's steps reach the memory of a plan."""

    def load(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return the bytes at an address, as an object with a writable buffer."""
        ...

    def store(self, address: int, data: Any) -> None:
        """Put back what was loaded from an address, and changed."""
        ...


class HostMemoryAccessor:
    """The process's own memory: everything is changed where it is."""

    def load(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return the memory itself."""
        del space
        return memoryview((ctypes.c_uint8 * size_bytes).from_address(address))

    def store(self, address: int, data: Any) -> None:
        """Nothing: it is there."""


@dataclass(frozen=True, slots=True)
class CpuSegmentFactory:
    """What native segments for a processor are made with."""

    functions: Mapping[str, int]
    """Address of each kernel."""
    runtime: NativeRuntime
    pool: WorkerPool
    memory: CpuMemory
    threads: int
    scratch: Scratch
    layers: Sequence[LayerInfo] = ()
    """The engine's, for messages."""
    errors: ErrorWords | None = None
    """Where launches tell of indices out of range; None if nobody asks."""

    @property
    def milliseconds_per_tick(self) -> float:
        """Length of the ticks in which rows are timed."""
        return self.runtime.milliseconds_per_tick()

    def native(self, steps: Sequence[Launch], plan: Plan) -> Segment:
        """The launches as one segment."""
        segment = NativeSegment(steps, plan, self)
        if self.errors is not None and reports_index_errors(steps, plan):
            return CheckedSegment(segment, self.errors)
        return segment

    def host(self, step: HostCall, plan: Plan, check: Check) -> HostSegment:
        """A step that Python does."""
        return HostSegment(step, plan, HostMemoryAccessor(), check, self.layers)

    def run_list(self, steps: Sequence[Launch]) -> RunList:
        """The launches as a list for workers."""
        rows = [
            Row(self.functions[step.kernel.symbol], word_count(step), wait_for)
            for step, wait_for in zip(steps, dependency_counts(steps), strict=True)
        ]
        return RunList(
            rows,
            self.runtime,
            self.pool,
            self.memory,
            threads=self.threads,
            scratch=self.scratch,
            may_run_alone=True,
        )


class NullSegmentFactory:
    """What native segments that compute nothing are made with."""

    milliseconds_per_tick = 0.0

    def native(self, steps: Sequence[Launch], plan: Plan) -> NativeSegment:
        """The launches as one segment."""
        return NativeSegment(steps, plan, self)

    def host(self, step: HostCall, plan: Plan, check: Check) -> None:
        """Nothing."""

    def run_list(self, steps: Sequence[Launch]) -> NullRunList:
        """The launches as a list for nobody."""
        return NullRunList(sum(map(word_count, steps)), len(steps))


def word_count(step: Launch) -> int:
    """Argument words of a launch."""
    return len(step.operands) + len(step.scalars)


def dependency_counts(steps: Sequence[Launch]) -> list[int]:
    """Return for each launch how many of the launches must be complete before it starts."""
    found: list[int] = []
    for number, step in enumerate(steps):
        found.append(number if step.waits or not found else found[-1])
    return found


class ArgumentWords:
    """The argument words of a sequence of launches, as they follow from values and memories."""

    def __init__(self, steps: Sequence[Launch], plan: Plan) -> None:
        self.layers = [step.layer for step in steps]
        self._buffers = plan.buffers
        self._words: list[tuple[int, Dim]] = []
        """Buffer, or -1 for a scalar, and offset or value, of each argument word."""
        for step in steps:
            self._words += [(view.buffer, view.offset) for view in step.operands]
            self._words += [(-1, scalar) for scalar in step.scalars]
        self._chunks: list[Dim] = [step.chunks for step in steps]
        used = symbols_of(*(dim for _, dim in self._words), *self._chunks)
        self.symbols = sorted(used)
        self.input_positions = [
            position
            for position, (buffer, _) in enumerate(self._words)
            if buffer >= 0 and plan.buffers[buffer].space is Space.INPUT
        ]
        self.reads_input = bool(self.input_positions)
        self.positions: list[int] = []
        """Of the words that name the application's memory; until then they hold an offset."""
        self.bindings: list[int] = []
        """The binding of each of these."""
        for position, (buffer, _) in enumerate(self._words):
            if buffer < 0 or plan.buffers[buffer].space not in {Space.INPUT, Space.OUTPUT}:
                continue
            self.positions.append(position)
            self.bindings.append(plan.buffers[buffer].start)

    def __len__(self) -> int:
        return len(self._words)

    def evaluate(
        self, values: Mapping[str, int], memories: MemoryMap
    ) -> tuple[NDArray[np.int64], list[int]]:
        """Return every word, and every launch's number of chunks."""
        bases = {
            Space.ARENA: memories.arena,
            Space.WEIGHTS: memories.weights,
            Space.ERRORS: memories.errors,
        }
        words = np.zeros(len(self._words), np.int64)
        for position, (buffer, dim) in enumerate(self._words):
            base = 0
            if buffer >= 0 and self._buffers[buffer].space in bases:
                found = self._buffers[buffer]
                base = bases[found.space] + found.start
            words[position] = base + evaluate_dim(dim, values)
        return words, [evaluate_dim(chunks, values) for chunks in self._chunks]


class NativeSegment:
    """Launches that one foreign call runs."""

    def __init__(
        self,
        steps: Sequence[Launch],
        plan: Plan,
        segment_factory: CpuSegmentFactory | NullSegmentFactory,
    ) -> None:
        self._arguments = ArgumentWords(steps, plan)
        self._machinery = segment_factory
        self.reads_input = self._arguments.reads_input
        self._symbols = self._arguments.symbols
        self._list = segment_factory.run_list(steps)
        self._positions, self._bindings = self._arguments.positions, self._arguments.bindings
        self._offsets: list[int] = []
        self._kept: dict[tuple[int, ...], tuple[NDArray[np.int64], list[int]]] = {}
        self._values: tuple[int, ...] | None = None
        self._addresses: list[int] = []
        self._seen_values: Mapping[str, int] | None = None
        self._seen_addresses: list[int] = []
        """For what the list's words were last written; None for the values if it is unknown."""

    def forget(self) -> None:
        """Evaluate every word again: the memories have moved."""
        self._kept.clear()
        self._values = self._seen_values = None

    def run(
        self,
        values: Mapping[str, int],
        memories: MemoryMap,
        addresses: list[int],
        *,
        timed: bool,
    ) -> None:
        """Run the launches; ``addresses`` are the application's, by binding.

        Who changes ``values`` or ``addresses`` afterwards passes others the next time.
        """
        if values is not self._seen_values or addresses is not self._seen_addresses:
            self._prepare(values, memories, addresses)
        self._list.run(timed=timed)

    def _prepare(
        self, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> None:
        self._seen_values = None  # whatever interrupts the writing: it is not done
        key = tuple([values[name] for name in self._symbols])
        if key != self._values:
            self._use(key, values, memories)
        if addresses != self._addresses:
            self._addresses = []
            words = self._list.words
            rows = zip(self._positions, self._bindings, self._offsets, strict=True)
            for position, binding, offset in rows:
                words[position] = addresses[binding] + offset
            self._addresses = addresses
        self._seen_addresses = addresses
        self._seen_values = values

    def _use(self, key: tuple[int, ...], values: Mapping[str, int], memories: MemoryMap) -> None:
        if key not in self._kept:
            while len(self._kept) >= MAX_CACHED_SHAPES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = self._arguments.evaluate(values, memories)
        words, chunks = self._kept[key]
        self._values = None  # not this segment's until it is complete
        self._list.set_chunks(chunks)
        self._list.words[:] = words
        self._offsets = [int(words[position]) for position in self._positions]
        self._addresses = []
        self._values = key

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and time of each launch of the last timed run."""
        scale = self._machinery.milliseconds_per_tick
        return [
            (layer, ticks * scale)
            for layer, ticks in zip(self._arguments.layers, self._list.row_ticks(), strict=True)
        ]

    def close(self) -> None:
        """Give back what the segment holds."""
        self._list.close()


class CheckedSegment:
    """A segment whose launches may tell of an index out of range: that is raised at its end."""

    def __init__(self, segment: NativeSegment, errors: ErrorWords) -> None:
        self._segment, self._errors = segment, errors
        self.reads_input = segment.reads_input
        self.milliseconds, self.forget = segment.milliseconds, segment.forget
        self.close = segment.close

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Run the launches. Raises IndexRangeError: one of them has met an index out of range."""
        self._errors.begin()
        self._segment.run(values, memories, addresses, timed=timed)
        self._errors.check()


class HostSegment:
    """One step that Python does: the reference of an op on the plan's memory."""

    def __init__(
        self,
        step: HostCall,
        plan: Plan,
        memory_access: MemoryAccessor,
        check: Check,
        layers: Sequence[LayerInfo] = (),
    ) -> None:
        self.layer = step.layer
        self._memory_access = memory_access
        self._check = check
        self._step = step
        self._plan = plan
        # Most engines have no such step, and need not load what every op means.
        from smelt.ops import op_from_json

        self._op = op_from_json(step.op)
        self._where = str(layers[step.layer]) if layers else self._op.name
        self._milliseconds = 0.0
        views = [view for view in step.inputs if view is not None]
        self.reads_input = any(plan.buffers[v.buffer].space is Space.INPUT for v in views)

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Run the reference; symbols that its results decide are set in ``values``, and checked.

        Raises:
            ShapeError: a result is larger than the plan allows, the values that it decides violate
                a guard, or a result has another shape than its inputs' extents let expect.
            IndexRangeError: an index is out of range.
            GraphError: the reference fails on the inputs in another way.
        """
        start_ns = time.perf_counter_ns() if timed else 0
        inputs = [
            None if view is None else self._look(view, values, memories, addresses)[0]
            for view in self._step.inputs
        ]
        for array in inputs:
            if array is not None:
                array.flags.writeable = False
        results = evaluate(self._op, inputs, self._where, values)
        if len(results) < len(self._step.outputs):
            raise InternalError(f"{self._op.name} has {len(results)} results")
        self._decide(results, values)
        for view, result in zip(self._step.outputs, results, strict=False):
            target, address, memory = self._look(view, values, memories, addresses)
            if target.shape != result.shape or target.dtype != result.dtype:
                raise ShapeError(
                    f"the result is {result.dtype}{list(result.shape)} but the engine reserved "
                    f"memory "
                    f"for {target.dtype}{list(target.shape)}",
                    node=self._op.name,
                )
            target[...] = result
            self._memory_access.store(address, memory)
        if timed:
            self._milliseconds = (time.perf_counter_ns() - start_ns) / 1e6

    def _decide(self, results: Sequence[NDArray[Any]], values: dict[str, int]) -> None:
        """Set the symbols that the results decide, and check what depends on them."""
        for name, output, axis in self._step.sizes:
            size = int(results[output].shape[axis])
            if size > values[name]:  # until it is decided: what there is room for
                raise ShapeError(count_excess(name, size, values[name]), node=self._where)
            values[name] = size
        if self._step.sizes:
            self._check(values)

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and time of the last timed run."""
        return [(self.layer, self._milliseconds)]

    def forget(self) -> None:
        """Nothing depends on where the memories are."""

    def _look(
        self, view: View, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> tuple[NDArray[Any], int, Any]:
        """The view's elements, and the address and the bytes of its footprint."""
        buffer = self._plan.buffers[view.buffer]
        if buffer.space is Space.ARENA:
            start = memories.arena + buffer.start
        elif buffer.space is Space.WEIGHTS:
            start = memories.weights + buffer.start
        else:
            start = addresses[buffer.start]
        shape = [evaluate_dim(extent, values) for extent in view.shape]
        dtype = view.dtype.numpy
        if 0 in shape:
            return np.empty(shape, dtype), 0, b""
        low, high = view.footprint(values)
        strides = [evaluate_dim(stride, values) * dtype.itemsize for stride in view.strides]
        memory = self._memory_access.load(buffer.space, start + low, high - low)
        offset = evaluate_dim(view.offset, values) - low
        return np.ndarray(shape, dtype, memory, offset, strides), start + low, memory

    def close(self) -> None:
        """Give back what the segment holds: nothing."""


@one_file_of_formulas()
def split_plan(
    plan: Plan, segment_factory: SegmentFactory, verdicts: CachedRuntimeChecks | None = None
) -> list[Segment]:
    """Return the plan's segments, in order.

    Args:
        plan: what is cut.
        segment_factory: what a device makes segments with.
        verdicts: what checks the symbols that a step decides, before the next step runs; None for
            a plan that decides none.
    """
    segments: list[Segment] = []
    launches: list[Launch] = []

    def finish() -> None:
        if launches:
            segments.append(segment_factory.native(launches, plan))
            launches.clear()

    for number, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            launches.append(step)
            continue
        finish()
        check = _unchecked if verdicts is None else partial(verdicts.check, stage=number)
        if (segment := segment_factory.host(step, plan, check)) is not None:
            segments.append(segment)
    finish()
    return segments


def _unchecked(values: Mapping[str, int], /) -> None:
    """Refuse a plan that decides symbols where nobody can check them."""
    raise InternalError(
        f"no run-time check covers the symbols that a step decides: {sorted(values)}"
    )

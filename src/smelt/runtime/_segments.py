"""Segments: parts of a plan between host steps, prepared to run on the memory of a context.

Argument words are evaluated when symbol values change, and are cached for recent values. Between
runs, only addresses of the application's arrays are written, and only if they have changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from smelt.devices.cpu import Row, RunList
from smelt.devices.null import NullRunList
from smelt.engine import Launch, Space
from smelt.errors import ShapeError
from smelt.runtime._index_errors import reports_index_errors
from smelt.runtime._step_memory import HostMemoryAccessor
from smelt.types import evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuMemory, NativeRuntime, Scratch, WorkerPool
    from smelt.engine import LayerInfo, Plan
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._step_memory import MemoryAccessor, MemoryMap
    from smelt.types import Dim

MAX_CACHED_SHAPES: Final = 16
"""Number of sets of symbol values for which argument words are cached."""


class InputsConsumed(Protocol):
    """Is notified when the inputs of a run are no longer needed."""

    def signal(self) -> None:
        """Signal that the inputs may be changed."""
        ...


class Segment(Protocol):
    """A part of a plan, ready to run."""

    @property
    def reads_input(self) -> bool:
        """Whether the segment reads the application's inputs."""
        ...

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Run; ``addresses`` are those of the application's arrays, by binding.

        Symbols that the results determine are set in ``values``. A caller that changes ``values``
        or ``addresses`` afterwards must pass new objects to the next run.
        """
        ...

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layers and milliseconds of the last timed run."""
        ...

    def forget(self) -> None:
        """Discard cached addresses, because memory has moved."""
        ...

    def close(self) -> None:
        """Release the resources of the segment."""
        ...


class SegmentFactory(Protocol):
    """Creates the segments of a device."""

    @property
    def memory_access(self) -> MemoryAccessor | None:
        """Access of host steps to the memory of a plan; None if host steps are not executed."""
        ...

    @property
    def layers(self) -> Sequence[LayerInfo]:
        """Layers of the engine, for messages."""
        ...

    def native(self, steps: Sequence[Launch], plan: Plan) -> Segment:
        """Create a segment of launches."""
        ...

    def overlap(self) -> tuple[Segment, MemoryAccessor] | None:
        """Return a segment, and an access that waits for the steps before that segment only.

        The steps after the segment then run while the host works. None for a device whose steps
        the host runs itself.
        """
        ...


class HostRunList(Protocol):
    """Launches in the memory of the process, run by one caller at a time."""

    words: NDArray[np.int64]
    """Argument words of all launches, to be written between runs."""

    def set_chunks(self, chunks: Sequence[int]) -> None:
        """Set the number of chunks of each launch."""
        ...

    def run(self, *, timed: bool = False) -> None:
        """Run the launches in their order."""
        ...

    def row_ticks(self) -> list[int]:
        """Return the ticks of each launch of the last timed run."""
        ...

    def close(self) -> None:
        """Release the list."""
        ...


class RunListFactory(Protocol):
    """Creates run lists for `NativeSegment`."""

    @property
    def milliseconds_per_tick(self) -> float:
        """Milliseconds per tick of `HostRunList.row_ticks`."""
        ...

    def run_list(self, steps: Sequence[Launch]) -> HostRunList:
        """Create a run list of launches."""
        ...


@dataclass(frozen=True, slots=True)
class CpuSegmentFactory:
    """Creates the segments of a context on the CPU."""

    functions: Mapping[str, int]
    """Address of each kernel."""
    runtime: NativeRuntime
    pool: WorkerPool
    memory: CpuMemory
    threads: int
    scratch: Scratch
    layers: Sequence[LayerInfo] = ()
    """Layers of the engine, for messages."""
    errors: ErrorWords | None = None
    """Error words that launches write on indices out of range; None if they are not checked."""
    memory_access: MemoryAccessor = field(default_factory=HostMemoryAccessor)

    @property
    def milliseconds_per_tick(self) -> float:
        """Milliseconds per tick of the clock that times rows."""
        return self.runtime.milliseconds_per_tick()

    def native(self, steps: Sequence[Launch], plan: Plan) -> Segment:
        """Create a segment of launches."""
        segment = NativeSegment(steps, plan, self)
        if self.errors is not None and reports_index_errors(steps, plan):
            return CheckedSegment(segment, self.errors)
        return segment

    def overlap(self) -> None:
        """Return None: the host runs all steps."""

    def run_list(self, steps: Sequence[Launch]) -> HostRunList:
        """Create a run list of launches."""
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
    """Creates segments that compute nothing, for the null device."""

    milliseconds_per_tick = 0.0
    memory_access = None
    layers: Sequence[LayerInfo] = ()

    def native(self, steps: Sequence[Launch], plan: Plan) -> NativeSegment:
        """Create a segment of launches."""
        return NativeSegment(steps, plan, self)

    def overlap(self) -> None:
        """Return None: nothing runs."""

    def run_list(self, steps: Sequence[Launch]) -> NullRunList:
        """Create a run list that executes nothing."""
        return NullRunList(sum(map(word_count, steps)), len(steps))


def word_count(step: Launch) -> int:
    """Return the number of argument words of a launch."""
    return len(step.operands) + len(step.scalars)


def dependency_counts(steps: Sequence[Launch]) -> list[int]:
    """Return for each launch how many of the launches must be complete before it starts."""
    counts: list[int] = []
    for number, step in enumerate(steps):
        counts.append(number if step.waits or not counts else counts[-1])
    return counts


class ArgumentWords:
    """Argument words of a sequence of launches, as functions of symbol values and addresses."""

    def __init__(self, steps: Sequence[Launch], plan: Plan) -> None:
        self.layers = [step.layer for step in steps]
        self._buffers = plan.buffers
        self._words: list[tuple[int, Dim]] = []
        """Buffer index (-1 for a scalar) and offset or value of each argument word."""
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
        """Positions of the words that address bindings; `evaluate` sets them to offsets."""
        self.bindings: list[int] = []
        """Binding of each word in `positions`."""
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
            number = base + evaluate_dim(dim, values)
            if not -(1 << 63) <= number < 1 << 63:
                raise ShapeError(f"{dim} is {number} in this run, which does not fit into int64")
            words[position] = number
        return words, [evaluate_dim(chunks, values) for chunks in self._chunks]


class NativeSegment:
    """Launches that one native call runs."""

    def __init__(
        self,
        steps: Sequence[Launch],
        plan: Plan,
        segment_factory: RunListFactory,
    ) -> None:
        self._arguments = ArgumentWords(steps, plan)
        self._segment_factory = segment_factory
        self.reads_input = self._arguments.reads_input
        self._symbols = self._arguments.symbols
        self._list = segment_factory.run_list(steps)
        self._positions, self._bindings = self._arguments.positions, self._arguments.bindings
        self._offsets: list[int] = []
        self._cached_words: dict[tuple[int, ...], tuple[NDArray[np.int64], list[int]]] = {}
        self._values: tuple[int, ...] | None = None
        self._addresses: list[int] = []
        self._seen_values: Mapping[str, int] | None = None
        self._seen_addresses: list[int] = []
        """Arguments for which the words were last written; values are None if that was
        interrupted."""

    def forget(self) -> None:
        """Discard the cached words, because memory has moved."""
        self._cached_words.clear()
        self._values = self._seen_values = None

    def run(
        self,
        values: Mapping[str, int],
        memories: MemoryMap,
        addresses: list[int],
        *,
        timed: bool,
    ) -> None:
        """Run the launches; ``addresses`` are those of the application's arrays, by binding.

        A caller that changes ``values`` or ``addresses`` must pass new objects to the next run.
        """
        if values is not self._seen_values or addresses is not self._seen_addresses:
            self._write_words(values, memories, addresses)
        self._list.run(timed=timed)

    def _write_words(
        self, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> None:
        self._seen_values = None  # an interrupt from here on leaves the words incomplete
        key = tuple([values[name] for name in self._symbols])
        if key != self._values:
            self._load_words(key, values, memories)
        if addresses != self._addresses:
            self._addresses = []
            words = self._list.words
            rows = zip(self._positions, self._bindings, self._offsets, strict=True)
            for position, binding, offset in rows:
                words[position] = addresses[binding] + offset
            self._addresses = addresses
        self._seen_addresses = addresses
        self._seen_values = values

    def _load_words(
        self, key: tuple[int, ...], values: Mapping[str, int], memories: MemoryMap
    ) -> None:
        if key not in self._cached_words:
            while len(self._cached_words) >= MAX_CACHED_SHAPES:
                self._cached_words.pop(next(iter(self._cached_words)))
            self._cached_words[key] = self._arguments.evaluate(values, memories)
        words, chunks = self._cached_words[key]
        self._values = None  # unknown until all words are written
        self._list.set_chunks(chunks)
        self._list.words[:] = words
        self._offsets = [int(words[position]) for position in self._positions]
        self._addresses = []
        self._values = key

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and milliseconds of each launch of the last timed run."""
        scale = self._segment_factory.milliseconds_per_tick
        return [
            (layer, ticks * scale)
            for layer, ticks in zip(self._arguments.layers, self._list.row_ticks(), strict=True)
        ]

    def close(self) -> None:
        """Release the resources of the segment."""
        self._list.close()


class CheckedSegment:
    """A segment whose launches may report an index out of range, which is raised at its end."""

    def __init__(self, segment: NativeSegment, errors: ErrorWords) -> None:
        self._segment, self._errors = segment, errors
        self.reads_input = segment.reads_input
        self.milliseconds, self.forget = segment.milliseconds, segment.forget
        self.close = segment.close

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Run the launches. Raises IndexRangeError: a launch met an index out of range."""
        self._errors.begin()
        self._segment.run(values, memories, addresses, timed=timed)
        self._errors.check()

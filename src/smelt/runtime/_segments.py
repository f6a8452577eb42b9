"""Segments: parts of a plan between host steps, prepared to run on the memory of a context.

Argument words are evaluated when symbol values change, and are cached for recent values. Between
runs, only addresses of the application's arrays are written, and only if they have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from smelt.devices.cpu import RunList, RunListRow
from smelt.devices.null import NullRunList
from smelt.engine import Launch, Space
from smelt.errors import ShapeError
from smelt.runtime._host_step_memory import HostMemoryAccessor
from smelt.runtime._index_errors import reports_index_errors
from smelt.types import evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuMemory, NativeRuntime, Scratch, WorkerPool
    from smelt.engine import LayerInfo, Plan
    from smelt.runtime._host_step_memory import MemoryAccessor, MemoryMap
    from smelt.runtime._index_errors import ErrorWords
    from smelt.types import Dim

MAX_CACHED_SHAPES: Final = 16
"""Number of sets of symbol values for which argument words are cached."""


class InputsConsumed(Protocol):
    """Is notified when the inputs of a run are no longer needed."""

    def signal(self) -> None:
        """Signal that the inputs may be changed."""
        ...


class Segment(ABC):
    """A part of a plan, ready to run. By default it takes no time and has nothing to release."""

    reads_input: bool = False
    """Whether the segment reads the application's inputs."""

    @abstractmethod
    def run(self, values: dict[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Run.

        Symbols that the results determine are set in ``values``. A caller that changes ``values``
        or the addresses of the application's arrays must pass new objects to the next run.
        """

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layers and milliseconds of the last timed run."""
        return []

    def forget(self) -> None:
        """Discard cached addresses, because memory has moved."""
        return

    def close(self) -> None:
        """Release the resources of the segment."""
        return


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
        if self.errors is not None and reports_index_errors(steps, plan):
            return CheckedSegment(steps, plan, self, self.errors)
        return NativeSegment(steps, plan, self)

    def overlap(self) -> None:
        """Return None: the host runs all steps."""

    def run_list(self, steps: Sequence[Launch]) -> HostRunList:
        """Create a run list of launches."""
        rows = [
            RunListRow(self.functions[step.kernel.symbol], word_count(step), wait_for)
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
        self.input_positions: list[int] = []
        self.positions: list[int] = []
        """Positions of the words that address bindings; `evaluate` sets them to offsets."""
        self.bindings: list[int] = []
        """Binding of each word in `positions`."""
        for position, (buffer, _) in enumerate(self._words):
            space = None if buffer < 0 else plan.buffers[buffer].space
            if space in {Space.INPUT, Space.OUTPUT}:
                self.positions.append(position)
                self.bindings.append(plan.buffers[buffer].start)
            if space is Space.INPUT:
                self.input_positions.append(position)
        self.reads_input = bool(self.input_positions)

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


class NativeSegment(Segment):
    """Launches that one native call runs."""

    def __init__(
        self,
        steps: Sequence[Launch],
        plan: Plan,
        segment_factory: CpuSegmentFactory | NullSegmentFactory,
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

    def run(self, values: Mapping[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Run the launches.

        A caller that changes ``values`` or the addresses of the application's arrays must pass new
        objects to the next run.
        """
        if values is not self._seen_values or memories.addresses is not self._seen_addresses:
            self._write_words(values, memories)
        self._list.run(timed=timed)

    def _write_words(self, values: Mapping[str, int], memories: MemoryMap) -> None:
        self._seen_values = None  # an interrupt from here on leaves the words incomplete
        addresses = memories.addresses
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


class CheckedSegment(NativeSegment):
    """A segment whose launches may report an index out of range, which is raised at its end."""

    def __init__(
        self, steps: Sequence[Launch], plan: Plan, factory: CpuSegmentFactory, errors: ErrorWords
    ) -> None:
        super().__init__(steps, plan, factory)
        self._errors = errors

    def run(self, values: Mapping[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Run the launches. Raises IndexRangeError: a launch met an index out of range."""
        self._errors.begin()
        super().run(values, memories, timed=timed)
        self._errors.check()

"""Segments on a GPU: launches as a graph for each set of symbol values, Python's steps by copies.

A graph keeps the addresses that it was recorded with. The arena and the weights never move; where
the application's arrays are others than in the run before, the few launches that touch them are
given their words again, which costs far less than a copy or another recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaEvent,
    CudaLaunch,
    CudaRunList,
    RunGraph,
    copy_memory,
    groups_of,
)
from smelt.engine import Space
from smelt.runtime._segments import (
    MAX_CACHED_SHAPES,
    ArgumentWords,
    HostSegment,
    dependency_counts,
    word_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda import CudaDevice, CudaStream, LoadedCall, LoadedKernel
    from smelt.engine import HostCall, Launch, LayerInfo, Plan
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._loaded_code import LoadedWeights
    from smelt.runtime._segments import Check, InputsConsumed, MemoryMap


_MAX_RECORDED_GRAPHS: Final = 256


class InputsConsumedEvent:
    """Records an event once, when the inputs are read."""

    def __init__(self, event: CudaEvent, stream: CudaStream) -> None:
        """Take the event, and the stream in which it will be recorded."""
        self._event: CudaEvent | None = event
        self._stream = stream

    def signal(self) -> None:
        """Record it, if that is still to be done."""
        if self._event is not None:
            self._event.record(self._stream)
            self._event = None


@dataclass(frozen=True, slots=True)
class PendingProfile:
    """A profiled run whose times nobody has heard of yet."""

    plan: int
    profiler: Any


@dataclass(slots=True)
class CudaSegmentFactory:
    """What segments for one context on a GPU are made with."""

    device: CudaDevice
    kernels: Mapping[str, LoadedKernel | LoadedCall]
    recorder: CudaStream
    """Graphs are recorded on it; nothing runs there."""
    stream: CudaStream
    """Where the run that is going on is queued."""
    weights: LoadedWeights
    layers: Sequence[LayerInfo] = ()
    """The engine's, for messages."""
    errors: ErrorWords | None = None
    """Where launches tell of indices out of range, if any does and somebody asks."""
    consumed: InputsConsumed | None = None
    """Hears from the segment that runs next, once that has read the inputs."""
    commit: Callable[[int, int, CudaStream], None] | None = None
    """Gives memory to addresses and bytes, before what is queued next touches them; None where
    everything has memory from the start."""

    def native(self, steps: Sequence[Launch], plan: Plan) -> GraphSegment:
        """The launches as one segment."""
        return GraphSegment(steps, plan, self)

    def host(self, step: HostCall, plan: Plan, check: Check) -> HostSegment:
        """A step that Python does, on copies."""
        return HostSegment(step, plan, _CopiedMemoryAccess(self), check, self.layers)


class _CopiedMemoryAccess:
    """A GPU's memory through copies, in the order of the run's stream."""

    def __init__(self, segment_factory: CudaSegmentFactory) -> None:
        self._machinery = segment_factory

    def load(self, space: Space, address: int, size_bytes: int) -> NDArray[np.uint8]:
        segment_factory = self._machinery
        if space is Space.WEIGHTS:  # these are on the host as well
            start = address - segment_factory.weights.address
            return segment_factory.weights.bytes[start : start + size_bytes]
        if segment_factory.commit is not None:
            segment_factory.commit(address, size_bytes, segment_factory.stream)
        data = np.empty(size_bytes, np.uint8)
        stream = segment_factory.stream
        copy_memory(segment_factory.device, int(data.ctypes.data), address, size_bytes, stream)
        # Not by `synchronize`, which raises what runs of other contexts have met.
        segment_factory.device.call("cuStreamSynchronize", stream.handle)
        if segment_factory.errors is not None:  # what a reference would read is undefined
            segment_factory.errors.check()
        return data

    def store(self, address: int, data: Any) -> None:
        segment_factory = self._machinery
        if len(data):
            source = int(data.ctypes.data)
            copy_memory(segment_factory.device, address, source, len(data), segment_factory.stream)


_Key = tuple[range, bool, tuple[int, ...]]
"""Which rows, whether they are timed, and what a graph depends on: values of symbols, and addresses
that it cannot be given anew."""


@dataclass(slots=True)
class _RecordedGraph:
    """A graph, and the words that it has."""

    rows: CudaRunList
    graph: RunGraph
    offsets: list[int]
    """Of the words that name the application's memory."""
    addresses: list[int]
    """The application's, as the graph has them; [] when that is unknown."""
    marks: dict[int, CudaEvent]


class GraphSegment:
    """Launches that one graph runs; or two, where somebody waits for the inputs to be read."""

    def __init__(
        self, steps: Sequence[Launch], plan: Plan, segment_factory: CudaSegmentFactory
    ) -> None:
        self._machinery = segment_factory
        self._arguments = arguments = ArgumentWords(steps, plan)
        self.reads_input = arguments.reads_input
        counts = [word_count(step) for step in steps]
        self._rows = [
            CudaLaunch(segment_factory.kernels[step.kernel.symbol], words, wait_for, step.uses_pdl)
            for step, words, wait_for in zip(steps, counts, dependency_counts(steps), strict=True)
        ]
        owners = np.repeat(np.arange(len(steps)), counts)
        self._moving = [int(owners[position]) for position in arguments.positions]
        """The row of each word that names the application's memory."""
        named = zip(self._moving, arguments.bindings, strict=True)
        self._fixed = sorted(
            {b for row, b in named if not self._rows[row].kernel.can_update_in_graph}
        )
        """Bindings whose addresses a graph keeps: a library is called with them."""
        readers = [int(owners[position]) for position in arguments.input_positions]
        self._whole = range(len(steps))
        self._parts = _split(self._rows, max(readers, default=-1) + 1)
        """What reads the inputs, and the rest."""
        self._groups = groups_of(arguments.layers)
        self._views = [view for step in steps for view in step.operands]
        self._buffers = plan.buffers
        self._is_open = not plan.decided.keys().isdisjoint(arguments.symbols)
        """Whether the run itself decides what is launched: then most graphs would be used once."""
        self._kept: dict[_Key, _RecordedGraph] = {}
        self._met: set[_Key] = set()
        self._timed: _RecordedGraph | None = None

    def run(
        self, values: dict[str, int], memories: MemoryMap, addresses: list[int], *, timed: bool
    ) -> None:
        """Queue the launches; with ``timed`` one after another, each layer between two marks."""
        key = tuple([values[name] for name in self._arguments.symbols])
        if self._fixed:
            key += tuple([addresses[binding] for binding in self._fixed])
        consumed = self._machinery.consumed
        if timed or consumed is None or not self.reads_input:
            self._queue((self._whole, timed, key), values, memories, addresses)
            return
        for part in self._parts:
            self._queue((part, timed, key), values, memories, addresses)
            if part is self._parts[0]:
                consumed.signal()

    def _queue(
        self, key: _Key, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> None:
        recording = self._kept.get(key)
        if recording is None:
            if self._is_open and not key[1] and key not in self._met:
                self._launch_once(key, values, memories, addresses)
                return
            recording = self._record(key, values, memories, addresses)
        elif recording.addresses != addresses:
            self._back(values, memories, addresses)
            self._move(recording, addresses)
        recording.graph.launch(self._machinery.stream)
        if key[1]:
            self._timed = recording

    def _listed(
        self, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> tuple[CudaRunList, list[int]]:
        """The rows with their words, and what was where the application's addresses are now."""
        self._back(values, memories, addresses)
        words, blocks = self._arguments.evaluate(values, memories)
        positions = self._arguments.positions
        offsets = [int(words[position]) for position in positions]
        rows = zip(positions, self._arguments.bindings, offsets, strict=True)
        for position, binding, offset in rows:
            words[position] = addresses[binding] + offset
        return CudaRunList(self._rows, words, blocks), offsets

    def _back(self, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]) -> None:
        """Let everything that the launches touch have memory."""
        commit = self._machinery.commit
        if commit is None:
            return
        for view in self._views:
            buffer = self._buffers[view.buffer]
            if buffer.space is Space.ARENA:
                start = memories.arena + buffer.start
            elif buffer.space is Space.OUTPUT:
                start = addresses[buffer.start]
            else:
                continue
            low, high = view.footprint(values)
            commit(start + low, high - low, self._machinery.stream)

    def _launch_once(
        self, key: _Key, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> None:
        if len(self._met) >= _MAX_RECORDED_GRAPHS:
            self._met.clear()
        self._met.add(key)
        rows, _ = self._listed(values, memories, addresses)
        for row in key[0]:
            rows.launch(row, self._machinery.stream)

    def _record(
        self, key: _Key, values: Mapping[str, int], memories: MemoryMap, addresses: list[int]
    ) -> _RecordedGraph:
        while len(self._kept) >= MAX_CACHED_SHAPES:
            self._kept.pop(next(iter(self._kept))).graph.close()
        rows, offsets = self._listed(values, memories, addresses)
        part, timed, _ = key
        marks: dict[int, CudaEvent] | None = None
        if timed:
            places = [first for _, first, _ in self._groups] + [len(self._rows)]
            marks = {place: CudaEvent(self._machinery.device) for place in places}
        updatable_rows = {row for row in self._moving if self._rows[row].kernel.can_update_in_graph}
        graph = RunGraph(
            rows, self._machinery.recorder, part=part, updatable_rows=updatable_rows, marks=marks
        )
        self._kept[key] = found = _RecordedGraph(
            rows, graph, offsets, addresses.copy(), marks or {}
        )
        return found

    def _move(self, recording: _RecordedGraph, addresses: list[int]) -> None:
        """Give the launches that touch the application's memory its new addresses."""
        recording.addresses = []
        words, changed = recording.rows.words, set[int]()
        places = zip(
            self._arguments.positions,
            self._arguments.bindings,
            recording.offsets,
            self._moving,
            strict=True,
        )
        for position, binding, offset, row in places:
            wanted = addresses[binding] + offset
            if words[position] != wanted:
                words[position] = wanted
                changed.add(row)
        for row in changed:
            recording.graph.move(row)
        recording.addresses = addresses.copy()

    def milliseconds(self) -> list[tuple[int, float]]:
        """Wait for the last timed run, and return the layer and time of each stretch of a layer."""
        if self._timed is None:
            return []
        marks = self._timed.marks
        marks[len(self._rows)].synchronize()
        return [(layer, marks[first].elapsed(marks[last])) for layer, first, last in self._groups]

    def forget(self) -> None:
        """Record everything again: the memories have moved."""
        self.close()

    def close(self) -> None:
        """Let the graphs go."""
        for recording in self._kept.values():
            recording.graph.close()
        self._kept.clear()
        self._met.clear()
        self._timed = None


def _split(rows: Sequence[CudaLaunch], count: int) -> tuple[range, ...]:
    """The rows in two: so many at least, up to one that waits for all before it, and the rest."""
    while count < len(rows) and rows[count].wait_for != count:
        count += 1
    return tuple(part for part in (range(count), range(count, len(rows))) if part)

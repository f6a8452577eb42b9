"""Segments on a GPU: one CUDA graph per set of symbol values, and host steps by copies.

A graph keeps the addresses with which it was recorded. The arena and the weights never move. When
the application passes other arrays than in the previous run, the arguments of the few launches
that use them are updated, which costs far less than a copy or a new recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaEvent,
    CudaLaunch,
    CudaRunList,
    RunListGraph,
    copy_memory,
    groups_of,
)
from smelt.engine import Space
from smelt.runtime._segments import (
    MAX_CACHED_SHAPES,
    ArgumentWords,
    Segment,
    dependency_counts,
    word_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda import CudaDevice, CudaStream, LoadedCall, LoadedKernel
    from smelt.engine import Launch, LayerInfo, Plan
    from smelt.runtime._host_step_memory import MemoryMap
    from smelt.runtime._index_errors import ErrorWords
    from smelt.runtime._loaded_code import LoadedWeights
    from smelt.runtime._segments import InputsConsumed


_MAX_RECORDED_GRAPHS: Final = 256
"""Number of keys that are remembered as seen once, before a graph is recorded for them."""


class InputsConsumedEvent:
    """Records an event once, when the inputs have been read."""

    def __init__(self, event: CudaEvent, stream: CudaStream) -> None:
        """Store the event and the stream on which it will be recorded."""
        self._event: CudaEvent | None = event
        self._stream = stream

    def signal(self) -> None:
        """Record the event, unless it was recorded before."""
        if self._event is not None:
            self._event.record(self._stream)
            self._event = None


@dataclass(frozen=True, slots=True)
class PendingProfile:
    """A profiled run whose times have not been reported yet."""

    plan: int
    profiler: Any


@dataclass(slots=True)
class CudaSegmentFactory:
    """Creates the segments of one context on a GPU, and holds the state that they share."""

    device: CudaDevice
    kernels: Mapping[str, LoadedKernel | LoadedCall]
    recorder: CudaStream
    """Stream on which graphs are recorded; no work runs on it."""
    stream: CudaStream
    """Stream of the current run."""
    weights: LoadedWeights
    layers: Sequence[LayerInfo] = ()
    """Layers of the engine, for messages."""
    errors: ErrorWords | None = None
    """Error words that launches write on indices out of range; None if they are not checked."""
    consumed: InputsConsumed | None = None
    """Signalled by the next segment when it has read the inputs."""
    commit: Callable[[int, int, CudaStream], None] | None = None
    """Commits memory to an address range before launches use it; None if all memory is committed
    from the start."""
    copies: CudaStream | None = None
    """Stream for copies to the host while launches run; None if no step submits a partition."""

    def native(self, steps: Sequence[Launch], plan: Plan) -> GraphSegment:
        """Create a segment of launches."""
        return GraphSegment(steps, plan, self)

    @property
    def memory_access(self) -> _GpuMemoryAccessor:
        """Access of host steps, which work on copies."""
        return _GpuMemoryAccessor(self)

    def overlap(self) -> tuple[EventSegment, _GpuMemoryAccessor] | None:
        """Return a segment that records an event, and an access that waits for the event only."""
        if self.copies is None:
            return None
        event = CudaEvent(self.device, times=False)
        return EventSegment(event, self), _GpuMemoryAccessor(self, event)


class _GpuMemoryAccessor:
    """Access to GPU memory by copies in the order of the run's stream."""

    def __init__(self, segment_factory: CudaSegmentFactory, event: CudaEvent | None = None) -> None:
        """With an event, reads wait only for what it was recorded behind."""
        self._segment_factory = segment_factory
        self._event = event

    def load(self, space: Space, address: int, size_bytes: int) -> NDArray[np.uint8]:
        segment_factory = self._segment_factory
        if space is Space.WEIGHTS:  # a copy of the weights is on the host
            start = address - segment_factory.weights.address
            return segment_factory.weights.bytes[start : start + size_bytes]
        if segment_factory.commit is not None:
            segment_factory.commit(address, size_bytes, segment_factory.stream)
        data = np.empty(size_bytes, np.uint8)
        stream = segment_factory.stream
        if self._event is not None and segment_factory.copies is not None:
            stream = segment_factory.copies
            stream.wait(self._event)
        copy_memory(segment_factory.device, int(data.ctypes.data), address, size_bytes, stream)
        # Not `synchronize`, which would raise errors of other contexts' runs.
        segment_factory.device.call("cuStreamSynchronize", stream.handle)
        if segment_factory.errors is not None:  # after an index error, the data are undefined
            segment_factory.errors.check()
        return data

    def allocate(self, space: Space, address: int, size_bytes: int) -> NDArray[np.uint8]:
        del space  # only the arena and outputs are written
        segment_factory = self._segment_factory
        if segment_factory.commit is not None:
            segment_factory.commit(address, size_bytes, segment_factory.stream)
        return np.zeros(size_bytes, np.uint8)

    def store(self, address: int, data: Any) -> None:
        segment_factory = self._segment_factory
        if len(data):
            source = int(data.ctypes.data)
            copy_memory(segment_factory.device, address, source, len(data), segment_factory.stream)


class EventSegment(Segment):
    """Records an event behind the steps before it, for a host step that needs only these."""

    def __init__(self, event: CudaEvent, segment_factory: CudaSegmentFactory) -> None:
        self._event, self._segment_factory = event, segment_factory

    def run(self, values: dict[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Record the event on the stream of the run."""
        del values, memories, timed
        self._event.record(self._segment_factory.stream)

    def close(self) -> None:
        """Release the event."""
        self._event.close()


_Key = tuple[range, bool, tuple[int, ...]]
"""Key of a graph: its rows, whether they are timed, symbol values, and addresses that cannot be
updated in the graph."""


@dataclass(slots=True)
class _RecordedGraph:
    """A recorded graph with its argument words."""

    rows: CudaRunList
    graph: RunListGraph
    offsets: list[int]
    """Offsets of the words that hold addresses of the application's arrays."""
    addresses: list[int]
    """Addresses of the application's arrays in the graph; [] if an update was interrupted."""
    timing_events: dict[int, CudaEvent]


class GraphSegment(Segment):
    """Launches in one graph, or in two if an event is recorded once the inputs have been read."""

    def __init__(
        self, steps: Sequence[Launch], plan: Plan, segment_factory: CudaSegmentFactory
    ) -> None:
        self._segment_factory = segment_factory
        self._arguments = arguments = ArgumentWords(steps, plan)
        self.reads_input = arguments.reads_input
        counts = [word_count(step) for step in steps]
        self._rows = [
            CudaLaunch(segment_factory.kernels[step.kernel.symbol], words, wait_for, step.uses_pdl)
            for step, words, wait_for in zip(steps, counts, dependency_counts(steps), strict=True)
        ]
        owners = np.repeat(np.arange(len(steps)), counts)
        self._binding_rows = [int(owners[position]) for position in arguments.positions]
        """Row of each word that holds an address of the application's arrays."""
        row_bindings = zip(self._binding_rows, arguments.bindings, strict=True)
        self._fixed_bindings = sorted(
            {b for row, b in row_bindings if not self._rows[row].kernel.can_update_in_graph}
        )
        """Bindings whose addresses are fixed in a graph because a library call uses them."""
        readers = [int(owners[position]) for position in arguments.input_positions]
        self._all_rows = range(len(steps))
        self._row_ranges = _split(self._rows, max(readers, default=-1) + 1)
        """Rows that read the inputs, and the remaining rows."""
        self._groups = groups_of(arguments.layers)
        self._views = [view for step in steps for view in step.operands]
        self._buffers = plan.buffers
        self._is_data_dependent = not plan.data_dependent_symbols.keys().isdisjoint(
            arguments.symbols
        )
        """Whether launches depend on data-dependent sizes: most graphs would then be used once."""
        self._graphs: dict[_Key, _RecordedGraph] = {}
        self._seen_keys: set[_Key] = set()
        self._timed_graph: _RecordedGraph | None = None

    def run(self, values: dict[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Enqueue the launches; with ``timed`` serially, each layer between two timing events."""
        key = tuple([values[name] for name in self._arguments.symbols])
        if self._fixed_bindings:
            key += tuple([memories.addresses[binding] for binding in self._fixed_bindings])
        consumed = self._segment_factory.consumed
        if timed or consumed is None or not self.reads_input:
            self._queue((self._all_rows, timed, key), values, memories)
            return
        for part in self._row_ranges:
            self._queue((part, timed, key), values, memories)
            if part is self._row_ranges[0]:
                consumed.signal()

    def _queue(self, key: _Key, values: Mapping[str, int], memories: MemoryMap) -> None:
        """Launch the graph of a key; record it or update its addresses first if necessary."""
        recording = self._graphs.get(key)
        if recording is None:
            if self._is_data_dependent and not key[1] and key not in self._seen_keys:
                self._launch_once(key, values, memories)
                return
            recording = self._record(key, values, memories)
        elif recording.addresses != memories.addresses:
            self._commit_memory(values, memories)
            self._update_addresses(recording, memories.addresses)
        recording.graph.launch(self._segment_factory.stream)
        if key[1]:
            self._timed_graph = recording

    def _evaluate_rows(
        self, values: Mapping[str, int], memories: MemoryMap
    ) -> tuple[CudaRunList, list[int]]:
        """Evaluate the rows; return them with the offsets of words that address the bindings."""
        self._commit_memory(values, memories)
        words, blocks = self._arguments.evaluate(values, memories)
        positions = self._arguments.positions
        offsets = [int(words[position]) for position in positions]
        rows = zip(positions, self._arguments.bindings, offsets, strict=True)
        for position, binding, offset in rows:
            words[position] = memories.addresses[binding] + offset
        return CudaRunList(self._rows, words, blocks), offsets

    def _commit_memory(self, values: Mapping[str, int], memories: MemoryMap) -> None:
        """Commit memory to everything that the launches access."""
        commit = self._segment_factory.commit
        if commit is None:
            return
        for view in self._views:
            buffer = self._buffers[view.buffer]
            if buffer.space in {Space.ARENA, Space.OUTPUT}:
                low, high = view.footprint(values)
                commit(memories.start(buffer) + low, high - low, self._segment_factory.stream)

    def _launch_once(self, key: _Key, values: Mapping[str, int], memories: MemoryMap) -> None:
        """Launch the rows without a graph and remember the key."""
        if len(self._seen_keys) >= _MAX_RECORDED_GRAPHS:
            self._seen_keys.clear()
        self._seen_keys.add(key)
        rows, _ = self._evaluate_rows(values, memories)
        for row in key[0]:
            rows.launch(row, self._segment_factory.stream)

    def _record(self, key: _Key, values: Mapping[str, int], memories: MemoryMap) -> _RecordedGraph:
        """Record a graph for a key; the oldest graph is closed if there are too many."""
        while len(self._graphs) >= MAX_CACHED_SHAPES:
            self._graphs.pop(next(iter(self._graphs))).graph.close()
        rows, offsets = self._evaluate_rows(values, memories)
        part, timed, _ = key
        timing_events: dict[int, CudaEvent] | None = None
        if timed:
            boundaries = [first for _, first, _ in self._groups] + [len(self._rows)]
            timing_events = {row: CudaEvent(self._segment_factory.device) for row in boundaries}
        updatable_rows = {
            row for row in self._binding_rows if self._rows[row].kernel.can_update_in_graph
        }
        graph = RunListGraph(
            rows,
            self._segment_factory.recorder,
            part=part,
            updatable_rows=updatable_rows,
            timing_events=timing_events,
        )
        self._graphs[key] = recording = _RecordedGraph(
            rows, graph, offsets, memories.addresses.copy(), timing_events or {}
        )
        return recording

    def _update_addresses(self, recording: _RecordedGraph, addresses: list[int]) -> None:
        """Update the arguments of launches that use the application's arrays."""
        recording.addresses = []
        words, changed = recording.rows.words, set[int]()
        entries = zip(
            self._arguments.positions,
            self._arguments.bindings,
            recording.offsets,
            self._binding_rows,
            strict=True,
        )
        for position, binding, offset, row in entries:
            address = addresses[binding] + offset
            if words[position] != address:
                words[position] = address
                changed.add(row)
        for row in changed:
            recording.graph.update_node_params(row)
        recording.addresses = addresses.copy()

    def milliseconds(self) -> list[tuple[int, float]]:
        """Wait for the last timed run; return the layer and milliseconds of each run of rows."""
        if self._timed_graph is None:
            return []
        timing_events = self._timed_graph.timing_events
        timing_events[len(self._rows)].synchronize()
        return [
            (layer, timing_events[first].elapsed(timing_events[last]))
            for layer, first, last in self._groups
        ]

    def forget(self) -> None:
        """Discard all graphs, because memory has moved."""
        self.close()

    def close(self) -> None:
        """Release the graphs."""
        for recording in self._graphs.values():
            recording.graph.close()
        self._graphs.clear()
        self._seen_keys.clear()
        self._timed_graph = None


def _split(rows: Sequence[CudaLaunch], count: int) -> tuple[range, ...]:
    """Split rows into two ranges; the second starts at a row that waits for all rows before it."""
    while count < len(rows) and rows[count].wait_for != count:
        count += 1
    return tuple(part for part in (range(count), range(count, len(rows))) if part)

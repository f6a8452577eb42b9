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
    CudaRow,
    CudaRunList,
    RunGraph,
    copy_memory,
    groups_of,
)
from smelt.engine import Space
from smelt.runtime._segments import (
    KEPT_SHAPES,
    ArgumentWords,
    HostSegment,
    waits_of,
    word_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda import CudaDevice, CudaStream, LoadedCall, LoadedKernel
    from smelt.engine import HostCall, Launch, LayerInfo, Plan
    from smelt.runtime._code import LoadedWeights
    from smelt.runtime._errors import ErrorWords
    from smelt.runtime._segments import Check, Consumption, Memories


_MOST_MET: Final = 256


class Consumed:
    """Records an event once, when the inputs are read."""

    def __init__(self, event: CudaEvent, stream: CudaStream) -> None:
        """Take the event, and the stream in which it will be recorded."""
        self._event: CudaEvent | None = event
        self._stream = stream

    def reach(self) -> None:
        """Record it, if that is still to be done."""
        if self._event is not None:
            self._event.record(self._stream)
            self._event = None


@dataclass(frozen=True, slots=True)
class Timed:
    """A profiled run whose times nobody has heard of yet."""

    plan: int
    profiler: Any


@dataclass(slots=True)
class CudaMachinery:
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
    consumed: Consumption | None = None
    """Hears from the segment that runs next, once that has read the inputs."""
    back: Callable[[int, int, CudaStream], None] | None = None
    """Gives memory to addresses and bytes, before what is queued next touches them; None where
    everything has memory from the start."""

    def native(self, steps: Sequence[Launch], plan: Plan) -> GraphSegment:
        """The launches as one segment."""
        return GraphSegment(steps, plan, self)

    def host(self, step: HostCall, plan: Plan, check: Check) -> HostSegment:
        """A step that Python does, on copies."""
        return HostSegment(step, plan, _CopyReach(self), check, self.layers)


class _CopyReach:
    """A GPU's memory through copies, in the order of the run's stream."""

    def __init__(self, machinery: CudaMachinery) -> None:
        self._machinery = machinery

    def load(self, space: Space, address: int, size_bytes: int) -> NDArray[np.uint8]:
        machinery = self._machinery
        if space is Space.WEIGHTS:  # these are on the host as well
            start = address - machinery.weights.address
            return machinery.weights.bytes[start : start + size_bytes]
        if machinery.back is not None:
            machinery.back(address, size_bytes, machinery.stream)
        data = np.empty(size_bytes, np.uint8)
        stream = machinery.stream
        copy_memory(machinery.device, int(data.ctypes.data), address, size_bytes, stream)
        # Not by `synchronize`, which raises what runs of other contexts have met.
        machinery.device.call("cuStreamSynchronize", stream.handle)
        if machinery.errors is not None:  # what a reference would read is undefined
            machinery.errors.check()
        return data

    def store(self, address: int, data: Any) -> None:
        machinery = self._machinery
        if len(data):
            source = int(data.ctypes.data)
            copy_memory(machinery.device, address, source, len(data), machinery.stream)


_Key = tuple[range, bool, tuple[int, ...]]
"""Which rows, whether they are timed, and what a graph depends on: values of symbols, and addresses
that it cannot be given anew."""


@dataclass(slots=True)
class _Recording:
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

    def __init__(self, steps: Sequence[Launch], plan: Plan, machinery: CudaMachinery) -> None:
        self._machinery = machinery
        self._arguments = arguments = ArgumentWords(steps, plan)
        self.reads_input = arguments.reads_input
        counts = [word_count(step) for step in steps]
        self._rows = [
            CudaRow(machinery.kernels[step.kernel.symbol], words, wait_for, step.starts_early)
            for step, words, wait_for in zip(steps, counts, waits_of(steps), strict=True)
        ]
        owners = np.repeat(np.arange(len(steps)), counts)
        self._moving = [int(owners[position]) for position in arguments.positions]
        """The row of each word that names the application's memory."""
        named = zip(self._moving, arguments.bindings, strict=True)
        self._fixed = sorted({b for row, b in named if not self._rows[row].kernel.can_move})
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
        self._kept: dict[_Key, _Recording] = {}
        self._met: set[_Key] = set()
        self._timed: _Recording | None = None

    def run(
        self, values: dict[str, int], memories: Memories, addresses: list[int], *, timed: bool
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
                consumed.reach()

    def _queue(
        self, key: _Key, values: Mapping[str, int], memories: Memories, addresses: list[int]
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
        self, values: Mapping[str, int], memories: Memories, addresses: list[int]
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

    def _back(self, values: Mapping[str, int], memories: Memories, addresses: list[int]) -> None:
        """Let everything that the launches touch have memory."""
        back = self._machinery.back
        if back is None:
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
            back(start + low, high - low, self._machinery.stream)

    def _launch_once(
        self, key: _Key, values: Mapping[str, int], memories: Memories, addresses: list[int]
    ) -> None:
        if len(self._met) >= _MOST_MET:
            self._met.clear()
        self._met.add(key)
        rows, _ = self._listed(values, memories, addresses)
        for row in key[0]:
            rows.launch(row, self._machinery.stream)

    def _record(
        self, key: _Key, values: Mapping[str, int], memories: Memories, addresses: list[int]
    ) -> _Recording:
        while len(self._kept) >= KEPT_SHAPES:
            self._kept.pop(next(iter(self._kept))).graph.close()
        rows, offsets = self._listed(values, memories, addresses)
        part, timed, _ = key
        marks: dict[int, CudaEvent] | None = None
        if timed:
            places = [first for _, first, _ in self._groups] + [len(self._rows)]
            marks = {place: CudaEvent(self._machinery.device) for place in places}
        moving = {row for row in self._moving if self._rows[row].kernel.can_move}
        graph = RunGraph(rows, self._machinery.recorder, part=part, moving=moving, marks=marks)
        self._kept[key] = found = _Recording(rows, graph, offsets, addresses.copy(), marks or {})
        return found

    def _move(self, recording: _Recording, addresses: list[int]) -> None:
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


def _split(rows: Sequence[CudaRow], count: int) -> tuple[range, ...]:
    """The rows in two: so many at least, up to one that waits for all before it, and the rest."""
    while count < len(rows) and rows[count].wait_for != count:
        count += 1
    return tuple(part for part in (range(count), range(count, len(rows))) if part)

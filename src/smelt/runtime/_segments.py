"""Segments: a plan cut where the host must work, each ready to run on given memory.

Argument words are evaluated when symbol values change, and kept for the values met lately; from run
to run only the addresses of the application's arrays are written, and only when they are others.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cpu import Row, RunList
from smelt.devices.null import NullRunList
from smelt.engine import Launch, Space
from smelt.errors import ContextError, InternalError
from smelt.types import evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuMemory, NativeRuntime, Scratch, WorkerPool
    from smelt.engine import HostCall, Plan, Step, View
    from smelt.types import Dim

_KEPT_SHAPES: Final = 16
"""Sets of symbol values for which words are kept."""


@dataclass(slots=True)
class Memories:
    """Where a context's memory is."""

    arena: int
    weights: int


@dataclass(frozen=True, slots=True)
class CpuMachinery:
    """What native segments for a processor are made with."""

    functions: Mapping[str, int]
    """Address of each kernel."""
    runtime: NativeRuntime
    pool: WorkerPool
    memory: CpuMemory
    threads: int
    scratch: Scratch

    @property
    def milliseconds_per_tick(self) -> float:
        """Length of the ticks in which rows are timed."""
        return self.runtime.milliseconds_per_tick()

    def run_list(self, steps: Sequence[Launch]) -> RunList:
        """The launches as a list for workers."""
        rows: list[Row] = []
        wait_for = 0
        for number, step in enumerate(steps):
            wait_for = number if step.waits else wait_for
            words = len(step.operands) + len(step.scalars)
            rows.append(Row(self.functions[step.kernel.symbol], words, wait_for))
        return RunList(
            rows,
            self.runtime,
            self.pool,
            self.memory,
            threads=self.threads,
            scratch=self.scratch,
            may_run_alone=True,
        )


class NullMachinery:
    """What native segments that compute nothing are made with."""

    milliseconds_per_tick = 0.0

    def run_list(self, steps: Sequence[Launch]) -> NullRunList:
        """The launches as a list for nobody."""
        return NullRunList(sum(len(s.operands) + len(s.scalars) for s in steps), len(steps))


Machinery = CpuMachinery | NullMachinery


class NativeSegment:
    """Launches that one foreign call runs."""

    def __init__(self, steps: Sequence[Launch], plan: Plan, machinery: Machinery) -> None:
        self.layers = [step.layer for step in steps]
        self._plan = plan
        self._machinery = machinery
        self._words: list[tuple[int, Dim]] = []
        """Buffer, or -1 for a scalar, and offset or value, of each argument word."""
        for step in steps:
            self._words += [(view.buffer, view.offset) for view in step.operands]
            self._words += [(-1, scalar) for scalar in step.scalars]
        self._chunks: list[Dim] = [step.chunks for step in steps]
        self.reads_input = any(
            plan.buffers[buffer].space is Space.INPUT for buffer, _ in self._words if buffer >= 0
        )
        used = symbols_of(*(dim for _, dim in self._words), *self._chunks)
        self._symbols = sorted(used)
        self._list = machinery.run_list(steps)
        self._find_bindings()
        self._kept: dict[tuple[int, ...], tuple[NDArray[np.int64], list[int]]] = {}
        self._values: tuple[int, ...] | None = None
        self._addresses: list[int] = []
        self._seen_values: Mapping[str, int] | None = None
        self._seen_addresses: list[int] = []
        """For what the list's words were last written; None for the values if it is unknown."""

    def _find_bindings(self) -> None:
        """Positions of the words that name the application's memory, with their bindings."""
        self._positions: list[int] = []
        self._bindings: list[int] = []
        for position, (buffer, _) in enumerate(self._words):
            if buffer < 0 or self._plan.buffers[buffer].space in {Space.ARENA, Space.WEIGHTS}:
                continue
            self._positions.append(position)
            self._bindings.append(self._plan.buffers[buffer].start)
        self._offsets: list[int] = []

    def forget(self) -> None:
        """Evaluate every word again: the memories have moved."""
        self._kept.clear()
        self._values = self._seen_values = None

    def run(
        self,
        values: Mapping[str, int],
        memories: Memories,
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

    def _prepare(self, values: Mapping[str, int], memories: Memories, addresses: list[int]) -> None:
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

    def _use(self, key: tuple[int, ...], values: Mapping[str, int], memories: Memories) -> None:
        if key not in self._kept:
            while len(self._kept) >= _KEPT_SHAPES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = self._evaluate(values, memories)
        words, chunks = self._kept[key]
        self._values = None  # not this segment's until it is complete
        self._list.set_chunks(chunks)
        self._list.words[:] = words
        self._offsets = [int(words[position]) for position in self._positions]
        self._addresses = []
        self._values = key

    def _evaluate(
        self, values: Mapping[str, int], memories: Memories
    ) -> tuple[NDArray[np.int64], list[int]]:
        bases = {Space.ARENA: memories.arena, Space.WEIGHTS: memories.weights}
        words = np.zeros(len(self._words), np.int64)
        for position, (buffer, dim) in enumerate(self._words):
            base = 0
            if buffer >= 0 and self._plan.buffers[buffer].space in bases:
                found = self._plan.buffers[buffer]
                base = bases[found.space] + found.start
            words[position] = base + evaluate_dim(dim, values)
        return words, [evaluate_dim(chunks, values) for chunks in self._chunks]

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and time of each launch of the last timed run."""
        scale = self._machinery.milliseconds_per_tick
        return [
            (layer, ticks * scale)
            for layer, ticks in zip(self.layers, self._list.row_ticks(), strict=True)
        ]

    def close(self) -> None:
        """Give back what the segment holds."""
        self._list.close()


class HostSegment:
    """One step that Python does: the reference of an op on the plan's memory."""

    def __init__(self, step: HostCall, plan: Plan) -> None:
        self.layer = step.layer
        self._step = step
        self._plan = plan
        # Most engines have no such step, and need not load what every op means.
        from smelt.ops import op_from_json

        self._op = op_from_json(step.op)
        self._largest = plan.largest
        self._milliseconds = 0.0
        views = [view for view in step.inputs if view is not None]
        self.reads_input = any(plan.buffers[v.buffer].space is Space.INPUT for v in views)

    def run(
        self, values: dict[str, int], memories: Memories, addresses: list[int], *, timed: bool
    ) -> None:
        """Run the reference; symbols that its results decide are set in ``values``.

        Raises:
            ContextError: a result is larger than the plan allows.
        """
        start_ns = time.perf_counter_ns() if timed else 0
        inputs = [
            None if view is None else self._look(view, values, memories, addresses)
            for view in self._step.inputs
        ]
        for array in inputs:
            if array is not None:
                array.flags.writeable = False
        results = self._op.reference(*inputs)
        for name, output, axis in self._step.sizes:
            values[name] = size = int(results[output].shape[axis])
            if size > self._largest[name]:
                raise ContextError(
                    f"{self._op.name}: the result has {name} = {size}, and the engine was built "
                    f"for at most {self._largest[name]}"
                )
        if len(results) < len(self._step.outputs):
            raise InternalError(f"{self._op.name} has {len(results)} results")
        for view, result in zip(self._step.outputs, results, strict=False):
            target = self._look(view, values, memories, addresses)
            if target.shape != result.shape or target.dtype != result.dtype:
                raise InternalError(
                    f"{self._op.name}: the reference gave {result.dtype}{list(result.shape)} "
                    f"where the plan has {target.dtype}{list(target.shape)}"
                )
            target[...] = result
        if timed:
            self._milliseconds = (time.perf_counter_ns() - start_ns) / 1e6

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and time of the last timed run."""
        return [(self.layer, self._milliseconds)]

    def forget(self) -> None:
        """Nothing depends on where the memories are."""

    def _look(
        self, view: View, values: Mapping[str, int], memories: Memories, addresses: list[int]
    ) -> NDArray[Any]:
        """The view's elements in place."""
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
            return np.empty(shape, dtype)
        low, high = view.footprint(values)
        strides = [evaluate_dim(stride, values) * dtype.itemsize for stride in view.strides]
        memory = memoryview((ctypes.c_uint8 * (high - low)).from_address(start + low))
        offset = evaluate_dim(view.offset, values) - low
        return np.ndarray(shape, dtype, memory, offset, strides)

    def close(self) -> None:
        """Give back what the segment holds: nothing."""


Segment = NativeSegment | HostSegment


def cut_plan(plan: Plan, machinery: Machinery) -> list[Segment]:
    """Return the plan's segments, in order."""
    segments: list[Segment] = []
    launches: list[Launch] = []

    def finish() -> None:
        if launches:
            segments.append(NativeSegment(launches, plan, machinery))
            launches.clear()

    step: Step
    for step in plan.steps:
        if isinstance(step, Launch):
            launches.append(step)
            continue
        finish()
        if not isinstance(machinery, NullMachinery):
            segments.append(HostSegment(step, plan))
    finish()
    return segments

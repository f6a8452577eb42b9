"""Whole plans run as their engine will run them, with a stamp at the end of every node.

A kernel that is timed alone finds its weights in the cache; in a network it finds those of its
neighbours. So the last word on a tactic is had here: several plans of one graph, which differ in
some tactics, take turns on the same memory.

Large packed weights are not computed for it. What they hold decides no time, and to lie where the
engine will have them, in the order in which they are read, is what counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.backends import WeightStore, assemble, constant_bytes
from smelt.devices.cpu import CpuMemory, MappedCode, Scratch, worker_pool
from smelt.engine import Launch, Space
from smelt.runtime import CpuMachinery, Memories, NativeSegment, cut_plan
from smelt.tuner._trial import random_array
from smelt.types import encode_bfloat16, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Assembled, Backend, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation, NativeRuntime
    from smelt.engine import Plan
    from smelt.ir import Array, Constant, Graph, Value

Cast = dict[int, "Tactic"]
"""The tactic of each node, by ``id(node)``."""

_SMALL_BYTES: Final = 64 << 10
"""Constants up to this size are what they are: they may be indices, axes, or bounds."""
_DISTURBED: Final = 1.1
"""A run that takes this many times the least is not one to learn from."""
_SPREAD: Final = 0.1
"""Standard deviation of what stands for weights: activations neither vanish nor explode."""


@dataclass(slots=True)
class _Performance:
    """One plan on the common memory."""

    segments: list[NativeSegment]
    ends: list[int]
    """For each node, how many layers are complete when it is."""
    layers: int


class Rehearsal:
    """Runs plans of one graph by turns.

    What Python itself would do between native segments is left out: it has no tactics.
    """

    def __init__(
        self,
        graph: Graph,
        backend: Backend[CpuTarget],
        target: CpuTarget,
        runtime: NativeRuntime,
        *,
        symbols: tuple[tuple[str, int, int], ...],
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        self.graph, self.backend, self.target, self.runtime = graph, backend, target, runtime
        self.symbols, self.sizes, self.threads = symbols, sizes, threads
        self.memory = CpuMemory()

    def milliseconds(
        self, casts: Sequence[Cast], *, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        """For each cast an array (runs, nodes + 1): when each node was complete, then the whole.

        Runs in which something else held the machine up are left out.

        Args:
            casts: tactics of all nodes; one plan is made of each.
            runs: how many runs of each plan are wanted, after a first time that does not count.
            seconds: after this time there are as many as there are, but one.
        """
        plans, weights_bytes, exact = self._assemble(casts)
        stage = _Stage(self, [made.plan for made in plans], weights_bytes, exact)
        performances: list[_Performance] = []
        try:
            performances += [self._perform(made, stage) for made in plans]
            for performance in performances:
                self._run(performance, stage)
            return self._by_turns(performances, stage, runs, seconds)
        finally:
            for performance in performances:
                for segment in performance.segments:
                    segment.close()
            stage.close()

    def _by_turns(
        self, performances: Sequence[_Performance], stage: _Stage, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        deadline = time.perf_counter() + seconds
        times: list[list[NDArray[np.float64]]] = [[] for _ in performances]
        while True:
            for own, performance in zip(times, performances, strict=True):
                own.append(self._run(performance, stage))
            good = [undisturbed(np.array(own)) for own in times]
            if min(map(len, good)) >= runs or time.perf_counter() > deadline:
                return good

    def _assemble(self, casts: Sequence[Cast]) -> tuple[list[Assembled], int, WeightStore]:
        """The plans, the bytes that large weights take, and the small constants behind them."""
        made: list[tuple[Assembled, WeightStore]] = []
        for cast in casts:
            weights = WeightStore()
            plan = assemble(self.graph, cast, self.backend, weights, symbols=self.symbols)
            made.append((plan, weights))
        exact, largest = WeightStore(), max(weights.size_bytes for _, weights in made)
        plans: list[Assembled] = []
        for assembled, weights in made:
            moved = {
                offset: largest + exact.place(constant)
                for constant, offset in weights.entries
                if constant_bytes(constant) and not _is_filler(constant)
            }
            buffers = tuple(
                replace(b, start=moved.get(b.start, b.start)) if b.space is Space.WEIGHTS else b
                for b in assembled.plan.buffers
            )
            plans.append(replace(assembled, plan=replace(assembled.plan, buffers=buffers)))
        return plans, largest, exact

    def _perform(self, made: Assembled, stage: _Stage) -> _Performance:
        segments = cut_plan(made.plan, stage.machinery)
        positions = {dict(info.details).get("node"): i for i, info in enumerate(made.layers)}
        ends: list[int] = []
        for node in self.graph.nodes:
            before = ends[-1] if ends else 0
            ends.append(max(before, positions.get(node.name, -1) + 1))
        native = [s for s in segments if isinstance(s, NativeSegment)]
        return _Performance(native, ends, len(made.layers))

    def _run(self, performance: _Performance, stage: _Stage) -> NDArray[np.float64]:
        spent = np.zeros(performance.layers + 1)
        for segment in performance.segments:
            segment.run(self.sizes, stage.memories, stage.addresses, timed=True)
            for layer, milliseconds in segment.milliseconds():
                spent[layer + 1] += milliseconds
        clock = np.cumsum(spent)
        return np.append(clock[performance.ends], clock[-1])


class _Stage:
    """The memory and code that performances share."""

    def __init__(
        self, rehearsal: Rehearsal, plans: Sequence[Plan], weights_bytes: int, exact: WeightStore
    ) -> None:
        memory = rehearsal.memory
        rng = np.random.default_rng(0)
        arena = memory.allocate(max(plan.arena_bytes for plan in plans), "trial")
        arena.bytes[:] = 0
        weights = memory.allocate(weights_bytes + exact.size_bytes, "trial")
        _fill(weights.bytes[:weights_bytes], rng)
        weights.bytes[weights_bytes:] = exact.data()
        launches = [s for plan in plans for s in plan.steps if isinstance(s, Launch)]
        image = rehearsal.backend.compile([s.kernel for s in launches], rehearsal.target)
        self.code = MappedCode(image.code)
        most = max((s.scratch_bytes for s in launches), default=0)
        scratch = Scratch(memory, most, rehearsal.threads)
        self.machinery = CpuMachinery(
            {name: self.code.address + offset for name, offset in image.symbols},
            rehearsal.runtime,
            worker_pool(),
            memory,
            rehearsal.threads,
            scratch,
        )
        self.memories = Memories(arena.address, weights.address)
        self.allocations: list[CpuAllocation | Scratch] = [arena, weights, scratch]
        values = [*rehearsal.graph.inputs, *rehearsal.graph.outputs]
        self.bindings = [_binding(value, rehearsal.sizes, rng) for value in values]
        self.addresses = [int(array.ctypes.data) for array in self.bindings]

    def close(self) -> None:
        """Give the memory back."""
        for allocation in self.allocations:
            allocation.close()


def undisturbed(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The runs, given as rows that end with the whole time, that took hardly longer than the best.

    On a machine that does other things as well, a run may last twice as long as the next; what it
    says of single nodes is worth nothing.
    """
    whole = times[:, -1]
    good: NDArray[np.float64] = times[whole <= _DISTURBED * whole.min()]
    return good


def _is_filler(constant: Constant) -> bool:
    """Whether any floats do in the constant's place."""
    large = constant_bytes(constant) > _SMALL_BYTES
    return large and constant.recipe is not None and constant.type.dtype.is_float


def _fill(memory: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Fill memory with floats, the same few over and over.

    They are bfloat16 numbers; two of them are a float32 as large as the second.
    """
    numbers = _SPREAD * rng.standard_normal(_SMALL_BYTES // 2, np.float32)
    block = encode_bfloat16(numbers).view(np.uint8)
    for start in range(0, memory.size, block.size):
        part = memory[start : start + block.size]
        part[:] = block[: part.size]


def _binding(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
    return np.ascontiguousarray(random_array(value.tensor.dtype, shape, rng))

"""Whole plans run as their engine will run them, with a stamp at the end of every node.

A kernel that is timed alone finds its weights in the cache; in a network it finds those of its
neighbours. So the last word on a tactic is had here: several plans of one graph, which differ in
some tactics, take turns on the same memory.

Large packed weights are not computed for it. What they hold decides no time, and to lie where the
engine will have them, in the order in which they are read, is what counts.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from smelt.backends import WeightStore, assemble, constant_bytes
from smelt.devices.cpu import CpuMemory, MappedCode, Scratch, worker_pool
from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import InternalError, masked
from smelt.runtime import CpuMachinery, HostSegment, Memories, cut_plan
from smelt.tuner._specimen import random_array
from smelt.types import DType, evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Assembled, Backend, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation, NativeRuntime
    from smelt.ir import Array, Constant, Graph, Node, Value
    from smelt.runtime import Machinery, Segment

_LOG = logging.getLogger(__name__)
Cast = dict["Node", "Tactic"]
"""The tactic of each node."""
Symbols = tuple[tuple[str, int, int], ...]
"""Every symbol with its smallest and largest value."""

_SMALL_BYTES: Final = 64 << 10
"""Constants up to this size are what they are: they may be indices, axes, or bounds."""
_DISTURBED: Final = 1.1
"""A run that takes this many times the least is not one to learn from."""
_SPREAD: Final = 0.1
"""Standard deviation of what stands for weights: activations neither vanish nor explode."""


def _first_alike(casts: Sequence[Cast]) -> list[int]:
    """For each cast the first that differs from it in the ways of its launches at most."""
    kernels = [
        {key: replace(t, starts_early=False, backwards=False) for key, t in cast.items()}
        for cast in casts
    ]
    return [kernels.index(own) for own in kernels]


def graph_of(cast: Cast, graphs: Sequence[Graph]) -> Graph:
    """The one of several graphs whose nodes a cast is for."""
    return next(graph for graph in graphs if all(node in cast for node in graph.nodes[:1]))


@dataclass(slots=True)
class _Performance:
    """One plan on the common memory."""

    segments: list[Segment]
    ends: list[int]
    """For each node, how many layers are complete when it is."""
    layers: int
    stamps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """When each node was complete in the latest run that had stamps, in milliseconds."""
    whole: float = 0.0
    """When all was."""
    is_out: bool = False
    """Whether it did not always compute what its launches do one after another."""


class Play(Protocol):
    """Runs a plan once."""

    def __call__(self, *, timed: bool) -> None:
        """Run it; with ``timed`` its launches wait for each other, and none starts early."""
        ...


class Scene(ABC):
    """The memory and code that plans share while they run by turns."""

    plans: Sequence[Assembled | None]
    """A plan for each cast; None where its code cannot be had."""
    machinery: Machinery
    memories: Memories
    addresses: list[int]
    """Of the bindings."""

    def whole_ms(self, run: Callable[[], None]) -> float:
        """How long ``run`` takes, which runs a plan without stamps, in a sequence of such runs."""
        raise InternalError(f"{type(self).__name__} judges by stamps, not by {run}")

    def moving(self, plays: Sequence[Play | None], alike: Sequence[int]) -> set[int]:
        """Which plans do not always compute what their launches do one after another.

        Args:
            plays: run the plans; None where one cannot be run.
            alike: for each plan the first that must compute the same bits; itself, if none before.
        """
        raise InternalError(f"{type(self).__name__} runs {len(plays)} plans in one order only")

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class Rehearsal:
    """Runs plans of one graph by turns.

    What Python itself would do between native segments is left out: it has no tactics.
    """

    def __init__(
        self,
        graph: Graph,
        open_scene: Callable[[Sequence[Cast]], Scene],
        *,
        sizes: Mapping[str, int],
        judges_whole: bool = False,
        seconds_each: float = 0.0,
    ) -> None:
        """Rehearse a graph.

        Args:
            graph: optimised, its types inferred.
            open_scene: assembles plans of casts on a device.
            sizes: values of all symbols.
            judges_whole: whether stamps would disturb a plan: all but the first have none.
            seconds_each: what it takes to prepare a plan.
        """
        self.graph, self.open_scene, self.sizes = graph, open_scene, dict(sizes)
        self.judges_whole, self.seconds_each = judges_whole, seconds_each

    def milliseconds(
        self, casts: Sequence[Cast], *, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        """For each cast an array (runs, nodes + 1): when each node was complete, then the whole.

        Where only wholes are judged, nodes are complete when those of the first cast are. Runs in
        which something else held the machine up are left out. A cast whose code cannot be had takes
        forever, and so does one that computes something else where its launches overlap.

        Args:
            casts: tactics of all nodes; one plan is made of each.
            runs: how many runs of each plan are wanted, after a first time that does not count.
            seconds: after this time there are as many as there are, but one.
        """
        scene = self.open_scene(casts)
        performances: list[_Performance | None] = []
        try:
            performances += [self._perform(made, scene) for made in scene.plans]
            for performance in performances:
                if performance is not None:
                    self._stamp(performance, performances[0], scene)
            if self.judges_whole:
                self._compare(performances, scene, _first_alike(casts))
            return self._by_turns(performances, scene, runs, seconds)
        finally:
            for performance in performances:
                for segment in performance.segments if performance else ():
                    segment.close()
            scene.close()

    def _compare(
        self, performances: Sequence[_Performance | None], scene: Scene, alike: Sequence[int]
    ) -> None:
        """Find out the plans whose launches do not wait for each other as they must."""

        def play_of(performance: _Performance | None) -> Play | None:
            return None if performance is None else partial(self._play, performance, scene)

        for number in scene.moving([play_of(one) for one in performances], alike):
            performance = performances[number]
            if performance is not None:
                performance.is_out = True
                _LOG.warning(
                    "%s: plan %d of %d is out: its results are not those of its launches one "
                    "after another",
                    masked(self.graph.name),
                    number + 1,
                    len(performances),
                )

    def _play(self, performance: _Performance, scene: Scene, *, timed: bool) -> None:
        for segment in performance.segments:
            segment.run(self.sizes, scene.memories, scene.addresses, timed=timed)

    def _by_turns(
        self, performances: Sequence[_Performance | None], scene: Scene, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        deadline = time.perf_counter() + seconds
        never = np.full(len(self.graph.nodes) + 1, np.inf)
        times: list[list[NDArray[np.float64]]] = [[] for _ in performances]
        while True:
            for own, performance in zip(times, performances, strict=True):
                if performance is None or performance.is_out:
                    own.append(never)
                else:
                    own.append(self._run(performance, scene))
            good = [undisturbed(np.array(own)) for own in times]
            if min(map(len, good)) >= runs or time.perf_counter() > deadline:
                return good

    def _perform(self, made: Assembled | None, scene: Scene) -> _Performance | None:
        if made is None:
            return None
        segments = cut_plan(made.plan, scene.machinery)
        positions = {dict(info.details).get("node"): i for i, info in enumerate(made.layers)}
        ends: list[int] = []
        for node in self.graph.nodes:
            before = ends[-1] if ends else 0
            ends.append(max(before, positions.get(node.name, -1) + 1))
        native = [s for s in segments if not isinstance(s, HostSegment)]
        return _Performance(native, ends, len(made.layers))

    def _stamp(self, performance: _Performance, first: _Performance | None, scene: Scene) -> None:
        """Run a plan for the first time, and note when its nodes are complete."""
        if self.judges_whole and performance is not first:
            performance.stamps = np.zeros(len(self.graph.nodes)) if first is None else first.stamps
            return
        spent = np.zeros(performance.layers + 1)
        self._play(performance, scene, timed=True)
        for segment in performance.segments:
            for layer, milliseconds in segment.milliseconds():
                spent[layer + 1] += milliseconds
        clock = np.cumsum(spent)
        performance.stamps, performance.whole = clock[performance.ends], float(clock[-1])

    def _run(self, performance: _Performance, scene: Scene) -> NDArray[np.float64]:
        if not self.judges_whole:
            self._stamp(performance, performance, scene)
            return np.append(performance.stamps, performance.whole)
        run = partial(self._play, performance, scene, timed=False)
        return np.append(performance.stamps, scene.whole_ms(run))


class CpuScene(Scene):
    """The stage on this machine's processors."""

    def __init__(
        self,
        graph: Graph,
        casts: Sequence[Cast],
        backend: Backend[CpuTarget],
        target: CpuTarget,
        runtime: NativeRuntime,
        *,
        symbols: Symbols,
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        """Assemble plans of ``casts``."""
        made, weights_bytes, exact = _assembled(graph, casts, backend, symbols)
        self.plans = made
        plans = [one.plan for one in made]
        memory, rng = CpuMemory(), np.random.default_rng(0)
        arena = memory.allocate(max(plan.arena_bytes for plan in plans), "trial")
        arena.bytes[:] = 0
        weights = memory.allocate(weights_bytes + exact.size_bytes, "trial")
        _fill(weights.bytes[:weights_bytes], rng)
        weights.bytes[weights_bytes:] = exact.data()
        launches = [s for plan in plans for s in plan.steps if isinstance(s, Launch)]
        image = backend.compile([s.kernel for s in launches], target)
        self.code = MappedCode(image.code)
        most = max((s.scratch_bytes for s in launches), default=0)
        scratch = Scratch(memory, most, threads)
        self.machinery = CpuMachinery(
            {name: self.code.address + offset for name, offset in image.symbols},
            runtime,
            worker_pool(),
            memory,
            threads,
            scratch,
        )
        # Random indices may be out of range, which costs nothing and is nobody's error here.
        errors = memory.allocate(max(len(one.layers) for one in made) * ERROR_BYTES, "trial")
        self.memories = Memories(arena.address, weights.address, errors.address)
        self.allocations: list[CpuAllocation | Scratch] = [arena, weights, errors, scratch]
        self.bindings = [binding_of(v, sizes, rng) for v in (*graph.inputs, *graph.outputs)]
        self.addresses = [int(array.ctypes.data) for array in self.bindings]

    @override
    def close(self) -> None:
        for allocation in self.allocations:
            allocation.close()


def _assembled(
    graph: Graph, casts: Sequence[Cast], backend: Backend[CpuTarget], symbols: Symbols
) -> tuple[list[Assembled], int, WeightStore]:
    """The plans, the bytes that large weights take, and the small constants behind them."""
    made: list[tuple[Assembled, WeightStore]] = []
    for cast in casts:
        weights = WeightStore()
        made.append((assemble(graph, cast, backend, weights, symbols=symbols), weights))
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
    block = numbers.astype(DType.BFLOAT16.numpy).view(np.uint8)
    for start in range(0, memory.size, block.size):
        part = memory[start : start + block.size]
        part[:] = block[: part.size]


def binding_of(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """An array for an input or output, at random."""
    shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
    return np.ascontiguousarray(random_array(value.tensor.dtype, shape, rng))

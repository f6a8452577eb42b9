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

from smelt.backends import WeightStore, build_plan, constant_bytes
from smelt.devices.cpu import CpuMemory, MappedCode, Scratch, worker_pool
from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import InternalError, sanitize_name
from smelt.runtime import CpuSegmentFactory, HostSegment, MemoryMap, split_plan
from smelt.tuner._isolated_node import random_array
from smelt.types import DType, evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, BuiltPlan, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation, NativeRuntime
    from smelt.ir import Array, Constant, Graph, Node, Value
    from smelt.runtime import Segment, SegmentFactory

_LOG = logging.getLogger(__name__)
Assignment = dict["Node", "Tactic"]
"""The tactic of each node."""
Symbols = tuple[tuple[str, int, int], ...]
"""Every symbol with its smallest and largest value."""

_SMALL_BYTES: Final = 64 << 10
"""Constants up to this size are what they are: they may be indices, axes, or bounds."""
_OUTLIER_RATIO: Final = 1.1
"""A run that takes this many times the least is not one to learn from."""
_SPREAD: Final = 0.1
"""Standard deviation of what stands for weights: activations neither vanish nor explode."""


def _first_with_same_kernels(assignments: Sequence[Assignment]) -> list[int]:
    """For each cast the first that differs from it in the ways of its launches at most."""
    kernels = [
        {
            key: replace(t, uses_pdl=False, reversed_tile_order=False)
            for key, t in assignment.items()
        }
        for assignment in assignments
    ]
    return [kernels.index(own) for own in kernels]


def graph_of(assignment: Assignment, graphs: Sequence[Graph]) -> Graph:
    """The one of several graphs whose nodes a cast is for."""
    return next(graph for graph in graphs if all(node in assignment for node in graph.nodes[:1]))


@dataclass(slots=True)
class _TimedPlan:
    """One plan on the common memory."""

    segments: list[Segment]
    ends: list[int]
    """For each node, how many layers are complete when it is."""
    layers: int
    node_end_ms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """When each node was complete in the latest run that had stamps, in milliseconds."""
    whole: float = 0.0
    """When all was."""
    is_rejected: bool = False
    """Whether it did not always compute what its launches do one after another."""


class PlanRun(Protocol):
    """Runs a plan once."""

    def __call__(self, *, timed: bool) -> None:
        """Run it; with ``timed`` its launches wait for each other, and none starts early."""
        ...


class PlanFixture(ABC):
    """The memory and code that plans share while they run by turns."""

    plans: Sequence[BuiltPlan | None]
    """A plan for each cast; None where its code cannot be had."""
    machinery: SegmentFactory
    memories: MemoryMap
    addresses: list[int]
    """Of the bindings."""

    def measure_plan_ms(self, run: Callable[[], None]) -> float:
        """How long ``run`` takes, which runs a plan without stamps, in a sequence of such runs."""
        raise InternalError(f"{type(self).__name__} measures by timestamps, not by {run}")

    def find_nondeterministic_plans(
        self, plan_runs: Sequence[PlanRun | None], alike: Sequence[int]
    ) -> set[int]:
        """Which plans do not always compute what their launches do one after another.

        Args:
            plan_runs: run the plans; None where one cannot be run.
            alike: for each plan the first that must compute the same bits; itself, if none before.
        """
        raise InternalError(
            f"{type(self).__name__} supports only one order of {len(plan_runs)} plans"
        )

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class InNetworkTrial:
    """Runs plans of one graph by turns.

    What Python itself would do between native segments is left out: it has no tactics.
    """

    def __init__(
        self,
        graph: Graph,
        open_fixture: Callable[[Sequence[Assignment]], PlanFixture],
        *,
        sizes: Mapping[str, int],
        times_whole_plan: bool = False,
        seconds_per_trial: float = 0.0,
    ) -> None:
        """Rehearse a graph.

        Args:
            graph: optimised, its types inferred.
            open_fixture: assembles plans of casts on a device.
            sizes: values of all symbols.
            times_whole_plan: whether stamps would disturb a plan: all but the first have none.
            seconds_per_trial: what it takes to prepare a plan.
        """
        self.graph, self.open_fixture, self.sizes = graph, open_fixture, dict(sizes)
        self.times_whole_plan, self.seconds_per_trial = times_whole_plan, seconds_per_trial

    def milliseconds(
        self, assignments: Sequence[Assignment], *, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        """For each cast an array (runs, nodes + 1): when each node was complete, then the whole.

        Where only wholes are judged, nodes are complete when those of the first cast are. Runs in
        which something else held the machine up are left out. A cast whose code cannot be had takes
        forever, and so does one that computes something else where its launches overlap.

        Args:
            assignments: tactics of all nodes; one plan is made of each.
            runs: how many runs of each plan are wanted, after a first time that does not count.
            seconds: after this time there are as many as there are, but one.
        """
        fixture = self.open_fixture(assignments)
        timed_plans: list[_TimedPlan | None] = []
        try:
            timed_plans += [self._prepare_plan(made, fixture) for made in fixture.plans]
            for timed_plan in timed_plans:
                if timed_plan is not None:
                    self._record_timestamps(timed_plan, timed_plans[0], fixture)
            if self.times_whole_plan:
                self._compare(timed_plans, fixture, _first_with_same_kernels(assignments))
            return self._run_interleaved(timed_plans, fixture, runs, seconds)
        finally:
            for timed_plan in timed_plans:
                for segment in timed_plan.segments if timed_plan else ():
                    segment.close()
            fixture.close()

    def _compare(
        self, timed_plans: Sequence[_TimedPlan | None], fixture: PlanFixture, alike: Sequence[int]
    ) -> None:
        """Find out the plans whose launches do not wait for each other as they must."""

        def play_of(timed_plan: _TimedPlan | None) -> PlanRun | None:
            return None if timed_plan is None else partial(self._run_plan, timed_plan, fixture)

        for number in fixture.find_nondeterministic_plans(
            [play_of(one) for one in timed_plans], alike
        ):
            timed_plan = timed_plans[number]
            if timed_plan is not None:
                timed_plan.is_rejected = True
                _LOG.warning(
                    "%s: plan %d of %d is rejected: its results differ from those of its launches "
                    "run one "
                    "after another",
                    sanitize_name(self.graph.name),
                    number + 1,
                    len(timed_plans),
                )

    def _run_plan(self, timed_plan: _TimedPlan, fixture: PlanFixture, *, timed: bool) -> None:
        for segment in timed_plan.segments:
            segment.run(self.sizes, fixture.memories, fixture.addresses, timed=timed)

    def _run_interleaved(
        self,
        timed_plans: Sequence[_TimedPlan | None],
        fixture: PlanFixture,
        runs: int,
        seconds: float,
    ) -> list[NDArray[np.float64]]:
        deadline = time.perf_counter() + seconds
        never = np.full(len(self.graph.nodes) + 1, np.inf)
        times: list[list[NDArray[np.float64]]] = [[] for _ in timed_plans]
        while True:
            for own, timed_plan in zip(times, timed_plans, strict=True):
                if timed_plan is None or timed_plan.is_rejected:
                    own.append(never)
                else:
                    own.append(self._run(timed_plan, fixture))
            good = [without_outliers(np.array(own)) for own in times]
            if min(map(len, good)) >= runs or time.perf_counter() > deadline:
                return good

    def _prepare_plan(self, made: BuiltPlan | None, fixture: PlanFixture) -> _TimedPlan | None:
        if made is None:
            return None
        segments = split_plan(made.plan, fixture.machinery)
        positions = {dict(info.details).get("node"): i for i, info in enumerate(made.layers)}
        ends: list[int] = []
        for node in self.graph.nodes:
            before = ends[-1] if ends else 0
            ends.append(max(before, positions.get(node.name, -1) + 1))
        native = [s for s in segments if not isinstance(s, HostSegment)]
        return _TimedPlan(native, ends, len(made.layers))

    def _record_timestamps(
        self, timed_plan: _TimedPlan, first: _TimedPlan | None, fixture: PlanFixture
    ) -> None:
        """Run a plan for the first time, and note when its nodes are complete."""
        if self.times_whole_plan and timed_plan is not first:
            timed_plan.node_end_ms = (
                np.zeros(len(self.graph.nodes)) if first is None else first.node_end_ms
            )
            return
        spent = np.zeros(timed_plan.layers + 1)
        self._run_plan(timed_plan, fixture, timed=True)
        for segment in timed_plan.segments:
            for layer, milliseconds in segment.milliseconds():
                spent[layer + 1] += milliseconds
        clock = np.cumsum(spent)
        timed_plan.node_end_ms, timed_plan.whole = clock[timed_plan.ends], float(clock[-1])

    def _run(self, timed_plan: _TimedPlan, fixture: PlanFixture) -> NDArray[np.float64]:
        if not self.times_whole_plan:
            self._record_timestamps(timed_plan, timed_plan, fixture)
            return np.append(timed_plan.node_end_ms, timed_plan.whole)
        run = partial(self._run_plan, timed_plan, fixture, timed=False)
        return np.append(timed_plan.node_end_ms, fixture.measure_plan_ms(run))


class CpuPlanFixture(PlanFixture):
    """The stage on this machine's processors."""

    def __init__(
        self,
        graph: Graph,
        assignments: Sequence[Assignment],
        backend: Backend[CpuTarget],
        target: CpuTarget,
        runtime: NativeRuntime,
        *,
        symbols: Symbols,
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        """Assemble plans of ``assignments``."""
        made, weights_bytes, exact = _assembled(graph, assignments, backend, symbols)
        self.plans = made
        plans = [one.plan for one in made]
        memory, rng = CpuMemory(), np.random.default_rng(0)
        arena = memory.allocate(max(plan.arena_bytes for plan in plans), "trial")
        arena.bytes[:] = 0
        weights = memory.allocate(weights_bytes + exact.size_bytes, "trial")
        _fill_random(weights.bytes[:weights_bytes], rng)
        weights.bytes[weights_bytes:] = exact.data()
        launches = [s for plan in plans for s in plan.steps if isinstance(s, Launch)]
        image = backend.compile([s.kernel for s in launches], target)
        self.code = MappedCode(image.code)
        most = max((s.scratch_bytes for s in launches), default=0)
        scratch = Scratch(memory, most, threads)
        self.machinery = CpuSegmentFactory(
            {name: self.code.address + offset for name, offset in image.symbols},
            runtime,
            worker_pool(),
            memory,
            threads,
            scratch,
        )
        # Random indices may be out of range, which costs nothing and is nobody's error here.
        errors = memory.allocate(max(len(one.layers) for one in made) * ERROR_BYTES, "trial")
        self.memories = MemoryMap(arena.address, weights.address, errors.address)
        self.allocations: list[CpuAllocation | Scratch] = [arena, weights, errors, scratch]
        self.bindings = [random_binding(v, sizes, rng) for v in (*graph.inputs, *graph.outputs)]
        self.addresses = [int(array.ctypes.data) for array in self.bindings]

    @override
    def close(self) -> None:
        for allocation in self.allocations:
            allocation.close()


def _assembled(
    graph: Graph, assignments: Sequence[Assignment], backend: Backend[CpuTarget], symbols: Symbols
) -> tuple[list[BuiltPlan], int, WeightStore]:
    """The plans, the bytes that large weights take, and the small constants behind them."""
    made: list[tuple[BuiltPlan, WeightStore]] = []
    for assignment in assignments:
        weights = WeightStore()
        made.append((build_plan(graph, assignment, backend, weights, symbols=symbols), weights))
    exact, largest = WeightStore(), max(weights.size_bytes for _, weights in made)
    plans: list[BuiltPlan] = []
    for assembled, weights in made:
        moved = {
            offset: largest + exact.place(constant)
            for constant, offset in weights.entries
            if constant_bytes(constant) and not _may_be_random(constant)
        }
        buffers = tuple(
            replace(b, start=moved.get(b.start, b.start)) if b.space is Space.WEIGHTS else b
            for b in assembled.plan.buffers
        )
        plans.append(replace(assembled, plan=replace(assembled.plan, buffers=buffers)))
    return plans, largest, exact


def without_outliers(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The runs, given as rows that end with the whole time, that took hardly longer than the best.

    On a machine that does other things as well, a run may last twice as long as the next; what it
    says of single nodes is worth nothing.
    """
    whole = times[:, -1]
    good: NDArray[np.float64] = times[whole <= _OUTLIER_RATIO * whole.min()]
    return good


def _may_be_random(constant: Constant) -> bool:
    """Whether any floats do in the constant's place."""
    large = constant_bytes(constant) > _SMALL_BYTES
    return large and constant.recipe is not None and constant.type.dtype.is_float


def _fill_random(memory: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Fill memory with floats, the same few over and over.

    They are bfloat16 numbers; two of them are a float32 as large as the second.
    """
    numbers = _SPREAD * rng.standard_normal(_SMALL_BYTES // 2, np.float32)
    block = numbers.astype(DType.BFLOAT16.numpy).view(np.uint8)
    for start in range(0, memory.size, block.size):
        part = memory[start : start + block.size]
        part[:] = block[: part.size]


def random_binding(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """An array for an input or output, at random."""
    shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
    return np.ascontiguousarray(random_array(value.tensor.dtype, shape, rng))

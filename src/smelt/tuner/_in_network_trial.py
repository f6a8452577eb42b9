"""In-network trials: timing of whole plans in interleaved runs, with the end time of every node.

A kernel that is timed as an isolated node finds its weights in the cache. In a network, the cache
holds data of the nodes around it. Tactics are therefore compared in whole plans of one graph, which
differ in some tactics and run alternately on the same memory, as the engine would run them.

Large packed weights of CPU plans are not computed but filled with random numbers. Times do not
depend on their values, only on their addresses and on the order in which they are read.
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
from smelt.engine import ERROR_BYTES, Space
from smelt.errors import InternalError, sanitize_name
from smelt.runtime import CpuSegmentFactory, MemoryMap, split_plan
from smelt.types import DType, evaluate_dim, override, random_array

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
"""Constants up to this size in bytes keep their values: they may be indices, axes or bounds. Chosen
without a measurement."""
_OUTLIER_RATIO: Final = 1.1
"""Runs that take more than this multiple of the fastest run are discarded. Chosen without a
measurement (docs/lab/choosing-tactics.md)."""
_SPREAD: Final = 0.1
"""Standard deviation of random weights: activations neither vanish nor overflow. Chosen without a
measurement."""


def _first_with_same_kernels(assignments: Sequence[Assignment]) -> list[int]:
    """Return for each assignment the index of the first with the same kernels.

    Tactics with the same kernel may differ in launch variants: PDL and tile order.
    """
    kernels = [
        {
            key: replace(t, uses_pdl=False, reversed_tile_order=False)
            for key, t in assignment.items()
        }
        for assignment in assignments
    ]
    return [kernels.index(kernel_assignment) for kernel_assignment in kernels]


def graph_of(assignment: Assignment, graphs: Sequence[Graph]) -> Graph:
    """Return the graph whose nodes have their tactics in ``assignment``."""
    return next(graph for graph in graphs if all(node in assignment for node in graph.nodes[:1]))


@dataclass(slots=True)
class _TimedPlan:
    """One plan, ready to run on the fixture's memory."""

    segments: list[Segment]
    ends: list[int]
    """For each node, the number of layers that are complete when the node is."""
    layers: int
    node_end_ms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """End time of each node in the latest run with timestamps, in milliseconds."""
    plan_ms: float = 0.0
    """End time of the plan in that run, in milliseconds."""
    is_rejected: bool = False
    """Whether its results differed from those of its launches run one after another."""


class PlanRun(Protocol):
    """Callable that runs a plan once."""

    def __call__(self, *, timed: bool) -> None:
        """Run the plan; with ``timed``, each launch waits until the one before is complete."""
        ...


class PlanFixture(ABC):
    """Memory, code and weights that plans share while they run alternately."""

    plans: Sequence[BuiltPlan | None]
    """One plan per assignment; None where a kernel does not compile or load."""
    segment_factory: SegmentFactory
    memories: MemoryMap

    def measure_plan_ms(self, run: Callable[[], None]) -> float:
        """Return the mean milliseconds of ``run``, which runs a plan without timestamps.

        Only fixtures whose plans are timed as a whole implement it.
        """
        raise InternalError(
            f"{type(self).__name__} measures nodes by timestamps and cannot time {run}"
        )

    def find_nondeterministic_plans(
        self, plan_runs: Sequence[PlanRun | None], references: Sequence[int]
    ) -> set[int]:
        """Return the indices of plans whose results differ from those of serial launches.

        Args:
            plan_runs: callables that run the plans; None for a plan that cannot be run.
            references: for each plan, the index of the first one that must give equal bits; its
                own if there is none before it.
        """
        raise InternalError(
            f"{type(self).__name__} runs launches in one order only and cannot compare "
            f"{len(plan_runs)} plans with it"
        )

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class InNetworkTrial:
    """Times plans of one graph in interleaved runs.

    Host segments, which run in Python, are left out: they have no tactics.
    """

    def __init__(
        self,
        graph: Graph,
        open_fixture: Callable[[Sequence[Assignment]], PlanFixture],
        *,
        sizes: Mapping[str, int],
        times_whole_plan: bool = False,
        prepare_seconds: float = 0.0,
    ) -> None:
        """Create a trial.

        Args:
            graph: optimised graph with inferred types.
            open_fixture: builds plans of assignments on a device.
            sizes: values of all symbols.
            times_whole_plan: whether plans are timed as a whole because timestamps would disturb
                them; only the first plan is then also run with timestamps.
            prepare_seconds: seconds that it takes to prepare a plan.
        """
        self.graph, self.open_fixture, self.sizes = graph, open_fixture, dict(sizes)
        self.times_whole_plan, self.prepare_seconds = times_whole_plan, prepare_seconds

    def milliseconds(
        self, assignments: Sequence[Assignment], *, runs: int, max_seconds: float
    ) -> list[NDArray[np.float64]]:
        """Time the plans of several assignments in interleaved runs.

        Returns for each assignment an array of shape (runs, nodes + 1) in milliseconds: the end
        time of each node, then that of the plan. If plans are timed as a whole, the end times of
        nodes are those of the first assignment. Slow outliers are left out. All times are infinite
        for an assignment whose code does not compile or load, or whose results are wrong when its
        launches overlap.

        Args:
            assignments: tactics of all nodes; one plan is built of each.
            runs: number of runs of each plan, after a first run that is not counted.
            max_seconds: time limit; at least one run is made of each plan.
        """
        fixture = self.open_fixture(assignments)
        timed_plans: list[_TimedPlan] = []
        try:
            # One by one: those before a plan that cannot be prepared are closed, too.
            timed_plans.extend(self._prepare_plan(plan, fixture) for plan in fixture.plans)
            for timed_plan in timed_plans:
                self._record_node_ends(timed_plan, timed_plans[0], fixture)
            if self.times_whole_plan:
                self._reject_nondeterministic(
                    timed_plans, fixture, _first_with_same_kernels(assignments)
                )
            return self._run_interleaved(timed_plans, fixture, runs, max_seconds)
        finally:
            for timed_plan in timed_plans:
                for segment in timed_plan.segments:
                    segment.close()
            fixture.close()

    def _reject_nondeterministic(
        self, timed_plans: Sequence[_TimedPlan], fixture: PlanFixture, references: Sequence[int]
    ) -> None:
        """Mark plans as rejected whose results depend on whether launches overlap."""
        plan_runs = [
            None if plan.is_rejected else partial(self._run_plan, plan, fixture)
            for plan in timed_plans
        ]
        for number in fixture.find_nondeterministic_plans(plan_runs, references):
            timed_plans[number].is_rejected = True
            _LOG.warning(
                "%s: plan %d of %d is rejected: the results differ from those of the same "
                "launches run one after another",
                sanitize_name(self.graph.name),
                number + 1,
                len(timed_plans),
            )

    def _run_plan(self, timed_plan: _TimedPlan, fixture: PlanFixture, *, timed: bool) -> None:
        for segment in timed_plan.segments:
            segment.run(self.sizes, fixture.memories, timed=timed)

    def _run_interleaved(
        self, timed_plans: Sequence[_TimedPlan], fixture: PlanFixture, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        """Run the plans alternately until there are enough runs or ``seconds`` have passed."""
        deadline = time.perf_counter() + seconds
        infinite = np.full(len(self.graph.nodes) + 1, np.inf)
        times: list[list[NDArray[np.float64]]] = [[] for _ in timed_plans]
        while True:
            for plan_times, timed_plan in zip(times, timed_plans, strict=True):
                is_rejected = timed_plan.is_rejected
                plan_times.append(infinite if is_rejected else self._run(timed_plan, fixture))
            kept = [without_outliers(np.array(plan_times)) for plan_times in times]
            if min(map(len, kept)) >= runs or time.perf_counter() > deadline:
                return kept

    def _prepare_plan(self, built_plan: BuiltPlan | None, fixture: PlanFixture) -> _TimedPlan:
        """Split a plan into segments and find the layer after which each node is complete."""
        if built_plan is None:
            return _TimedPlan([], [0] * len(self.graph.nodes), 0, is_rejected=True)
        native = split_plan(built_plan.plan, fixture.segment_factory, only_launches=True)
        positions = {dict(info.details).get("node"): i for i, info in enumerate(built_plan.layers)}
        ends: list[int] = []
        for node in self.graph.nodes:
            before = ends[-1] if ends else 0
            ends.append(max(before, positions.get(node.name, -1) + 1))
        return _TimedPlan(native, ends, len(built_plan.layers))

    def _record_node_ends(
        self, timed_plan: _TimedPlan, first: _TimedPlan, fixture: PlanFixture
    ) -> None:
        """Run a plan with timestamps and record the end times of its nodes.

        If plans are timed as a whole, all but the first take the end times of the first.
        """
        if self.times_whole_plan and timed_plan is not first:
            timed_plan.node_end_ms = first.node_end_ms
            return
        layer_ms = np.zeros(timed_plan.layers + 1)
        self._run_plan(timed_plan, fixture, timed=True)
        for segment in timed_plan.segments:
            for layer, milliseconds in segment.milliseconds():
                layer_ms[layer + 1] += milliseconds
        end_ms = np.cumsum(layer_ms)
        timed_plan.node_end_ms, timed_plan.plan_ms = end_ms[timed_plan.ends], float(end_ms[-1])

    def _run(self, timed_plan: _TimedPlan, fixture: PlanFixture) -> NDArray[np.float64]:
        if not self.times_whole_plan:
            self._record_node_ends(timed_plan, timed_plan, fixture)
            return np.append(timed_plan.node_end_ms, timed_plan.plan_ms)
        run = partial(self._run_plan, timed_plan, fixture, timed=False)
        return np.append(timed_plan.node_end_ms, fixture.measure_plan_ms(run))


class CpuPlanFixture(PlanFixture):
    """Plans that share memory and code on this machine's CPU."""

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
        """Build a plan of each assignment; weights that may be random are not packed."""
        built, weights_bytes, constants = _build_plans(graph, assignments, backend, symbols)
        self.plans = built
        plans = [plan.plan for plan in built]
        memory, rng = CpuMemory(), np.random.default_rng(0)
        arena = memory.allocate(max(plan.arena_bytes for plan in plans), "trial")
        arena.bytes[:] = 0
        weights = memory.allocate(weights_bytes + constants.size_bytes, "trial")
        _fill_random(weights.bytes[:weights_bytes], rng)
        weights.bytes[weights_bytes:] = constants.data()
        launches = [launch for plan in plans for launch in plan.launches]
        image = backend.compile([s.kernel for s in launches], target)
        self.code = MappedCode(image.code)
        max_scratch_bytes = max((s.scratch_bytes for s in launches), default=0)
        scratch = Scratch(memory, max_scratch_bytes, threads)
        kernels = {name: self.code.address + offset for name, offset in image.symbols}
        self.segment_factory = CpuSegmentFactory(
            kernels, runtime, worker_pool(), memory, threads, scratch
        )
        # Random indices may be out of range; the error records are written and ignored.
        errors = memory.allocate(max(len(plan.layers) for plan in built) * ERROR_BYTES, "trial")
        self.allocations: list[CpuAllocation | Scratch] = [arena, weights, errors, scratch]
        self.bindings = [random_binding(v, sizes, rng) for v in (*graph.inputs, *graph.outputs)]
        addresses = [int(array.ctypes.data) for array in self.bindings]
        self.memories = MemoryMap(arena.address, weights.address, errors.address, addresses)

    @override
    def close(self) -> None:
        for allocation in self.allocations:
            allocation.close()


def _build_plans(
    graph: Graph, assignments: Sequence[Assignment], backend: Backend[CpuTarget], symbols: Symbols
) -> tuple[list[BuiltPlan], int, WeightStore]:
    """Build the plans of several assignments on one weights buffer.

    Returns the plans, the bytes of the random weights at the buffer's start, and the small
    constants, which are stored behind them with their own values.
    """
    built: list[tuple[BuiltPlan, WeightStore]] = []
    for assignment in assignments:
        weights = WeightStore()
        built.append((build_plan(graph, assignment, backend, weights, symbols=symbols), weights))
    small_constants, random_bytes = WeightStore(), max(weights.size_bytes for _, weights in built)
    plans: list[BuiltPlan] = []
    for built_plan, weights in built:
        moved = {
            offset: random_bytes + small_constants.place(constant)
            for constant, offset in weights.entries
            if constant_bytes(constant) and not _may_be_random(constant)
        }
        buffers = tuple(
            replace(b, start=moved.get(b.start, b.start)) if b.space is Space.WEIGHTS else b
            for b in built_plan.plan.buffers
        )
        plans.append(replace(built_plan, plan=replace(built_plan.plan, buffers=buffers)))
    return plans, random_bytes, small_constants


def without_outliers(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows of ``times`` whose last entry is within `_OUTLIER_RATIO` of the least.

    Each row is a run; its last entry is the time of the whole plan. A run that other processes
    slowed down says nothing about single nodes.
    """
    plan_ms = times[:, -1]
    kept: NDArray[np.float64] = times[plan_ms <= _OUTLIER_RATIO * plan_ms.min()]
    return kept


def _may_be_random(constant: Constant) -> bool:
    """Return whether random floats may replace the constant: large float weights."""
    large = constant_bytes(constant) > _SMALL_BYTES
    return large and constant.recipe is not None and constant.type.dtype.is_float


def _fill_random(memory: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Fill memory with a repeated block of random floats.

    The numbers are bfloat16. Read as float32, a pair has the magnitude of its second number.
    """
    numbers = _SPREAD * rng.standard_normal(_SMALL_BYTES // 2, np.float32)
    block = numbers.astype(DType.BFLOAT16.numpy).view(np.uint8)
    for start in range(0, memory.size, block.size):
        part = memory[start : start + block.size]
        part[:] = block[: part.size]


def random_binding(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Return a random array with the shape and dtype of an input or output."""
    shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
    return np.ascontiguousarray(random_array(value.tensor.dtype.numpy, shape, rng))

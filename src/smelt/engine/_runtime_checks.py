"""Conditions of a plan with symbolic extents, which each run checks at its own values.

A plan for a range of shapes is sound for some values of its symbols and not for others: guards
state the assumptions of inference, and a view lies inside its buffer only if its extents fit.
Interval arithmetic over the plan's box proves most of these conditions once. The remaining ones
form one table for each stage at which values become known (the start of a run, and each step that
determines a symbol). A few numpy calls evaluate a table before the first step that depends on it.

Pairs of windows on one buffer are the exception: each pair is decided separately, which takes some
40 us for a pair and a new set of values. The parts of a concatenation interleave, so a comparison
of the ends of two windows, which a table could make, does not separate them. `views_overlap` does:
it splits the distance of the windows by their strides in an order that depends on the values, and
may compare bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.engine._concrete_verifier import (
    MAX_CHUNKS,
    MAX_EXTENT,
    is_same_view,
    verify_plan_at,
    views_overlap,
)
from smelt.engine._plan import HostStep, Space, accesses_of
from smelt.errors import EngineFormatError, InternalError
from smelt.types import EXACT_BOUND, DimTable, Relation, element_count, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine._concrete_verifier import Operand
    from smelt.engine._plan import EngineHeader, Launch, Plan, Step, View
    from smelt.types import Dim, Guard

    _Pair = tuple[Operand, Operand]

START: Final = -1
"""Stage before the first step; any other stage is the step that determines a symbol."""
_MAX_CACHED_VALUES: Final = 64

_Range = tuple[Any, Any]
"""Lower and upper bounds, arrays of float64."""


@dataclass(frozen=True, slots=True)
class _BoundedView:
    """A view, and the actual size of its buffer."""

    view: View
    capacity_bytes: Dim
    """Size in bytes of the application's array, or the buffer's own size if that is smaller."""
    most: int
    """The buffer's own size in bytes."""


@dataclass(slots=True)
class _StageConditions:
    """Conditions that can be evaluated once a step has determined its symbols."""

    guards: dict[Guard, None] = field(default_factory=dict["Guard", None])
    windows: dict[_BoundedView, None] = field(default_factory=dict[_BoundedView, None])
    counts: dict[Dim, None] = field(default_factory=dict["Dim", None])
    """Numbers of chunks."""
    pairs: dict[_Pair, None] = field(default_factory=dict["_Pair", None])
    """Pairs of different windows on one buffer in one launch, one of which is written."""


class RuntimeChecks:
    """Residual conditions of one plan; contexts share the object and only read it."""

    def __init__(self, header: EngineHeader, plan: Plan) -> None:
        """Collect the conditions, and remove those that hold in the whole box.

        Raises:
            EngineFormatError: a dimension has no 64-bit value, or a step depends on a symbol that
                only a later step determines.
        """
        self._header, self._plan = header, plan
        self._box = {name: (low, high) for name, low, high in plan.symbols}
        self._data_dependent_symbols = plan.data_dependent_symbols
        self._latest = _latest_stages(plan)
        self._capacities = plan.max_shapes(header.bindings)
        try:
            self._tables = {
                stage: table
                for stage, conditions in self._collect().items()
                if (table := _ResidualConditions(conditions, self._box))
            }
        except OverflowError as error:
            raise EngineFormatError(f"the plan is invalid: {error}") from error

    def symbols(self) -> frozenset[str]:
        """Symbols on which any of the conditions depends."""
        return frozenset(name for table in self._tables.values() for name in table.symbols)

    def stages(self) -> frozenset[int]:
        """Stages with conditions to check."""
        return frozenset(self._tables)

    def check(self, values: Mapping[str, int], stage: int = START) -> None:
        """Check the conditions of one stage of a run.

        Args:
            values: value of every symbol that is known at the stage.
            stage: `START`, or the number of the step that has just determined symbols.

        Raises:
            ShapeError: a guard fails; the message names the op, the axes and both extents.
            EngineFormatError: a step would access memory outside its buffers.
        """
        table = self._tables.get(stage)
        if table is not None and not table.holds(values):
            self._explain(table, values)

    def _explain(self, table: _ResidualConditions, values: Mapping[str, int]) -> None:
        for guard in table.guards:
            if not guard.holds(values):
                raise guard.violation(values)
        whole = {name: high for name, (_, high) in self._box.items()} | dict(values)
        verify_plan_at(self._header, self._plan, whole)
        raise InternalError("the run-time checks and the plan verifier disagree")

    # ---- collecting

    def _collect(self) -> dict[int, _StageConditions]:
        stages: dict[int, _StageConditions] = {START: _StageConditions()}
        for guard in self._plan.guards:
            stage = self._stage_of(guard.symbols)
            stages.setdefault(stage, _StageConditions()).guards[guard] = None
        for number, step in enumerate(self._plan.steps):
            for window in self._windows(step):
                symbols = _symbols_of(window.view)
                self._at(stages, number, symbols).windows[window] = None
            if isinstance(step, HostStep):
                continue
            symbols = symbols_of(step.chunks, *step.scalars)
            self._at(stages, number, symbols).counts[step.chunks] = None
            for pair in self._pairs(step):
                self._at(stages, number, _symbols_of_pair(pair)).pairs[pair] = None
        return stages

    def _stage_of(self, symbols: Iterable[str]) -> int:
        """Return the stage from which on all of these symbols have values."""
        return max((self._data_dependent_symbols.get(s, START) for s in symbols), default=START)

    def _at(
        self, stages: dict[int, _StageConditions], number: int, symbols: Iterable[str]
    ) -> _StageConditions:
        # As late as a step allows: the message of a failing guard is more specific than the step's.
        stage = max(self._latest[number], self._stage_of(symbols))
        if stage > number:
            raise EngineFormatError(
                f"step {number} depends on a symbol that only the later step {stage} determines"
            )
        return stages.setdefault(stage, _StageConditions())

    def _windows(self, step: Step) -> Iterator[_BoundedView]:
        for view, _ in accesses_of(step):
            buffer = self._plan.buffers[view.buffer]
            capacity_bytes: Dim = buffer.size_bytes
            if buffer.space in {Space.INPUT, Space.OUTPUT}:
                binding = self._header.bindings[buffer.start]
                elements = element_count(self._capacities[buffer.start])
                capacity_bytes = elements * binding.dtype.size_bytes
            yield _BoundedView(view, capacity_bytes, buffer.size_bytes)

    def _pairs(self, step: Launch) -> Iterator[_Pair]:
        """Yield pairs of different operands in one memory space, one of which is written."""
        rows = [(view, is_written, 0) for view, is_written in accesses_of(step)]
        for a, b in itertools.combinations(rows, 2):
            is_written = a[1] or b[1]
            if (
                is_written
                and self._plan.memory_key(a[0]) == self._plan.memory_key(b[0])
                and not is_same_view(a[0], b[0])
            ):
                yield a, b


class CachedRuntimeChecks:
    """Conditions of a plan, and the values for which they hold.

    Each context has its own object, whose size is bounded.
    """

    def __init__(self, conditions: RuntimeChecks) -> None:
        self._conditions = conditions
        self._symbols = sorted(conditions.symbols())
        self._kept: set[tuple[object, ...]] = set()

    def check(self, values: Mapping[str, int], stage: int = START) -> None:
        """Check a stage, once for each combination of values. Raises as `RuntimeChecks.check`."""
        if stage not in self._conditions.stages():
            return
        key = (stage, *(values[name] for name in self._symbols if name in values))
        if key in self._kept:
            return
        self._conditions.check(values, stage)
        if len(self._kept) >= _MAX_CACHED_VALUES:
            self._kept.clear()
        self._kept.add(key)


def _latest_stages(plan: Plan) -> list[int]:
    """Return the last stage before each step."""
    deciding = set(plan.data_dependent_symbols.values())
    stages = (number if number in deciding else START for number in range(len(plan.steps)))
    return list(itertools.accumulate(stages, max, initial=START))


# ---- one stage as arrays


class _ResidualConditions:
    """Conditions of one stage without those that hold in the whole box."""

    def __init__(self, stage: _StageConditions, box: Mapping[str, tuple[int, int]]) -> None:
        every = DimTable(_dims_of(stage))
        bounds = every.bounds(box)
        self.guards = [g for g in stage.guards if not _is_proven(g, every, bounds)]
        windows = list(stage.windows)
        proven = _Footprints(windows, every).proven(bounds)
        windows = [w for w, is_proven in zip(windows, proven, strict=True) if not is_proven]
        counts = [c for c in stage.counts if not _in_range(every, bounds, c, MAX_CHUNKS)]
        self._pairs = [p for p in stage.pairs if _symbols_of_pair(p) or views_overlap(*p, {})]
        rest = _StageConditions(
            dict.fromkeys(self.guards), dict.fromkeys(windows), dict.fromkeys(counts)
        )
        self._dims = DimTable(_dims_of(rest))
        self.symbols = frozenset(self._dims.symbols).union(*map(_symbols_of_pair, self._pairs))
        self._footprints = _Footprints(windows, self._dims)
        self._counts = np.array([self._dims.index(c) for c in counts], np.intp)
        self._sides = np.array(
            [[self._dims.index(side) for side in (g.left, g.right)] for g in self.guards], np.intp
        ).reshape(-1, 2)
        self._is_equality = np.array([g.relation is Relation.EQUAL for g in self.guards], np.bool_)

    def __bool__(self) -> bool:
        return bool(self.guards or self._pairs or len(self._footprints) or self._counts.size)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether every condition holds; only pairs of windows are checked one by one."""
        found = self._dims.evaluate(values)
        if self.guards:
            gaps = found[self._sides[:, 0]] - found[self._sides[:, 1]]
            if bool(np.where(self._is_equality, gaps != 0, gaps < 0).any()):
                return False
        counts = found[self._counts]
        if bool(((counts < 0) | (counts > MAX_CHUNKS)).any()):
            return False
        if not self._footprints.hold(found):
            return False
        return not any(views_overlap(*pair, values) for pair in self._pairs)


def _symbols_of(view: View) -> frozenset[str]:
    return symbols_of(view.offset, *view.shape, *view.strides)


def _symbols_of_pair(pair: _Pair) -> frozenset[str]:
    return _symbols_of(pair[0][0]) | _symbols_of(pair[1][0])


def _dims_of(stage: _StageConditions) -> Iterable[Dim]:
    yield 0
    yield 1
    for guard in stage.guards:
        yield from (guard.left, guard.right)
    yield from stage.counts
    for window in stage.windows:
        view = window.view
        yield from (view.offset, *view.shape, *view.strides, window.capacity_bytes)


def _is_proven(guard: Guard, dims: DimTable, bounds: _Range) -> bool:
    (least, most), left, right = bounds, dims.index(guard.left), dims.index(guard.right)
    at_least = bool(least[left] >= most[right])
    if guard.relation is Relation.AT_LEAST:
        return at_least
    return at_least and bool(most[left] <= least[right])


def _in_range(dims: DimTable, bounds: _Range, dim: Dim, most: int) -> bool:
    index = dims.index(dim)
    return bool(bounds[0][index] >= 0 and bounds[1][index] <= most)


class _Footprints:
    """Byte ranges that views access, and the sizes of their buffers."""

    def __init__(self, windows: Sequence[_BoundedView], dims: DimTable) -> None:
        views = [w.view for w in windows]
        rank = max((len(v.shape) for v in views), default=0)
        one, zero = dims.index(1), dims.index(0)
        self._extents = _padded([[dims.index(d) for d in v.shape] for v in views], rank, one)
        self._strides = _padded([[dims.index(d) for d in v.strides] for v in views], rank, zero)
        self._before = _padded([[before for before, _ in v.halo] for v in views], rank, 0)
        self._after = _padded([[after for _, after in v.halo] for v in views], rank, 0)
        self._offsets = np.array([dims.index(v.offset) for v in views], np.intp)
        self._capacities = np.array([dims.index(w.capacity_bytes) for w in windows], np.intp)
        self._most = np.array([w.most for w in windows], np.int64)
        self._widths = np.array([v.dtype.size_bytes for v in views], np.int64)

    def __len__(self) -> int:
        return len(self._widths)

    def hold(self, found: NDArray[np.int64]) -> bool:
        """Return whether every view lies in its buffer at the given values of the dimensions."""
        extents, strides = found[self._extents], found[self._strides]
        front = -self._before * strides
        back = (extents - 1 + self._after) * strides
        low = found[self._offsets] + np.minimum(front, back).sum(axis=1) * self._widths
        high = found[self._offsets] + (np.maximum(front, back).sum(axis=1) + 1) * self._widths
        max_shapes = np.minimum(found[self._capacities], self._most)
        touches_none = (extents + self._before + self._after == 0).any(axis=1)
        fits = touches_none | ((low >= 0) & (high <= max_shapes))
        return bool(fits.all()) and bool(((extents >= 0) & (extents <= MAX_EXTENT)).all())

    def proven(self, bounds: _Range) -> NDArray[np.bool_]:
        """Return which views lie in their buffers in the whole box. Raises OverflowError."""
        least, most = bounds
        extents = (least[self._extents], most[self._extents])
        strides = (least[self._strides], most[self._strides])
        front = _scaled(strides, -self._before)
        # A view without elements along an axis, halo included, accesses nothing.
        ends = (
            np.maximum(extents[0] - 1 + self._after, -self._before),
            extents[1] - 1 + self._after,
        )
        back = _product(ends, strides)
        low = least[self._offsets] + np.minimum(front[0], back[0]).sum(axis=1) * self._widths
        high = most[self._offsets] + (np.maximum(front[1], back[1]).sum(axis=1) + 1) * self._widths
        for end in (*front, *back, low, high):
            if end.size and not float(np.abs(end).max()) < EXACT_BOUND:
                raise OverflowError("the end of a view does not fit into 64 bits")
        max_shapes = np.minimum(least[self._capacities], self._most)
        inside = (low >= 0) & (high <= max_shapes)
        shaped = (extents[0] >= 0) & (extents[1] <= MAX_EXTENT)
        return np.asarray(inside & shaped.all(axis=1), np.bool_)


def _padded(rows: Sequence[Sequence[int]], width: int, filling: int) -> NDArray[np.intp]:
    made = np.full((len(rows), width), filling, np.intp)
    for number, row in enumerate(rows):
        made[number, : len(row)] = row
    return made


def _scaled(ends: _Range, factor: NDArray[Any]) -> _Range:
    products = [end * factor for end in ends]
    return np.minimum(*products), np.maximum(*products)


def _product(a: _Range, b: _Range) -> _Range:
    products = [x * y for x in a for y in b]
    return np.minimum.reduce(products), np.maximum.reduce(products)

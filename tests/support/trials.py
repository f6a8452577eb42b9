"""Every tactic of a backend for one op's cases, each as a network of one node.

A *trial* is one case by one tactic. It goes the way that a real network goes; how it is run is its
device's: ``conformance`` runs them on the host, ``cuda_trials`` on a GPU and ``triton_interpreter``
as if there was one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from smelt.backends import WeightStore, build_plan, with_storage_dtype
from smelt.errors import ShapeError
from smelt.ir import Graph, clone
from smelt.ops import RoundMantissa
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    is_float_dtype,
    substitute_dim,
    symbols_of,
)
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.backends import Backend, BuiltPlan, Tactic
    from smelt.engine import Plan
    from smelt.ir import Case, Node, Op
    from smelt.types import Dim

Array = np.ndarray[Any, Any]
T = TypeVar("T")
Symbols = tuple[tuple[str, int, int], ...]

HALF2 = "half2"
"""The family whose kernels take images in pairs."""
STRANGE = "strange"
"""What is infinite, or no number."""
TF32 = "tf32"
"""How tactics multiply float32 that round it to ten bits."""
_FACTORS = {"conv": (0, 1), "conv_sum": (0, 1, 2, 3), "gemm": (0, 1), "mat_mul": (0, 1)}
"""Which inputs of an op are multiplied."""
_ROOM = 8
"""Elements of which a few may be strange."""
_TF32_ERRORS = (1e-5, 2e-3)
"""What is allowed where rounding is part of what is wanted, and where it is not."""
_MAX_EXACT = 40
"""Of so many tactics of one case all are tried; of more, so many evenly spread ones."""


@dataclass(slots=True)
class Trial:
    """One case by one tactic."""

    case: Case
    tactic: Tactic
    graph: Graph
    symbols: Symbols
    assembled: BuiltPlan
    weights: WeightStore
    wanted: tuple[Array, ...]
    factors: tuple[int, ...] = ()
    """Inputs that are multiplied as tf32."""

    def __str__(self) -> str:
        layouts = [*self.tactic.input_formats, *self.tactic.output_formats]
        formats = " ".join("-" if f is None else f.layout.value for f in layouts)
        batch = " with a symbolic batch" if self.symbols else ""
        return f"{self.case.name} by {self.tactic} on {formats}{batch}"

    def expected(self, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """What is right for other inputs of the case."""
        return _expected(self.case.op, inputs, self.factors)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.assembled.plan

    @property
    def step(self) -> float:
        """Distance of numbers next to zero in the types that results are stored in."""
        return smallest_step(self.tactic)

    @property
    def arrays(self) -> dict[str, Array]:
        """The inputs that are not constants, by name."""
        named = {f"x{index}": array for index, array in enumerate(self.case.inputs)}
        return {v.name: array for v in self.graph.inputs if (array := named[v.name]) is not None}

    @property
    def values(self) -> dict[str, int]:
        """The symbols' values in a run on the case's inputs."""
        known: dict[str, int] = {name: high for name, _, high in self.symbols}
        for value in self.graph.inputs:
            shape: tuple[int, ...] = self.arrays[value.name].shape
            for dim, extent in zip(value.tensor.shape, shape, strict=True):
                known |= dict.fromkeys(symbols_of(dim), extent)
        return known


def smallest_step(tactic: Tactic) -> float:
    """Distance of numbers next to zero in the types that a tactic's results are stored in."""
    is_half = any(fmt.dtype is DType.FLOAT16 for fmt in tactic.output_formats)
    return float(np.finfo(np.float16).smallest_subnormal) if is_half else 0.0


def graph_of(case: Case, *, symbolic: bool = False) -> Graph:
    """The case's node alone: its inputs are x0, x1, …; its outputs are the graph's.

    Raises ShapeError when the op's results do not follow from symbolic extents.
    """
    graph = Graph("case")
    batch = _batch(case)
    if symbolic and batch is None:
        raise ShapeError("the inputs have no batch in common")
    values: list[Any] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
        elif index in case.constants:
            values.append(graph.add_constant(array, f"x{index}"))
        else:
            shape: tuple[Any, ...] = array.shape
            if symbolic and array.ndim > 1:
                shape = (SymbolicDim.symbol("batch"), *shape[1:])
            kind = TensorType(DType.from_numpy(array.dtype), shape)
            values.append(graph.add_input(f"x{index}", kind))
    graph.outputs += graph.add(case.op, *values, name="node").outputs
    return graph


def check_range(graph: Graph, symbols: Symbols) -> None:
    """Refuse, as a build does, what fits as symbols but not at both ends of their ranges.

    Raises ShapeError.
    """
    for end in (0, 1):
        values: dict[str, Dim] = {name: (low, high)[end] for name, low, high in symbols}
        fixed = clone(graph)
        for value in fixed.inputs:
            shape = tuple(substitute_dim(d, values) for d in value.tensor.shape)
            value.type = TensorType(value.tensor.dtype, shape)
        fixed.infer()


def _batch(case: Case) -> int | None:
    """The first extent of all inputs that vary and have axes, if it is one and more than one."""
    found = {
        array.shape[0]
        for index, array in enumerate(case.inputs)
        if array is not None and array.ndim > 1 and index not in case.constants
    }
    (batch,) = found if len(found) == 1 else (0,)
    return batch if batch > 1 else None


def bound_symbols(graph: Graph, wanted: Sequence[Array]) -> Symbols:
    """Bounds of what a run itself decides: what the reference gave, and a little more."""
    known = {s for v in graph.inputs for s in symbols_of(*v.tensor.shape)}
    found: dict[str, int] = {}
    for value, array in zip(graph.outputs, wanted, strict=True):
        for dim, extent in zip(value.tensor.shape, array.shape, strict=True):
            for name in symbols_of(dim) - known:
                found[name] = max(found.get(name, 0), extent + 3)
    return tuple((name, 0, high) for name, high in sorted(found.items()))


def trials_of_cases(cases: Iterable[Case], backend: Backend[Any], target: Any) -> Iterator[Trial]:
    """Every case by every tactic; with a symbolic batch by one of each kind of a family."""
    for case in cases:
        wanted = _expected(case.op, case.inputs)
        graph = graph_of(case)
        for tactic in _spread(backend.candidates(graph.nodes[0], target)[0]):
            yield _trial(case, graph, tactic, backend, wanted, ())
        open_symbols = (("batch", 1, (_batch(case) or 1) + 2),)
        try:
            graph = graph_of(case, symbolic=True)
            check_range(graph, open_symbols)
        except ShapeError:
            continue
        seen: set[tuple[str, ...]] = set()
        for tactic in backend.candidates(graph.nodes[0], target)[0]:
            kind = (tactic.family, *(name for name, _ in tactic.parameters))
            if kind not in seen:
                seen.add(kind)
                yield _trial(case, graph, tactic, backend, wanted, open_symbols)


def open_trials(case: Case, backend: Backend[Any], target: Any) -> Iterator[Trial]:
    """A case with a symbolic batch by every tactic, and no images at all by the same kernels."""
    graph = graph_of(case, symbolic=True)
    open_symbols = (("batch", 0, (_batch(case) or 1) + 2),)
    inputs = (
        array if array is None or index in case.constants else array[:0]
        for index, array in enumerate(case.inputs)
    )
    empty = replace(case, name=f"no {case.name}", inputs=tuple(inputs))
    for tactic in backend.candidates(graph.nodes[0], target)[0]:
        for one in (case, empty):
            wanted = _expected(one.op, one.inputs)
            yield _trial(one, graph, tactic, backend, wanted, open_symbols)


def sample(items: Iterable[T], count: int, key: Callable[[T], object] | None = None) -> list[T]:
    """A few of the items, always the same: one of each key, and others up to a number."""
    shuffled = list(items)
    random.Random(len(shuffled)).shuffle(shuffled)  # noqa: S311  (a choice of tests)
    first = list({key(item): item for item in shuffled}.values()) if key else []
    others = [item for item in shuffled if not any(item is chosen for chosen in first)]
    return [*first, *others[: max(0, count - len(first))]]


def covering(trials: Iterable[Trial]) -> list[Trial]:
    """So many of the trials that whatever two traits meet in one of them meet in one of these.

    Traits are the case, the family, each parameter's value, each operand's format: so every case
    goes by every value of every parameter that it can go by, and all values of two parameters meet.
    """
    found: list[Trial] = []
    left: list[tuple[set[tuple[str, str]], Trial]] = [
        (set(combinations(_traits(trial), 2)), trial) for trial in trials
    ]
    while left:
        met, chosen = max(left, key=_count_of_pairs)
        found.append(chosen)
        rest = [(pairs - met, trial) for pairs, trial in left]
        left = [entry for entry in rest if entry[0]]
    return found


def _count_of_pairs(entry: tuple[set[tuple[str, str]], Trial]) -> int:
    return len(entry[0])


def _traits(trial: Trial) -> list[str]:
    tactic = trial.tactic
    traits = [f"case {trial.case.name}", f"symbols {len(trial.symbols)}", tactic.family]
    traits += [f"{tactic.family} {name}={value}" for name, value in tactic.parameters]
    traits += [
        f"operand {n} {fmt}"
        for n, fmt in enumerate((*tactic.input_formats, *tactic.output_formats))
    ]
    return sorted(set(traits))


def narrow_trials(
    cases: Iterable[Case], backend: Backend[Any], target: Any, storage: DType
) -> Iterator[Trial]:
    """Every case by every tactic that stores float32 as ``storage``, its results too."""
    for case in cases:
        narrow = rounded(case, storage)
        wanted = _expected(narrow.op, narrow.inputs)
        graph = graph_of(narrow)
        node = graph.nodes[0]
        wide = backend.candidates(node, target)[0]
        for tactic in _spread(candidates_in(storage, backend, node, target)[0]):
            if tactic not in wide:
                made = with_storage_dtype(storage, node, tactic, narrows_all_outputs=True)
                yield _trial(narrow, graph, made, backend, wanted, ())


def half2_trials(cases: Iterable[Case], backend: Backend[Any], target: Any) -> Iterator[Trial]:
    """Every case by every tactic that takes images in pairs, and with one image more.

    Args:
        cases: of one op.
        backend: whose tactics.
        target: one where images go in pairs.
    """
    given = list(cases)
    more = [other for case in given if (other := _with_another_image(case)) is not None]
    for case in (*given, *more):
        try:
            (node,) = graph_of(case).nodes
        except ShapeError:  # an operand's first extent was no number of images
            continue
        if HALF2 in {t.family for t in candidates_in(DType.FLOAT16, backend, node, target)[0]}:
            for trial in narrow_trials([case], backend, target, DType.FLOAT16):
                if trial.tactic.family == HALF2:
                    yield trial


def tf32_trials(cases: Iterable[Case], backend: Backend[Any], target: Any) -> Iterator[Trial]:
    """Every case by every tactic that multiplies float32 with ten bits behind the first.

    Of ops that only multiply, what is wanted follows from factors rounded to nearest, as exactly
    as in float32; of others, roughly.
    """
    exact, rough = _TF32_ERRORS
    for case in cases:
        factors = _FACTORS.get(case.op.name, ())
        wanted = _expected(case.op, case.inputs, factors)
        graph = graph_of(case)
        loose = replace(case, tolerance=max(case.tolerance, exact if factors else rough))
        for tactic in _spread(backend.candidates(graph.nodes[0], target)[0]):
            if dict(tactic.parameters).get("input_precision") == TF32:
                yield replace(_trial(loose, graph, tactic, backend, wanted, ()), factors=factors)


def _expected(
    op: Op, inputs: Sequence[Array | None], factors: Sequence[int] = ()
) -> tuple[Array, ...]:
    """What the reference makes of inputs, some of which are multiplied as tf32."""
    arrays = list(inputs)
    for index in factors:
        array = arrays[index]
        if array is not None and array.dtype == np.float32:
            (arrays[index],) = RoundMantissa().reference(array)
    with np.errstate(all="ignore"):
        return op.reference(*arrays)


def strange_trials(cases: Iterable[Case], backend: Backend[Any], target: Any) -> Iterator[Trial]:
    """Every case in float16 and in pairs, with what is infinite or no number in it, by each family.

    Each must stay where the op brings it: no window that ends beside it sees it, no other image.
    Products of float32 are tried by each way to multiply it: some split their factors.
    """
    half = DType.FLOAT16
    for case in cases:
        strange = replace(case, inputs=tuple(_planted(case, k) for k in range(len(case.inputs))))
        strange = rounded(strange, half)
        wanted = _expected(strange.op, strange.inputs)
        graph = graph_of(strange)
        (node,) = graph.nodes
        goals = (target, replace(target, uses_half2=True))
        tactics = [t for goal in goals for t in candidates_in(half, backend, node, goal)[0]]
        for tactic in {t.family: t for t in tactics if not t.is_host_step}.values():
            made = with_storage_dtype(half, node, tactic, narrows_all_outputs=True)
            yield _trial(strange, graph, made, backend, wanted, ())
        wide = backend.candidates(node, replace(target, allows_tf32=True))[0]
        ways = {(t.family, dict(t.parameters).get("input_precision")): t for t in wide}
        for (_, precision), tactic in ways.items():
            if precision is not None:
                yield _trial(strange, graph, tactic, backend, wanted, ())


def _planted(case: Case, index: int) -> Array | None:
    """An input with strange elements side by side, so that they lie at odd and at even places."""
    array = case.inputs[index]
    if (
        array is None
        or not is_float_dtype(array.dtype)
        or index in case.constants
        or array.size < _ROOM
    ):
        return array
    planted = array.copy()
    start = min(array.size // 2 + index, array.size - 3)
    planted.reshape(-1)[[start, start + 1, -1]] = [np.nan, np.inf, -np.inf]
    return planted


def _with_another_image(case: Case) -> Case | None:
    """The case with its first image once more at the end of the batch, if it has a batch."""
    batches = {
        array.shape[0]
        for index, array in enumerate(case.inputs)
        if array is not None and array.ndim > 1 and index not in case.constants
    }
    if len(batches) != 1:
        return None
    inputs = tuple(
        array
        if array is None or array.ndim <= 1 or index in case.constants
        else np.concatenate([array, array[:1]])
        for index, array in enumerate(case.inputs)
    )
    return replace(case, name=f"{case.name} and another", inputs=inputs)


def rounded(case: Case, storage: DType) -> Case:
    """The case on numbers that ``storage`` holds, to the error that storing results in it makes."""
    arrays: list[Array | None] = []
    for index, array in enumerate(case.inputs):
        if array is None or array.dtype != np.float32 or index in case.constants:
            arrays.append(array)
        else:
            with np.errstate(over="ignore"):
                arrays.append(array.astype(storage.numpy).astype(np.float32))
    tolerance = max(case.tolerance, {DType.BFLOAT16: 1e-2, DType.FLOAT16: 2e-3}[storage])
    return replace(case, inputs=tuple(arrays), tolerance=tolerance)


def _spread(tactics: list[Tactic]) -> list[Tactic]:
    if len(tactics) <= _MAX_EXACT:
        return tactics
    return [tactics[i * len(tactics) // _MAX_EXACT] for i in range(_MAX_EXACT)]


def _trial(
    case: Case,
    graph: Graph,
    tactic: Tactic,
    backend: Backend[Any],
    wanted: tuple[Array, ...],
    symbols: Symbols,
) -> Trial:
    symbols = (*symbols, *bound_symbols(graph, wanted))
    weights = WeightStore()
    node: Node = graph.nodes[0]
    assembled = build_plan(graph, {node: tactic}, backend, weights, symbols=symbols)
    return Trial(case, tactic, graph, symbols, assembled, weights, wanted)


def shuffled(trial: Trial) -> tuple[list[Array], tuple[Array, ...]]:
    """A trial's inputs with the same numbers in another order, and what is right for them."""
    random = np.random.default_rng(1)
    named = {name: array for name, array in trial.arrays.items() if is_float_dtype(array.dtype)}
    fresh = {
        name: random.permutation(array.reshape(-1)).reshape(array.shape)
        for name, array in named.items()
    }
    every = [
        fresh.get(f"x{index}", array) if array is not None else None
        for index, array in enumerate(trial.case.inputs)
    ]
    wanted = trial.expected(every)
    if [x.shape for x in wanted] != [x.shape for x in trial.wanted]:  # sizes that follow from data
        return list(trial.arrays.values()), trial.wanted
    return [fresh.get(name, array) for name, array in trial.arrays.items()], wanted


def difference(mine: Array, wanted: Array, tolerance: float, step: float = 0.0) -> str | None:
    """Why an output is not the reference's; None when it is.

    Args:
        mine: what a tactic made.
        wanted: what the reference makes.
        tolerance: the error that is allowed, of the largest magnitude.
        step: and what is allowed beside that: the distance of numbers next to zero.
    """
    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return f"{mine.dtype}{list(mine.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if not is_float_dtype(wanted.dtype):
        return None if np.array_equal(mine, wanted) else "elements differ"
    a, b = mine.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "what is infinite or no number differs"
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    if not error <= tolerance * scale + step:
        return f"an error of {error:.2g} where the largest magnitude is {scale:.2g}"
    return None

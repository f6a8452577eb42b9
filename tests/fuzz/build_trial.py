"""What one model comes to: read, built and run at several shapes, on guarded and poisoned memory.

All chance comes from a recipe, a short text: ranges of symbols, the shapes of the runs and what is
in the inputs. A symbol's range depends on its name and the recipe alone, so a model that is cut
down keeps the others.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

import smelt
from smelt.builder._build import specialise
from smelt.errors import DeviceError, EngineFormatError, IndexRangeError, SmeltError
from smelt.interp import interpret
from smelt.ir import clone
from smelt.passes import FoldConstants, RemoveUnused, run_passes
from smelt.types import evaluate_dim, symbols_of
from tests.support.guarded_engines import GuardedContext
from tests.support.oracle import disagreement
from tests.support.verdicts import DifferingVerdictsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Self

    from smelt.ir import Graph, Value
    from smelt.runtime import Engine
    from smelt.types import DType

Array = np.ndarray[Any, Any]
SymbolRange = tuple[int, int, int]
"""Smallest, best and largest value of a symbol."""

MAX_WORKSPACE: Final = 1 << 26
_MAX_INPUT_ELEMENTS: Final = 1 << 25
"""Elements of all inputs beyond which a shape is not tried: the trial's own arrays take most."""
"""``max_workspace_bytes`` of engines: all of an arena is poisoned, so counts get less room."""
_POISONS: Final = (0xFF, 0x7F)
"""No number in any float and -1 in integers; and what is large in all of them."""
_WILD: Final = (-1, 0, 5, 9, 100, 10**9, -(10**9), (1 << 63) - 1, -(1 << 63))
_WILD_FLOATS: Final = (np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0)


_ATTEMPTS: Final = 3
"""At ranges for which an engine is built."""


class Rival(Protocol):
    """Hears of every input, and of what the references made of it or why they refused."""

    def __call__(
        self, inputs: Mapping[str, Array], wanted: Mapping[str, Array] | SmeltError, /
    ) -> None:
        """Take note. Raises FindingError."""
        ...


class FindingError(Exception):
    """A promise is broken."""

    def __init__(self, kind: str, place: str, text: str) -> None:
        super().__init__(f"{kind} at {place}: {text}")
        self.kind, self.place, self.text = kind, place, text


def random_source(*parts: object) -> random.Random:
    """Chance that the parts decide."""
    return random.Random(" ".join(map(str, parts)))  # noqa: S311  (no secret)


def try_model(data: bytes, recipe: str, note: Callable[[str], None]) -> Counter[str]:
    """Read, build and run a model; how often what happened.

    Args:
        data: an ONNX model.
        recipe: decides everything that chance decides.
        note: told what is about to be done, for the case that the process dies of it.

    Raises:
        FindingError: the results are wrong. Anything that is no `SmeltError` is a finding, too.
    """
    note("importing")
    try:
        graph = smelt.network_from_onnx(data).graph
    except SmeltError:
        return Counter({"import refused": 1})
    ops = " ".join(sorted({node.op.name for node in graph.nodes}))
    note(f"building {ops}")
    refused: SmeltError | None = None
    for attempt in range(_ATTEMPTS):
        bounds = bounds_of(graph, recipe, attempt)
        several = random_source(recipe, "several").random() < 0.1
        try:
            engine = smelt.build(
                graph,
                tune="none",
                shapes=shapes_of(graph, bounds, several=several),
                max_workspace_bytes=MAX_WORKSPACE,
            )
        except EngineFormatError as error:
            raise FindingError("unsound plan", ops, str(error)) from error
        except SmeltError as error:
            refused = error
        else:
            note(f"running {ops}")
            fixed = {name for name, b in bounds.items() if several or b[0] == b[2]}
            with engine:
                return Counter({"built": 1}) + try_engine(
                    engine, Settling(graph, fixed), bounds, recipe
                )
        if not bounds:
            break
    assert refused is not None
    return Counter({f"build refused: {reason_of(refused)}": 1})


# ---- shapes


def bounds_of(graph: Graph, recipe: str, attempt: int = 0) -> dict[str, SymbolRange]:
    """The range of every symbol of the inputs; in later attempts one for all, and larger."""
    names = sorted({s for value in graph.inputs for s in symbols_of(*value.tensor.shape)})
    alike = attempt > 0 or random_source(recipe, "alike").random() < 0.25
    return {
        name: _bounds(random_source(recipe, "" if alike else name), 3 * attempt) for name in names
    }


def _bounds(chance: random.Random, more: int) -> SymbolRange:
    low = chance.choice((0, 1, 1, 1, 1, 2, 3)) + more
    high = low + chance.choice((0, 0, 1, 2, 3, 5, 8, 8, 16, 30))
    return low, chance.randint(low, high), high


def shapes_of(
    graph: Graph, bounds: Mapping[str, SymbolRange], *, several: bool = False
) -> dict[str, Any] | None:
    """What a build is told of shapes: ranges, or a plan for each of the smallest and largest."""
    if not bounds:
        return None
    made: dict[str, Any] = {}
    for value in graph.inputs:
        rows = tuple(_shape(value, {name: b[k] for name, b in bounds.items()}) for k in range(3))
        made[value.name] = [rows[0], rows[2]] if several else rows
    return made


def _shape(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)


def _calls(bounds: Mapping[str, SymbolRange], recipe: str) -> Iterator[tuple[dict[str, int], bool]]:
    """Values for the symbols, and whether they are outside of their ranges."""
    yield {name: b[1] for name, b in bounds.items()}, False
    if not bounds:
        return
    if any(low < high for low, _, high in bounds.values()):
        yield {name: b[0] for name, b in bounds.items()}, False
        yield {name: b[2] for name, b in bounds.items()}, False
        for number in range(3):
            chance = random_source(recipe, "call", number)
            same = chance.randint(0, 12)
            values = {name: chance.randint(low, high) for name, (low, _, high) in bounds.items()}
            if number == 0:
                values = {n: min(max(same, low), high) for n, (low, _, high) in bounds.items()}
            yield values, False
    chance = random_source(recipe, "outside")
    name = chance.choice(sorted(bounds))
    low, _, high = bounds[name]
    beyond = low - 1 if low > 0 and chance.random() < 0.5 else high + chance.randint(1, 9)
    yield {n: beyond if n == name else b[1] for n, b in bounds.items()}, True


# ---- inputs


def inputs_for(
    graph: Graph, sizes: Mapping[str, int], recipe: str, number: int
) -> dict[str, Array]:
    """Arrays for every input; in some runs with what is out of range or no number."""
    chance = random_source(recipe, "data", number)
    loops = any(node.op.name == "loop" for node in graph.nodes)
    wild = chance.random() < 0.3 and not loops
    return {
        value.name: _array(
            value.tensor.dtype, _shape(value, sizes), f"{recipe} {number} {value.name}", wild=wild
        )
        for value in graph.inputs
    }


def _array(dtype: DType, shape: tuple[int, ...], seed: str, *, wild: bool) -> Array:
    chance = random_source(seed)
    rng = np.random.default_rng(chance.getrandbits(64))
    kind = dtype.numpy
    array: Array
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        array = rng.integers(0, chance.choice((2, 3, 6)), shape)
        if wild:
            strange = np.array([min(max(w, limits.min), limits.max) for w in _WILD], object)
            chosen = rng.random(shape) < 0.3
            array = np.where(chosen, rng.choice(strange, shape), array)
        return array.astype(kind)
    array = rng.standard_normal(shape)
    if wild:
        array = np.where(rng.random(shape) < 0.1, rng.choice(_WILD_FLOATS, shape), array)
    with np.errstate(all="ignore"):
        return array.astype(kind)


def _odd_inputs(inputs: dict[str, Array], recipe: str) -> dict[str, Array]:
    """The inputs with one axis of one of them longer or shorter, or gone."""
    chance = random_source(recipe, "odd")
    name = chance.choice(sorted(inputs))
    array = inputs[name]
    if not array.ndim:
        return {**inputs, name: array.reshape(1)}
    axis = chance.randrange(array.ndim)
    longer = np.concatenate([array, array], axis)
    return {
        **inputs,
        name: chance.choice((longer, array.take(range(array.shape[axis] // 2), axis))),
    }


# ---- runs


class Settling:
    """A graph as a build sees it for one value of some symbols: it then assumes less of others.

    Where an extent is 1 and known to be, it broadcasts; where it is open, it must equal its peer.
    """

    def __init__(self, graph: Graph, fixed: AbstractSet[str]) -> None:
        """Take a network's graph, and symbols that have one value in each plan of an engine."""
        self.graph = graph
        self._fixed = fixed
        self._made: dict[tuple[tuple[str, int], ...], Graph] = {}

    def at(self, inputs: Mapping[str, Array]) -> Graph:
        """The graph for inputs of these shapes."""
        known = _sizes_of(self.graph, inputs)
        sizes = {name: extent for name, extent in known.items() if name in self._fixed}
        key = tuple(sorted(sizes.items()))
        if key not in self._made:
            self._made[key] = clone(self.graph)
            specialise(self._made[key], sizes)
        return self._made[key]


def _sizes_of(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The extents for which the symbols of a graph's inputs stand."""
    return {
        str(dim): extent
        for value in graph.inputs
        for dim, extent in zip(value.tensor.shape, inputs[value.name].shape, strict=False)
        if not isinstance(dim, int)
    }


def _without_what_nobody_reads(
    graph: Graph, inputs: dict[str, Array], error: SmeltError
) -> dict[str, Array] | SmeltError:
    """What the references give where only a shape is read of what has an index out of range.

    An engine need not compute that; ``error`` is what comes of computing it.
    """
    needed = clone(graph)
    try:
        specialise(needed, _sizes_of(graph, inputs))
        run_passes(needed, [FoldConstants(), RemoveUnused()])
        return interpret(needed, inputs)
    except SmeltError:
        return error


class EngineTrial:
    """An engine on two kinds of poison, beside the references of its graph."""

    def __init__(
        self, engine: Engine, settling: Settling, recipe: str, rival: Rival | None = None
    ) -> None:
        """Prepare; ``rival`` also hears of each input and what the references make of it."""
        chance = random_source(recipe, "memory")
        self._settling, self._rival = settling, rival
        self._ops = " ".join(sorted({node.op.name for node in settling.graph.nodes}))
        planned = GuardedContext(engine, spread=False, at_end=chance.random() < 0.5)
        spread = GuardedContext(
            engine, spread=True, at_end=chance.random() < 0.7, threads=chance.choice((1, 1, 2))
        )
        self._contexts = (planned, spread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for context in self._contexts:
            context.close()

    @property
    def compared(self) -> int:
        """How many verdicts on values the full verifier has shared."""
        return sum(len(v.met) for context in self._contexts for v in context.verdicts)

    def run(self, inputs: dict[str, Array], *, is_outside: bool) -> str:
        """Run once by each context; what came of it, in words.

        Raises:
            FindingError: memory was damaged, the answer is not the references', or the full
                verifier says of the run's values what its own conditions do not.
        """
        shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in inputs.items())
        results, refusals, damage = self._run_all(inputs)
        if damage:
            raise FindingError("memory damaged", self._ops, f"{damage} on {shapes}")
        if any(isinstance(error, EngineFormatError) for error in refusals):
            raise FindingError("unsound plan", self._ops, f"{refusals[0]} on {shapes}")
        if len(refusals) == 1:
            raise FindingError("answers by turns", self._ops, f"{refusals[0]!r} on {shapes}")
        if not refusals and (why := _first_change(*results)):
            raise FindingError("depends on poison", self._ops, f"{why} on {shapes}")
        if is_outside:
            if not refusals:
                raise FindingError("answers outside", self._ops, shapes)
            return "refused outside"
        return self._compare(inputs, results, refusals, shapes)

    def _compare(
        self,
        inputs: dict[str, Array],
        results: list[dict[str, Array]],
        refusals: list[SmeltError],
        shapes: str,
    ) -> str:
        """Hold what was computed against the references."""
        wanted: dict[str, Array] | SmeltError
        graph = self._settling.graph
        try:
            graph = self._settling.at(inputs)
            wanted = interpret(graph, inputs)
        except IndexRangeError as error:
            # An engine for open shapes may compute what only a shape is read of.
            wanted = error if refusals else _without_what_nobody_reads(graph, inputs, error)
        except (DeviceError, MemoryError):
            return "no memory for the references"
        except SmeltError as error:
            wanted = error
        if isinstance(wanted, SmeltError):
            if not refusals:
                raise FindingError("answers alone", self._ops, f"{wanted} on {shapes}")
        elif not refusals and (why := disagreement(graph, inputs, results[0], wanted)):
            raise FindingError("wrong numbers", self._ops, f"{why} on {shapes}")
        if self._rival is not None:
            self._rival(inputs, wanted)
        if isinstance(wanted, SmeltError):
            return "both refused"
        if refusals and self._rival is not None:
            raise FindingError("refuses alone", self._ops, f"{refusals[0]} on {shapes}")
        return f"refused alone: {reason_of(refusals[0])}" if refusals else "equal"

    def _run_all(
        self, inputs: dict[str, Array]
    ) -> tuple[list[dict[str, Array]], list[SmeltError], str]:
        results: list[dict[str, Array]] = []
        refusals: list[SmeltError] = []
        damage = ""
        for context, poison in zip(self._contexts, _POISONS, strict=True):
            try:
                run = context.run(inputs, poison)
            except SmeltError as error:
                refusals.append(error)
            except DifferingVerdictsError as error:
                raise FindingError("verifiers differ", self._ops, str(error)) from error
            else:
                results.append(run.outputs)
                damage = "; ".join(run.damage) or damage
        return results, refusals, damage


def try_engine(
    engine: Engine, settling: Settling, bounds: Mapping[str, SymbolRange], recipe: str
) -> Counter[str]:
    """Run an engine inside and outside of its shapes and compare with the references."""
    done: Counter[str] = Counter()
    inputs: dict[str, Array] = {}
    try:
        trial = EngineTrial(engine, settling, recipe)
    except DeviceError:
        return Counter({"no memory for the engine": 1})
    with trial:
        for number, (sizes, is_outside) in enumerate(_calls(bounds, recipe)):
            shapes = [_shape(value, sizes) for value in settling.graph.inputs]
            if sum(map(math.prod, shapes)) > _MAX_INPUT_ELEMENTS:
                done["not run: too large"] += 1
                continue
            inputs = inputs_for(settling.graph, sizes, recipe, number)
            done[trial.run(inputs, is_outside=is_outside)] += 1
        if inputs and not bounds:
            done[trial.run(_odd_inputs(inputs, recipe), is_outside=False)] += 1
        done["verdicts compared"] += trial.compared
    return done


def reason_of(error: SmeltError) -> str:
    """Type and message of an error without names and numbers, to count alike ones together."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\b\w*\d\w*\b", "_", str(error))
    return f"{type(error).__name__}: {text[:90]}"


def _first_change(one: Mapping[str, Array], other: Mapping[str, Array]) -> str | None:
    for name, array in one.items():
        if array.shape != other[name].shape:
            return f"{name} is {list(array.shape)} or {list(other[name].shape)}"
        if array.tobytes() != other[name].tobytes():
            mine, theirs = (np.ascontiguousarray(a).reshape(-1) for a in (array, other[name]))
            wrong = mine.view(np.uint8) != theirs.view(np.uint8)
            at = int(np.argmax(wrong)) // array.itemsize
            return f"{name} has {mine[at]!r} or {theirs[at]!r} at element {at} of {array.shape}"
    return None

"""Random graphs with symbols at random shapes: the engine, the references, ONNX Runtime.

A graph is a chain of random nodes on inputs whose extents are symbols, and is built for ranges of
them. At each of some shapes inside and outside of these it runs by the engine, between guard pages
and on two kinds of poison, by the references and by ONNX Runtime. Engine and references give the
same or both refuse; ONNX Runtime gives the same where both run. What one of them alone refuses is
counted by its reason. What a run checks of its values is what the full verifier says of them.

usage: python -m tests.property.shape_pairs --count 10000 --seed 1     (graphs; ten shapes each)
       python -m tests.property.shape_pairs --replay build/fuzz/shape_pairs/FINDING.onnx
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import onnxruntime
from onnx import TensorProto
from onnx import helper as untyped_helper

import smelt
from smelt.builder._build import specialise
from smelt.errors import EngineFormatError, SmeltError
from smelt.ir import clone
from smelt.types import symbols_of
from tests.fuzz.build_trial import (
    MAX_WORKSPACE,
    EngineTrial,
    FindingError,
    Settling,
    inputs_for,
    random_source,
    reason_of,
    shapes_of,
)
from tests.fuzz.campaign import Campaign, main
from tests.fuzz.model_chains import CHAINS
from tests.fuzz.model_mutators import Mutant
from tests.support.oracle import disagreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.ir import Graph
    from tests.fuzz.build_trial import Array, SymbolRange

helper: Any = untyped_helper

PAIRS: Final = 10
"""Shapes of a graph."""
_OPSET: Final = 21
_FIXED_BUILDS: Final = 2
"""Where no engine is built for the ranges, so many for one shape each."""


# ---- graphs


def graph_of(seed: int, number: int) -> tuple[bytes, str]:
    """A random model, and the recipe of its ranges and shapes."""
    recipe = f"{seed} {number}"
    chance = random.Random(recipe)  # noqa: S311  (no secret)
    graph = helper.make_graph([], "model", [], [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    mutant = Mutant(model, chance)
    symbols = chance.sample(("n", "m", "k", "h"), chance.choice((1, 2, 2, 3, 4)))
    for _ in range(chance.choice((1, 2, 2, 3))):
        rank = chance.choice((1, 2, 2, 3, 4, 4))
        mutant.input(TensorProto.FLOAT, [_extent(chance, symbols) for _ in range(rank)])
    wanted, strict = chance.randint(2, 9), chance.random() < 0.8
    for _ in range(3 * wanted):
        if len(mutant.graph.node) < wanted:
            _grow(mutant, recipe, strict=strict)
    used = {name for node in mutant.graph.node for name in node.input}
    for node in mutant.graph.node:
        for name in node.output:
            if name not in used:
                mutant.mark(name)
    if not mutant.graph.output:
        mutant.mark(mutant.add("Identity", mutant.graph.input[0].name))
    return model.SerializeToString(), recipe


def _extent(chance: random.Random, symbols: Sequence[str]) -> int | str:
    return chance.choice(symbols) if chance.random() < 0.6 else chance.choice((1, 2, 3, 4, 8))


def _grow(mutant: Mutant, recipe: str, *, strict: bool) -> None:
    """One more node, or a few, unless they do not fit; if ``strict`` at both ends of the ranges."""
    before = mutant.model.SerializeToString()
    try:
        made = mutant.chance.choice(CHAINS)(mutant, mutant.chance)
        graph = smelt.network_from_onnx(mutant.model, outputs=[made]).graph
        ranges = _ranges(graph, recipe)
        for end in (0, 2) if strict else ():
            specialise(clone(graph), {name: bounds[end] for name, bounds in ranges.items()})
    except (IndexError, SmeltError):
        mutant.restore(before)
    else:
        mutant.look()


# ---- pairs


def try_graph(data: bytes, recipe: str, note: Callable[[str], None]) -> Counter[str]:
    """Run a graph at its shapes every way.

    Raises:
        FindingError: results differ, or one of engine and references refuses what the other runs.
    """
    note("importing")
    try:
        graph = smelt.network_from_onnx(data).graph
    except SmeltError as error:
        return Counter({f"import refused: {reason_of(error)}": 1})
    ops = " ".join(sorted({node.op.name for node in graph.nodes}))
    note(f"opening a session for {ops}")
    rival = Rival(data, graph)
    bounds = _ranges(graph, recipe)
    note(f"building {ops}")
    done: Counter[str] = Counter()
    calls = [_call(graph, bounds, recipe, number) for number in range(PAIRS)]
    try:
        engine = smelt.build(
            graph,
            tune="none",
            shapes=shapes_of(graph, bounds),
            max_workspace_bytes=MAX_WORKSPACE,
        )
    except EngineFormatError as error:
        raise FindingError("unsound plan", ops, str(error)) from error
    except SmeltError as error:
        done[f"build refused: {reason_of(error)}"] += 1
        for inputs, _ in calls[:_FIXED_BUILDS]:
            done += _try_fixed(graph, inputs, rival)
        return done
    note(f"running {ops}")
    fixed = {name for name, (low, _, high) in bounds.items() if low == high}
    with engine, EngineTrial(engine, Settling(graph, fixed), recipe, rival) as trial:
        done["built"] += 1
        for inputs, is_outside in calls:
            done[trial.run(inputs, is_outside=is_outside)] += 1
            done["pairs"] += 1
        done["verdicts compared"] += trial.compared
    return done + rival.done


def _ranges(graph: Graph, recipe: str) -> dict[str, SymbolRange]:
    names = sorted({s for value in graph.inputs for s in symbols_of(*value.tensor.shape)})
    found: dict[str, SymbolRange] = {}
    for name in names:
        chance = random_source(recipe, name)
        low = chance.choice((0, 1, 1, 1, 2, 3))
        high = low + chance.choice((0, 1, 3, 5, 7))
        found[name] = (low, chance.randint(low, high), high)
    return found


def _call(
    graph: Graph, bounds: Mapping[str, SymbolRange], recipe: str, number: int
) -> tuple[dict[str, Array], bool]:
    """Inputs, and whether they are outside of the ranges."""
    chance = random_source(recipe, "shapes", number)
    sizes = {name: chance.randint(low, high) for name, (low, _, high) in bounds.items()}
    if number < 2:
        sizes = {name: bounds[name][2 * number] for name in bounds}
    elif number == 2 and bounds:
        one = chance.randint(1, 6)
        sizes = {name: min(max(one, low), high) for name, (low, _, high) in bounds.items()}
    is_outside = bool(bounds) and number == PAIRS - 1
    if is_outside:
        name = chance.choice(sorted(bounds))
        sizes[name] = bounds[name][2] + chance.randint(1, 3)
    return inputs_for(graph, sizes, recipe, number), is_outside


def _try_fixed(graph: Graph, inputs: dict[str, Array], rival: Rival) -> Counter[str]:
    """An engine for one shape."""
    shapes = {name: array.shape for name, array in inputs.items()}
    ops = " ".join(sorted({node.op.name for node in graph.nodes}))
    try:
        engine = smelt.build(graph, tune="none", shapes=shapes, max_workspace_bytes=MAX_WORKSPACE)
    except EngineFormatError as error:
        raise FindingError("unsound plan", ops, str(error)) from error
    except SmeltError:
        return Counter({"build for one shape refused": 1})
    fixed = {s for value in graph.inputs for s in symbols_of(*value.tensor.shape)}
    with engine, EngineTrial(engine, Settling(graph, fixed), "fixed", rival) as trial:
        return Counter({trial.run(inputs, is_outside=False): 1, "pairs": 1})


class Rival:
    """ONNX Runtime on the same model."""

    def __init__(self, data: bytes, graph: Graph) -> None:
        self.done: Counter[str] = Counter()
        self._graph = graph
        self._session: Any = None
        untyped: Any = onnxruntime
        options = untyped.SessionOptions()
        options.graph_optimization_level = untyped.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = untyped.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001  (its errors have no base of their own)
            self.done[f"ONNX Runtime cannot read the model: {_head(error)}"] += 1

    def __call__(
        self, inputs: Mapping[str, Array], wanted: Mapping[str, Array] | SmeltError
    ) -> None:
        """Compare with what the references gave, or why they refused."""
        if self._session is None:
            return
        names = [output.name for output in self._session.get_outputs()]
        try:
            made = dict(zip(names, self._session.run(None, dict(inputs)), strict=True))
        except Exception as error:  # noqa: BLE001
            both = isinstance(wanted, SmeltError)
            self.done["ONNX Runtime refuses" + (", too" if both else f": {_head(error)}")] += 1
            return
        if isinstance(wanted, SmeltError):
            self.done[f"ONNX Runtime runs alone: {reason_of(wanted)}"] += 1
            return
        self.done["ONNX Runtime ran"] += 1
        theirs = {
            output.name: made[name] for output, name in zip(self._graph.outputs, names, strict=True)
        }
        if why := disagreement(self._graph, inputs, wanted, theirs):
            ops = " ".join(sorted({node.op.name for node in self._graph.nodes}))
            shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in inputs.items())
            raise FindingError("references differ from ONNX Runtime", ops, f"{why} on {shapes}")


def _head(error: Exception) -> str:
    return re.sub(r"'[^']*'|\{[^}]*\}|\b\w*\d\w*\b", "_", str(error).partition("\n")[0])[-100:]


SHAPE_PAIRS: Final = Campaign("tests.property.shape_pairs", graph_of, try_graph)

if __name__ == "__main__":
    sys.exit(main(SHAPE_PAIRS, __doc__ or ""))

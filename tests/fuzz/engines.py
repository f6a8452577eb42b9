"""Load and run hostile unsigned engines: no signal, no hang, no foreign exception, no wrong byte.

Each is loaded as `smelt.load` loads what nobody has signed, and what is accepted is run on inputs
of the shapes that it declares, on guarded and poisoned memory.

usage: python -m tests.fuzz.engines --count 50000 --seed 1
       python -m tests.fuzz.engines --replay build/fuzz/engines/FINDING.engine
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import smelt
from smelt.errors import SmeltError
from smelt.types import evaluate_dim, symbols_of
from tests.fuzz.build_trial import FindingError
from tests.fuzz.campaign import Campaign, main
from tests.fuzz.engine_forger import forge
from tests.fuzz.engine_plants import PLANTS
from tests.support.guarded_engines import GuardedContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.engine import Plan
    from smelt.runtime import Engine

Array = np.ndarray[Any, Any]

_POISONS: Final = (0xFF, 0x7F)
_MAX_ELEMENTS: Final = 1 << 18
"""Of one binding: references take long over more, whoever made the engine."""


def engine_of(seed: int, number: int) -> tuple[bytes, str]:
    """One engine's file, and the recipe of what is done with it."""
    recipe = f"{seed} {number}"
    made = forge(random.Random(f"engines {recipe}"))  # noqa: S311  (no secret)
    return made.data, recipe


def try_engine(data: bytes, recipe: str, note: Callable[[str], None]) -> Counter[str]:
    """Load an engine and run it; how often what happened.

    Raises:
        FindingError: what it answers depends on memory that is not its own. Anything that is no
            `SmeltError` is a finding, too.
    """
    note("loading")
    try:
        engine = smelt.load(data)
    except SmeltError as error:
        return Counter({"refused": 1, f"refused: {type(error).__name__}": 1})
    note("running " + " ".join(sorted({layer.kind for layer in engine.layers})))
    done = Counter({"loaded": 1})
    with engine:
        for plan in engine.header.plans:
            for number, values in enumerate(_values(plan, recipe)):
                done[_run(engine, values, f"{recipe} {number}")] += 1
    return done


def _values(plan: Plan, recipe: str) -> Iterator[dict[str, int]]:
    yield {name: high for name, _, high in plan.symbols}
    yield {name: low for name, low, _ in plan.symbols}
    chance = random.Random(f"values {recipe}")  # noqa: S311  (no secret)
    for _ in range(2):
        yield {name: chance.randint(low, high) for name, low, high in plan.symbols}


def _run(engine: Engine, values: dict[str, int], recipe: str) -> str:
    """Run on guarded memory of either poison; what came of it, in words."""
    inputs: dict[str, Array] = {}
    for binding in engine.bindings:
        if not symbols_of(*binding.shape) <= values.keys():
            return "not run: open"
        shape = [evaluate_dim(extent, values) for extent in binding.shape]
        if min((0, *shape)) < 0 or int(np.prod(shape, dtype=object)) > _MAX_ELEMENTS:
            return "not run: too large"
        if binding.is_input:
            inputs[binding.name] = _input(shape, binding.dtype.numpy, f"{recipe} {binding.name}")
    outputs: list[dict[str, Array]] = []
    refusals: list[SmeltError] = []
    for poison, spread in zip(_POISONS, (False, True), strict=True):
        try:
            with GuardedContext(engine, spread=spread) as context:
                run = context.run(inputs, poison)
        except SmeltError as error:
            refusals.append(error)
            continue
        if run.damage:
            raise FindingError("memory damaged", _kinds(engine), "; ".join(run.damage))
        outputs.append(run.outputs)
    if refusals:
        return f"run refused: {type(refusals[0]).__name__}"
    if any(outputs[0][name].tobytes() != outputs[1][name].tobytes() for name in outputs[0]):
        raise FindingError("depends on poison", _kinds(engine), str(values))
    return "ran"


def _kinds(engine: Engine) -> str:
    return " ".join(sorted({layer.kind for layer in engine.layers}))


def _input(shape: list[int], kind: np.dtype[Any], seed: str) -> Array:
    chance = random.Random(seed)  # noqa: S311  (no secret)
    rng = np.random.default_rng(chance.getrandbits(64))
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        made: Array = rng.integers(0, chance.choice((2, 4, 100)), shape).astype(kind)
        return made
    with np.errstate(all="ignore"):
        return np.asarray(rng.standard_normal(shape).astype(kind))


ENGINES: Final = Campaign(
    "tests.fuzz.engines", engine_of, try_engine, reached="loaded", suffix=".engine", plants=PLANTS
)

if __name__ == "__main__":
    sys.exit(main(ENGINES, __doc__ or ""))

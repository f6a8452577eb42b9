"""One kernel on random views: it writes inside of them, and reads nothing else that matters.

An input is one case of an op by one tactic of one family: extents, symbols, gaps, margins, halos,
threads and the side of the guard page are random, and now and then so are indices and lengths. It
runs twice. Inputs are write-protected, every buffer lies between guard pages, and all that belongs
to no view is poison, another one each time: what is around the views must stay, and what is in them
must not depend on it. The reference says what is right, and which indices are out of range.

usage: python -m tests.property.kernel_views --count 20000 --seed 1
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.backends import Aliasing, with_storage_dtype
from smelt.backends.cpu import CpuBackend, host_target, target_named
from smelt.errors import SmeltError
from smelt.types import DType, symbols_of
from tests.fuzz.build_trial import FindingError
from tests.fuzz.campaign import Campaign, main
from tests.support.cpu_families import make_node, run_tactic
from tests.support.precision import candidates_in
from tests.support.trials import difference, rounded, smallest_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends import Backend, Family, Tactic
    from smelt.ir import Case, Node
    from tests.support.cpu_families import Run

    Note = Callable[[str], None]

Array = np.ndarray[Any, Any]
Arrays = list[Array | None]

_POISONS: Final = (0xFF, 0x7F)
_WILD: Final = (-1, 0, 1, 5, 100, 10**9, -(10**9), (1 << 63) - 1, -(1 << 63))
_BACKEND: Final = CpuBackend(jobs=1)
_OFTEN: Final = (ops.Conv, ops.Conv, ops.Conv, ops.FusedPair, ops.ConvInteger, ops.MatMul) * 8
"""Ops for which there are many families."""
_TRIES: Final = 4
"""To find other extents on which an op has an answer."""


def trial_of(seed: int, number: int) -> tuple[bytes, str]:
    """One case; every op has its turn."""
    return input_of(seed, number, (*ops.ALL_OPS, *_OFTEN))


def input_of(seed: int, number: int, kinds: Sequence[type[ops.Op]]) -> tuple[bytes, str]:
    """A case of one of the kinds of ops, which take turns, and a recipe."""
    kind = kinds[number % len(kinds)]
    chance = random.Random(f"{seed} {number}")  # noqa: S311  (no secret)
    names = [case.name for case in kind.cases()]
    at = chance.randrange(len(names))
    return json.dumps([kind.name, at, names[at]]).encode(), f"{seed} {number}"


@dataclass(frozen=True, slots=True)
class Bench:
    """What kernels are made for, and how they are run."""

    backend: Backend[Any]
    target: Any
    run: Run | None = None
    """None compiles them for the host's processors."""
    storage: DType = DType.FLOAT32
    """What is stored where nodes have float32."""
    is_strict: bool = False
    """Whether views and symbols are those alone that plans may have: constants lie without holes,
    and a symbol may have another value than the case's. Some constants are inputs then."""

    def tactics(self, node: Node) -> list[Tactic]:
        """The tactics that launch kernels for a node."""
        every = candidates_in(self.storage, self.backend, node, self.target)[0]
        found = [t for t in every if not t.is_host_step and t.aliasing is Aliasing.NONE]
        if self.storage is DType.FLOAT32:
            return found
        return [with_storage_dtype(self.storage, node, t, narrows_all_outputs=True) for t in found]


def try_kernel(data: bytes, recipe: str, note: Note) -> Counter[str]:
    """Run one case by one tactic on random views.

    Raises:
        FindingError: a result depends on what is around, or is wrong.
    """
    chance = random.Random(recipe)  # noqa: S311
    target = host_target()
    if target.architecture == "x86_64" and chance.random() < 0.3:
        target = target_named("x86-64-v3")
    return try_case(case_of(data), chance, Bench(_BACKEND, target), note)


def case_of(data: bytes) -> Case:
    """The case that an input names."""
    kind, at, _ = json.loads(data)
    found: list[Case] = list(next(k for k in ops.ALL_OPS if k.name == kind).cases())
    return found[int(at)]


def try_case(case: Case, chance: random.Random, bench: Bench, note: Note) -> Counter[str]:
    """Run a case by one tactic on views by chance. Raises FindingError as `try_kernel`."""
    case = _with_other_extents(case, chance)
    if bench.is_strict:
        case = _with_fewer_constants(case, chance)
    if bench.storage is not DType.FLOAT32:
        case = rounded(case, bench.storage)
    node, values = _node_of(case, chance, is_strict=bench.is_strict)
    tactics = bench.tactics(node)
    if not tactics:
        return Counter({"no kernel": 1})
    family = chance.choice(sorted({t.family for t in tactics}))  # some have few tactics
    tactic = chance.choice([t for t in tactics if t.family == family])
    arrays = _with_wild_indices(case, chance)
    note(f"running {case.op.name} by {tactic.family}")
    made = _run_twice(node, tactic, arrays, values, bench, chance)
    _compare(case, tactic, arrays, made)
    return Counter({"ran": 1, f"ran {tactic.family}": 1})


def _run_twice(
    node: Node,
    tactic: Tactic,
    arrays: Arrays,
    values: dict[str, int],
    bench: Bench,
    chance: random.Random,
) -> list[Array] | None:
    """The results, the same whatever is around the views; None where an index is out of range."""
    family: Family[Any] = bench.backend.family(tactic.family)
    layout: dict[str, Any] = {
        "gap": chance.choice((0, 0, 1, 5)),
        "margin": chance.choice((0, 0, 1, 2)),
        "at_end": chance.random() < 0.6,
        "workers": chance.choice((1, 1, 3)),
    }
    if family.requires_contiguous:  # its operands are no windows
        layout |= {"gap": 0, "margin": 0}
    errors = np.zeros((len(_POISONS), 2), np.int64)
    how: dict[str, Any] = {"values": values, "target": bench.target, "run": bench.run, **layout}
    how["spares_constants"] = bench.is_strict
    try:
        runs = [
            run_tactic(family, node, tactic, arrays, errors=detail, fill=poison, **how)
            for detail, poison in zip(errors, _POISONS, strict=True)
        ]
    except AssertionError as error:
        raise FindingError("writes beside its view", tactic.family, str(error)) from error
    if errors.any():
        return None
    for number, (one, other) in enumerate(zip(*runs, strict=True)):
        if one.tobytes() != other.tobytes():
            raise FindingError(
                "depends on poison", tactic.family, f"result {number} of {tactic} with {layout}"
            )
    return runs[0]


def _compare(case: Case, tactic: Tactic, arrays: Arrays, made: list[Array] | None) -> None:
    """Hold what was made against the reference, which tells of the same indices."""
    try:
        with np.errstate(all="ignore"):
            wanted = case.op.reference(*arrays)
    except (SmeltError, IndexError) as error:
        if made is not None:
            raise FindingError("answers alone", tactic.family, f"{case.name}: {error}") from error
        return
    if made is None:
        raise FindingError("refuses alone", tactic.family, f"{case.name} by {tactic}")
    for mine, right in zip(made, wanted, strict=False):
        step = smallest_step(tactic)
        if why := difference(mine.astype(right.dtype), right, case.tolerance, step):
            raise FindingError("wrong numbers", tactic.family, f"{case.name} by {tactic}: {why}")


# ---- other extents


def _with_other_extents(case: Case, chance: random.Random) -> Case:
    """The case with some extents larger or smaller wherever they occur, if the op has an answer."""
    for _ in range(_TRIES):
        found = sorted({d for _, array in _given(case) for d in array.shape})
        if not found or chance.random() < 0.3:
            return case
        old = chance.choice(found)
        new = max(0, old + chance.choice((-2, -1, 1, 2, 3, 7, 16)))
        inputs = tuple(
            array if array is None or k in case.constants else _resized(array, old, new)
            for k, array in enumerate(case.inputs)
        )
        other = dataclasses.replace(case, inputs=inputs)
        if _is_answered(other):
            return other
    return case


def _with_fewer_constants(case: Case, chance: random.Random) -> Case:
    """The case with some constants as inputs, if the op has an answer without knowing them."""
    kept = frozenset(k for k in sorted(case.constants) if chance.random() < 0.6)
    other = dataclasses.replace(case, constants=kept)
    return other if _is_answered(other) else case


def _given(case: Case) -> list[tuple[int, Array]]:
    return [
        (k, array)
        for k, array in enumerate(case.inputs)
        if array is not None and k not in case.constants
    ]


def _resized(array: Array, old: int, new: int) -> Array:
    for axis, extent in enumerate(array.shape):
        if extent == old and (old or not new):
            array = array.take(np.arange(new) % max(old, 1), axis)
    return array


def _is_answered(case: Case) -> bool:
    try:
        make_node(case.op, case.inputs, case.constants)
        with np.errstate(all="ignore"):
            case.op.reference(*case.inputs)
    except (SmeltError, ValueError, IndexError, TypeError, ZeroDivisionError):
        return False
    return True


def _node_of(case: Case, chance: random.Random, *, is_strict: bool) -> tuple[Node, dict[str, int]]:
    """The case's node, some of its extents symbols, and the symbols' values."""
    found = sorted({d for _, array in _given(case) for d in array.shape})
    chosen = [d for d in found if chance.random() < 0.4]
    if is_strict:
        chosen = [d for d in chosen if _may_grow(case, d)]
    symbols = {
        (k, axis): f"s{extent}"
        for k, array in _given(case)
        for axis, extent in enumerate(array.shape)
        if extent in chosen
    }
    try:
        node = make_node(case.op, case.inputs, case.constants, symbols)
    except SmeltError:
        return make_node(case.op, case.inputs, case.constants), {}
    values = {f"s{extent}": extent for extent in chosen}
    known = symbols_of(*(d for value in node.outputs for d in value.tensor.shape)) <= values.keys()
    if known and all(guard.holds(values) for guard in node.guards):
        return node, values
    return make_node(case.op, case.inputs, case.constants), {}


def _may_grow(case: Case, extent: int) -> bool:
    """Whether the op takes a larger extent in all places: a build tries both ends of a range."""
    inputs = list(case.inputs)
    for k, array in _given(case):
        inputs[k] = _resized(array, extent, extent + 1)
    try:
        make_node(case.op, inputs, case.constants)
    except SmeltError:
        return False
    return True


def _with_wild_indices(case: Case, chance: random.Random) -> Arrays:
    """The inputs, now and then with integers that are no index and no length of anything."""
    arrays: Arrays = list(case.inputs)
    places = [
        k for k, array in _given(case) if array.dtype in (np.int32, np.int64) and array.size and k
    ]
    if not places or chance.random() < 0.4:
        return arrays
    for k in places:
        array = np.array(arrays[k], copy=True)
        limits = np.iinfo(array.dtype)
        strange = [min(max(w, limits.min), limits.max) for w in _WILD]
        flat = array.reshape(-1)
        for at in range(flat.size):
            if chance.random() < 0.4:
                flat[at] = chance.choice(strange)
        arrays[k] = array
    return arrays


KERNEL_VIEWS: Final = Campaign("tests.property.kernel_views", trial_of, try_kernel)

if __name__ == "__main__":
    sys.exit(main(KERNEL_VIEWS, __doc__ or ""))

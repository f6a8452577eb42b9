"""Unsigned engines that are consistent but hostile: what somebody with smelt's own code can make.

A network's program is changed (extents, symbols and their ranges, attributes, constants, wiring,
tactics), all that follows from it is made anew by smelt's own assembler, and then now and then one
field of the header, or some bytes of the weights, are made to say something else. Lengths and
checksums are always right.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import smelt
from smelt.backends.cpu import CpuBackend, host_target
from smelt.builder import _plan_recipe
from smelt.builder._graph_json import graph_from_data
from smelt.engine import (
    Binding,
    EngineFile,
    Launch,
    Weight,
    header_from_data,
    header_to_data,
    serialize_engine,
)
from smelt.errors import InternalError, SmeltError
from smelt.types import DType, evaluate_dim, symbols_of
from tests.fuzz.build_trial import MAX_WORKSPACE
from tests.fuzz.model_seeds import seed_models
from tests.fuzz.mutators import INTEGERS, mutate_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from smelt.engine import EngineHeader
    from smelt.ir import Graph

_LARGE: Final = (0, 1, 2, 3, 5, 17, 63, 64, 65, 255, 1000, 4097, 1 << 16, (1 << 31) - 1, 1 << 31)
_TYPES: Final = (DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_FAILURES: Final = (
    SmeltError, InternalError, LookupError, TypeError, ValueError, AttributeError,
    ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
"""What a forger's own tools may end in: he then leaves the engine as it is."""


@dataclass(frozen=True, slots=True)
class Forgery:
    """A hostile engine."""

    data: bytes
    changes: tuple[str, ...]
    """What was done, in words."""


@functools.cache
def base_engine(number: int) -> EngineFile | None:
    """An honest engine; None where nothing can be built of the model."""
    networks, nodes = seed_models()
    model = (*networks, *networks, *networks, *nodes)[number]
    try:
        graph = smelt.network_from_onnx(model).graph
        shapes = _shapes_of(graph, number)
        with smelt.build(
            graph, tune="none", shapes=shapes, max_workspace_bytes=MAX_WORKSPACE
        ) as engine:
            return replace(engine.file, code=b"", runtime_code=b"")
    except (SmeltError, InternalError):  # what builds do is for `tests.fuzz.builds`
        return None


def _shapes_of(graph: Graph, number: int) -> dict[str, Any] | None:
    """Ranges of the inputs' shapes; of every fifth engine two plans."""
    names = sorted({s for value in graph.inputs for s in symbols_of(*value.tensor.shape)})
    if not names:
        return None
    sizes: list[dict[str, int]] = [{}, {}, {}]
    for name in names:
        chance = random.Random(f"base {number} {name}")  # noqa: S311  (no secret)
        low = chance.choice((1, 1, 2, 3))
        high = low + chance.choice((0, 1, 3, 8, 16))
        for row, size in zip(sizes, (low, chance.randint(low, high), high), strict=True):
            row[name] = size
    made: dict[str, Any] = {}
    for value in graph.inputs:
        rows = [tuple(evaluate_dim(d, row) for d in value.tensor.shape) for row in sizes]
        made[value.name] = [rows[0], rows[2]] if number % 5 == 0 else tuple(rows)
    return made


def base_count() -> int:
    """How many models there are; networks stand there three times, in other ranges."""
    networks, nodes = seed_models()
    return 3 * len(networks) + len(nodes)


def forge(chance: random.Random) -> Forgery:
    """A hostile engine, as chance will have it."""
    file = None
    while file is None:
        networks = 3 * len(seed_models()[0])
        most = networks if chance.random() < 0.6 else base_count()
        file = base_engine(chance.randrange(most))
    changes: list[str] = []
    if chance.random() < 0.85:
        file = _reprogrammed(file, chance, changes)
    if chance.random() < 0.35:
        file = _lying(file, chance, changes)
    return Forgery(
        serialize_engine(file.header, file.weights, b"", b"", None, file.network_arrays),
        tuple(changes),
    )


# ---- other programs, and all that follows


def _reprogrammed(file: EngineFile, chance: random.Random, changes: list[str]) -> EngineFile:
    document = json.loads(file.header.program)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        change = chance.choice(_PROGRAM_CHANGES)
        changes.append(change.__name__.strip("_"))
        with contextlib.suppress(*_FAILURES):
            change(document, chance)
    if chance.random() < 0.8:
        _choose_tactics(document, chance)
    given = file
    with contextlib.suppress(*_FAILURES):
        given = replace(file, header=replace(file.header, program=json.dumps(document)))
        return _consistent(given, document, chance)
    return given


def _choose_tactics(document: Any, chance: random.Random) -> None:
    """Other tactics, which the backend lists for what the nodes have become."""
    backend, target = CpuBackend(), host_target()
    with contextlib.suppress(*_FAILURES):
        constants = [_plan_recipe.constant_from_data(data) for data in document["constants"]]
        for data in document["plans"]:
            graph = graph_from_data(data, constants)
            for node, entry in zip(graph.nodes, data["nodes"], strict=True):
                if chance.random() < 0.5:
                    node.precision = chance.choice(_TYPES)
                    for value in node.outputs:
                        value.storage = chance.choice(_TYPES)
                    stored = (node.precision, *(v.storage for v in node.outputs))
                    entry["types"] = [dtype.value for dtype in stored]
                listed, _ = backend.candidates(node, target)
                if chance.random() < 0.3 or entry["tactic"][0] != listed[0].family:
                    entry["tactic"] = json.loads(
                        json.dumps(_plan_recipe.TACTIC.write(chance.choice(listed)))
                    )


def _consistent(file: EngineFile, document: Any, chance: random.Random) -> EngineFile:
    """The engine that a program gives."""
    roomy = replace(file, weights=np.zeros(1 << 24, np.uint8))
    made = _plan_recipe.RegeneratedEngine(document, roomy, CpuBackend(), host_target())
    batches = [high for p in made.plans for name, _, high in p.symbols if name == "batch"]
    header = replace(
        file.header,
        name=made.graphs[0].name,
        plans=tuple(made.plans),
        layers=tuple(made.layers),
        bindings=_bindings(file.header, made),
        max_batch_size=max(batches, default=None),
        weights=tuple(
            Weight(c.name, c.type.dtype, tuple(evaluate_dim(d, {}) for d in c.type.shape), offset)
            for c, offset in made.weights.entries
        ),
    )
    return replace(file, header=header, weights=_weights(made, chance))


def _bindings(header: EngineHeader, made: _plan_recipe.RegeneratedEngine) -> tuple[Binding, ...]:
    if len(made.plans) > 1:
        return header.bindings
    (graph,) = made.graphs
    named = [(v.name, True, v.tensor) for v in graph.inputs]
    named += [(n, False, v.tensor) for n, v in zip(made.outputs, graph.outputs, strict=True)]
    return tuple(Binding(name, inwards, t.dtype, t.shape) for name, inwards, t in named)


def _weights(made: _plan_recipe.RegeneratedEngine, chance: random.Random) -> NDArray[np.uint8]:
    """What follows from the program as it does, numbers to compute on as chance will have them."""
    of_model = set(made.constants)
    rng = np.random.default_rng(chance.getrandbits(64))
    size = made.weights.size_bytes
    data = rng.integers(0, 256, size, np.uint8) if chance.random() < 0.5 else np.zeros(size, "u1")
    for constant, offset in made.weights.entries:
        known = not any(source in of_model for source in constant.sources())
        if known or constant.recipe is None or chance.random() < 0.5:
            content = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)
            data[offset : offset + content.size] = content
    return data


def _number(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return chance.choice((0.0, -1.0, value * 2, 1e30, float("inf"), float("nan"), 1e-30))
    near = (value + 1, value + 1, value - 1, value - 1, value * 2, value // 2, -value)
    return chance.choice((*near, *_LARGE, chance.choice(INTEGERS)))


def _dim(text: str, chance: random.Random, names: list[str]) -> str:
    name = chance.choice((*names, "fresh"))
    with contextlib.suppress(ValueError):
        if chance.random() < 0.6:
            return str(_number(int(text), chance))
    return chance.choice(
        (
            name,
            f"{name} + 1",
            f"{name}*2",
            f"{text} - 1",
            f"{name}*{name}",
            f"({text})//2",
            "1",
            "0",
        )
    )


def _plan(document: Any, chance: random.Random) -> Any:
    return chance.choice(document["plans"])


def _extents(document: Any, chance: random.Random) -> None:
    plan = _plan(document, chance)
    names = [name for name, _, _ in plan["symbols"]]
    shape = chance.choice(plan["inputs"])[2]
    if shape and chance.random() < 0.9:
        axis = chance.randrange(len(shape))
        shape[axis] = _dim(shape[axis], chance, names)
    else:
        shape.insert(chance.randint(0, len(shape)), chance.choice(("1", "2", *names)))


def _dtypes(document: Any, chance: random.Random) -> None:
    row = chance.choice(_plan(document, chance)["inputs"])
    row[1] = chance.choice([kind.value for kind in DType])


def _symbols(document: Any, chance: random.Random) -> None:
    plan = _plan(document, chance)
    rows = plan["symbols"]
    if not rows or chance.random() < 0.15:
        rows.append([chance.choice(("fresh", "batch")), 1, chance.choice((1, 4, 1 << 20))])
        return
    row = chance.choice(rows)
    row[chance.choice((1, 2))] = _number(row[chance.choice((1, 2))], chance)
    if chance.random() < 0.1:
        rows.remove(row)


def _bounds(document: Any, chance: random.Random) -> None:
    plan = _plan(document, chance)
    names = [name for name, _, _ in plan["symbols"]]
    if not plan["bounds"]:
        plan["bounds"] = {chance.choice((*names, "fresh")): "3"}
        return
    name = chance.choice(sorted(plan["bounds"]))
    plan["bounds"][name] = _dim(plan["bounds"][name], chance, names)
    for row in plan["symbols"]:
        if row[0] == name and plan["bounds"][name].isdecimal() and chance.random() < 0.8:
            row[2] = int(plan["bounds"][name])


def _guards(document: Any, chance: random.Random) -> None:
    """Fewer of them, or others: none is believed that the graph itself does not give."""
    plan = _plan(document, chance)
    key = chance.choice(("guards", "assumed"))
    if not plan[key] or chance.random() < 0.6:
        plan[key] = []
        return
    row = chance.choice(plan[key])
    at = chance.choice((0, 2))
    row[at] = _dim(row[at], chance, [name for name, _, _ in plan["symbols"]])


def _attributes(document: Any, chance: random.Random) -> None:
    node = chance.choice(_plan(document, chance)["nodes"])
    places: list[tuple[Any, int]] = []
    stack: list[Any] = [node["op"]]
    while stack:
        rows = stack.pop()
        for key, value in enumerate(rows):
            if isinstance(value, list):
                stack.append(value)
            elif isinstance(value, int | float):
                places.append((rows, key))
    rows, key = chance.choice(places)
    rows[key] = _number(rows[key], chance)


def _constants(document: Any, chance: random.Random) -> None:
    row = chance.choice(document["constants"])
    kind = DType(row[1]).numpy
    if row[3] is not None and chance.random() < 0.6:
        array = np.frombuffer(base64.b64decode(row[3]), kind).copy()
        at = chance.randrange(array.size)
        with np.errstate(all="ignore"):
            if kind.kind in "iu":
                limits = np.iinfo(kind)
                number = _number(int(array[at]), chance)
                array[at] = min(max(number, limits.min), limits.max)
            else:
                array[at] = _number(float(array[at]), chance)
        row[3] = base64.b64encode(array.tobytes()).decode()
        return
    if row[2]:
        axis = chance.randrange(len(row[2]))
        row[2][axis] = _number(row[2][axis], chance)
        if chance.random() < 0.2:
            chance.shuffle(row[2])
    count = int(np.prod(row[2], dtype=object))
    fits = 0 <= count <= 4096
    rng = np.random.default_rng(chance.getrandbits(64))
    content = rng.integers(0, 5, count if fits else 0).astype(kind).tobytes()
    row[3] = base64.b64encode(content).decode() if fits else None


def _wiring(document: Any, chance: random.Random) -> None:
    plan = _plan(document, chance)
    number = chance.randrange(len(plan["nodes"]))
    inputs = plan["nodes"][number]["inputs"]
    known: list[Any] = [["input", k] for k in range(len(plan["inputs"]))]
    known += [["node", k, 0] for k in range(number)]
    known += [r for node in plan["nodes"] for r in node["inputs"] if r and r[0] == "constant"]
    if inputs and chance.random() < 0.8:
        inputs[chance.randrange(len(inputs))] = chance.choice((*known, None))
    elif chance.random() < 0.5:
        inputs.append(chance.choice(known))
    else:
        plan["outputs"][chance.randrange(len(plan["outputs"]))] = chance.choice(known)


def _nodes(document: Any, chance: random.Random) -> None:
    plan = _plan(document, chance)
    node = json.loads(json.dumps(chance.choice(plan["nodes"])))
    if chance.random() < 0.5:
        node["op"] = json.loads(json.dumps(chance.choice(plan["nodes"])["op"]))
    plan["nodes"][chance.randrange(len(plan["nodes"]))] = node


def _tactics(document: Any, chance: random.Random) -> None:
    node = chance.choice(_plan(document, chance)["nodes"])
    node["tactic"] = mutate_tree(node["tactic"], chance)


def _anything(document: Any, chance: random.Random) -> None:
    key = chance.choice(("plans", "constants", "outputs"))
    document[key] = mutate_tree(document[key], chance)


def _kinds(document: Any, chance: random.Random) -> None:
    """1, 1.0 and true are equal in Python."""
    node = chance.choice(_plan(document, chance)["nodes"])
    for pair in node["tactic"][1]:
        if type(pair[1]) is int:
            pair[1] = chance.choice((float(pair[1]), bool(pair[1]), pair[1]))


_PROGRAM_CHANGES: Final[tuple[Callable[[Any, random.Random], None], ...]] = (
    _extents, _extents, _dtypes, _symbols, _symbols, _bounds, _guards, _attributes, _attributes,
    _attributes, _constants, _constants, _wiring, _wiring, _nodes, _tactics, _anything, _kinds,
)  # fmt: skip


# ---- a header that says something else, or other weights


def _lying(file: EngineFile, chance: random.Random, changes: list[str]) -> EngineFile:
    lie = chance.choice((_lie_in_weights, _lie_in_header, _lie_in_bindings, _lie_in_steps))
    changes.append(lie.__name__.strip("_"))
    with contextlib.suppress(*_FAILURES):
        return lie(file, chance)
    return file


def _lie_in_weights(file: EngineFile, chance: random.Random) -> EngineFile:
    """Other bytes: mostly in what is small, where tables are."""
    data = np.array(file.weights)
    tables = [w for w in file.header.weights if "indices" in w.name]
    numbers = [w for w in file.header.weights if w.dtype.is_integer]
    rows = tables or numbers or list(file.header.weights)
    weight = chance.choice(rows)
    size = int(np.prod(weight.shape)) * weight.dtype.size_bytes
    content = data[weight.offset : weight.offset + size].view(weight.dtype.numpy)
    content[chance.randrange(content.size)] = chance.choice((1 << 20, 127, 3, 0))
    if chance.random() < 0.2:
        data = data[: chance.randrange(data.size)]
    return replace(file, weights=data)


def _lie_in_header(file: EngineFile, chance: random.Random) -> EngineFile:
    tree: Any = header_to_data(file.header)
    program = tree.pop("program")
    tree = json.loads(json.dumps(tree))
    for _ in range(chance.choice((1, 1, 2, 4))):
        tree = mutate_tree(tree, chance)
    return replace(file, header=header_from_data({**tree, "program": program}))


def _lie_in_bindings(file: EngineFile, chance: random.Random) -> EngineFile:
    bindings = list(file.header.bindings)
    number = chance.randrange(len(bindings))
    old = bindings[number]
    shape = list(old.shape)
    if shape:
        shape[chance.randrange(len(shape))] = chance.choice((0, 1, 7, 1 << 20))
    bindings[number] = chance.choice(
        (
            replace(old, shape=tuple(shape)),
            replace(old, dtype=chance.choice(list(DType))),
            replace(old, is_input=not old.is_input),
            replace(old, name=chance.choice(("", "\u202e", "\ud800", bindings[0].name))),
        )
    )
    most = chance.choice((file.header.max_batch_size, 1 << 30, None))
    return replace(file, header=replace(file.header, bindings=tuple(bindings), max_batch_size=most))


def _lie_in_steps(file: EngineFile, chance: random.Random) -> EngineFile:
    """Another offset, stride, extent, scalar, number of chunks or kernel parameter."""
    plans = list(file.header.plans)
    number = chance.randrange(len(plans))
    steps = list(plans[number].steps)
    at = chance.choice([k for k, step in enumerate(steps) if isinstance(step, Launch)])
    step = steps[at]
    assert isinstance(step, Launch)
    views = list(step.operands)
    which = chance.randrange(len(views))
    view = views[which]
    value = chance.choice((0, 1, 64, -64, 1 << 20))
    axis = chance.randrange(max(1, len(view.strides)))
    views[which] = chance.choice(
        (
            replace(view, offset=value),
            replace(view, strides=(*view.strides[:axis], value, *view.strides[axis + 1 :])),
            replace(view, shape=(*view.shape[:axis], abs(value), *view.shape[axis + 1 :])),
            replace(view, buffer=chance.randrange(len(plans[number].buffers))),
        )
    )
    steps[at] = chance.choice(
        (
            replace(step, operands=tuple(views)),
            replace(step, chunks=abs(value)),
            replace(step, scalars=tuple(value for _ in step.scalars)),
            replace(step, writes=(which,)),
        )
    )
    plans[number] = replace(plans[number], steps=tuple(steps))
    return replace(file, header=replace(file.header, plans=tuple(plans)))

"""What an engine's plans were made of: optimised graphs and chosen tactics, as data.

From it, and from nothing else of an engine that nobody vouches for, the plans are assembled anew.
An engine is believed only if that gives the very plans that it holds; then every stride that is
baked into a kernel is one that our own code has derived.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Aliasing, Tactic, WeightStore, assemble
from smelt.builder._graph_data import TRIPPED, graph_from_data, graph_to_data, unsound
from smelt.builder._options import PRECISIONS
from smelt.engine import as_json
from smelt.errors import EngineFormatError
from smelt.ir import Constant
from smelt.types import DType, Layout, TensorFormat, dim_from_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import Backend, Target
    from smelt.engine import EngineHeader, Halo, Plan
    from smelt.ir import Graph, Node

_KNOWN_ELEMENTS: Final = 4096
"""Constants up to this size keep their elements: shapes and axes decide what is generated."""
_MAX_CONSTANT_BYTES: Final = 1 << 34

Symbols = tuple[tuple[str, int, int], ...]


def program_of(
    plans: Sequence[tuple[Graph, Mapping[int, Tactic], Symbols]], weights: WeightStore
) -> str:
    """The program of an engine as JSON text: for each plan its graph, tactics and symbols."""
    writer = _Writer(weights)
    written = [writer.plan(*plan) for plan in plans]
    document = {"constants": writer.constants, "plans": written}
    return json.dumps(document, separators=(",", ":"))


class _Writer:
    def __init__(self, weights: WeightStore) -> None:
        self.weights = weights
        self.constants: list[Any] = []
        self.positions: dict[object, int] = {}

    def plan(self, graph: Graph, tactics: Mapping[int, Tactic], symbols: Symbols) -> Any:
        written = graph_to_data(graph, self._position)
        for entry, node in zip(written["nodes"], graph.nodes, strict=True):
            entry["tactic"] = _tactic_to_data(tactics[id(node)])
        return {**written, "symbols": [list(symbol) for symbol in symbols]}

    def _position(self, constant: Constant) -> int:
        key = self.weights.key(constant)
        if key not in self.positions:
            self.positions[key] = len(self.constants)
            self.constants.append(_constant_to_data(constant))
        return self.positions[key]


def _constant_to_data(constant: Constant) -> Any:
    array = np.ascontiguousarray(constant.array)
    content = None
    if array.size <= _KNOWN_ELEMENTS:
        content = base64.b64encode(array.tobytes()).decode()
    dtype = DType.from_numpy(array.dtype).value
    return [constant.name, dtype, list(constant.array.shape), content]


def _tactic_to_data(tactic: Tactic) -> Any:
    return [
        tactic.family,
        tactic.parameters,
        [_format_to_data(f) for f in tactic.inputs],
        [_format_to_data(f) for f in tactic.outputs],
        tactic.halos,
        tactic.halo_value,
        str(tactic.workspace_bytes),
        tactic.aliasing.value,
        tactic.starts_early,
        tactic.backwards,
        tactic.is_reference,
    ]


def _format_to_data(fmt: TensorFormat | None) -> list[str] | None:
    return None if fmt is None else [fmt.dtype.value, fmt.layout.value]


# ---- reading


def reassembled_plans(
    header: EngineHeader, backend: Backend[Any], target: Target, source: str
) -> tuple[Plan, ...]:
    """The plans that the engine's program gives, which are the engine's own plans.

    Raises EngineFormatError: the program is malformed, or gives other plans or weights.
    """
    try:
        plans = _assemble(json.loads(header.program), header, backend, target)
    except TRIPPED as error:
        raise unsound(f"{source}: its program", error) from error
    if plans != header.plans:
        raise EngineFormatError(
            f"{source}: its plans are not those that its own program gives; it was altered"
        )
    return plans


def _assemble(
    document: Any, header: EngineHeader, backend: Backend[Any], target: Target
) -> tuple[Plan, ...]:
    weights = WeightStore()
    constants = [_constant_from_data(data) for data in document["constants"]]
    for constant in constants:
        weights.declare_distinct(constant)
    plans: list[Plan] = []
    layers = 0
    for data in document["plans"]:
        graph = graph_from_data(data, constants)
        # Which tactics a backend lists depends on a node's users, too.
        tactics = {
            id(node): _checked(_tactic_from_data(entry["tactic"]), node, backend, target)
            for node, entry in zip(graph.nodes, data["nodes"], strict=True)
        }
        symbols = tuple((str(n), int(low), int(high)) for n, low, high in data["symbols"])
        made = assemble(graph, tactics, backend, weights, symbols=symbols, first_layer=layers)
        layers += len(made.layers)
        plans.append(made.plan)
    packed = [(w.offset, w.dtype, w.shape) for w in header.weights]
    if packed != [(offset, c.type.dtype, c.type.shape) for c, offset in weights.entries]:
        raise EngineFormatError("its weights are not those that its program packs")
    return tuple(plans)


def _constant_from_data(data: Any) -> Constant:
    name, dtype, shape, content = data
    kind = DType(dtype).numpy
    extents = tuple(int(d) for d in shape)
    count = int(np.prod(extents, dtype=object))
    if any(d < 0 for d in extents) or count * kind.itemsize > _MAX_CONSTANT_BYTES:
        raise EngineFormatError(f"the constant {name!r} has the extents {extents}")
    if content is None:
        # The elements are in the packed weights; here one zero stands for all of them.
        return Constant(str(name), np.broadcast_to(np.zeros((), kind), extents))
    try:
        raw = base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise EngineFormatError(f"the constant {name!r} is no base64") from error
    return Constant(str(name), np.frombuffer(raw, kind).reshape(extents))


def _tactic_from_data(data: Any) -> Tactic:
    family, parameters, inputs, outputs, halos, value, *rest = data
    workspace, aliasing, starts_early, backwards, is_reference = rest
    results = [_format_from_data(f) for f in outputs]
    return Tactic(
        str(family),
        as_json(parameters),  # type: ignore[arg-type]  # compared with the family's own below
        tuple(_format_from_data(f) for f in inputs),
        tuple(f for f in results if f is not None),
        _halos(halos),
        int(value),
        dim_from_text(workspace),
        Aliasing(aliasing),
        bool(starts_early),
        bool(backwards),
        bool(is_reference),
    )


def _format_from_data(data: Any) -> TensorFormat | None:
    return None if data is None else TensorFormat(DType(data[0]), Layout(data[1]))


def _halos(data: Any) -> tuple[Halo, ...]:
    return tuple(tuple((int(b), int(a)) for b, a in halo) for halo in data)


def _checked(tactic: Tactic, node: Node, backend: Backend[Any], target: Target) -> Tactic:
    """The tactic, if it is one that the backend itself lists for the node."""
    formats = {f.dtype for f in (*tactic.inputs, *tactic.outputs) if f is not None}
    # Whose formats are all wide may still multiply in narrow types: those come last.
    storages = sorted(set(PRECISIONS.values()), key=lambda s: (s not in formats, s.value))
    ways = {backend.as_listed(node, t) for t in (tactic, *backend.variants(tactic))}
    reasons: dict[str, None] = {}
    for storage in storages:
        listed, refusals = backend.candidates(node, target, storage)
        if not ways.isdisjoint(backend.as_listed(node, t) for t in listed):
            return tactic
        reasons |= {r.reason: None for r in refusals if r.family == tactic.family}
    message = f"{tactic} is no tactic for {node}"
    if reasons:
        # Beside alterations, what code is made with decides about that.
        message += (
            f": here {tactic.family} refuses it ({'; '.join(reasons)}). Unless the engine was "
            "altered, remove the reason, or build it again here, or trust the key of who signed it"
        )
    raise EngineFormatError(message)

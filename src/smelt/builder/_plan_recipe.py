"""What an engine's plans were made of: optimised graphs and chosen tactics, as data.

From it, and from nothing else of an engine that nobody vouches for, its plans, layers, bindings and
tables are made anew. An engine is believed only if that gives the very ones that it holds; then
every stride that is baked into a kernel is one that our own code has derived, and so is every
table from which a kernel takes a place in memory.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Aliasing, Tactic, WeightStore, build_plan
from smelt.builder._graph_json import (
    MALFORMED_DATA_ERRORS,
    graph_from_data,
    graph_to_data,
    guard_from_data,
    guard_to_data,
    malformed_error,
)
from smelt.builder._optimization_profiles import BATCH
from smelt.builder._options import PRECISIONS
from smelt.engine import as_json
from smelt.errors import BuildError, EngineFormatError
from smelt.ir import Constant
from smelt.types import (
    DType,
    Guard,
    Layout,
    Limit,
    TensorFormat,
    dim_from_text,
    dim_to_text,
    evaluate_dim,
    one_file_of_formulas,
    parse_json,
    substitute_dim,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Target
    from smelt.engine import Binding, EngineFile, EngineHeader, Halo, LayerInfo, Plan, Weight
    from smelt.ir import Graph, Node

_KNOWN_ELEMENTS: Final = 4096
"""Constants up to this size keep their elements: shapes and axes decide what is generated."""

Symbols = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class PlanRecipe:
    """What a plan is assembled from."""

    graph: Graph
    tactics: Mapping[Node, Tactic]
    """By ``node``."""
    symbols: Symbols
    guards: tuple[Guard, ...]
    """Of the network before it was optimised."""


def plan_recipes_json(
    plans: Sequence[PlanRecipe],
    weights: WeightStore,
    outputs: Sequence[str],
) -> str:
    """The program of an engine as JSON text: for each plan its graph, tactics and symbols.

    ``outputs`` are the names of the network's outputs, which passes may rename.
    """
    writer = _Writer(weights)
    with one_file_of_formulas():
        written = [writer.plan(plan) for plan in plans]
    document = {"outputs": list(outputs), "constants": writer.constants, "plans": written}
    return json.dumps(document, separators=(",", ":"))


class _Writer:
    def __init__(self, weights: WeightStore) -> None:
        self.weights = weights
        self.constants: list[Any] = []
        self.positions: dict[object, int] = {}

    def plan(self, plan: PlanRecipe) -> Any:
        written = graph_to_data(plan.graph, self._position)
        for entry, node in zip(written["nodes"], plan.graph.nodes, strict=True):
            entry["tactic"] = tactic_to_data(plan.tactics[node])
        guards = [guard_to_data(guard) for guard in plan.guards]
        return {**written, "symbols": [list(s) for s in plan.symbols], "guards": guards}

    def _position(self, constant: Constant) -> int:
        key = self.weights.key(constant)
        if key not in self.positions:
            self.positions[key] = len(self.constants)
            self.constants.append(_constant_to_data(constant))
        return self.positions[key]


def _constant_to_data(constant: Constant) -> Any:
    if (size := constant.array.nbytes) > Limit.MAX_CONSTANT_BYTES.most:
        detail = Limit.MAX_CONSTANT_BYTES.excess(size)
        raise BuildError(f"the constant {constant.name!r} has {detail}")
    array = np.ascontiguousarray(constant.array)
    content = None
    if _is_known(array.size):
        content = base64.b64encode(array.tobytes()).decode()
    dtype = DType.from_numpy(array.dtype).value
    return [constant.name, dtype, list(constant.array.shape), content]


def _is_known(size: int) -> bool:
    return size <= _KNOWN_ELEMENTS


def tactic_to_data(tactic: Tactic) -> Any:
    return [
        tactic.family,
        tactic.parameters,
        [_format_to_data(f) for f in tactic.inputs],
        [_format_to_data(f) for f in tactic.outputs],
        tactic.halos,
        tactic.halo_value,
        dim_to_text(tactic.workspace_bytes),
        tactic.aliasing.value,
        tactic.uses_pdl,
        tactic.reversed_tile_order,
        tactic.is_reference,
    ]


def _format_to_data(fmt: TensorFormat | None) -> list[str] | None:
    return None if fmt is None else [fmt.dtype.value, fmt.layout.value]


# ---- reading


@np.errstate(all="ignore")
def regenerated_header(file: EngineFile, backend: Backend[Any], target: Target) -> EngineHeader:
    """The header of an engine with all that its own program gives made anew.

    What is left of the file's is text for people, weights' recipes and the kept network, which are
    read with suspicion wherever they are read.

    Raises EngineFormatError: the program is malformed, or gives another engine.
    """
    try:
        with one_file_of_formulas():
            made = RegeneratedEngine(parse_json(file.header.program), file, backend, target)
        return made.header(file.header, file.weights)
    except MALFORMED_DATA_ERRORS as error:
        raise malformed_error(f"{file.source}: its program", error) from error


class RegeneratedEngine:
    """What follows from a program."""

    def __init__(
        self, document: Any, file: EngineFile, backend: Backend[Any], target: Target
    ) -> None:
        self.weights = WeightStore()
        self.constants = [constant_from_data(data) for data in document["constants"]]
        _check_weights_size(self.constants, file.weights.size)
        for constant in self.constants:
            self.weights.declare_distinct(constant)
        self.outputs = [str(name) for name in document["outputs"]]
        # Before anything is assembled, which takes milliseconds a plan.
        if len(document["plans"]) != len(file.header.plans):
            raise _mismatch_error("plans")
        self.graphs: list[Graph] = []
        self.plans: list[Plan] = []
        self.layers: list[LayerInfo] = []
        for data in document["plans"]:
            self._assemble(data, backend, target)

    def _assemble(self, data: Any, backend: Backend[Any], target: Target) -> None:
        graph = graph_from_data(data, self.constants)
        if len(graph.outputs) != len(self.outputs):
            raise _mismatch_error("outputs")
        # Which tactics a backend lists depends on a node's users, too.
        tactics = {
            node: _checked(_tactic_from_data(entry["tactic"]), node, backend, target)
            for node, entry in zip(graph.nodes, data["nodes"], strict=True)
        }
        symbols = tuple((str(n), int(low), int(high)) for n, low, high in data["symbols"])
        first = len(self.layers)
        made = build_plan(
            graph,
            tactics,
            backend,
            self.weights,
            symbols=symbols,
            guards=map(guard_from_data, data["guards"]),
            first_layer=first,
        )
        self.graphs.append(graph)
        self.plans.append(made.plan)
        self.layers += made.layers

    def header(self, given: EngineHeader, weights: NDArray[np.uint8]) -> EngineHeader:
        """The engine's header, if it is this engine's. Raises EngineFormatError."""
        batches = [high for p in self.plans for name, _, high in p.symbols if name == BATCH]
        made = replace(
            given,
            name=self.graphs[0].name,
            max_batch_size=max(batches, default=None),
            plans=tuple(self.plans),
            layers=tuple(self.layers),
        )
        for field in ("name", "max_batch_size", "plans", "layers"):
            if getattr(made, field) != getattr(given, field):
                raise _mismatch_error(field.replace("_", " "))
        for graph, plan in zip(self.graphs, self.plans, strict=True):
            self._check_inputs(given.bindings, graph, plan)
        self._check_outputs(given.bindings)
        return replace(made, weights=tuple(self._weights(given.weights, weights)))

    def _check_inputs(self, bindings: Sequence[Binding], graph: Graph, plan: Plan) -> None:
        """Bindings may have a symbol where one of several plans has its value."""
        fixed = {name: low for name, low, high in plan.symbols if low == high}
        given = [
            (b.name, b.is_input, b.dtype, tuple(substitute_dim(d, fixed) for d in b.shape))
            for b in bindings[: len(graph.inputs)]
        ]
        if given != [(v.name, True, v.tensor.dtype, v.tensor.shape) for v in graph.inputs]:
            raise _mismatch_error("bindings")

    def _check_outputs(self, bindings: Sequence[Binding]) -> None:
        """Where plans differ in an extent, the binding names what it depends on, for people."""
        results = list(zip(*(graph.outputs for graph in self.graphs), strict=True))
        given = bindings[len(self.graphs[0].inputs) :]
        for binding, name, values in zip(given, self.outputs, results, strict=True):
            dtypes = {value.tensor.dtype for value in values}
            if (binding.name, binding.is_input, {binding.dtype}) != (name, False, dtypes):
                raise _mismatch_error("bindings")
            for dim, *own in zip(binding.shape, *(v.tensor.shape for v in values), strict=True):
                if {*own} != {dim} and (len({*own}) == 1 or isinstance(dim, int)):
                    raise _mismatch_error("bindings")

    def _weights(self, given: Sequence[Weight], data: NDArray[np.uint8]) -> Iterator[Weight]:
        """The packed weights; those that follow from the program have the elements that it gives.

        That is whatever families make themselves, such as the tables of a Resize, and integers that
        an op reads as they are: shapes, axes, indices. The others are numbers to compute on.
        """
        of_model = set(self.constants)
        for weight, (constant, offset) in zip(given, self.weights.entries, strict=True):
            shape = tuple(evaluate_dim(extent, {}) for extent in constant.type.shape)
            found = (weight.offset, weight.dtype, weight.shape)
            if found != (offset, constant.type.dtype, shape):
                raise _mismatch_error("weights")
            is_ours = not any(source in of_model for source in constant.sources())
            if is_ours or (constant.recipe is None and _decides(constant)):
                wanted = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)
                if not np.array_equal(data[offset : offset + wanted.size], wanted):
                    raise _mismatch_error("tables")
            # A refit must not replace a table.
            yield replace(weight, recipe=None) if is_ours else weight


def _mismatch_error(what: str) -> EngineFormatError:
    return EngineFormatError(f"its {what} differ from those of the engine; the file was changed")


def _decides(constant: Constant) -> bool:
    """Whether an op may read the elements as a shape, as axes or as indices."""
    kind = constant.type.dtype
    return kind in {DType.INT32, DType.INT64} and _is_known(constant.array.size)


def _check_weights_size(constants: Sequence[Constant], weights_bytes: int) -> None:
    """Check that what is declared can be what is packed, of which eight bytes may be made one."""
    declared = sum(c.array.nbytes for c in constants if not _is_known(c.array.size))
    if declared > 8 * weights_bytes:
        raise EngineFormatError(
            f"its constants declare {declared} bytes, and the weights have {weights_bytes}"
        )


def constant_from_data(data: Any) -> Constant:
    name, dtype, shape, content = data
    kind = DType(dtype).numpy
    extents = tuple(int(d) for d in shape)
    count = int(np.prod(extents, dtype=object))
    if any(d < 0 for d in extents):
        raise EngineFormatError(f"the constant {name!r} has the extents {extents}")
    if (size := count * kind.itemsize) > Limit.MAX_CONSTANT_BYTES.most:
        detail = Limit.MAX_CONSTANT_BYTES.excess(size)
        raise EngineFormatError(f"the constant {name!r} has {detail}")
    if _is_known(count) != (content is not None):
        raise EngineFormatError(f"the constant {name!r} overlaps another one")
    if content is None:
        # The elements are in the packed weights; here one zero stands for all of them.
        return Constant(str(name), np.broadcast_to(np.zeros((), kind), extents))
    try:
        raw = base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise EngineFormatError(f"the constant {name!r} is not valid base64") from error
    return Constant(str(name), np.frombuffer(raw, kind).reshape(extents))


def _tactic_from_data(data: Any) -> Tactic:
    family, parameters, inputs, outputs, halos, value, *rest = data
    workspace, aliasing, uses_pdl, reversed_tile_order, is_reference = rest
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
        bool(uses_pdl),
        bool(reversed_tile_order),
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
    ways = [backend.canonical_tactic(node, t) for t in (tactic, *backend.launch_variants(tactic))]
    reasons: dict[str, None] = {}
    for storage in storages:
        listed, refusals = backend.candidates(node, target, storage)
        known = {backend.canonical_tactic(node, t): t.parameters for t in listed}
        for way in ways:
            if way in known:
                # A file may say 4.0 or true where a generator counts.
                return replace(tactic, parameters=known[way])
        reasons |= {r.reason: None for r in refusals if r.family == tactic.family}
    message = f"{tactic} is not a tactic for {node}"
    if reasons:
        # Beside alterations, what code is made with decides about that.
        message += (
            f": the family {tactic.family} does not support it on this machine "
            f"({'; '.join(reasons)}). Build the engine again here, or trust the key that signed it"
        )
    raise EngineFormatError(message)

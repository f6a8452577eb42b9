"""Plan recipes: optimised graphs and chosen tactics as data, from which plans are regenerated.

For an untrusted engine, the plans, layers, bindings and tables are regenerated from this data
alone. The engine is accepted only if the result equals what it contains. Every stride that is
compiled into a kernel, and every table from which a kernel reads an address, is then derived by
this package's own code.
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
    GUARDS,
    MALFORMED_DATA_ERRORS,
    graph_from_data,
    graph_to_data,
    malformed_error,
)
from smelt.builder._optimization_profiles import BATCH
from smelt.engine import codec
from smelt.errors import BuildError, EngineFormatError
from smelt.ir import Constant
from smelt.types import (
    DType,
    Guard,
    Layout,
    Limit,
    TensorFormat,
    counted,
    evaluate_dim,
    parse_json,
    shared_formula_limit,
    substitute_dim,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Target
    from smelt.engine import Binding, EngineFile, EngineHeader, LayerInfo, Plan, Weight
    from smelt.ir import Graph, Node

_MAX_STORED_ELEMENTS: Final = 4096
"""Largest number of elements of a constant whose values are stored in the recipe. It covers shapes
and axes, on which code generation depends.
"""

Symbols = tuple[tuple[str, int, int], ...]
_SYMBOLS: Final[codec.Codec[Symbols]] = codec.tuple_of(codec.row(codec.TEXT, codec.INT, codec.INT))
_FORMAT: Final = codec.record_row(TensorFormat, dtype=codec.DTYPE, layout=codec.enum_of(Layout))
TACTIC: Final = codec.record_row(
    Tactic,
    family=codec.TEXT,
    parameters=codec.NAMED_JSON,
    input_formats=codec.tuple_of(codec.or_none(_FORMAT)),
    output_formats=codec.tuple_of(_FORMAT),
    halos=codec.tuple_of(codec.tuple_of(codec.row(codec.INT, codec.INT))),
    halo_value=codec.INT,
    workspace_bytes=codec.DIM_TEXT,
    aliasing=codec.enum_of(Aliasing),
    uses_pdl=codec.BOOL,
    reversed_tile_order=codec.BOOL,
    is_host_step=codec.BOOL,
)
"""Codec of tactics; one that was read is not checked yet."""


@dataclass(frozen=True, slots=True)
class PlanRecipe:
    """The data from which a plan is assembled."""

    graph: Graph
    tactics: Mapping[Node, Tactic]
    """The chosen tactic of each node."""
    symbols: Symbols
    guards: tuple[Guard, ...]
    """Guards of the network before and after optimisation."""


@shared_formula_limit
def plan_recipes_json(
    plans: Sequence[PlanRecipe], weights: WeightStore, outputs: Sequence[str]
) -> str:
    """Return the recipes of an engine as JSON text, with graph, tactics and symbols of each plan.

    ``outputs`` are the names of the network's outputs, which passes may rename.
    """
    writer = _PlanRecipeWriter(weights)
    written = [writer.plan(plan) for plan in plans]
    document = {"outputs": list(outputs), "constants": writer.constants, "plans": written}
    return json.dumps(document, separators=(",", ":"))


class _PlanRecipeWriter:
    """Writes plans, and collects their constants."""

    def __init__(self, weights: WeightStore) -> None:
        self.weights = weights
        self.constants: list[Any] = []
        self.positions: dict[object, int] = {}

    def plan(self, plan: PlanRecipe) -> Any:
        written = graph_to_data(plan.graph, self._position)
        for entry, node in zip(written["nodes"], plan.graph.nodes, strict=True):
            entry["tactic"] = TACTIC.write(plan.tactics[node])
        symbols, guards = _SYMBOLS.write(plan.symbols), GUARDS.write(plan.guards)
        return {**written, "symbols": symbols, "guards": guards}

    def _position(self, constant: Constant) -> int:
        key = self.weights.key(constant)
        if key not in self.positions:
            self.positions[key] = len(self.constants)
            self.constants.append(_constant_to_data(constant))
        return self.positions[key]


def _constant_to_data(constant: Constant) -> Any:
    """Return a constant as JSON-serialisable values, with its elements if it is small."""
    what = f"the constant {constant.name!r} has"
    Limit.MAX_CONSTANT_BYTES.check(constant.array.nbytes, what, BuildError)
    array = np.ascontiguousarray(constant.array)
    content = None
    if _is_stored(array.size):
        content = base64.b64encode(array.tobytes()).decode()
    dtype = DType.from_numpy(array.dtype).value
    return [constant.name, dtype, list(constant.array.shape), content]


def _is_stored(size: int) -> bool:
    """Return whether a constant with ``size`` elements is stored with its values."""
    return size <= _MAX_STORED_ELEMENTS


# ---- reading


@np.errstate(all="ignore")
def regenerated_header(file: EngineFile, backend: Backend[Any], target: Target) -> EngineHeader:
    """Return an engine's header with everything regenerated that its recipes determine.

    What is taken from the file is informative text, the recipes of weights and the embedded
    network. Their readers do not trust them either.

    Raises:
        EngineFormatError: the recipes are malformed, or describe another engine.
    """
    try:
        engine = RegeneratedEngine(parse_json(file.header.program), file, backend, target)
        return engine.header(file.header, file.weights)
    except MALFORMED_DATA_ERRORS as error:
        raise malformed_error(f"{file.source}: its program", error) from error


class RegeneratedEngine:
    """The plans and layers that the recipes of an engine determine."""

    @shared_formula_limit
    def __init__(
        self, document: Any, file: EngineFile, backend: Backend[Any], target: Target
    ) -> None:
        """Read the constants, and assemble all plans."""
        self.weights = WeightStore()
        self.constants = [constant_from_data(data) for data in document["constants"]]
        _check_weights_size(self.constants, file.weights.size)
        for constant in self.constants:
            self.weights.declare_distinct(constant)
        self.outputs = [str(name) for name in document["outputs"]]
        # Checked before any plan is assembled, which takes milliseconds.
        if len(document["plans"]) != len(file.header.plans):
            raise _mismatch_error("plans")
        self.graphs: list[Graph] = []
        self.plans: list[Plan] = []
        self.layers: list[LayerInfo] = []
        for data in document["plans"]:
            self._assemble(data, backend, target)

    def _assemble(self, data: Any, backend: Backend[Any], target: Target) -> None:
        """Assemble one plan."""
        graph = graph_from_data(data, self.constants)
        if len(graph.outputs) != len(self.outputs):
            raise _mismatch_error("outputs")
        # After the graph is complete: the tactics of a node also depend on its readers.
        tactics = {
            node: _checked(TACTIC.read(entry["tactic"], "a tactic"), node, backend, target)
            for node, entry in zip(graph.nodes, data["nodes"], strict=True)
        }
        first_layer = len(self.layers)
        built = build_plan(
            graph,
            tactics,
            backend,
            self.weights,
            symbols=_SYMBOLS.read(data["symbols"], "the symbols of a plan"),
            guards_before_passes=GUARDS.read(data["guards"], "the guards of a plan"),
            first_layer=first_layer,
        )
        self.graphs.append(graph)
        self.plans.append(built.plan)
        self.layers += built.layers

    def header(self, file_header: EngineHeader, weights: NDArray[np.uint8]) -> EngineHeader:
        """Return the regenerated header after comparing it with the file's.

        Raises:
            EngineFormatError: a regenerated field differs from the file.
        """
        batches = [high for p in self.plans for name, _, high in p.symbols if name == BATCH]
        regenerated = replace(
            file_header,
            name=self.graphs[0].name,
            max_batch_size=max(batches, default=None),
            plans=tuple(self.plans),
            layers=tuple(self.layers),
        )
        for field in ("name", "max_batch_size", "plans", "layers"):
            ours, given = getattr(regenerated, field), getattr(file_header, field)
            # NaN, as an epsilon may be, differs from itself, but not in text.
            if ours != given and repr(ours) != repr(given):
                raise _mismatch_error(f"values of {field}")
        for graph, plan in zip(self.graphs, self.plans, strict=True):
            self._check_inputs(file_header.bindings, graph, plan)
        self._check_outputs(file_header.bindings)
        return replace(regenerated, weights=tuple(self._weights(file_header.weights, weights)))

    def _check_inputs(self, bindings: Sequence[Binding], graph: Graph, plan: Plan) -> None:
        """Check the input bindings against one plan.

        A binding may have a symbol where one of several plans has a fixed value.
        """
        fixed = {name: low for name, low, high in plan.symbols if low == high}
        actual = [
            (b.name, b.is_input, b.dtype, tuple(substitute_dim(d, fixed) for d in b.shape))
            for b in bindings[: len(graph.inputs)]
        ]
        if actual != [(v.name, True, v.tensor.dtype, v.tensor.shape) for v in graph.inputs]:
            raise _mismatch_error("bindings")

    def _check_outputs(self, bindings: Sequence[Binding]) -> None:
        """Check the output bindings.

        Where plans differ in an extent, the binding may have any symbolic extent, which is only
        informative.
        """
        results = list(zip(*(graph.outputs for graph in self.graphs), strict=True))
        output_bindings = bindings[len(self.graphs[0].inputs) :]
        for binding, name, values in zip(output_bindings, self.outputs, results, strict=True):
            dtypes = {value.tensor.dtype for value in values}
            if (binding.name, binding.is_input, {binding.dtype}) != (name, False, dtypes):
                raise _mismatch_error("bindings")
            for dim, *plan_dims in zip(
                binding.shape, *(v.tensor.shape for v in values), strict=True
            ):
                if {*plan_dims} != {dim} and (len({*plan_dims}) == 1 or isinstance(dim, int)):
                    raise _mismatch_error("bindings")

    def _weights(self, file_weights: Sequence[Weight], data: NDArray[np.uint8]) -> Iterator[Weight]:
        """Yield the packed weights after checking those that the recipes determine.

        Determined are tables that kernel families compute themselves, such as those of a Resize,
        and elements by which the plans decide, such as shapes and axes. All other weights are
        operands, also indices: their values do not affect memory safety, and refits replace them.
        """
        model_constants = set(self.constants)
        for weight, (constant, offset) in zip(file_weights, self.weights.entries, strict=True):
            shape = tuple(evaluate_dim(extent, {}) for extent in constant.type.shape)
            actual = (weight.offset, weight.dtype, weight.shape)
            if actual != (offset, constant.type.dtype, shape):
                raise _mismatch_error("weights")
            sources = list(constant.sources())
            is_table = not any(source in model_constants for source in sources)
            if is_table or (constant.is_fixed and _is_stored(constant.array.size)):
                expected = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)
                if not np.array_equal(data[offset : offset + expected.size], expected):
                    raise _mismatch_error("tables")
            # A refit must replace neither a table nor elements by which the plans decide.
            is_fixed = is_table or any(source.is_fixed for source in sources)
            yield replace(weight, recipe=None) if is_fixed else weight


def _mismatch_error(what: str) -> EngineFormatError:
    """Return the error for a part of the engine that differs from the regenerated one."""
    return EngineFormatError(
        f"the engine's {what} are not those that its program generates; the file was changed"
    )


def _check_weights_size(constants: Sequence[Constant], weights_bytes: int) -> None:
    """Check that the declared constants can result from the packed weights.

    One packed byte may stand for up to eight declared bytes.
    """
    declared = sum(c.array.nbytes for c in constants if not _is_stored(c.array.size))
    if declared > 8 * weights_bytes:
        raise EngineFormatError(
            f"the declared size of the constants is {declared} bytes, more than 8 times the size "
            f"of the weights, {weights_bytes} bytes"
        )


def constant_from_data(data: Any) -> Constant:
    """Return the constant that `_constant_to_data` wrote.

    Raises:
        EngineFormatError: the data is malformed, or the constant is too large.
    """
    name, dtype, shape, content = data
    dtype_ = DType(dtype).numpy
    extents = tuple(int(d) for d in shape)
    count = int(np.prod(extents, dtype=object))
    if any(d < 0 for d in extents):
        raise EngineFormatError(f"the constant {name!r} has a negative extent: {extents}")
    what = f"the constant {name!r} has"
    Limit.MAX_CONSTANT_BYTES.check(count * dtype_.itemsize, what, EngineFormatError)
    if _is_stored(count) != (content is not None):
        problem = "has no" if content is None else "is too large for a"
        what = f"the constant {name!r} of {counted(count, 'element')}"
        raise EngineFormatError(f"{what} {problem} list of its elements")
    if content is None:
        # The elements are in the packed weights; a broadcast zero takes their place here.
        return Constant(str(name), np.broadcast_to(np.zeros((), dtype_), extents))
    try:
        content_bytes = base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise EngineFormatError(f"the data of the constant {name!r} is not valid base64") from error
    return Constant(str(name), np.frombuffer(content_bytes, dtype_).reshape(extents))


def _checked(tactic: Tactic, node: Node, backend: Backend[Any], target: Target) -> Tactic:
    """Return a tactic, with its family's parameters, if the backend lists it for the node.

    Raises:
        EngineFormatError: the backend does not list the tactic.
    """
    listed, refusals = backend.candidates(node, target)
    parameters_by_tactic = {t: t.parameters for t in listed}
    for variant in (tactic, *backend.launch_variants(tactic)):
        if variant in parameters_by_tactic:
            # Equal parameters may still have another type in the file, such as 4.0 or true.
            return replace(tactic, parameters=parameters_by_tactic[variant])
    message = f"{tactic} is not a tactic for {node}"
    if reasons := dict.fromkeys(r.reason for r in refusals if r.family == tactic.family):
        # Unless the file was changed, the versions of the compiler and libraries are the cause.
        message += (
            f": the family {tactic.family} does not support this node on this machine "
            f"({'; '.join(reasons)}). Build the engine again here, or trust the key that signed it"
        )
    raise EngineFormatError(message)

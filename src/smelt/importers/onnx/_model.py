"""From a model to a graph: inputs, the nodes, outputs, and one report of what cannot run."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING

from smelt.errors import GraphError, ModelFormatError, UnsupportedError
from smelt.importers.onnx._external_data import ExternalData
from smelt.importers.onnx._graph import fill_scope
from smelt.importers.onnx._load import LoadedModel, load_model
from smelt.importers.onnx._scope import ImportState, Scope, logger
from smelt.importers.onnx._types import declared_shape, tensor_type
from smelt.ir import Graph, Value
from smelt.ops import Identity
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import FunctionProto, GraphProto

    from smelt.importers.onnx._load import ModelSource
    from smelt.importers.onnx._scope import FunctionKey

_MAX_WARNINGS = 5


def graph_from_model(source: ModelSource, outputs: Sequence[str] | None) -> Graph:
    """Import a model; see ``import_onnx``."""
    model = load_model(source)
    try:
        return _import(model, outputs)
    except RecursionError as error:
        raise ModelFormatError("the ONNX model nests graphs too deeply") from error


def _import(model: LoadedModel, outputs: Sequence[str] | None) -> Graph:
    proto = model.proto.graph
    graph = Graph(proto.name or "network")
    wanted = [entry.name for entry in proto.output] if outputs is None else list(outputs)
    for count in (len(proto.input), len(wanted)):
        if count > Limit.MAX_BINDINGS.most:
            raise GraphError(f"ONNX model {graph.name!r} has {Limit.MAX_BINDINGS.excess(count)}")
    state = ImportState(ExternalData(model.folder), graph, fill_scope, _functions(model))
    scope = Scope(state, graph, model.opsets)
    _add_inputs(scope, proto)
    fill_scope(scope, proto)
    if state.problems:
        raise UnsupportedError(
            f"{len(state.problems)} part(s) of ONNX model {graph.name!r} are not supported:",
            reasons=_grouped(state.problems),
        )
    _warn_of_wrong_shapes(scope, proto)
    if outputs is None and not wanted:
        raise GraphError(f"ONNX model {graph.name!r} has no output; give the outputs in outputs=")
    _mark_outputs(scope, wanted)
    state.keep_guards()
    return graph


def _grouped(problems: Sequence[str]) -> list[str]:
    """The problems, those that differ in nothing but the node's name told once."""
    first: dict[tuple[str, str], str] = {}
    others: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        op, _, rest = problem.partition(" '")
        key = (op, rest.partition("': ")[2] or problem)
        others[key] += key in first
        first.setdefault(key, problem)
    return [
        text if not others[key] else f"{text} (and {others[key]} more alike)"
        for key, text in first.items()
    ]


def _functions(model: LoadedModel) -> dict[FunctionKey, FunctionProto]:
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.proto.functions:
        domain = "" if function.domain == "ai.onnx" else function.domain
        key = (domain, function.name, function.overload)
        if key in functions:
            raise GraphError(f"function {function.name!r} of domain {domain!r} is defined twice")
        functions[key] = function
    return functions


def _add_inputs(scope: Scope, proto: GraphProto) -> None:
    # Until IR version 4 every weight had to be listed as an input too.
    weights = {entry.name for entry in proto.initializer}
    weights |= {entry.values.name for entry in proto.sparse_initializer}
    for entry in proto.input:
        where = f"input {entry.name!r}"
        if not entry.name:
            raise ModelFormatError("an input of the ONNX model has no name")
        if entry.name in weights:
            continue
        if entry.name in scope.values:
            raise GraphError(f"{where} occurs twice; rename one of them")
        try:
            kind = tensor_type(entry.type, entry.name, scope.state.symbols, where)
        except UnsupportedError as error:
            scope.state.problems.append(str(error))
            scope.values[entry.name] = None
            continue
        scope.state.reserve_name(entry.name)
        scope.values[entry.name] = scope.graph.add_input(entry.name, kind)


def _mark_outputs(scope: Scope, names: Sequence[str]) -> None:
    graph = scope.graph
    for name in names:
        value = scope.values.get(name)
        if value is None:
            known = [key for key in scope.values if key]
            near = difflib.get_close_matches(name, known, 3)
            last = ", ".join(map(repr, known[-3:]))
            hint = (
                f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; its last: {last}"
            )
            raise GraphError(f"ONNX model {graph.name!r} has no value {name!r} for an output{hint}")
        if graph.is_output(value):
            raise GraphError(f"output {name!r} is given twice; give it once")
        if value.producer is None:
            value = _copy(scope, value, name)
        graph.outputs.append(value)


def _copy(scope: Scope, value: Value, name: str) -> Value:
    """A result that holds what an input or a weight holds: only results may leave a graph."""
    label = name
    if value.constant is None:
        label = scope.state.reserve_name(f"{name}_output")
        logger.warning("input %r is an output too; the output is named %r", name, label)
    else:
        value = Value(
            scope.state.reserve_name(f"{name}/value"), value.type, constant=value.constant
        )
    node_name = scope.state.reserve_node_name(f"{name}/copy")
    return scope.graph.add(Identity(), value, name=node_name, output_names=(label,)).output


def _warn_of_wrong_shapes(scope: Scope, proto: GraphProto) -> None:
    """Say which declared shapes contradict what the nodes compute; the latter counts."""
    wrong: list[str] = []
    for entry in (*proto.value_info, *proto.output, *proto.input):
        value = scope.values.get(entry.name)
        declared = declared_shape(entry.type)
        if value is None or declared is None:
            continue
        shape = value.tensor.shape
        fits = len(shape) == len(declared) and all(
            given is None or not isinstance(extent, int) or given == extent
            for given, extent in zip(declared, shape, strict=True)
        )
        if not fits:
            text = ", ".join("?" if extent is None else str(extent) for extent in declared)
            wrong.append(f"{entry.name!r} is declared [{text}] and is {value.tensor}")
    if wrong:
        rest = f" and {len(wrong) - _MAX_WARNINGS} more" if len(wrong) > _MAX_WARNINGS else ""
        logger.warning(
            "ONNX model %r declares wrong shapes; they are inferred instead: %s%s",
            scope.graph.name,
            "; ".join(wrong[:_MAX_WARNINGS]),
            rest,
        )

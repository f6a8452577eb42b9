"""Import of an ONNX model: inputs, nodes, outputs, and one report of all unsupported parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from smelt.errors import GraphError, ModelFormatError, UnsupportedError
from smelt.importers.onnx._external_data import ExternalData
from smelt.importers.onnx._graph import fill_scope
from smelt.importers.onnx._load import LoadedModel, domain_name, load_model
from smelt.importers.onnx._scope import ImportState, Scope, logger
from smelt.importers.onnx._types import agrees, declared_shape, tensor_type
from smelt.ir import Graph, Value
from smelt.ops import Identity
from smelt.types import Limit, counted, similar_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import FunctionProto, GraphProto

    from smelt.importers.onnx._load import ModelSource
    from smelt.importers.onnx._scope import FunctionKey

_MAX_WARNINGS = 5
"""Largest number of wrong shapes that one warning lists."""


def graph_from_model(source: ModelSource, outputs: Sequence[str] | None) -> Graph:
    """Import a model; see ``import_onnx``."""
    model = load_model(source)
    try:
        return _import(model, outputs)
    except RecursionError as error:
        raise ModelFormatError("the ONNX model nests graphs too deeply") from error


def _import(model: LoadedModel, outputs: Sequence[str] | None) -> Graph:
    """Build the graph of a loaded model."""
    proto = model.proto.graph
    graph = Graph(proto.name or "network")
    output_names = [entry.name for entry in proto.output] if outputs is None else list(outputs)
    for count in (len(proto.input), len(output_names)):
        if count > Limit.MAX_BINDINGS.most:
            raise GraphError(f"ONNX model {graph.name!r} has {Limit.MAX_BINDINGS.excess(count)}")
    state = ImportState(ExternalData(model.folder), graph, fill_scope, _functions(model))
    scope = Scope(state, graph, model.opsets)
    _add_inputs(scope, proto)
    fill_scope(scope, proto)
    if state.problems:
        count = len(state.problems)
        verb = "is" if count == 1 else "are"
        raise UnsupportedError(
            f"{counted(count, 'part')} of ONNX model {graph.name!r} {verb} not supported:",
            reasons=_grouped(state.problems),
        )
    _warn_of_wrong_shapes(scope, proto)
    if outputs is None and not output_names:
        raise GraphError(f"ONNX model {graph.name!r} has no output; give the outputs in outputs=")
    _mark_outputs(scope, output_names)
    state.keep_guards()
    return graph


def _grouped(problems: Sequence[str]) -> list[str]:
    """Return the problems, with those that differ only in the node's name counted together."""
    first_problems: dict[tuple[str, str], str] = {}
    repeats: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        op, _, rest = problem.partition(" '")
        key = (op, rest.partition("': ")[2] or problem)
        repeats[key] += key in first_problems
        first_problems.setdefault(key, problem)
    return [
        text if not repeats[key] else f"{text} (and {repeats[key]} more of the same kind)"
        for key, text in first_problems.items()
    ]


def _functions(model: LoadedModel) -> dict[FunctionKey, FunctionProto]:
    """Return the functions of the model by domain, name and overload."""
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.proto.functions:
        domain = domain_name(function.domain)
        key = (domain, function.name, function.overload)
        if key in functions:
            raise GraphError(f"function {function.name!r} of domain {domain!r} is defined twice")
        functions[key] = function
    return functions


def _add_inputs(scope: Scope, proto: GraphProto) -> None:
    """Add the inputs of the model."""
    # Before IR version 4 every initialiser had to be listed as an input, too.
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
            type_ = tensor_type(entry.type, entry.name, scope.state.symbols, where)
        except UnsupportedError as error:
            scope.state.problems.append(str(error))
            scope.values[entry.name] = None
            continue
        scope.state.reserve_name(entry.name)
        scope.values[entry.name] = scope.graph.add_input(entry.name, type_)


def _mark_outputs(scope: Scope, names: Sequence[str]) -> None:
    """Mark values as outputs; inputs and weights are copied by an Identity."""
    graph = scope.graph
    for name in names:
        value = scope.values.get(name)
        if value is None:
            value_names = [key for key in scope.values if key]
            matches = similar_names(name, value_names)
            last_names = ", ".join(map(repr, value_names[-3:]))
            hint = (
                f"; did you mean {' or '.join(map(repr, matches))}?"
                if matches
                else f"; the last values are {last_names}"
            )
            raise GraphError(
                f"ONNX model {graph.name!r} has no value {name!r} to use as an output{hint}"
            )
        if graph.is_output(value):
            raise GraphError(f"output {name!r} is listed twice; list it once")
        if value.producer is None:
            value = _copy(scope, value, name)
        graph.outputs.append(value)


def _copy(scope: Scope, value: Value, name: str) -> Value:
    """Return a copy of an input or a weight; only results of nodes can be outputs."""
    label = name
    if value.constant is None:
        label = scope.state.reserve_name(f"{name}_output")
        logger.warning("input %r is also an output; that output gets the name %r", name, label)
    node_name = scope.state.reserve_node_name(f"{name}/copy")
    return scope.graph.add(Identity(), value, name=node_name, output_names=(label,)).output


def _warn_of_wrong_shapes(scope: Scope, proto: GraphProto) -> None:
    """Warn about declared shapes that contradict the inferred ones, which are used."""
    wrong: list[str] = []
    for entry in (*proto.value_info, *proto.output, *proto.input):
        value = scope.values.get(entry.name)
        declared = declared_shape(entry.type)
        if value is None or declared is None:
            continue
        if not agrees(value.tensor.shape, declared):
            text = ", ".join("?" if extent is None else str(extent) for extent in declared)
            wrong.append(f"{entry.name!r} is declared as [{text}] but is {value.tensor}")
    if wrong:
        rest = f" and {len(wrong) - _MAX_WARNINGS} more" if len(wrong) > _MAX_WARNINGS else ""
        logger.warning(
            "ONNX model %r declares wrong shapes; the inferred shapes are used: %s%s",
            scope.graph.name,
            "; ".join(wrong[:_MAX_WARNINGS]),
            rest,
        )

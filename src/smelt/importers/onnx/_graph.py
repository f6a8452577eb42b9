"""Conversion of the nodes of an ONNX graph to nodes of a graph.

A node that is not supported is recorded as a problem, and its results take the types that the model
declares, if any. The nodes after it are still checked, so that one error lists all problems.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from smelt.errors import GraphError, ModelFormatError, UnsupportedError
from smelt.importers.onnx._attributes import attribute_value, check_attributes
from smelt.importers.onnx._functions import expand_function, function_of_schema
from smelt.importers.onnx._load import domain_name
from smelt.importers.onnx._node_context import REFUSALS, NodeContext
from smelt.importers.onnx._node_order import describe, order_nodes
from smelt.importers.onnx._rules_table import custom_rule, rule_for
from smelt.importers.onnx._scope import Scope, UnsupportedInputError
from smelt.importers.onnx._tensors import array_from_sparse, array_from_tensor, dense_bytes
from smelt.importers.onnx._types import tensor_type
from smelt.ir import Constant, Value
from smelt.types import Limit, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._rules_table import Converter

_UNLIMITED: Final = (1 << 31) - 1
"""Maximum number of inputs or outputs of a schema that sets no maximum."""


def fill_scope(scope: Scope, proto: GraphProto) -> None:
    """Add the weights and nodes of a graph to a scope that has the inputs already."""
    scope.hints = {entry.name: entry.type for entry in (*proto.value_info, *proto.output)}
    location = f"graph {proto.name!r}"
    if scope.references is not None:
        parts = (proto.input, proto.output, proto.value_info)
        scope.state.count_expanded(0, 0, sum(map(len, parts)))
    _add_weights(scope, proto, location)
    add_nodes(scope, proto.node, location)


def add_nodes(scope: Scope, nodes: Sequence[NodeProto], where: str) -> None:
    """Add nodes in topological order."""
    for proto in order_nodes(nodes, [name for name in scope.values if name], where):
        _add_node(scope, proto)


def _add_weights(scope: Scope, proto: GraphProto, where: str) -> None:
    """Add the initialisers of a graph as constants."""
    count = len(proto.initializer) + len(proto.sparse_initializer)
    scope.state.count(Limit.MAX_IMPORTED_WEIGHTS, count)
    entries: list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]] = []
    entries += [(entry.name, entry) for entry in proto.initializer]
    entries += [(entry.values.name, entry) for entry in proto.sparse_initializer]
    names: set[str] = set()
    for name, entry in entries:
        label = f"weight {name!r} of {where}"
        if not name:
            raise ModelFormatError(f"a weight of {where} has no name")
        if name in names:
            raise GraphError(f"{label} occurs twice; rename one of them")
        names.add(name)
        try:
            if isinstance(entry, onnx.TensorProto):
                array = array_from_tensor(entry, scope.state.external, label)
            else:
                scope.state.count_expanded(0, dense_bytes(entry))
                array = array_from_sparse(entry, scope.state.external, label)
        except UnsupportedError as error:
            scope.state.problems.append(str(error))
            scope.values[name] = None
        else:
            unique_name = scope.state.reserve_name(name)
            constant = Constant(unique_name, array)
            scope.state.number_of(constant)
            scope.values[name] = scope.graph.add_constant(constant)


def _add_node(scope: Scope, proto: NodeProto) -> None:
    """Add one node, or record why it is not supported."""
    label = proto.name or next((name for name in proto.output if name), proto.op_type) or "node"
    name = scope.state.reserve_node_name(scope.prefix + label)
    if scope.references is not None:
        parts = (proto.input, proto.output, proto.attribute)
        scope.state.count_expanded(1, proto.ByteSize(), sum(map(len, parts)))
    try:
        _convert(scope, proto, name)
    except UnsupportedError as error:
        scope.state.count(Limit.MAX_IMPORTED_NODES, 1)
        _note_problem(scope, proto, name, error)
        _use_declared_types(scope, proto)
        _check_regions(scope, proto.attribute)
    except UnsupportedInputError:
        scope.state.count(Limit.MAX_IMPORTED_NODES, 1)
        _use_declared_types(scope, proto)


def _convert(scope: Scope, proto: NodeProto, name: str) -> None:
    """Convert one node to ops and bind its results to their names.

    Raises:
        UnsupportedError: the node is not supported.
        UnsupportedInputError: an input depends on a node that is not supported.
    """
    where = f"{proto.op_type} {name!r}"
    protos = _resolve_references(scope, proto, where)
    inputs = [scope.lookup(key, where) if key else None for key in proto.input]
    inputs_known = all(
        value is not None or not key for value, key in zip(inputs, proto.input, strict=True)
    )
    known = inputs if inputs_known else None
    implementation = _find_implementation(scope, proto, protos, where, known)
    if not inputs_known:
        _check_regions(scope, protos)
        raise UnsupportedInputError
    version = scope.opsets.get(domain_name(proto.domain), 0)
    for attribute in protos:
        if scope.references is not None:
            count = len(attribute.ints) + len(attribute.floats) + len(attribute.strings)
            scope.state.count_expanded(0, 0, count)
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            scope.state.count_expanded(0, dense_bytes(attribute.sparse_tensor))
    attributes = {p.name: attribute_value(p, scope.state.external, where) for p in protos}
    context = NodeContext(scope, name, proto.op_type, version, inputs, proto.output, attributes)
    first_node, first_constant = len(scope.graph.nodes), scope.state.constant_count
    try:
        if isinstance(implementation, FunctionProto):
            results = expand_function(context, implementation, protos, add_nodes)
        else:
            results = list[Value | None](implementation(context))
    except REFUSALS as error:
        raise ModelFormatError(f"{where}: the attributes or inputs are invalid: {error}") from error
    _bind_results(context, results, first_node, first_constant)
    _name_nodes(context, first_node)


def _resolve_references(scope: Scope, proto: NodeProto, where: str) -> list[AttributeProto]:
    """Return the attributes of a node, with references to the function's attributes resolved."""
    resolved: list[AttributeProto] = []
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            resolved.append(attribute)
            continue
        if scope.references is None:
            raise ModelFormatError(
                f"{where}: attribute {attribute.name!r} refers to the function attribute "
                f"{attribute.ref_attr_name!r}, but the node is not inside a function"
            )
        target = scope.references.get(attribute.ref_attr_name)
        if target is not None:
            scope.state.count_expanded(0, target.ByteSize())
            copy = AttributeProto()
            copy.CopyFrom(target)
            copy.name = attribute.name
            resolved.append(copy)
    return resolved


def _find_implementation(
    scope: Scope,
    proto: NodeProto,
    attributes: Sequence[AttributeProto],
    where: str,
    inputs: Sequence[Value | None] | None,
) -> Converter | FunctionProto:
    """Return the converter or the function of a node's op.

    ``inputs`` is None if they are not known.

    Raises:
        UnsupportedError: the op is not supported.
    """
    domain = domain_name(proto.domain)
    function = scope.state.functions.get((domain, proto.op_type, proto.overload))
    if function is not None:
        return function
    version = scope.opsets.get(domain)
    if version is None:
        raise ModelFormatError(
            f"{where} is in domain {domain or 'ai.onnx'!r}, for which the model has no opset import"
        )
    if domain:
        rule = custom_rule(domain, proto.op_type)
        if rule is None:
            raise UnsupportedError(
                f"ops of domain {domain} are not supported; export with ONNX's own ops, or "
                f"register an op named '{domain}.{proto.op_type}'"
            )
        return rule
    schema = _schema(proto.op_type, version)
    check_attributes(attributes, schema, where)
    _check_counts(proto, schema, where)
    rule = rule_for(proto.op_type, version)
    if rule is not None:
        return rule
    function = function_of_schema(schema, version, proto, attributes, inputs)
    if function is None:
        raise UnsupportedError(f"the op {proto.op_type} is not supported")
    return function


def _schema(op_type: str, version: int) -> onnx.defs.OpSchema:
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError as error:
        raise UnsupportedError(f"ONNX has no op {op_type} in opset {version}") from error
    if schema.deprecated:
        raise UnsupportedError(f"ONNX removed {op_type} in opset {schema.since_version}")
    return schema


def _check_counts(proto: NodeProto, schema: onnx.defs.OpSchema, where: str) -> None:
    for kind, count, minimum, maximum in (
        ("input", len(proto.input), schema.min_input, schema.max_input),
        ("output", len(proto.output), schema.min_output, schema.max_output),
    ):
        if not minimum <= count <= maximum:
            expected = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
            if maximum >= _UNLIMITED:
                expected = f"at least {minimum}"
            raise ModelFormatError(f"{where} has {counted(count, kind)}; expected {expected}")


def _bind_results(
    context: NodeContext, results: Sequence[Value | None], first_node: int, first_constant: int
) -> None:
    """Bind the results of a node to the names that the model gives them.

    Args:
        context: the node.
        results: its results.
        first_node: position in the graph of the first node that it was converted to.
        first_constant: number of the first constant that its conversion named. Earlier constants
            keep their names, by which they are refitted.
    """
    emitted = {value for node in context.graph.nodes[first_node:] for value in node.outputs}
    renamed: set[Constant] = set()
    for index, name in enumerate(context.outputs):
        if not name:
            continue
        value = results[index] if index < len(results) else None
        if value is None:
            raise UnsupportedError(f"output {index}, {name!r}, is not supported")
        unique_name = context.scope.state.reserve_name(context.scope.prefix + name)
        if value.constant is not None:
            constant = value.constant
            is_new = context.scope.state.number_of(constant) >= first_constant
            if is_new and constant not in renamed:
                constant.name = unique_name
                renamed.add(constant)
            value = Value(unique_name, value.type, constant=constant)
        else:
            if value not in emitted:
                value = context.emit("Identity", value)
            emitted.discard(value)
            value.name = unique_name
        context.scope.values[name] = value


def _name_nodes(context: NodeContext, first_node: int) -> None:
    """Name the nodes into which a node was converted; the last one has its name."""
    state = context.scope.state
    bound = {context.scope.values.get(name) for name in context.outputs if name}
    for node in context.graph.nodes[first_node:]:
        node.layers = (context.name,)
    for node in context.emitted:
        if node is not context.emitted[-1]:
            node.name = state.reserve_node_name(f"{context.name}/{node.op.name}")
        for index, value in enumerate(node.outputs):
            if value not in bound:
                suffix = "" if len(node.outputs) == 1 else f":{index}"
                value.name = state.reserve_name(f"{node.name}{suffix}")


def _note_problem(scope: Scope, proto: NodeProto, name: str, error: UnsupportedError) -> None:
    domain = domain_name(proto.domain)
    op = f"{domain}.{proto.op_type}" if domain else proto.op_type
    scope.state.problems.append(f"{op}-{scope.opsets.get(domain, 0)} {name!r}: {error}")


def _use_declared_types(scope: Scope, proto: NodeProto) -> None:
    """Bind the results of an unsupported node to values of their declared types."""
    for name in proto.output:
        value = None
        if name in scope.hints:
            with suppress(UnsupportedError, ModelFormatError):
                type_ = tensor_type(scope.hints[name], name, scope.state.symbols, f"{name!r}")
                value = Value(name, type_)
        if name:
            scope.values[name] = value


def _check_regions(scope: Scope, attributes: Sequence[AttributeProto]) -> None:
    """Record the unsupported nodes within regions that cannot be built."""
    for attribute in attributes:
        if attribute.type != AttributeProto.GRAPH:
            continue
        scope.state.count(Limit.MAX_IMPORTED_NODES, len(attribute.g.node))
        for proto in attribute.g.node:
            where = describe(proto)
            label = proto.name or next((name for name in proto.output if name), "")
            try:
                protos = _resolve_references(scope, proto, where)
                _find_implementation(scope, proto, protos, where, None)
            except UnsupportedError as error:
                _note_problem(scope, proto, label, error)
            _check_regions(scope, proto.attribute)

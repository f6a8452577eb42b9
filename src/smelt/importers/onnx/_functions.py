"""Expansion of ops that are defined by other ops: model functions and ONNX functions."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import onnx
from onnx import FunctionProto, NodeProto

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers.onnx._load import domain_name, opset_versions
from smelt.importers.onnx._scope import Scope
from smelt.importers.onnx._tensors import ONNX_CODES
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onnx import AttributeProto

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value


def function_of_schema(
    schema: onnx.defs.OpSchema,
    version: int,
    proto: NodeProto,
    attributes: Sequence[AttributeProto],
    inputs: Sequence[Value | None] | None,
) -> FunctionProto | None:
    """Return ONNX's definition of a node's op by other ops, or None.

    The definition may depend on the types of the inputs. If they are not known (``inputs`` is
    None), an empty function is returned.
    """
    definitions = cast("Any", schema)  # onnx's type stubs lack these attributes
    function = FunctionProto()
    function_version = _newest(definitions.function_opset_versions, version)
    if function_version:
        function.ParseFromString(definitions.get_function_with_opset_version(function_version))
        return function
    function_version = _newest(definitions.context_dependent_function_opset_versions, version)
    if not function_version:
        return None
    if inputs is None:
        return function
    node = NodeProto()
    node.CopyFrom(proto)
    del node.attribute[:]
    node.attribute.extend(attributes)
    types = [b"" if value is None else _type_bytes(value) for value in inputs]
    try:
        data = definitions.get_context_dependent_function_with_opset_version(
            function_version, node.SerializeToString(), types
        )
    except (RuntimeError, ValueError) as error:
        raise ModelFormatError(f"{proto.op_type} {proto.name!r}: {error}") from error
    function.ParseFromString(data)
    return function if function.node else None


def _newest(versions: Sequence[int], version: int) -> int:
    """Return the newest of ``versions`` up to ``version``, or 0."""
    return max((candidate for candidate in versions if candidate <= version), default=0)


def _type_bytes(value: Value) -> bytes:
    type_ = value.type
    if not isinstance(type_, TensorType):
        raise UnsupportedError(f"input {value.name!r} is {type_}; only tensors are supported")
    shape = [extent if isinstance(extent, int) else str(extent) for extent in type_.shape]
    code = ONNX_CODES[type_.dtype]
    return onnx.helper.make_tensor_type_proto(code, shape).SerializeToString()


def expand_function(
    context: NodeContext,
    function: FunctionProto,
    attributes: Sequence[AttributeProto],
    add_nodes: Callable[[Scope, Sequence[NodeProto], str], None],
) -> list[Value | None]:
    """Add the nodes of a function's body with ``add_nodes``, and return its results."""
    outer = context.scope
    parts = (function.input, function.opset_import, function.attribute_proto)
    outer.state.count_expanded(0, 0, sum(map(len, parts)))
    references = _schema_defaults(function, context.version)
    for attribute in (*function.attribute_proto, *attributes):
        references[attribute.name] = attribute
    opsets = dict(outer.opsets) | opset_versions(function)
    scope = Scope(
        outer.state,
        outer.graph,
        opsets,
        prefix=f"{context.name}/",
        references=references,
        depth=outer.depth + 1,
    )
    if len(context.inputs) > len(function.input) or len(context.outputs) > len(function.output):
        raise ModelFormatError(
            f"{context.where} has more inputs or outputs than its function "
            f"{function.name!r} defines"
        )
    scope.values.update(zip_longest(function.input, context.inputs))
    absent = {name for name, value in scope.values.items() if value is None}
    nodes = [_without_absent(node, absent) for node in function.node]
    problem_count = len(outer.state.problems)
    add_nodes(scope, nodes, f"function {function.name!r}")
    if len(outer.state.problems) > problem_count:
        reasons = "; ".join(outer.state.problems[problem_count:])
        del outer.state.problems[problem_count:]
        raise UnsupportedError(f"its function body has ops that are not supported: {reasons}")
    pairs = zip(function.output, context.outputs, strict=False)
    return [scope.require(name, context.where) if used else None for name, used in pairs]


def _without_absent(node: NodeProto, absent: set[str]) -> NodeProto:
    """Return a node of the body without the inputs that the call omits."""
    if absent.isdisjoint(node.input):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend("" if name in absent else name for name in node.input)
    return copy


def _schema_defaults(function: FunctionProto, version: int) -> dict[str, AttributeProto]:
    """Return the default attributes that ONNX defines for one of its own functions."""
    if domain_name(function.domain) or not function.name:
        return {}
    try:
        schema = onnx.defs.get_schema(function.name, version, "")
    except onnx.defs.SchemaError:
        return {}
    defaults = {name: entry.default_value for name, entry in schema.attributes.items()}
    return {name: default for name, default in defaults.items() if default.name}

"""Encoding of ops, regions and recipes as JSON, and a decoder that is safe for untrusted data.

Values that JSON has are written as they are; any other value is a list that starts with a tag:
``["float", "nan"]``, ``["tuple", …]``, ``["dtype", name]``, ``["enum", class, member]``, ``["op",
name, fields, identity]``, ``["stage", op, arguments]``, ``["graph", …]``, ``["array", dtype, shape,
base64]``.
Lists are tuples here, so that encoded values are hashable. An op of a user is written with its
identity, and can be read only where the same source is installed. The reader constructs only the
types that the tags name, and enforces limits on depth and size.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import EngineFormatError, EngineMismatchError, SmeltError
from smelt.ir import Array, Constant, Graph, Op, Recipe, Value, sources_first
from smelt.ops._attribute_types import field_hints, fits_hint, parts_of_hint
from smelt.ops._registry import is_builtin, lookup_op, op_identity
from smelt.ops.fusion import Stage
from smelt.types import (
    DType,
    Limit,
    OptionalType,
    SequenceType,
    SymbolicDim,
    TensorType,
    counted,
    dim_from_text,
    dim_to_text,
    is_sequence,
    is_tuple,
    items_of,
)

if TYPE_CHECKING:
    from smelt.types import Dim, ValueType

Json = None | bool | int | float | str | tuple["Json", ...]
"""Encoded value: hashable, and written to JSON without loss (tuples become lists)."""

MAXIMUM_DEPTH = 3 * Limit.MAX_REGION_DEPTH.most + 8
"""Nesting levels of a value; each level of regions takes three: region, op and field."""
MAXIMUM_PARTS = Limit.MAX_JSON_PARTS.most
"""Items of all lists of one op or recipe together."""
MAXIMUM_RANK = Limit.MAX_RANK.most


def op_to_json(op: Op) -> Json:
    """Encode an op as ``("op", name, ((field, value), …), identity)``.

    Raises EngineFormatError when the value of a field has no encoding.
    """
    fields = tuple((f.name, _encode(getattr(op, f.name))) for f in dataclasses.fields(op))
    return ("op", op.name, fields, None if is_builtin(type(op)) else op_identity(type(op)))


def op_from_json(data: object) -> Op:
    """Decode an op that ``op_to_json`` encoded.

    Raises:
        EngineFormatError: the data is not a valid op, or the op is unknown.
        EngineMismatchError: the op is a user's and its source differs from that at encoding.
    """
    return _Reader().op(data, 0)


def recipe_to_json(constant: Constant, intern: Callable[[Constant], str | None]) -> Json:
    """Encode the recipe of a constant; shared parts are written once.

    ``intern`` returns the name of a source in the engine, or None to write the elements of the
    source into the recipe. The form is ``("recipe", entries)``: an entry is ``("source", name)``,
    ``("inline", name, array)`` or ``("derived", name, op, inputs, output)``. Its inputs are
    positions of earlier entries. The last entry is the constant.
    """
    positions: dict[Constant, int] = {}
    entries: list[Json] = []
    for part in sources_first(constant):
        positions[part] = len(entries)
        if part.recipe is not None:
            inputs = tuple(None if c is None else positions[c] for c in part.recipe.inputs)
            op = op_to_json(part.recipe.op)
            entries.append(("derived", part.name, op, inputs, part.recipe.output))
            continue
        name = intern(part)
        if name is None:
            entries.append(("inline", part.name, _array_to_json(part.array)))
        else:
            entries.append(("source", name))
    return ("recipe", tuple(entries))


def recipe_from_json(data: object, resolve: Callable[[str], Constant]) -> Constant:
    """Decode a constant from its recipe; ``resolve`` returns the source of a name.

    The elements are computed on first access. Raises EngineFormatError when the recipe is invalid.
    """
    reader = _Reader()
    tag, listed = reader.items(data, 2)
    entries = reader.items(listed)
    if tag != "recipe" or not entries:
        raise EngineFormatError("the computation of a weight (its recipe) is malformed")
    constants: list[Constant] = []
    for entry in entries:
        constants.append(_entry_from_json(reader, entry, constants, resolve))
    return constants[-1]


def _entry_from_json(
    reader: _Reader, data: object, earlier: list[Constant], resolve: Callable[[str], Constant]
) -> Constant:
    """Decode one entry of a recipe; its inputs are positions in ``earlier``."""
    parts = reader.items(data)
    match parts:
        case ("source", str(name)):
            return resolve(name)
        case ("inline", str(name), array):
            return Constant(name, reader.array(array))
        case ("derived", str(name), op, inputs, int(output)) if 0 <= output < 1 << 16:
            positions = [
                None if p is None else reader.index(p, len(earlier)) for p in reader.items(inputs)
            ]
            sources = tuple(None if p is None else earlier[p] for p in positions)
            return Constant(name, recipe=Recipe(reader.op(op, 0), sources, output))
        case _:
            raise EngineFormatError(
                f"a step in the computation of a weight (its recipe) is malformed: {_excerpt(data)}"
            )


def _encode(value: object) -> Json:
    """Encode the value of a field of an op."""
    match value:
        case DType():
            return ("dtype", value.value)
        case Enum():
            return ("enum", type(value).__name__, value.name)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else ("float", str(value))
        case Op():
            return op_to_json(value)
        case Stage():
            return ("stage", op_to_json(value.op), value.arguments)
        case Graph():
            return _graph_to_json(value)
        case _ if is_tuple(value):
            return ("tuple", *(_encode(v) for v in value))
        case _:
            kind = type(value).__name__
            raise EngineFormatError(
                f"a field of an op has a value of type {kind}, which cannot be written to an engine"
            )


def _array_to_json(array: Array) -> Json:
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    text = base64.b64encode(stored.tobytes()).decode("ascii")
    return ("array", DType.from_numpy(array.dtype).value, tuple(array.shape), text)


def _type_to_json(kind: ValueType) -> Json:
    if isinstance(kind, TensorType):
        return ("tensor", kind.dtype.value, tuple(_dim_to_json(d) for d in kind.shape))
    tag = "sequence" if isinstance(kind, SequenceType) else "optional"
    return (tag, _type_to_json(kind.element))


def _dim_to_json(dim: Dim) -> Json:
    return dim_to_text(dim) if isinstance(dim, SymbolicDim) else dim


def _graph_to_json(graph: Graph) -> Json:
    """Encode a region; values are numbered in the order inputs, constants, results of nodes."""
    values = list(graph.inputs)
    numbers = {v: i for i, v in enumerate(values)}
    constants: list[Json] = []
    for value in graph.values():
        if value.constant is not None and value not in numbers:
            numbers[value] = len(numbers)
            constants.append((value.name, _array_to_json(value.constant.fix())))
    nodes: list[Json] = []
    for node in graph.nodes:
        inputs = tuple(None if v is None else numbers[v] for v in node.inputs)
        names = tuple(v.name for v in node.outputs)
        nodes.append((node.name, op_to_json(node.op), inputs, names, node.layers))
        for value in node.outputs:
            numbers[value] = len(numbers)
    inputs_json = tuple(_input_to_json(v) for v in graph.inputs)
    outputs = tuple(numbers[v] for v in graph.outputs)
    bounds = tuple((name, _dim_to_json(d)) for name, d in graph.symbol_bounds.items())
    return ("graph", graph.name, inputs_json, tuple(constants), tuple(nodes), outputs, bounds)


def _input_to_json(value: Value) -> Json:
    dims = None if value.dims is None else tuple(_dim_to_json(d) for d in value.dims)
    return (value.name, _type_to_json(value.type), dims)


class _Reader:
    """Decoder of one op or recipe, which counts the parts that it has read."""

    def __init__(self) -> None:
        self.parts_left = MAXIMUM_PARTS

    def items(self, data: object, count: int | None = None) -> tuple[object, ...]:
        """Return the items of a list, which must have ``count`` items unless that is None."""
        if not is_sequence(data):
            raise EngineFormatError(f"expected a list in an op, not {_excerpt(data)}")
        parts = tuple(data)
        self.parts_left -= len(parts)
        if self.parts_left < 0:
            raise EngineFormatError(f"an op has more than {MAXIMUM_PARTS} parts")
        if count is not None and len(parts) != count:
            raise EngineFormatError(f"expected {count} parts in an op, not {len(parts)}")
        return parts

    def index(self, data: object, limit: int) -> int:
        """Return a non-negative integer below ``limit``."""
        if not isinstance(data, int) or isinstance(data, bool) or not 0 <= data < limit:
            raise EngineFormatError(
                f"position {_excerpt(data)} in an op is invalid; it must be an integer of at least "
                f"0 and less than {limit}"
            )
        return data

    def text(self, data: object) -> str:
        """Return a string."""
        if not isinstance(data, str):
            raise EngineFormatError(f"expected a name in an op, not {_excerpt(data)}")
        return data

    def op(self, data: object, depth: int) -> Op:
        """Decode an op; the value of each field is checked against its annotation."""
        if depth > MAXIMUM_DEPTH:
            raise EngineFormatError(f"an op has more than {MAXIMUM_DEPTH} nested levels of ops")
        tag, name, listed, identity = self.items(data, 4)
        if tag != "op":
            raise EngineFormatError(
                f"expected an op, a list that begins with 'op'; it begins with {_excerpt(tag)}"
            )
        cls = _find_op(self.text(name), identity)
        hints = field_hints(cls)
        values: dict[str, object] = {}
        for pair in self.items(listed):
            field, value = self.items(pair, 2)
            field = self.text(field)
            if field not in hints or field in values:
                raise EngineFormatError(
                    f"field {field!r} of op {cls.name} is unknown or given twice"
                )
            made = self.value(value, hints[field], depth + 1)
            if not fits_hint(made, hints[field]):
                raise EngineFormatError(
                    f"field {field!r} of op {cls.name} has the wrong type: {_excerpt(made)}"
                )
            values[field] = made
        try:
            return cls(**values)
        except (TypeError, ValueError, SmeltError) as error:
            raise EngineFormatError(f"op {cls.name} is invalid: {str(error)[:500]}") from error

    def value(self, data: object, hint: object, depth: int) -> object:
        """Decode the value of a field."""
        if depth > MAXIMUM_DEPTH:
            raise EngineFormatError(f"an op's field has more than {MAXIMUM_DEPTH} nested levels")
        if data is None or isinstance(data, bool | str | float):
            return data
        if isinstance(data, int):
            if not -(1 << 63) <= data < 1 << 64:
                raise EngineFormatError("an integer in an op has more than 64 bits")
            return data
        return self._tagged(self.items(data), data, hint, depth)

    def _tagged(self, parts: tuple[object, ...], data: object, hint: object, depth: int) -> object:
        """Decode a list that starts with a tag."""
        match parts:
            case ("float", ("nan" | "inf" | "-inf") as text):
                return float(str(text))
            case ("tuple", *items):
                return tuple(self.value(i, hint, depth + 1) for i in items)
            case ("dtype", str(name)):
                return _dtype(name)
            case ("enum", str(name), str(member)):
                return _enum_member(hint, name, member)
            case ("op", *_):
                return self.op(data, depth + 1)
            case ("stage", op, arguments):
                values = [self.value(a, hint, depth + 1) for a in self.items(arguments)]
                numbers = [v for v in values if isinstance(v, int) and fits_hint(v, int)]
                if len(numbers) < len(values):
                    raise EngineFormatError("the arguments of a stage must be integers")
                return Stage(self.op(op, depth + 1), tuple(numbers))
            case ("graph", *_):
                return self.graph(data, depth + 1)
            case _:
                raise EngineFormatError(f"an op's field is malformed: {_excerpt(data)}")

    def array(self, data: object) -> Array:
        """Decode an array; the number of bytes must match its shape."""
        tag, name, listed, text = self.items(data, 4)
        shape = tuple(self.index(e, 1 << 40) for e in self.items(listed))
        if tag != "array" or len(shape) > MAXIMUM_RANK:
            raise EngineFormatError(
                "an array in an op is malformed: it must begin with 'array' and have at most "
                f"{MAXIMUM_RANK} axes"
            )
        dtype = _dtype(self.text(name)).numpy
        try:
            content = base64.b64decode(self.text(text), validate=True)
        except (binascii.Error, ValueError) as error:
            raise EngineFormatError(
                "the elements of an array in an op are not valid base64"
            ) from error
        if math.prod(shape) * dtype.itemsize != len(content):
            raise EngineFormatError(
                f"an array of {dtype} and shape {list(shape)} needs "
                f"{counted(math.prod(shape) * dtype.itemsize, 'byte')}, but has {len(content)}"
            )
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def type(self, data: object, depth: int = 0) -> ValueType:
        """Decode the type of an input of a region."""
        match self.items(data):
            case ("tensor", str(name), shape):
                dims = tuple(self.dim(d) for d in self.items(shape))
                if len(dims) > MAXIMUM_RANK:
                    raise EngineFormatError(
                        f"a tensor in an op has rank {len(dims)}; at most {MAXIMUM_RANK} is allowed"
                    )
                return TensorType(_dtype(name), dims)
            case ("sequence", element) if depth < 2:
                kind = self.type(element, depth + 1)
                if isinstance(kind, TensorType):
                    return SequenceType(kind)
            case ("optional", element) if depth < 1:
                kind = self.type(element, depth + 1)
                if not isinstance(kind, OptionalType):
                    return OptionalType(kind)
            case _:
                pass
        raise EngineFormatError(f"a type in an op is malformed: {_excerpt(data)}")

    def dim(self, data: object) -> Dim:
        """Decode a dimension."""
        if isinstance(data, int) and not isinstance(data, bool) and abs(data) < 1 << 63:
            return data
        try:
            return dim_from_text(self.text(data))
        except (ValueError, SmeltError) as error:
            raise EngineFormatError(f"a dimension in an op is malformed: {error}") from error

    def graph(self, data: object, depth: int) -> Graph:
        """Decode a region; the types of results are inferred, not read."""
        _, name, inputs, constants, nodes, outputs, bounds = self.items(data, 7)
        graph = Graph(self.text(name))
        values: list[Value] = []
        for item in self.items(inputs):
            label, kind, dims = self.items(item, 3)
            value = graph.add_input(self.text(label), self.type(kind))
            value.dims = None if dims is None else tuple(self.dim(d) for d in self.items(dims))
            values.append(value)
        for item in self.items(constants):
            label, array = self.items(item, 2)
            values.append(graph.add_constant(self.array(array), self.text(label)))
        for item in self.items(nodes):
            values.extend(self._node(graph, item, values, depth))
        graph.outputs = [values[self.index(i, len(values))] for i in self.items(outputs)]
        for item in self.items(bounds):
            symbol, largest = self.items(item, 2)
            graph.symbol_bounds[self.text(symbol)] = self.dim(largest)
        return graph

    def _node(self, graph: Graph, data: object, values: list[Value], depth: int) -> list[Value]:
        """Decode a node of a region, add it to the graph and return its results."""
        name, op, listed, names, layers = self.items(data, 5)
        positions = [None if i is None else self.index(i, len(values)) for i in self.items(listed)]
        inputs = [None if p is None else values[p] for p in positions]
        made = self.op(op, depth + 1)
        labels = [self.text(n) for n in self.items(names)]
        parts = tuple(self.text(n) for n in self.items(layers))
        try:
            node = graph.add(made, *inputs, name=self.text(name), output_names=labels, layers=parts)
        except (SmeltError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise EngineFormatError(
                f"node {_excerpt(name)} of a region is invalid: {str(error)[:500]}"
            ) from error
        return node.outputs


def _find_op(name: str, identity: object) -> type[Op]:
    """Return the op of a name, and check the identity of an op of a user."""
    try:
        cls = lookup_op(name)
    except SmeltError as error:
        raise EngineFormatError(
            f"the engine uses an op that is not registered in this process: {error}"
        ) from error
    if is_builtin(cls):
        return cls
    here = op_identity(cls)
    parts = items_of(identity)
    if here != tuple(parts):
        raise EngineMismatchError(
            f"op {name!r} is {_identity_text(here)} here, but {_identity_text(parts)} in the "
            "engine: install the package version that the engine was built with, or build the "
            "engine again"
        )
    return cls


def _identity_text(parts: Sequence[object]) -> str:
    """Return the result of `op_identity`, which may come from a file, as a message shows it."""
    if len(parts) != 4:
        return "without package and source"
    package, op, version, digest = (str(part)[:80] for part in parts)
    return f"{op} of package {package}, version {version or 'unknown'}, source SHA-256 {digest}"


def _dtype(name: str) -> DType:
    try:
        return DType(name)
    except ValueError as error:
        raise EngineFormatError(f"the element type {name[:60]!r} is unknown") from error


def _enum_member(hint: object, name: str, member: str) -> Enum:
    for part in parts_of_hint(hint):
        if isinstance(part, type) and issubclass(part, Enum) and part.__name__ == name:
            value = part.__members__.get(member)
            if value is not None:
                return value
    raise EngineFormatError(f"a field of an op cannot have the value {name[:60]}.{member[:60]}")


def _excerpt(data: object) -> str:
    """Return an abbreviated value for a message."""
    if is_sequence(data):
        return f"a list of {counted(len(data), 'item')}"
    return repr(data)[:80] if not isinstance(data, int) or abs(data) < 1 << 64 else "a huge integer"

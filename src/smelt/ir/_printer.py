"""Printer of a graph as text that ``parse_graph`` reads.

The text has one line for each node, in the order in which they run::

    graph lenet {
      input %data: float32[1, 1, 28, 28]
      const %w: float32[20, 1, 5, 5] #8f0c5a31d2e4
      %y: float32[1, 20, 24, 24] = Conv(strides=[1, 1]) %data, %w | Relu @conv1 of conv1, relu1
      return %y
    }

``#`` with hexadecimal digits is the hash of the elements of a large constant; ``collect_constants``
returns the elements by hash. A derived constant is printed as its recipe. ``|`` starts a stage of
an epilogue. A stage reads the previous result as its first argument unless it names results itself:
``$`` is the previous result, ``$0`` that of the root, ``$2`` that of stage 2. ``||`` starts a stage
that reads no earlier result. ``@`` gives the name of a node that differs from that of its result,
and ``of`` the layers of a node that differ from its name.

Attributes are printed from the dataclass fields of the op, without knowledge of specific ops. The
exception is an op with the fields of a fused op (root, root_inputs, stages), printed as a chain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.errors import InternalError
from smelt.ir._graph import Constant, Graph, Node, Value, sources_first
from smelt.types import DType, SymbolicDim, TensorType, is_sequence, is_tuple

if TYPE_CHECKING:
    from smelt.ir._op import Array

INLINE_ELEMENTS = 16
"""Number of elements up to which a constant is printed in full."""

FUSED_FIELDS = ("root", "root_inputs", "stages")
"""Fields of the op that is printed as a chain of stages."""
BARE_NAME = re.compile(r"[\w./-]+")
"""Names that are printed without quotes."""


def print_graph(graph: Graph) -> str:
    """Return the text of a graph."""
    return "\n".join(_Printer(graph).lines("")) + "\n"


def collect_constants(graph: Graph) -> dict[str, Array]:
    """Return the large arrays of a graph and its regions, by the hash that the text shows."""
    arrays: dict[str, Array] = {}
    for constant in sources_first(*graph.constants()):
        if constant.recipe is None and constant.array.size > INLINE_ELEMENTS:
            arrays[hash_array(constant.array)] = constant.array
    for node in graph.nodes:
        for array in _arrays(node.op):
            arrays[hash_array(array)] = array
        for region in node.op.regions:
            arrays |= collect_constants(region)
    return arrays


def hash_array(array: Array) -> str:
    """Return the first twelve hexadecimal digits of the SHA-256 of dtype, shape and elements."""
    kind = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.sha256(kind + np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def _arrays(attribute: object) -> Iterator[Array]:
    """Yield the large arrays in an attribute, but not those of a region."""
    if isinstance(attribute, np.ndarray):
        if attribute.size > INLINE_ELEMENTS:
            yield attribute
    elif is_tuple(attribute):
        for item in attribute:
            yield from _arrays(item)
    elif dataclasses.is_dataclass(attribute) and not isinstance(attribute, (Graph, type)):
        for field in dataclasses.fields(attribute):
            yield from _arrays(getattr(attribute, field.name))


class _Printer:
    """Writes one graph as text."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        taken = {v.name for v in graph.values() if v.constant is None}
        self._constants = list(sources_first(*graph.constants()))
        self._names: dict[Constant, str] = {}
        for constant in self._constants:
            name, count = constant.name, 1
            while name in taken:
                count += 1
                name = f"{constant.name}~{count}"
            taken.add(name)
            self._names[constant] = name

    def lines(self, indent: str) -> Iterator[str]:
        """Yield the lines of the text, each after ``indent``."""
        inner = f"{indent}  "
        graph = self._graph
        yield f"graph {quote(graph.name)} {{"
        for symbol, bound in graph.symbol_bounds.items():
            yield f"{inner}bound {quote(symbol)} [{bound}]"
        for value in graph.inputs:
            yield f"{inner}input %{quote(value.name)}: {value.type}"
        for constant in self._constants:
            name = quote(self._names[constant])
            yield f"{inner}const %{name}{self._constant(constant, inner)}"
        for node in graph.nodes:
            yield inner + self._node(node, inner)
        yield f"{inner}return {', '.join(map(self._value, graph.outputs))}".rstrip()
        yield f"{indent}}}"

    def _constant(self, constant: Constant, indent: str) -> str:
        recipe = constant.recipe
        if recipe is None:
            return f": {_elements(constant.array)}"
        inputs = ["_" if c is None else f"%{quote(self._names[c])}" for c in recipe.inputs]
        output = f"[{recipe.output}]" if recipe.output else ""
        return f" = {format_attribute(recipe.op, indent)}{output} {', '.join(inputs)}".rstrip()

    def _value(self, value: Value | None) -> str:
        if value is None:
            return "_"
        name = value.name if value.constant is None else self._names[value.constant]
        return f"%{quote(name)}"

    def _node(self, node: Node, indent: str) -> str:
        results = ", ".join(f"{self._value(v)}: {v.type}" for v in node.outputs)
        text = f"{results} = {self._application(node, indent)}"
        if [v.name for v in node.outputs] != [node.name]:
            text += f" @{quote(node.name)}"
        if node.layers != (node.name,):
            text += f" of {', '.join(map(quote, node.layers))}".rstrip()
        return text

    def _application(self, node: Node, indent: str) -> str:
        inputs = [self._value(value) for value in node.inputs]
        if _is_chain(node.op, len(inputs)):
            return _chain(node.op, inputs, indent)
        return f"{format_attribute(node.op, indent)} {', '.join(inputs)}".rstrip()


def _is_chain(op: Any, count: int) -> bool:
    """Return whether an op is a fused op whose inputs are in the order of their first use."""
    if tuple(f.name for f in dataclasses.fields(op)) != FUSED_FIELDS or not op.stages:
        return False
    expected = op.root_inputs
    for number, stage in enumerate(op.stages, 1):
        for argument in stage.arguments:
            if argument == expected:
                expected += 1
            elif argument > expected or -argument > number:
                return False
    return bool(expected == count)


def _chain(op: Any, inputs: list[str], indent: str) -> str:
    """Return the text of a fused op: the root, then each stage after a bar."""
    parts = [f"{format_attribute(op.root, indent)} {', '.join(inputs[: op.root_inputs])}".rstrip()]
    for number, stage in enumerate(op.stages, 1):
        results = [a for a in stage.arguments if a < 0]
        names: list[str] = [
            inputs[a] if a >= 0 else ("$" if a == -number else f"${-a - 1}")
            for a in stage.arguments
        ]
        if results == [-number] and stage.arguments[0] == -number:
            names = names[1:]
        bar = "|" if results else "||"
        parts.append(f"{bar} {format_attribute(stage.op, indent)} {', '.join(names)}".rstrip())
    return " ".join(parts)


def quote(name: str) -> str:
    """Return the name as the text shows it, quoted only if necessary."""
    return name if BARE_NAME.fullmatch(name) and name != "_" else json.dumps(name)


def format_attribute(value: object, indent: str = "") -> str:
    """Return the text of the value of an attribute."""
    match value:
        case None | bool():
            return str(value).lower()
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value)
        case np.ndarray():
            return f"array({_elements(value)})"
        case _ if is_sequence(value):
            return f"[{', '.join(format_attribute(item, indent) for item in value)}]"
        case SymbolicDim():
            return f"<{value}>"
        case Graph():
            return "\n".join(_Printer(value).lines(indent))
        case _:
            return _record(value, indent)


def _record(value: Any, indent: str) -> str:
    """Return the text of an op or an attribute dataclass, without default values."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise InternalError(f"an attribute of type {type(value).__name__} cannot be printed")
    texts: list[str] = []
    for field in dataclasses.fields(value):
        attribute = getattr(value, field.name)
        if not is_default(field, attribute):
            texts.append(f"{field.name}={format_attribute(attribute, indent)}")
    name = type(value).__name__
    return f"{name}({', '.join(texts)})" if texts else name


def is_default(field: dataclasses.Field[Any], value: object) -> bool:
    """Return whether an attribute has its default value."""
    default = field.default
    if default is dataclasses.MISSING or type(default) is not type(value):
        return False
    return not isinstance(value, np.ndarray) and bool(default == value)


def _elements(array: Array) -> str:
    kind = TensorType(DType.from_numpy(array.dtype), array.shape)
    if array.size > INLINE_ELEMENTS:
        return f"{kind} #{hash_array(array)}"
    return f"{kind} [{', '.join(_element(x) for x in array.ravel())}]"


def _element(value: np.generic) -> str:
    """Return the shortest digits from which the element can be parsed exactly in its type."""
    return str(value).lower()

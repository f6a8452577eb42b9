"""Parser of the text that ``print_graph`` writes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt import types as smelt_types
from smelt.errors import GraphError, ShapeError
from smelt.ir import Constant, Graph, Op, Recipe, compute_untrusted
from smelt.types import DType, Limit, OptionalType, SequenceType, TensorType, dim_from_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.ir import Array, Value
    from smelt.types import Dim, ValueType

_MAX_DEPTH = 2 * Limit.MAX_REGION_DEPTH.most + 8
"""Nesting levels of brackets: a region takes two, for it is an attribute of an op."""
_NAME = re.compile(r'[\w./~-]+|"(?:[^"\\\n]|\\.)*+"')
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_DIMS = re.compile(r"\[([^\[\]\n]*)\]")
_DIGITS = re.compile(r"#([0-9a-f]{12})")
_SYMBOLIC = re.compile(r"<([^<>\n]*)>")
_KEYWORDS = {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}


def parse_graph(
    text: str, ops: Mapping[str, type[Op]], constants: Mapping[str, Array] | None = None
) -> Graph:
    """Parse the text of a graph.

    Args:
        text: text that ``print_graph`` wrote.
        ops: the ops that the text may contain.
        constants: elements of the large constants, by their hash (see ``collect_constants``) or by
            their name.

    Raises:
        GraphError: the text is not a valid graph; the message names the line.
    """
    by_class = {kind.__name__: kind for kind in ops.values()}
    return _Parser(text, by_class, constants or {}).parse()


class _Scope:
    """Names of one graph; a region cannot use names of the surrounding graph."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Constant] = {}


class _Parser:
    def __init__(
        self, text: str, ops: Mapping[str, type[Op]], constants: Mapping[str, Array]
    ) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._ops = ops
        self._given_constants = constants

    def parse(self) -> Graph:
        """Parse the whole text. Raises GraphError."""
        self._skip_lines()
        try:
            graph = self._graph()
        except (TypeError, ValueError, IndexError) as error:
            self._fail(str(error))
        self._skip_lines()
        if self._position < len(self._text):
            self._fail("expected the end of the text after the graph")
        return graph

    # ---- characters

    def _fail(self, problem: str) -> NoReturn:
        line = self._text.count("\n", 0, self._position) + 1
        rest = self._text[self._position : self._position + 30].split("\n")[0]
        raise GraphError(f"line {line}, at {rest!r}: {problem}")

    def _skip_lines(self) -> None:
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1

    def _skip(self) -> None:
        while self._position < len(self._text) and self._text[self._position] in " \t":
            self._position += 1

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        self._skip()
        match = pattern.match(self._text, self._position)
        if match is None:
            return None
        self._position = match.end()
        return match.group(match.lastindex or 0)

    def _need(self, pattern: re.Pattern[str], what: str) -> str:
        taken = self._take(pattern)
        if taken is None:
            self._fail(f"expected {what}")
        return taken

    def _accept(self, text: str) -> bool:
        self._skip()
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"expected {text!r}")

    def _accept_word(self, word: str) -> bool:
        self._skip()
        start = self._position
        if self._take(_WORD) == word:
            return True
        self._position = start
        return False

    def _name(self) -> str:
        name = self._need(_NAME, "a name")
        return self._unquote(name) if name.startswith('"') else name

    def _unquote(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError:
            self._fail(f"{text} is not a string")

    # ---- lines

    def _graph(self) -> Graph:
        """Parse a graph, which may be a region."""
        self._enter()
        if not self._accept_word("graph"):
            self._fail("expected 'graph'")
        scope = _Scope(self._name())
        self._expect("{")
        while not self._line(scope):
            pass
        self._skip_lines()
        self._expect("}")
        self._depth -= 1
        return scope.graph

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"the text is nested deeper than {Limit.MAX_REGION_DEPTH.name} allows")

    def _line(self, scope: _Scope) -> bool:
        """Parse one line; return whether it was the last one of the graph."""
        self._skip_lines()
        if self._accept_word("return"):
            scope.graph.outputs = [v for v in self._operands(scope) if v is not None]
            return True
        if self._accept_word("bound"):
            symbol = self._name()
            scope.graph.symbol_bounds[symbol] = self._bound()
        elif self._accept_word("input"):
            name = self._value_name()
            self._expect(":")
            self._define(scope, scope.graph.add_input(name, self._type()))
        elif self._accept_word("const"):
            self._constant(scope)
        else:
            self._node(scope)
        return False

    def _define(self, scope: _Scope, value: Value) -> None:
        if value.name in scope.values:
            self._fail(f"the value %{value.name} is defined twice")
        scope.values[value.name] = value

    def _value_name(self) -> str:
        self._expect("%")
        return self._name()

    def _operands(self, scope: _Scope) -> list[Value | None]:
        """Parse a list of values, where ``_`` is an absent input."""
        operands: list[Value | None] = []
        self._skip()
        while self._text.startswith(("%", "_"), self._position):
            operands.append(self._operand(scope))
            if not self._accept(","):
                break
            self._skip()
        return operands

    def _operand(self, scope: _Scope) -> Value | None:
        if self._accept("_"):
            return None
        name = self._value_name()
        if name not in scope.values:
            self._fail(f"the value %{name} is not defined above")
        return scope.values[name]

    def _constant(self, scope: _Scope) -> None:
        """Parse a constant: an array, or a recipe, which is computed with limits."""
        name = self._value_name()
        if self._accept(":"):
            constant = Constant(name, self._array(name))
        else:
            self._expect("=")
            op = self._op()
            output = int(self._need(re.compile(r"(\d+)\]"), "a number")) if self._accept("[") else 0
            inputs = [None if v is None else v.constant for v in self._operands(scope)]
            constant = Constant(name, recipe=Recipe(op, tuple(inputs), output))
            compute_untrusted(constant)
        self._define(scope, scope.graph.add_constant(constant))

    def _node(self, scope: _Scope) -> None:
        """Parse a node and compare the inferred types of its results with the declared types."""
        results: list[tuple[str, ValueType]] = []
        while not results or self._accept(","):
            name = self._value_name()
            self._expect(":")
            results.append((name, self._type()))
        self._expect("=")
        op, inputs = self._application(scope)
        label = self._name() if self._accept("@") else results[0][0]
        layers = self._layers() if self._accept_word("of") else (label,)
        names = [name for name, _ in results]
        node = scope.graph.add(op, *inputs, name=label, output_names=names, layers=layers)
        if [v.type for v in node.outputs] != [kind for _, kind in results]:
            inferred = ", ".join(str(v.type) for v in node.outputs)
            self._fail(f"{node} gives {inferred}, which differs from the declared types")
        for value in node.outputs:
            self._define(scope, value)

    def _layers(self) -> tuple[str, ...]:
        self._skip()
        if self._position >= len(self._text) or self._text[self._position] == "\n":
            return ()
        layers = [self._name()]
        while self._accept(","):
            layers.append(self._name())
        return tuple(layers)

    def _application(self, scope: _Scope) -> tuple[Op, list[Value | None]]:
        """Parse an op with its inputs, or a fused op as a root and a chain of stages."""
        root = self._op()
        inputs = self._operands(scope)
        self._skip()
        if not self._text.startswith("|", self._position):
            return root, inputs
        fused = self._ops.get("Fused")
        if fused is None:
            self._fail("expected an op, not a chain of stages: Fused is not among the known ops")
        count = len(inputs)
        stages: list[object] = []
        stage_class = self._class("Stage", fused)
        while self._accept("|"):
            is_bare = self._text.startswith("|", self._position) and self._accept("|")
            op = self._op()
            arguments = self._stage_arguments(scope, inputs, count, len(stages) + 1)
            if not is_bare and all(a >= 0 for a in arguments):
                arguments.insert(0, -len(stages) - 1)
            stages.append(stage_class(op, tuple(arguments)))
        return self._build(
            fused, {"root": root, "root_inputs": count, "stages": tuple(stages)}
        ), inputs

    def _stage_arguments(
        self, scope: _Scope, inputs: list[Value | None], first: int, number: int
    ) -> list[int]:
        """Parse the arguments of a stage; append inputs that are new.

        Non-negative arguments are positions of inputs; -1 is the root's result, -2 that of stage 1
        and so on.
        """
        arguments: list[int] = []
        self._skip()
        while self._text.startswith(("%", "_", "$"), self._position):
            if self._accept("$"):
                digits = self._take(re.compile(r"\d+"))
                arguments.append(-number if digits is None else -1 - int(digits))
            else:
                value = self._operand(scope)
                positions = [i for i in range(first, len(inputs)) if inputs[i] is value]
                if not positions:
                    inputs.append(value)
                arguments.append(positions[0] if positions else len(inputs) - 1)
            if not self._accept(","):
                break
            self._skip()
        return arguments

    # ---- types and elements

    def _type(self) -> ValueType:
        """Parse the type of a value."""
        kind = self._need(_WORD, "a type")
        if kind in {"sequence", "optional"}:
            self._enter()
            self._expect("(")
            element = self._type()
            self._expect(")")
            self._depth -= 1
            return self._nested_type(kind, element)
        return self._tensor(kind)

    def _nested_type(self, kind: str, element: ValueType) -> ValueType:
        if kind == "sequence" and isinstance(element, TensorType):
            return SequenceType(element)
        if kind == "sequence" or isinstance(element, OptionalType):
            self._fail(f"a {kind} of {element} is not a type")
        return OptionalType(element)

    def _tensor(self, dtype: str) -> TensorType:
        """Parse the shape of a tensor type after its element type."""
        try:
            element = DType(dtype)
        except ValueError:
            self._fail(f"{dtype} is not an element type")
        dims = self._need(_DIMS, "a shape")
        shape = tuple(map(self._dim, dims.split(","))) if dims.strip() else ()
        try:
            return TensorType(element, shape)
        except ShapeError as error:
            self._fail(str(error))

    def _bound(self) -> Dim:
        return self._dim(self._need(_DIMS, "a bound"))

    def _dim(self, text: str) -> Dim:
        try:
            return dim_from_text(text.strip())
        except ValueError as error:
            self._fail(str(error))

    def _array(self, name: str) -> Array:
        """Parse the elements of an array, or look them up by their hash or name."""
        kind = self._tensor(self._need(_WORD, "a type"))
        digits = self._take(_DIGITS)
        shape = tuple(d for d in kind.shape if isinstance(d, int))
        if digits is not None:
            array = self._given_constants.get(digits, self._given_constants.get(name))
            if array is None:
                self._fail(f"the elements #{digits} of %{name} are not among the given constants")
            if (array.dtype, array.shape) != (kind.dtype.numpy, shape):
                self._fail(
                    f"the constant given for #{digits} is {array.dtype}{list(array.shape)}; "
                    f"it must be {kind}"
                )
            return array
        items = self._list()
        try:
            return np.array(items, dtype=kind.dtype.numpy).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            self._fail(f"the elements do not fit {kind}: {error}")

    # ---- attributes

    def _op(self) -> Op:
        value = self._record(self._need(_WORD, "an op"), None)
        if not isinstance(value, Op):
            self._fail("expected an op")
        return value

    def _class(self, name: str, owner: type | None) -> type[Any]:
        """Return the op, dataclass or enum of a name, also from the module of ``owner``."""
        if name in self._ops:
            return self._ops[name]
        candidates = [getattr(smelt_types, name, None)]
        if owner is not None:
            candidates.append(getattr(sys.modules.get(owner.__module__), name, None))
        kinds = [k for k in candidates if isinstance(k, type)]
        kinds = [k for k in kinds if dataclasses.is_dataclass(k) or issubclass(k, Enum)]
        if not kinds:
            self._fail(f"{name} is not an op or an attribute type")
        return kinds[0]

    def _record(self, name: str, owner: type | None) -> object:
        """Parse the attributes of an op or dataclass and construct it."""
        kind = self._class(name, owner)
        self._enter()
        attributes: dict[str, object] = {}
        if self._accept("("):
            while not self._accept(")"):
                key = self._need(_WORD, "the name of an attribute")
                self._expect("=")
                attributes[key] = self._attribute(kind)
                if not self._accept(","):
                    self._expect(")")
                    break
        self._depth -= 1
        return self._build(kind, attributes)

    def _build(self, kind: type[Any], attributes: Mapping[str, object]) -> Any:
        try:
            return kind(**attributes)
        except (TypeError, ValueError, OverflowError) as error:
            self._fail(f"{kind.__name__} cannot have these attributes: {error}")

    def _attribute(self, owner: type) -> object:
        """Parse the value of an attribute of class ``owner``."""
        self._skip()
        number = self._take(_NUMBER)
        if number is not None:
            return int(number) if number.lstrip("-").isdecimal() else float(number)
        string = self._take(_STRING)
        if string is not None:
            return self._unquote(string)
        symbolic = self._take(_SYMBOLIC)
        if symbolic is not None:
            return self._dim(symbolic)
        if self._text.startswith("[", self._position):
            return self._list(owner)
        start = self._position
        word = self._need(_WORD, "the value of an attribute")
        if word == "graph":
            self._position = start
            return self._graph()
        return self._named_attribute(word, owner)

    def _named_attribute(self, word: str, owner: type) -> object:
        """Parse a value that starts with a word: a keyword, array, enum member or record."""
        if word in _KEYWORDS:
            return _KEYWORDS[word]
        if word == "array":
            self._expect("(")
            array = self._array("attribute")
            self._expect(")")
            return array
        if self._accept("."):
            kind = self._class(word, owner)
            member = self._need(_WORD, "a member")
            if not issubclass(kind, Enum) or member not in kind.__members__:
                self._fail(f"{word} has no member {member}")
            return kind[member]
        return self._record(word, owner)

    def _list(self, owner: type = object) -> tuple[object, ...]:
        """Parse a list of attribute values."""
        self._enter()
        self._expect("[")
        items: list[object] = []
        while not self._accept("]"):
            items.append(self._attribute(owner))
            if not self._accept(","):
                self._expect("]")
                break
        self._depth -= 1
        return tuple(items)

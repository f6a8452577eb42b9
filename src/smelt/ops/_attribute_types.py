"""Checks of the attributes of ops against the type annotations of their classes."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from smelt.errors import GraphError
from smelt.ir import Graph, Op
from smelt.ops._registry import is_builtin
from smelt.ops.fusion import Stage
from smelt.types import DType, is_array, is_list, is_tuple, shown


def checked_op(op: Op) -> Op:
    """Return the op with attributes of the annotated types.

    numpy numbers and lists become Python numbers and tuples. Ops of users are not checked.

    Raises GraphError when an attribute has another type.
    """
    cls = type(op)
    if not is_builtin(cls):
        return op
    changed: dict[str, Any] = {}
    for field, hint in field_hints(cls).items():
        attribute = getattr(op, field)
        value = _plain(attribute)
        if not fits_hint(value, hint):
            wanted = _hint_text(hint)
            raise GraphError(f"{field} of {op.name} is {shown(attribute)}; it must be {wanted}")
        if value is not attribute:
            changed[field] = value
    return dataclasses.replace(op, **changed) if changed else op


def _plain(attribute: object) -> object:
    """Convert numpy scalars to Python numbers and lists to tuples; return others unchanged."""
    if isinstance(attribute, np.generic):
        return cast("object", attribute.item())
    if is_array(attribute):
        return _plain(attribute.tolist())
    if is_list(attribute):
        return tuple(_plain(item) for item in attribute)
    if is_tuple(attribute) and type(attribute) is tuple:
        plain = tuple(_plain(item) for item in attribute)
        return attribute if all(a is b for a, b in zip(plain, attribute, strict=True)) else plain
    return attribute


def _hint_text(hint: object) -> str:
    """Return an annotation as a message shows it."""
    return hint.__name__ if isinstance(hint, type) else re.sub(r"(?:\w+\.)+(?=\w)", "", str(hint))


@functools.cache
def field_hints(cls: type[Op]) -> dict[str, object]:
    """Return the annotation of each field; ``object`` for one that cannot be evaluated."""
    names = {"Graph": Graph, "Op": Op, "Stage": Stage, "DType": DType}
    try:
        hints: dict[str, Any] = typing.get_type_hints(cls, localns=names)
    except NameError:
        if is_builtin(cls):
            raise
        # The annotations of a user's class may use types imported under TYPE_CHECKING.
        hints = {}
    return {f.name: hints.get(f.name, object) for f in dataclasses.fields(cls) if f.init}


def parts_of_hint(hint: object) -> Iterator[object]:
    """Yield an annotation and, recursively, its type arguments."""
    yield hint
    for part in typing.get_args(hint):
        yield from parts_of_hint(part)


def fits_hint(value: object, hint: object) -> bool:
    """Return whether a value has the annotated type."""
    origin: object = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin is typing.Union or origin is types.UnionType:
        return any(fits_hint(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return is_tuple(value) and _fits_tuple(value, arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint is int or hint is float:
        if isinstance(value, int):  # includes bool, for ``keepdims=True``
            return -(1 << 63) <= value < 1 << 64
        return hint is float and isinstance(value, float)
    return isinstance(value, hint) if isinstance(hint, type) else False


def _fits_tuple(value: tuple[object, ...], arguments: tuple[object, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(fits_hint(v, arguments[0]) for v in value)
    return len(value) == len(arguments) and all(map(fits_hint, value, arguments))

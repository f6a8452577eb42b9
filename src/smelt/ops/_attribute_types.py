"""What the attributes of an op may be, as its class's annotations say."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from smelt.errors import GraphError
from smelt.ir import Graph, Op
from smelt.ops._registry import is_builtin
from smelt.ops.fused import Stage
from smelt.types import DType, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


def checked_op(op: Op) -> Op:
    """The op with attributes of the types that its class says.

    Numpy's numbers and lists become Python's numbers and tuples. What a user's op may be is the
    user's matter.

    Raises GraphError: an attribute is of another type.
    """
    cls = type(op)
    if not is_builtin(cls):
        return op
    changed: dict[str, Any] = {}
    for field, hint in field_hints(cls).items():
        given = getattr(op, field)
        value = _plain(given)
        if not fits_hint(value, hint):
            wanted = _words(hint)
            raise GraphError(f"{field} of {op.name} is {shown(given)}; it must be {wanted}")
        if value is not given:
            changed[field] = value
    return dataclasses.replace(op, **changed) if changed else op


def _plain(given: object) -> object:
    """Numpy's scalars as Python's, lists as tuples; what is neither as it is."""
    if isinstance(given, np.generic):
        return cast("object", given.item())
    if isinstance(given, np.ndarray):
        return _plain(cast("object", given.tolist()))
    if isinstance(given, list):
        return tuple(_plain(item) for item in cast("list[object]", given))
    if type(given) is tuple:
        items = cast("tuple[object, ...]", given)
        plain = tuple(_plain(item) for item in items)
        return items if all(a is b for a, b in zip(plain, items, strict=True)) else plain
    return given


def _words(hint: object) -> str:
    """An annotation in words."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


@functools.cache
def field_hints(cls: type[Op]) -> dict[str, object]:
    """The annotation of each field; of one that cannot be evaluated, ``object``."""
    names = {"Graph": Graph, "Op": Op, "Stage": Stage, "DType": DType}
    try:
        known: dict[str, Any] = typing.get_type_hints(cls, localns=names)
    except NameError:
        # A user's class may name types that it imports only for its type checker.
        known = {}
    return {f.name: known.get(f.name, object) for f in dataclasses.fields(cls) if f.init}


def parts_of_hint(hint: object) -> Iterator[object]:
    """An annotation and what it is made of."""
    yield hint
    for part in typing.get_args(hint):
        yield from parts_of_hint(part)


def fits_hint(value: object, hint: object) -> bool:
    """Whether a value is what an annotation says."""
    origin: object = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin is typing.Union or origin is types.UnionType:
        return any(fits_hint(value, a) for a in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(
            cast("tuple[object, ...]", value), arguments
        )
    if hint is None or hint is type(None):
        return value is None
    if hint is int or hint is float:
        if isinstance(value, int):  # a bool is one: ``keepdims=True``
            return -(1 << 63) <= value < 1 << 64
        return hint is float and isinstance(value, float)
    return isinstance(value, hint) if isinstance(hint, type) else False


def _fits_tuple(value: tuple[object, ...], arguments: tuple[object, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(fits_hint(v, arguments[0]) for v in value)
    return len(value) == len(arguments) and all(map(fits_hint, value, arguments))

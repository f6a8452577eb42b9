"""Codecs between values and JSON data, and the one of an engine's header.

Each value has one codec; that of a dataclass follows from its annotations, and names the fields
that need another one. Equal values give equal text.
Reading validates untrusted data: a wrong type, an unknown or a missing field, a number beyond 64
bits or a text beyond its limit is an `EngineFormatError` that names the position.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeGuard, TypeVar

from smelt.engine._plan import (
    Binding,
    Buffer,
    EngineHeader,
    Fingerprint,
    HostCall,
    Json,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    RefittableArray,
    Space,
    Step,
    Submit,
    View,
    Weight,
)
from smelt.errors import EngineFormatError
from smelt.types import (
    Dim,
    DType,
    Guard,
    Limit,
    Relation,
    dim_from_text,
    dim_to_text,
    is_json_object,
    is_list,
    is_sequence,
    shared_formula_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum

    from _typeshed import DataclassInstance

_MAX_INT: Final = 1 << 63
_MAX_TEXT: Final = 1 << 26
"""Maximum length of a text in characters; build reports are the longest texts."""

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Writer and reader of one kind of value."""

    write: Callable[[T], object]
    read: Callable[[object, str], T]
    """Converts a JSON value; the second argument is its position. Raises EngineFormatError."""


def _fail(where: str, problem: str) -> EngineFormatError:
    """Return the error for data that is malformed at a place in the header."""
    place = where or "the top level"
    return EngineFormatError(f"the engine's header is malformed at {place}: {problem}")


def _exactly(kind: type[T], name: str, is_valid: Callable[[T], bool] = lambda _: True) -> Codec[T]:
    """Return the codec of the values of one type of JSON, or of those that are valid."""

    def read(data: object, where: str) -> T:
        if type(data) is not kind or not is_valid(data):
            raise _fail(where, f"expected {name}, not {_describe(data)}")
        return data

    return Codec(lambda value: value, read)


def _describe(data: object) -> str:
    if isinstance(data, dict | list):
        return "an object" if isinstance(data, dict) else "a list"
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."


INT: Final = _exactly(int, "a 64-bit integer", lambda number: -_MAX_INT <= number < _MAX_INT)
TEXT: Final = _exactly(str, "a string", lambda text: len(text) <= _MAX_TEXT)
BOOL: Final = _exactly(bool, "true or false")


def _read_dim(data: object, where: str) -> Dim:
    if type(data) is not str:
        return INT.read(data, where)
    try:
        dim = dim_from_text(data)
    except ValueError as error:
        raise _fail(where, str(error)) from error
    return INT.read(dim, where) if isinstance(dim, int) else dim


def _read_dim_text(data: object, where: str) -> Dim:
    return _read_dim(TEXT.read(data, where), where)


def _write_dim(dim: Dim) -> object:
    return dim if isinstance(dim, int) else str(dim)


def _read_json(data: object, where: str, depth: int = 0) -> Json:
    if depth > Limit.MAX_PARAMETER_DEPTH.most:
        raise _fail(where, f"parameters have {Limit.MAX_PARAMETER_DEPTH.excess(depth)}")
    if is_sequence(data):
        return tuple(_read_json(item, where, depth + 1) for item in data)
    if type(data) is int:
        return INT.read(data, where)
    if type(data) is str:
        return TEXT.read(data, where)
    if data is None or isinstance(data, bool | float):
        return data
    raise _fail(where, f"a parameter cannot be {_describe(data)}")


def tuple_of(item: Codec[T], limit: Limit = Limit.MAX_HEADER_ROWS) -> Codec[tuple[T, ...]]:
    """Return the codec of a tuple whose length has a limit."""

    def read(data: object, where: str) -> tuple[T, ...]:
        items = _list(data, where)
        if len(items) > limit.most:
            raise _fail(where, f"it has {limit.excess(len(items))}")
        return tuple(item.read(v, f"{where}[{i}]") for i, v in enumerate(items))

    return Codec(lambda values: [item.write(value) for value in values], read)


def _list(data: object, where: str) -> list[object]:
    if not is_list(data):
        raise _fail(where, f"expected a list, not {_describe(data)}")
    return data


def row(*items: Codec[Any]) -> Codec[Any]:
    """Return the codec of a tuple of fixed length."""

    def read(data: object, where: str) -> Any:  # a tuple with the members of the codecs' types
        values = _list(data, where)
        if len(values) != len(items):
            raise _fail(where, f"expected {len(items)} entries, not {len(values)}")
        return tuple(c.read(v, where) for c, v in zip(items, values, strict=True))

    return Codec(lambda row: [c.write(v) for c, v in zip(items, row, strict=True)], read)


def or_none(item: Codec[T]) -> Codec[T | None]:
    """A value or null."""
    return Codec(
        lambda value: None if value is None else item.write(value),
        lambda data, where: None if data is None else item.read(data, where),
    )


def enum_of(kind: type[Enum]) -> Codec[Any]:
    """A member of an enumeration, by its value."""
    by_value = {member.value: member for member in kind}

    def read(data: object, where: str) -> Any:  # a member of ``kind``
        if type(data) is not str or data not in by_value:
            raise _fail(where, f"{_describe(data)} is not one of {', '.join(by_value)}")
        return by_value[data]

    return Codec(lambda member: member.value, read)


def record(kind: type[RecordT], /, **others: Codec[Any]) -> Codec[RecordT]:
    """Return the codec of a dataclass; fields that are not in ``others`` have that of their type.

    Raises:
        TypeError: a field has no codec, or a codec no field.
    """
    of_types = {f.name: _BY_TYPE.get(str(f.type)) for f in fields(kind) if f.compare}
    items = {name: codec for name, codec in (of_types | others).items() if codec is not None}
    _check_fields(kind, items)

    def read(data: object, where: str) -> RecordT:
        if not is_json_object(data):
            raise _fail(where, f"expected an object, not {_describe(data)}")
        if data.keys() != items.keys():
            odd = sorted(data.keys() ^ items.keys())
            raise _fail(where, f"unknown or missing fields: {', '.join(map(_describe, odd[:5]))}")
        return kind(**{k: c.read(data[k], f"{where}.{k}") for k, c in items.items()})

    return Codec(lambda value: {k: c.write(getattr(value, k)) for k, c in items.items()}, read)


def record_row(kind: type[RecordT], /, **items: Codec[Any]) -> Codec[RecordT]:
    """Return the codec of a dataclass as the list of its fields."""
    _check_fields(kind, items)
    values = row(*items.values())
    return Codec(
        lambda value: values.write([getattr(value, name) for name in items]),
        lambda data, where: kind(**dict(zip(items, values.read(data, where), strict=True))),
    )


def _check_fields(kind: type[DataclassInstance], items: Mapping[str, Codec[Any]]) -> None:
    """Check that a codec has all fields that distinguish values of a dataclass."""
    if set(items) != {f.name for f in fields(kind) if f.compare}:
        raise TypeError(f"the JSON codec of {kind.__name__} does not match its fields")


def tagged(**kinds: tuple[type, Codec[Any]]) -> Codec[Any]:
    """Return the codec of a union of dataclasses, which are told apart by their names."""
    tags = {kind: tag for tag, (kind, _) in kinds.items()}

    def write(value: object) -> object:
        tag = tags[type(value)]
        return [tag, kinds[tag][1].write(value)]

    def read(data: object, where: str) -> Any:  # one of the dataclasses
        pair = _list(data, where)
        if len(pair) == 2 and isinstance(pair[0], str) and pair[0] in kinds:
            return kinds[pair[0]][1].read(pair[1], where)
        raise _fail(where, f"expected one of {', '.join(kinds)}, not {_describe(data)}")

    return Codec(write, read)


DIM: Final[Codec[Dim]] = Codec(_write_dim, _read_dim)
DIM_TEXT: Final[Codec[Dim]] = Codec(dim_to_text, _read_dim_text)
"""A dimension that is always a text and counts against the limit of its file's formulas."""
JSON: Final[Codec[Json]] = Codec(lambda value: value, _read_json)
DTYPE: Final = enum_of(DType)
NAMED_JSON: Final = tuple_of(row(TEXT, JSON))
_DIMS: Final = tuple_of(DIM, Limit.MAX_VIEW_AXES)
_BY_TYPE: Final[dict[str, Codec[Any]]] = {
    "bool": BOOL,
    "int": INT,
    "str": TEXT,
    "Dim": DIM,
    "DType": DTYPE,
    "Json": JSON,
    "Parameters": NAMED_JSON,
    "tuple[tuple[str, Json], ...]": NAMED_JSON,
    "tuple[int, ...]": tuple_of(INT, Limit.MAX_RANK),
    "tuple[Dim, ...]": _DIMS,
    "tuple[tuple[str, int], ...]": tuple_of(row(TEXT, INT)),
    "tuple[tuple[str, int, int], ...]": tuple_of(row(TEXT, INT, INT)),
}
"""Codecs of fields by their annotations, for fields that need no other limit."""
_VIEW: Final = record(View, halo=tuple_of(row(INT, INT), Limit.MAX_VIEW_AXES))
_VIEWS: Final = tuple_of(_VIEW)
_LAUNCH: Final = record(
    Launch,
    kernel=record(KernelSpec),
    operands=tuple_of(_VIEW, Limit.MAX_OPERANDS),
    writes=tuple_of(INT, Limit.MAX_OPERANDS),
)
_HOST_CALL: Final = record(HostCall, inputs=tuple_of(or_none(_VIEW)), outputs=_VIEWS)
_SUBMIT: Final = record(Submit, inputs=_VIEWS, outputs=_VIEWS)
_STEP: Final[Codec[Step]] = tagged(
    launch=(Launch, _LAUNCH), host=(HostCall, _HOST_CALL), submit=(Submit, _SUBMIT)
)
_PLAN: Final = record(
    Plan,
    buffers=tuple_of(record(Buffer, space=enum_of(Space))),
    steps=tuple_of(_STEP),
    guards=tuple_of(record(Guard, relation=enum_of(Relation))),
    outputs=tuple_of(_DIMS),
)
_WEIGHTS: Final = tuple_of(record(Weight))
_HEADER: Final = record(
    EngineHeader,
    fingerprint=record(Fingerprint, features=tuple_of(TEXT)),
    bindings=tuple_of(record(Binding), Limit.MAX_BINDINGS),
    max_batch_size=or_none(INT),
    plans=tuple_of(_PLAN, Limit.MAX_PLANS),
    layers=tuple_of(record(LayerInfo)),
    weights=_WEIGHTS,
    network_arrays=_WEIGHTS,
    given=tuple_of(record(RefittableArray)),
    scales=tuple_of(JSON),
    metadata=tuple_of(row(TEXT, TEXT)),
)


def header_to_data(header: EngineHeader) -> object:
    """Return the header as lists, dicts, texts and numbers for JSON."""
    return _HEADER.write(header)


@shared_formula_limit
def header_from_data(data: object) -> EngineHeader:
    """Return the header that a JSON value describes.

    Raises:
        EngineFormatError: the value is malformed; the message names the position.
    """
    header = _HEADER.read(data, "engine")
    # A refit takes some 50 us for each part of a recipe.
    recipes = [*(weight.recipe for weight in header.weights), *header.scales]
    parts = sum(len(recipe[1]) for recipe in recipes if _has_parts(recipe))
    Limit.MAX_RECIPE_PARTS.check(parts, "their recipes have", partial(_fail, "the weights"))
    return header


def _has_parts(recipe: Json) -> TypeGuard[tuple[Json, tuple[Json, ...]]]:
    """Return whether a value may be a recipe; the reader of recipes reports errors in it."""
    return isinstance(recipe, tuple) and len(recipe) == 2 and isinstance(recipe[1], tuple)

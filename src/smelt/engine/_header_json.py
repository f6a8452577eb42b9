"""The header of an engine as JSON, and back: strict, bounded, equal bytes for equal headers.

Each value has one codec, and each dataclass one table of its fields. Reading validates untrusted
data: a wrong type, an unknown or a missing field, a number beyond 64 bits or a text beyond its
limit is an `EngineFormatError` that names the position.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeGuard, TypeVar, cast

from smelt.engine._plan import (
    Binding,
    Buffer,
    EngineHeader,
    Fingerprint,
    GivenArray,
    HostCall,
    Json,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    Space,
    Step,
    View,
    Weight,
)
from smelt.errors import EngineFormatError
from smelt.types import Dim, DType, Guard, Limit, Relation, dim_from_text, shared_formula_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from enum import Enum

_MAX_INT: Final = 1 << 63
_MAX_TEXT: Final = 1 << 26
"""Maximum length of a text in characters; build reports are the longest texts."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Writer and reader of one kind of value."""

    write: Callable[[T], object]
    read: Callable[[object, str], T]
    """Converts a JSON value; the second argument is its position. Raises EngineFormatError."""


def _fail(where: str, problem: str) -> EngineFormatError:
    return EngineFormatError(f"the engine's header is malformed at {where or 'its top'}: {problem}")


def _exactly(kind: type[T], name: str) -> Codec[T]:
    def read(data: object, where: str) -> T:
        if type(data) is not kind:
            raise _fail(where, f"{name} is needed, not {_describe(data)}")
        return data

    return Codec(lambda value: value, read)


def _describe(data: object) -> str:
    if isinstance(data, dict | list):
        return "an object" if isinstance(data, dict) else "a list"
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."


def _read_int(data: object, where: str) -> int:
    if type(data) is not int or not -_MAX_INT <= data < _MAX_INT:
        raise _fail(where, f"expected a 64-bit integer, not {_describe(data)}")
    return data


def _read_text(data: object, where: str) -> str:
    if type(data) is not str or len(data) > _MAX_TEXT:
        raise _fail(where, f"a text is needed, not {_describe(data)}")
    return data


def _read_dim(data: object, where: str) -> Dim:
    if type(data) is not str:
        return _read_int(data, where)
    try:
        dim = dim_from_text(data)
    except ValueError as error:
        raise _fail(where, str(error)) from error
    return _read_int(dim, where) if isinstance(dim, int) else dim


def _write_dim(dim: Dim) -> object:
    return dim if isinstance(dim, int) else str(dim)


def _read_json(data: object, where: str, depth: int = 0) -> Json:
    if depth > Limit.MAX_PARAMETER_DEPTH.most:
        raise _fail(where, f"parameters have {Limit.MAX_PARAMETER_DEPTH.excess(depth)}")
    if isinstance(data, list | tuple):
        items = cast("Sequence[object]", data)
        return tuple(_read_json(item, where, depth + 1) for item in items)
    if type(data) is int:
        return _read_int(data, where)
    if type(data) is str:
        return _read_text(data, where)
    if data is None or isinstance(data, bool | float):
        return data
    raise _fail(where, f"a parameter cannot be {_describe(data)}")


def _tuple_of(item: Codec[T], limit: Limit = Limit.MAX_HEADER_ROWS) -> Codec[tuple[T, ...]]:
    """Return the codec of a tuple whose length has a limit."""

    def read(data: object, where: str) -> tuple[T, ...]:
        items = _list(data, where)
        if len(items) > limit.most:
            raise _fail(where, f"it has {limit.excess(len(items))}")
        return tuple(item.read(v, f"{where}[{i}]") for i, v in enumerate(items))

    return Codec(lambda values: [item.write(value) for value in values], read)


def _list(data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise _fail(where, f"a list is needed, not {_describe(data)}")
    return cast("list[object]", data)


def _row(*items: Codec[Any]) -> Codec[Any]:
    """Return the codec of a tuple of fixed length."""

    def read(data: object, where: str) -> Any:  # a tuple with the members of the codecs' types
        values = _list(data, where)
        if len(values) != len(items):
            raise _fail(where, f"expected {len(items)} entries, not {len(values)}")
        return tuple(c.read(v, where) for c, v in zip(items, values, strict=True))

    return Codec(lambda row: [c.write(v) for c, v in zip(items, row, strict=True)], read)


def _or_none(item: Codec[T]) -> Codec[T | None]:
    return Codec(
        lambda value: None if value is None else item.write(value),
        lambda data, where: None if data is None else item.read(data, where),
    )


def _enum(kind: type[Enum]) -> Codec[Any]:
    by_value = {member.value: member for member in kind}

    def read(data: object, where: str) -> Any:  # a member of ``kind``
        if type(data) is not str or data not in by_value:
            raise _fail(where, f"{_describe(data)} is not one of {', '.join(by_value)}")
        return by_value[data]

    return Codec(lambda member: member.value, read)


def _record(kind: type[T], /, **items: Codec[Any]) -> Codec[T]:
    """Return the codec of a dataclass whose fields are all in ``items``."""
    if set(items) != {f.name for f in fields(cast("Any", kind))}:
        raise TypeError(f"the JSON codec of {kind.__name__} does not match its fields")

    def read(data: object, where: str) -> T:
        if not isinstance(data, dict):
            raise _fail(where, f"expected an object, not {_describe(data)}")
        entries = cast("dict[str, object]", data)
        if entries.keys() != items.keys():
            odd = sorted(entries.keys() ^ items.keys())
            raise _fail(where, f"unknown or missing: {', '.join(map(_describe, odd[:5]))}")
        return kind(**{k: c.read(entries[k], f"{where}.{k}") for k, c in items.items()})

    return Codec(lambda value: {k: c.write(getattr(value, k)) for k, c in items.items()}, read)


def _tagged(**kinds: tuple[type, Codec[Any]]) -> Codec[Any]:
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


_INT: Final[Codec[int]] = Codec(lambda value: value, _read_int)
_TEXT: Final[Codec[str]] = Codec(lambda value: value, _read_text)
_BOOL: Final = _exactly(bool, "true or false")
_DIM: Final[Codec[Dim]] = Codec(_write_dim, _read_dim)
_JSON: Final[Codec[Json]] = Codec(lambda value: value, _read_json)
_DTYPE: Final = _enum(DType)
_DIMS: Final = _tuple_of(_DIM, Limit.MAX_VIEW_AXES)
_NAMED_JSON: Final = _tuple_of(_row(_TEXT, _JSON))
_NAMED_INTS: Final = _tuple_of(_row(_TEXT, _INT))
_VIEW: Final = _record(
    View,
    buffer=_INT,
    offset=_DIM,
    dtype=_DTYPE,
    shape=_DIMS,
    strides=_DIMS,
    halo=_tuple_of(_row(_INT, _INT), Limit.MAX_VIEW_AXES),
)
_KERNEL: Final = _record(KernelSpec, family=_TEXT, parameters=_NAMED_JSON)
_LAUNCH: Final = _record(
    Launch,
    kernel=_KERNEL,
    operands=_tuple_of(_VIEW, Limit.MAX_OPERANDS),
    writes=_tuple_of(_INT, Limit.MAX_OPERANDS),
    scalars=_DIMS,
    chunks=_DIM,
    scratch_bytes=_INT,
    waits=_BOOL,
    uses_pdl=_BOOL,
    layer=_INT,
)
_HOST_CALL: Final = _record(
    HostCall,
    op=_JSON,
    inputs=_tuple_of(_or_none(_VIEW)),
    outputs=_tuple_of(_VIEW),
    sizes=_tuple_of(_row(_TEXT, _INT, _INT)),
    layer=_INT,
)
_STEP: Final[Codec[Step]] = _tagged(launch=(Launch, _LAUNCH), host=(HostCall, _HOST_CALL))
_BUFFER: Final = _record(Buffer, space=_enum(Space), start=_INT, size_bytes=_INT)
_GUARD: Final = _record(
    Guard, left=_DIM, relation=_enum(Relation), right=_DIM, what=_TEXT, node=_TEXT
)
_PLAN: Final = _record(
    Plan,
    symbols=_tuple_of(_row(_TEXT, _INT, _INT)),
    buffers=_tuple_of(_BUFFER),
    steps=_tuple_of(_STEP),
    arena_bytes=_INT,
    scratch_bytes=_INT,
    guards=_tuple_of(_GUARD),
    outputs=_tuple_of(_DIMS),
)
_BINDING: Final = _record(Binding, name=_TEXT, is_input=_BOOL, dtype=_DTYPE, shape=_DIMS)
_LAYER: Final = _record(LayerInfo, name=_TEXT, kind=_TEXT, tactic=_TEXT, details=_NAMED_JSON)
_WEIGHT: Final = _record(
    Weight,
    name=_TEXT,
    dtype=_DTYPE,
    shape=_tuple_of(_INT, Limit.MAX_RANK),
    offset=_INT,
    recipe=_JSON,
)
_GIVEN: Final = _record(GivenArray, name=_TEXT, dtype=_DTYPE, shape=_tuple_of(_INT, Limit.MAX_RANK))
_FINGERPRINT: Final = _record(
    Fingerprint,
    device=_TEXT,
    architecture=_TEXT,
    features=_tuple_of(_TEXT),
    system=_TEXT,
    abi=_INT,
    version=_TEXT,
    tuned_on=_TEXT,
)
_HEADER: Final = _record(
    EngineHeader,
    name=_TEXT,
    fingerprint=_FINGERPRINT,
    bindings=_tuple_of(_BINDING, Limit.MAX_BINDINGS),
    max_batch_size=_or_none(_INT),
    plans=_tuple_of(_PLAN, Limit.MAX_PLANS),
    layers=_tuple_of(_LAYER),
    weights=_tuple_of(_WEIGHT),
    symbols=_NAMED_INTS,
    runtime_symbols=_NAMED_INTS,
    report=_TEXT,
    program=_TEXT,
    network=_TEXT,
    sources=_tuple_of(_WEIGHT),
    given=_tuple_of(_GIVEN),
    scales=_tuple_of(_JSON),
    metadata=_tuple_of(_row(_TEXT, _TEXT)),
)


def header_to_data(header: EngineHeader) -> object:
    """Return the header as lists, dicts, texts and numbers for JSON."""
    return _HEADER.write(header)


def header_from_data(data: object) -> EngineHeader:
    """Return the header that a JSON value describes.

    Raises:
        EngineFormatError: the value is malformed; the message names the position.
    """
    with shared_formula_limit():
        header = _HEADER.read(data, "engine")
    # A refit takes some 50 us for each part of a recipe.
    recipes = [*(weight.recipe for weight in header.weights), *header.scales]
    parts = sum(len(recipe[1]) for recipe in recipes if _has_parts(recipe))
    if parts > Limit.MAX_RECIPE_PARTS.most:
        raise _fail("the weights", f"their recipes have {Limit.MAX_RECIPE_PARTS.excess(parts)}")
    return header


def _has_parts(recipe: Json) -> TypeGuard[tuple[Json, tuple[Json, ...]]]:
    """Return whether a value may be a recipe; the reader of recipes reports errors in it."""
    return isinstance(recipe, tuple) and len(recipe) == 2 and isinstance(recipe[1], tuple)

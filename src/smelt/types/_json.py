"""JSON that may be hostile: bounded before it is parsed, for a byte of it may take a hundred."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from smelt.types._limits import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_DIGITS: Final = 20
_BOUND: Final = 1 << 63


def parse_json(text: bytes | str) -> object:
    """Return what JSON holds: no name twice in an object, no abyss, no integer beyond 64 bits.

    Raises:
        ValueError: it is no such JSON, or has more parts than MAX_JSON_PARTS.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    parts = count_json_parts(data)
    if parts > Limit.MAX_JSON_PARTS.most:
        raise ValueError(f"it has {Limit.MAX_JSON_PARTS.excess(parts)}")
    try:
        parsed: object = json.loads(data, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("its lists and objects are nested too deeply") from error
    return parsed


def items_of(value: object) -> Sequence[object]:
    """The items of a list or tuple from outside; nothing where it is neither."""
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


def fields_of(value: object) -> Mapping[str, object]:
    """The fields of an object from JSON; nothing where it is none."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def count_json_parts(data: bytes) -> int:
    """How many things a JSON text makes in memory, at most; what stands in its texts counts too."""
    return sum(map(data.count, (b"[", b"{", b",", b":")))


def _integer(digits: str) -> int:
    """An integer that has 64 bits: a larger one is none that anything here has written."""
    if len(digits) > _MAX_DIGITS or not -_BOUND <= (number := int(digits)) < 2 * _BOUND:
        raise ValueError("an integer in it has more than 64 bits")
    return number


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("an object has a duplicate name")
    return entries

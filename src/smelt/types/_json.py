"""Parser of untrusted JSON.

The size is checked before parsing, because a byte of JSON may take a hundred bytes of memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from smelt.types._limits import Limit
from smelt.types._type_guards import is_json_object, is_sequence

_MAX_DIGITS: Final = 20
"""Characters of the longest integer: those of 2**64 - 1, and of -2**63 with its sign."""
_BOUND: Final = 1 << 63
"""Integers are at least ``-_BOUND`` and below ``2 * _BOUND``: signed or unsigned 64 bits."""


def parse_json(text: bytes | str) -> object:
    """Parse JSON that has no duplicate names, no deep nesting and no integers beyond 64 bits.

    Raises:
        ValueError: the text is not such JSON, or has more parts than ``MAX_JSON_PARTS``.
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
    """Return the items of an untrusted list or tuple; an empty tuple for any other value."""
    return value if is_sequence(value) else ()


def fields_of(value: object) -> Mapping[str, object]:
    """Return the fields of a parsed JSON object; an empty dict for any other value."""
    return value if is_json_object(value) else {}


def count_json_parts(data: bytes) -> int:
    """Return an upper bound of the objects that parsing creates; strings are counted too."""
    return sum(map(data.count, (b"[", b"{", b",", b":")))


def _integer(digits: str) -> int:
    """Convert digits to an integer of at most 64 bits; smelt never writes larger ones."""
    if len(digits) > _MAX_DIGITS or not -_BOUND <= (number := int(digits)) < 2 * _BOUND:
        raise ValueError("an integer in it has more than 64 bits")
    return number


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("an object has a duplicate name")
    return entries

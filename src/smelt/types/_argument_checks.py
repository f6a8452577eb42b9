"""What callers give to public functions: one check for each kind of argument.

A check returns the value in a type of Python's own. It raises ``error``, with a line that names the
argument and says what came and what is wanted.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt.errors import SmeltError
from smelt.types._text_formatting import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    Raised = Callable[[str], SmeltError]

_MAX_NUMBERS: Final = 64
"""Numbers of a list; a tensor has no more axes."""
_MAX_ITEMS: Final = 1 << 20
"""Items of any other list."""
_BEYOND: Final = 1 << 63
"""What no signed number of 64 bits reaches: neither arrays nor engines have larger ones."""
_LARGEST: Final = sys.float_info.max
_SHORT: Final = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 60


def shown(given: object) -> str:
    """A value as a message shows it: short, and on one line."""
    text = _text_by(_SHORT.repr, given)
    return f"a value of type {type(given).__name__}" if text is None else " ".join(text.split())


def _text_by(write: Callable[[Any], str], given: object) -> str | None:
    """What an object says of itself; None where that fails."""
    try:
        return write(given)
    except Exception:  # noqa: BLE001  (an object's own methods may raise anything)
        return None


@contextmanager
def application_errors(refuse: Callable[[str], SmeltError]) -> Generator[None]:
    """Raise what an application's own object raises inside, which may be anything, as ours.

    Args:
        refuse: makes the error of what the object has raised, as text.

    Errors of smelt and of memory that is out pass as they are.
    """
    try:
        yield
    except (SmeltError, MemoryError):
        raise
    except Exception as error:  # the object's own methods may raise anything
        raise refuse(_text_by(str, error) or type(error).__name__) from error


def require_int(
    given: object, name: str, error: Raised, *, least: int | None = None, most: int | None = None
) -> int:
    """An integer, numpy's too, from ``least`` to ``most``; a bool and a float are none."""
    number = _whole(given)
    if number is None or not _is_within(number, least, most):
        raise error(f"{name} is {shown(given)}; it must be an integer{_range(least, most)}")
    return number


def require_ints(
    given: object, name: str, error: Raised, *, count: int | None = None, least: int | None = None
) -> tuple[int, ...]:
    """A list of ``count`` integers, each from ``least`` on; a single one is not a list."""
    listed = _listed(given)
    found = [_whole(item) for item in listed or ()]
    numbers = tuple(number for number in found if number is not None)
    is_sound = listed is not None and len(numbers) == len(found) <= _MAX_NUMBERS
    is_sound = is_sound and all(_is_within(number, least, None) for number in numbers)
    if not is_sound or count not in (None, len(numbers)):
        wanted = "whole numbers" if count is None else counted(count, "whole number")
        raise error(f"{name} is {shown(given)}; it must be {wanted}{_range(least, None)}")
    return numbers


def require_float(
    given: object, name: str, error: Raised, low: float = -_LARGEST, high: float = _LARGEST
) -> float:
    """A number from ``low`` to ``high``; unless these are infinite, a finite one."""
    number = math.nan
    value: Any = given
    if isinstance(given, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(given)
    if not low <= number <= high:
        is_any = (low, high) == (-_LARGEST, _LARGEST)
        wanted = "a finite number" if is_any else f"a number from {low:g} to {high:g}"
        raise error(f"{name} is {shown(given)}; it must be {wanted}")
    return number


def require_str(given: object, name: str, error: Raised) -> str:
    """A text, as names are."""
    if not isinstance(given, str):
        raise error(f"{name} is {shown(given)}; it must be a string")
    return given


def require_choice(given: object, name: str, error: Raised, known: Collection[str]) -> str:
    """One of some words."""
    if not isinstance(given, str) or given not in known:
        raise error(f"{name} is {shown(given)}; it must be one of {', '.join(known)}")
    return given


def require_bool(given: object, name: str, error: Raised) -> bool:
    """True or False, numpy's too, and 1 or 0, which C has instead."""
    value: Any = given
    if not isinstance(given, np.bool_ | int) or value not in (0, 1):
        raise error(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def require_list(given: object, name: str, error: Raised) -> list[Any]:
    """The items of a list; a text and a table are none."""
    listed = _listed(given, _MAX_ITEMS + 1)
    if listed is None or len(listed) > _MAX_ITEMS:
        raise error(f"{name} is {shown(given)}; it must be a list")
    return listed


def require_dict(given: object, name: str, error: Raised) -> dict[str, Any]:
    """What is given by name."""
    if not isinstance(given, Mapping):
        raise error(f"{name} is {shown(given)}; it must be a dict by name")
    known: dict[Any, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  (checked below)
    for key in known:
        require_str(key, f"a name among {name}", error)
    return known


def require_callable(given: object, name: str, error: Raised) -> Any:
    """What can be called."""
    if not callable(given):
        raise error(f"{name} is {shown(given)}; it must be a function")
    return given


def require_array(given: object, name: str, error: Raised) -> np.ndarray[Any, Any]:
    """What numpy makes an array of; a ragged list is none."""

    def refused(reason: str) -> SmeltError:
        return error(f"{name} is {shown(given)}, which numpy cannot convert to an array: {reason}")

    with application_errors(refused):
        return np.asarray(given)


def _whole(given: object) -> int | None:
    """The integer of 64 bits that an object is; None for a bool, and for what is none."""
    if isinstance(given, bool | np.bool_):
        return None
    try:
        number = index(cast("Any", given))
    except TypeError:
        return None
    return number if -_BEYOND <= number < _BEYOND else None


def _listed(given: object, most: int = _MAX_NUMBERS + 1) -> list[Any] | None:
    """The items of what is a list or can be made one; None for texts, tables and what is none."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        return None
    try:
        return list(islice(given, most))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  (of anything)
    except TypeError:  # an array without axes
        return None


def _is_within(number: int, least: int | None, most: int | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _range(least: int | None, most: int | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f" from {least} on"
    return f" up to {most}" if least is None else f" from {least} to {most}"

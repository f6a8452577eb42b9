"""Checks of the arguments of public functions, one function for each kind of argument.

A check returns the argument as a built-in Python type. If the argument is invalid it raises
``error`` with a message that names the argument, shows the value and says what is expected.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import islice
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error, suppress_own
from smelt.types._text_formatting import counted

if TYPE_CHECKING:
    Raised = Callable[[str], SmeltError]

_T = TypeVar("_T")

_MAX_NUMBERS: Final = 64
"""Maximum length of a list of integers (axes, extents): more than any tensor has axes."""
_MAX_ITEMS: Final = 1 << 20
"""Maximum length of any other list."""
_INT64_END: Final = 1 << 63
"""Integers must be below it: arrays and engines hold signed integers of 64 bits."""
_LARGEST: Final = sys.float_info.max
"""Largest finite float: the default upper bound of `require_float`."""
_SHORT: Final = reprlib.Repr()
"""Abbreviates a value in a message to about 60 characters."""
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 60


def shown(value: object) -> str:
    """Return a value as a message shows it: abbreviated and on one line."""
    text = _value_or_none(_SHORT.repr, value)
    return f"a value of type {type(value).__name__}" if text is None else " ".join(text.split())


def _value_or_none(read: Callable[[Any], _T], value: object) -> _T | None:
    """Return ``read(value)``, or None if the object's own methods raise an exception."""
    try:
        return read(value)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (an object's own methods may raise anything)
        pass_on_handler_error(error)
        return None


@contextmanager
def application_errors(refuse: Callable[[str], SmeltError]) -> Generator[None]:
    """Convert any exception that an application's object raises in the block to a smelt error.

    Args:
        refuse: makes the smelt error from the text of the exception.

    A SmeltError, a MemoryError and the error of a signal handler are passed on unchanged.
    """
    try:
        yield
    except (SmeltError, MemoryError):
        raise
    except Exception as error:  # the object's own methods may raise anything
        pass_on_handler_error(error)
        raise refuse(_value_or_none(str, error) or type(error).__name__) from error


def require_int(
    value: object,
    name: str,
    error: Raised,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
) -> int:
    """Return an integer (also numpy's) from ``minimum`` to ``maximum``; refuse bools and floats."""
    number = _as_integer(value)
    if number is None and isinstance(value, int) and not isinstance(value, bool):
        raise error(f"{name} is {shown(value)}, which does not fit into 64 bits")
    if number is None or not _is_within(number, minimum, maximum):
        raise error(
            f"{name} is {shown(value)}; it must be an integer{_range_text(minimum, maximum)}"
        )
    return number


def require_ints(
    value: object, name: str, error: Raised, *, count: int | None = None, minimum: int | None = None
) -> tuple[int, ...]:
    """Return a list of ``count`` integers, each at least ``minimum``; refuse a single integer."""
    items = _as_list(value)
    integers = [_as_integer(item) for item in items or ()]
    numbers = tuple(number for number in integers if number is not None)
    is_valid = items is not None and len(numbers) == len(integers) <= _MAX_NUMBERS
    is_valid = is_valid and all(_is_within(number, minimum, None) for number in numbers)
    if not is_valid or count not in (None, len(numbers)):
        wanted = "integers" if count is None else counted(count, "integer")
        if len(integers) > _MAX_NUMBERS:
            wanted = f"at most {_MAX_NUMBERS} integers"
        raise error(
            f"{name} is {shown(value)}; it must be a list of {wanted}{_range_text(minimum, None)}"
        )
    return numbers


def require_float(
    value: object, name: str, error: Raised, low: float = -_LARGEST, high: float = _LARGEST
) -> float:
    """Return a number from ``low`` to ``high`` as a float; by default, any finite number."""
    number = math.nan
    untyped: Any = value
    if isinstance(value, Real) and not isinstance(untyped, bool):
        # TypeError: numpy's timedelta64 is an integer type for `numbers`.
        with suppress_own(OverflowError, TypeError):
            number = float(value)
    if not low <= number <= high:
        is_any = (low, high) == (-_LARGEST, _LARGEST)
        wanted = "a finite number" if is_any else f"a number from {low:g} to {high:g}"
        raise error(f"{name} is {shown(value)}; it must be {wanted}")
    return number


def require_str(value: object, name: str, error: Raised) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise error(f"{name} is {shown(value)}; it must be a string")
    return value


def require_choice(value: object, name: str, error: Raised, known: Collection[str]) -> str:
    """Return a string that is one of ``known``."""
    if not isinstance(value, str) or value not in known:
        raise error(f"{name} is {shown(value)}; it must be one of {', '.join(known)}")
    return value


def require_bool(value: object, name: str, error: Raised) -> bool:
    """Return a bool (Python's or numpy's); 1 and 0 are accepted as True and False."""
    untyped: Any = value
    if not isinstance(value, np.bool_ | int) or untyped not in (0, 1):
        raise error(f"{name} is {shown(untyped)}; it must be True or False")
    return bool(untyped)


def require_list(value: object, name: str, error: Raised) -> list[Any]:
    """Return the items of an iterable as a list; refuse a string, bytes and a mapping."""
    items = _as_list(value, _MAX_ITEMS + 1)
    if items is None or len(items) > _MAX_ITEMS:
        wanted = "a list" if items is None else f"a list of at most {_MAX_ITEMS:,} items"
        raise error(f"{name} is {shown(value)}; it must be {wanted}")
    return items


def require_dict(value: object, name: str, error: Raised) -> dict[str, Any]:
    """Return a mapping whose keys are strings as a dict."""
    if not isinstance(value, Mapping):
        raise error(f"{name} is {shown(value)}; it must be a dict whose keys are names")
    checked: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  (checked below)
    for key in checked:
        require_str(key, f"a key of {name}", error)
    return checked


def require_instance(value: object, kind: type, name: str, error: Raised, expected: str) -> None:
    """Check that a value is an instance of a class, which ``expected`` describes."""
    if not isinstance(value, kind):
        raise error(f"{name} is {shown(value)}; it must be {expected}")


def require_callable(value: object, name: str, error: Raised) -> Any:
    """Return a callable object."""
    if not callable(value):
        raise error(f"{name} is {shown(value)}; it must be a function")
    return value


def require_method(value: object, method: str, name: str, error: Raised) -> None:
    """Check that an object has a method."""

    def refused(reason: str) -> SmeltError:
        return error(f"{name} cannot be used: {reason}")

    with application_errors(refused):
        has_method = callable(getattr(value, method, None))
    if not has_method:
        raise error(f"{name} must have a method {method}")


def require_array(value: object, name: str, error: Raised) -> np.ndarray[Any, Any]:
    """Return an array of anything that numpy converts; refuse a ragged list."""

    def refused(reason: str) -> SmeltError:
        return error(f"{name} is {shown(value)}, which numpy cannot convert to an array: {reason}")

    with application_errors(refused):
        return np.asarray(value)


def _as_integer(value: object) -> int | None:
    """Return a signed integer of 64 bits as an int; None for a bool or anything else."""
    if isinstance(value, bool | np.bool_):
        return None
    number = value if type(value) is int else _value_or_none(index, value)
    return number if number is not None and -_INT64_END <= number < _INT64_END else None


def _as_list(value: object, most: int = _MAX_NUMBERS + 1) -> list[Any] | None:
    """Return the first items of an iterable; None for a string, a mapping or no iterable."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return None
    items: Iterable[Any] = value  # pyright: ignore[reportUnknownVariableType]  (of anything)
    if type(items) in (list, tuple):
        return list(islice(items, most))
    return _value_or_none(lambda items: list(islice(items, most)), items)


def _is_within(number: int, minimum: int | None, maximum: int | None) -> bool:
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def _range_text(minimum: int | None, maximum: int | None) -> str:
    """Return the end of a message that says which integers are valid."""
    if minimum is None and maximum is None:
        return ""
    if maximum is None:
        return f" of at least {minimum}"
    return f" of at most {maximum}" if minimum is None else f" from {minimum} to {maximum}"

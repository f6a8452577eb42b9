"""Tests of a value's type that type checkers follow.

``isinstance`` with a generic class leaves the types of its items unknown to them. These functions
say what is known: any object.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import TypeIs


def is_array(value: object) -> TypeIs[NDArray[Any]]:
    """Return whether a value is a numpy array."""
    return isinstance(value, np.ndarray)


def is_integer(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a value is an integer of Python or numpy, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_list(value: object) -> TypeIs[list[object]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def is_tuple(value: object) -> TypeIs[tuple[object, ...]]:
    """Return whether a value is a tuple."""
    return isinstance(value, tuple)


def is_sequence(value: object) -> TypeIs[list[object] | tuple[object, ...]]:
    """Return whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_dict(value: object) -> TypeIs[dict[object, object]]:
    """Return whether a value is a dict."""
    return isinstance(value, dict)


def is_json_object(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether a value of parsed JSON is an object, whose names are always strings."""
    return isinstance(value, dict)


def is_path(value: object) -> TypeIs[str | os.PathLike[str] | os.PathLike[bytes]]:
    """Return whether a value is a string or a path-like object."""
    return isinstance(value, str | os.PathLike)

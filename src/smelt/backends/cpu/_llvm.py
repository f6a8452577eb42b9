"""LLVM, loaded when something is compiled: a machine that only runs engines need not have it."""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module
from typing import Any

from smelt.errors import MissingExtraError


@functools.cache
def load_llvm() -> Any:
    """Return llvmlite's binding, which ships no types.

    Raises MissingExtraError: it is not installed.
    """
    try:
        return import_module("llvmlite.binding")
    except ModuleNotFoundError as error:
        raise MissingExtraError("llvmlite") from error


@functools.cache
def without_global_lock(name: str) -> Any:
    """Return a function of LLVM's library, to be called by several threads at once.

    llvmlite holds one lock during every call, as if all threads worked on one context. Ours have
    contexts and target machines of their own, so the calls that take long can do without.
    """
    library = load_llvm().ffi.lib
    locked = getattr(library, name)
    function = getattr(ctypes.CDLL(library._name, handle=library._handle), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def llvm_version() -> str:
    """Return llvmlite's version."""
    load_llvm()
    return str(import_module("llvmlite").__version__)

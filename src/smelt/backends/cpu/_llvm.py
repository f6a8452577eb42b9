"""Access to LLVM through llvmlite.

llvmlite is imported when something is compiled, so a machine that only runs engines need not have
it.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module
from typing import Any

from smelt.errors import MissingExtraError


@functools.cache
def load_llvm() -> Any:
    """Return the module ``llvmlite.binding``, which has no type information.

    Raises:
        MissingExtraError: llvmlite is not installed.
    """
    try:
        return import_module("llvmlite.binding")
    except ModuleNotFoundError as error:
        raise MissingExtraError("llvmlite") from error


@functools.cache
def without_global_lock(name: str) -> Any:
    """Return a function of LLVM's library that several threads may call at once.

    llvmlite holds one lock during every call, as if all threads shared one context. Here each
    thread has a context and target machines of its own, so the calls that take long do not need the
    lock.
    """
    library = load_llvm().ffi.lib
    locked = getattr(library, name)
    function = getattr(ctypes.CDLL(library._name, handle=library._handle), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def llvm_version() -> str:
    """Return the version of llvmlite."""
    load_llvm()
    return str(import_module("llvmlite").__version__)

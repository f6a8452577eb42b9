"""Lookup of ops by name: built-in ops, registered ops, and entry points of installed packages."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from importlib import metadata
from typing import TYPE_CHECKING, cast

from smelt.errors import GraphError, UnsupportedError
from smelt.ir import Op
from smelt.signal_errors import pass_on_handler_error
from smelt.types import shown

if TYPE_CHECKING:
    from types import FunctionType

ENTRY_POINT_GROUP = "smelt.ops"
"""Entry point group of ops in packages: ``my_op = package.module:MyOp``."""

_registered: dict[str, type[Op]] = {}


def register_op(cls: type[Op]) -> type[Op]:
    """Register an op of a user under its name; usable as a class decorator.

    Raises GraphError when the class is not a complete op, or its name is already used.
    """
    where = getattr(cls, "__qualname__", None) or shown(cls)
    candidate = cast("object", cls)
    if not (isinstance(candidate, type) and issubclass(candidate, Op)):
        raise GraphError(f"{where} is not a subclass of smelt.ops.Op")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise GraphError(f"op {where} does not define {missing}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w.]{0,99}", name):
        raise GraphError(
            f"op {where} must have a class variable 'name': a string of at most 100 letters, "
            "digits, underscores and dots that starts with a letter or an underscore"
        )
    if "__dataclass_params__" not in vars(cls):
        raise GraphError(f"op {where} must be decorated with @dataclass(frozen=True)")
    other = _builtin_ops().get(name) or _registered.get(name)
    if other is not None and other is not cls:
        raise GraphError(
            f"op name {name!r} of {where} is already used by {other.__qualname__}; choose another "
            "name"
        )
    _registered[name] = cls
    return cls


def lookup_op(name: str) -> type[Op]:
    """Return the op of a name; search the entry points of installed packages if necessary.

    Raises UnsupportedError when there is no such op; the message says how to register one.
    """
    known_op = _builtin_ops().get(name) or _registered.get(name)
    if known_op is not None:
        return known_op
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            loaded = register_op(entry.load())
            if loaded.name != name:
                raise GraphError(
                    f"entry point {name!r} of {ENTRY_POINT_GROUP} loads an op named "
                    f"{loaded.name!r}; the names must be equal"
                )
            return loaded
    raise UnsupportedError(
        f"there is no op {name!r}; call smelt.register_op, or install the package that registers it"
    )


def is_builtin(cls: type[Op]) -> bool:
    """Return whether an op is a built-in one."""
    return _builtin_ops().get(cls.name) is cls


def op_identity(cls: type[Op]) -> tuple[str, str, str, str]:
    """Return package, op name, version ("" if not installed) and SHA-256 of the class source."""
    package = cls.__module__.partition(".")[0]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = ""
    return package, cls.name, version, hashlib.sha256(_source(cls)).hexdigest()


def _source(cls: type[Op]) -> bytes:
    """Return the source of a class, or its fields and bytecode if there is no source file."""
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError) as error:
        pass_on_handler_error(error)
        # A class from an interactive session has no source file; hash its compiled methods.
        parts = [repr([(f.name, str(f.type)) for f in dataclasses.fields(cls)]).encode()]
        functions: list[FunctionType] = [v for v in vars(cls).values() if inspect.isfunction(v)]
        parts.extend(f.__code__.co_code for f in functions)
        return b"\0".join(parts)


def _builtin_ops() -> dict[str, type[Op]]:
    from smelt.ops import ALL_OPS, Partition  # imported late: the package imports this module

    return {cls.name: cls for cls in ALL_OPS} | {Partition.name: Partition}

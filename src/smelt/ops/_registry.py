"""Finding an op by name: the table, what the user registered, and what installed packages offer."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from importlib import metadata
from typing import TYPE_CHECKING, cast

from smelt.errors import GraphError, UnsupportedError
from smelt.ir import Op
from smelt.types import shown

if TYPE_CHECKING:
    from types import FunctionType

ENTRY_POINT_GROUP = "smelt.ops"
"""Group under which a package offers ops: entry ``my_op = package.module:MyOp``."""

_registered: dict[str, type[Op]] = {}


def register_op(cls: type[Op]) -> type[Op]:
    """Make a user's op known by its name; may stand as a decorator.

    Raises GraphError: when the class is not a complete op, or the name is taken by another one.
    """
    where = getattr(cls, "__qualname__", None) or shown(cls)
    given = cast("object", cls)
    if not (isinstance(given, type) and issubclass(given, Op)):
        raise GraphError(f"{where} is not a subclass of Op")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise GraphError(f"op {where} has no {missing}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w.]{0,99}", name):
        raise GraphError(f"op {where} must have a class variable 'name' of letters, digits and _")
    if "__dataclass_params__" not in vars(cls):
        raise GraphError(f"op {where} must be decorated with @dataclass(frozen=True)")
    other = _builtin_ops().get(name) or _registered.get(name)
    if other is not None and other is not cls:
        raise GraphError(
            f"op name {name!r} of {where} is already used by {other.__qualname__}; rename yours"
        )
    _registered[name] = cls
    return cls


def lookup_op(name: str) -> type[Op]:
    """The op of a name; one that is not known yet is looked for among the installed packages.

    Raises UnsupportedError: when there is none, saying how to make one known.
    """
    found = _builtin_ops().get(name) or _registered.get(name)
    if found is not None:
        return found
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            loaded = register_op(entry.load())
            if loaded.name != name:
                raise GraphError(
                    f"entry point {name!r} of {ENTRY_POINT_GROUP} is op {loaded.name!r}"
                )
            return loaded
    raise UnsupportedError(
        f"there is no op {name!r}; call smelt.register_op, or install the package that registers it"
    )


def is_builtin(cls: type[Op]) -> bool:
    """Whether the op is one of smelt's own."""
    return _builtin_ops().get(cls.name) is cls


def op_identity(cls: type[Op]) -> tuple[str, str, str, str]:
    """Package, op name, version ("" when not installed), SHA-256 of the class's source."""
    package = cls.__module__.partition(".")[0]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = ""
    return package, cls.name, version, hashlib.sha256(_source(cls)).hexdigest()


def _source(cls: type[Op]) -> bytes:
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError):
        # A class that was typed at a prompt has no file: what it compiled to stands for it.
        parts = [repr([(f.name, str(f.type)) for f in dataclasses.fields(cls)]).encode()]
        functions: list[FunctionType] = [v for v in vars(cls).values() if inspect.isfunction(v)]
        parts.extend(f.__code__.co_code for f in functions)
        return b"\0".join(parts)


def _builtin_ops() -> dict[str, type[Op]]:
    from smelt.ops import ALL_OPS  # the table names the room's files, and this is one of them

    return {cls.name: cls for cls in ALL_OPS}

"""Base classes of the built-in ops, which are named after their classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from smelt.errors import ShapeError
from smelt.ir import Op, Operand
from smelt.types import Dim, ValueType, override


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class BuiltinOp(Op):
    """Built-in op, a frozen dataclass; its name is that of its class in snake_case.

    A class may set another name. A class of an application that derives from a built-in op has the
    name of that op, and is a dataclass only if it is decorated.
    """

    _function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, *, function: Callable[..., Any] | None = None) -> None:
        """Make a dataclass and set the name: ``MatMul`` gives ``mat_mul``.

        ``function`` computes an op without attributes; its base class says on which arrays.
        """
        super().__init_subclass__()
        if function is not None:
            cls._function = staticmethod(function)
        if not cls.__module__.startswith("smelt.ops."):
            return
        dataclass(frozen=True)(cls)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


class Elementwise(BuiltinOp):
    """Built-in op whose result elements depend only on the elements that broadcast to them."""

    @property
    @override
    def elementwise(self) -> bool:
        return True


class Composite(BuiltinOp):
    """Built-in op that computes other ops. Passes create it after constants have been folded."""

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        raise ShapeError(f"{self.name} is not computed at build time")

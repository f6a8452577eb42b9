"""A user's op with a field of every kind that the codec and the text of graphs know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from smelt.ir import Case, Graph, Op, Operand
from smelt.ops import Identity, register_op
from smelt.types import DType, Layout, ValueType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array


@dataclass(frozen=True)
class Fuzzed(Op):
    """Gives its inputs back."""

    name: ClassVar[str] = "fuzzed"

    layout: Layout = Layout.LINEAR
    maybe: Layout | None = None
    inner: Op = Identity()  # noqa: RUF009  (frozen)
    region: Graph | None = None
    choice: Literal["a", "b"] = "a"
    number: float = 0.0
    pairs: tuple[tuple[str, int], ...] = ()
    dtype: DType = DType.FLOAT32
    anything: Any = None

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return tuple(o.type for o in inputs if o is not None)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(a for a in inputs if a is not None)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        full = cls(Layout.LINEAR, Layout.LINEAR, Identity(), None, "b", float("nan"), (("x", 1),))
        yield Case("full", full, (np.zeros((2, 3), np.float32),))
        yield Case("empty", cls(), ())


def make_known() -> None:
    """Register the op, as an engine's reader would find it among installed packages."""
    register_op(Fuzzed)

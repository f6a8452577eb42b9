"""Einsum: sums of products that an equation of axis labels defines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    NUMBERS,
    broadcast_shapes,
    input_type,
    known,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import present, sample
from smelt.types import TensorType, assume_equal, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, Shape, ValueType


@dataclass(frozen=True)
class Einsum(Op):
    """Sums of products that an equation of axis labels defines.

    Axes with the same label are iterated together. Labels that are not in the result are summed
    over. Without ``->`` the result has the axes of an ellipsis, then the labels that occur exactly
    once, in alphabetical order.

    Shapes: as the equation defines; the axes of ellipses broadcast.

    Dtypes: numbers, the same for all; 16-bit floats are summed in float32.

    Raises ShapeError: when the equation is malformed or does not fit the inputs.

    Source: ONNX Einsum-12.
    """

    name: ClassVar[str] = "einsum"

    equation: str
    """The equation, such as "bij,bjk->bik"."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 64)
        kinds = [input_type(self, inputs, i) for i in range(len(inputs))]
        require_dtype(kinds[0], NUMBERS, "input 0 of einsum")
        require_same_dtype(*kinds)
        terms, result = self._terms()
        if len(terms) != len(kinds):
            raise ShapeError(
                f"einsum {self.equation!r} has {len(terms)} terms for {len(kinds)} inputs"
            )
        extents: dict[str, Dim] = {}
        dots: Shape = ()
        for term, kind in zip(terms, kinds, strict=True):
            broadcast = self._assign(term, kind, extents)
            dots = broadcast_shapes(dots, broadcast)
        before, dot, after = result.partition(".")
        if not all(label in extents for label in before + after):
            raise ShapeError(
                f"the output of einsum {self.equation!r} has a label that no input has"
            )
        shape = (
            tuple(extents[x] for x in before),
            dots if dot else (),
            tuple(extents[x] for x in after),
        )
        return (TensorType(kinds[0].dtype, (*shape[0], *shape[1], *shape[2])),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        extents: dict[str, Dim] = {}
        dots: Shape = ()
        for index, term in enumerate(self._terms()[0]):
            dots = broadcast_shapes(
                dots, self._assign(term, input_type(self, inputs, index), extents)
            )
        return 2 * (len(inputs) - 1) * element_count((*extents.values(), *dots))

    def _terms(self) -> tuple[list[str], str]:
        """Return the labels of the inputs and the result, with "." for an ellipsis.

        Raises ShapeError when the equation is malformed.
        """
        text = self.equation.replace(" ", "").replace("...", ".")
        left, arrow, result = text.partition("->")
        terms = left.split(",")
        labels = [c for c in "".join(terms) if c != "."]
        if not arrow:
            unique_labels = sorted(c for c, n in Counter(labels).items() if n == 1)
            result = ("." if "." in left else "") + "".join(unique_labels)
        letters = all(c.isascii() and c.isalpha() for c in (*labels, *result.replace(".", "")))
        dots = max(t.count(".") for t in (*terms, result))
        if not letters or dots > 1 or len(set(result)) < len(result):
            raise ShapeError(f"einsum equation {self.equation!r} is malformed")
        return terms, result

    def _assign(self, term: str, kind: TensorType, extents: dict[str, Dim]) -> Shape:
        """Add the extents of the labels of an input; return the extents of its ellipsis."""
        before, dot, after = term.partition(".")
        free = kind.rank - len(before) - len(after)
        if free < 0 or (free and not dot):
            raise ShapeError(f"term {term!r} of einsum {self.equation!r} does not match {kind}")
        shape = (*kind.shape[: len(before)], *kind.shape[len(before) + free :])
        own: dict[str, Dim] = {}
        for label, extent in zip(before + after, shape, strict=True):
            # Axes of the same label do not broadcast within one input (a diagonal).
            if not assume_equal(own.setdefault(label, extent), extent, f"axes {label!r} of {term}"):
                raise ShapeError(f"the repeated label {label!r} has different extents in {kind}")
            other = extents.get(label, extent)
            if 1 not in (other, extent) and not assume_equal(
                other, extent, f"extents of label {label!r}"
            ):
                raise ShapeError(
                    f"label {label!r} of einsum {self.equation!r} has the extents {other} and "
                    f"{extent}"
                )
            extents[label] = (
                extent if other == 1 else other if extent == 1 else known(other, extent)
            )
        return kind.shape[len(before) : len(before) + free]

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, i) for i in range(len(inputs))]
        result = np.asarray(np.einsum(self.equation, *map(widen, arrays)))
        return (narrow(result, arrays[0].dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows: dict[str, tuple[tuple[int, ...], ...]] = {
            "ij,jk->ik": ((3, 4), (4, 5)),
            "bhid,bhjd->bhij": ((2, 2, 3, 4), (2, 2, 5, 4)),
            "ij->ji": ((3, 4),),
            "ii->i": ((4, 4),),
            "ij->": ((3, 4),),
            "i,j->ij": ((3,), (5,)),
            "...ij,...jk->...ik": ((2, 5, 3, 4), (2, 5, 4, 2)),
            "ij,jk": ((3, 4), (4, 2)),
            "i,i": ((6,), (6,)),
            "a,b,c->abc": ((2,), (3,), (4,)),
        }
        for equation, shapes in rows.items():
            yield Case(equation, cls(equation), tuple(sample(*s) for s in shapes))
        for dtype in ("float64", "int64"):
            arrays = (sample(2, 3, dtype=dtype), sample(3, 2, dtype=dtype))
            yield Case(dtype, cls("ij,jk->ik"), arrays)

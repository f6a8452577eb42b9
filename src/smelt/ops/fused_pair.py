"""Chain: an op and another one that reads its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.errors import ShapeError
from smelt.ir import Op, Operand
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Case
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class FusedPair(Op):
    """Two ops, of which the second reads the first's only result.

    The first ``first_inputs`` inputs of the node are the first op's. The second op's inputs are the
    first's result and the node's other inputs. A backend need not store what is between the two,
    unless the chain keeps it for other readers: then it is a second result.

    Shapes: the second op's; then the first's, if that is kept.

    Dtypes: as shapes.

    Raises ShapeError: when one of the ops refuses its inputs, or the first has several results.

    Source: design, "Fused ops".
    """

    name: ClassVar[str] = "fused_pair"

    first: Op
    first_inputs: int
    second: Op
    returns_intermediate: bool = False
    """Whether what is between the two is a result, too."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if not 0 <= self.first_inputs <= len(inputs):
            raise ShapeError(
                f"the first op takes {self.first_inputs} inputs, and there are {len(inputs)}"
            )
        intermediate = self.first.infer(inputs[: self.first_inputs])
        if len(intermediate) != 1:
            raise ShapeError(
                f"{self.first.name} has {len(intermediate)} results; a fused pair needs exactly one"
            )
        made = self.second.infer([Operand(intermediate[0]), *inputs[self.first_inputs :]])
        return (*made, *intermediate) if self.returns_intermediate else made

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        own = inputs[: self.first_inputs]
        (intermediate,) = self.first.infer(own)
        rest = [Operand(intermediate), *inputs[self.first_inputs :]]
        return self.first.count_flop(own) + self.second.count_flop(rest)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        intermediate = self.first.reference(*inputs[: self.first_inputs])[0]
        made = self.second.reference(intermediate, *inputs[self.first_inputs :])
        return (*made, intermediate) if self.returns_intermediate else made

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        from smelt.ops._fused_pair_conformance_cases import fused_pair_cases

        yield from fused_pair_cases()

"""FusedPair: two ops, the second of which reads the result of the first, as one node."""

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
    """Two ops, the second of which reads the only result of the first (the intermediate).

    The first ``first_inputs`` inputs of the node are those of the first op. The inputs of the
    second op are the intermediate and the other inputs of the node. A backend does not have to
    store the intermediate, unless ``returns_intermediate`` makes it the last result of the node.

    Shapes: those of the second op, then the intermediate's if it is returned.

    Dtypes: those of the second op, then the intermediate's if it is returned.

    Raises ShapeError: when the inputs of an op do not fit, or the first op has several results.

    Source: design, "Fused ops".
    """

    name: ClassVar[str] = "fused_pair"

    first: Op
    """Op that computes the intermediate."""
    first_inputs: int
    """Number of inputs of the first op."""
    second: Op
    """Op that reads the intermediate."""
    returns_intermediate: bool = False
    """Whether the intermediate is a result of the node, too."""

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
        types = self.second.infer([Operand(intermediate[0]), *inputs[self.first_inputs :]])
        return (*types, *intermediate) if self.returns_intermediate else types

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        own = inputs[: self.first_inputs]
        (intermediate,) = self.first.infer(own)
        rest = [Operand(intermediate), *inputs[self.first_inputs :]]
        return self.first.count_flop(own) + self.second.count_flop(rest)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        intermediate = self.first.reference(*inputs[: self.first_inputs])[0]
        results = self.second.reference(intermediate, *inputs[self.first_inputs :])
        return (*results, intermediate) if self.returns_intermediate else results

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        from smelt.ops._fused_pair_conformance_cases import fused_pair_cases

        yield from fused_pair_cases()

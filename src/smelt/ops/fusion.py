"""Nodes that compute several ops: Fused and FusedPair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Op, Operand
from smelt.ops._base import Composite
from smelt.types import Dim, TensorType, ValueType, counted, override


@dataclass(frozen=True)
class Stage:
    """One elementwise op of an epilogue.

    An argument ``k >= 0`` is input ``k`` of the node, ``-1`` the result of the root, and
    ``-1 - j`` the result of stage ``j`` (counted from 1).
    """

    op: Op
    arguments: tuple[int, ...]


def _leading(
    inputs: Sequence[Operand | None], count: int, attribute: str
) -> Sequence[Operand | None]:
    """Return the first inputs, whose number an attribute gives. Raises ShapeError."""
    if not 0 <= count <= len(inputs):
        raise ShapeError(
            f"{attribute} is {count}; it must be from 0 to the number of inputs, {len(inputs)}"
        )
    return inputs[:count]


class Fused(Composite):
    """A root op with an *epilogue*: elementwise stages that are applied to its result.

    The first ``root_inputs`` inputs of the node are those of the root; the stages read the others
    (bias, scale, residual). No stage changes the shape of the root's result. A chain of elementwise
    ops is a ``Fused`` op with an elementwise root.

    Shapes: the root's; the result of each stage has the shape of the root's result.

    Dtypes: the last stage's.

    Raises ShapeError: when a stage is not elementwise, reads a result that is not computed yet or
    changes the shape, or the root takes more inputs than the node has.

    Source: design, "Fused ops".
    """

    root: Op
    """Op whose result the stages process."""
    root_inputs: int
    """Number of inputs of the root."""
    stages: tuple[Stage, ...]
    """Elementwise ops in the order in which they are computed; the last one gives the result."""

    @property
    @override
    def elementwise(self) -> bool:
        return self.root.elementwise

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        result = self.root.infer(_leading(inputs, self.root_inputs, "root_inputs"))
        if len(result) != 1 or not isinstance(result[0], TensorType):
            raise ShapeError(
                f"{self.root.name} cannot have an epilogue, because its result is not exactly one "
                "tensor"
            )
        values: list[TensorType] = [result[0]]
        for number, stage in enumerate(self.stages, 1):
            if not stage.op.elementwise:
                raise ShapeError(f"stage {number}, {stage.op.name}, is not elementwise")
            operands = [self._operand(a, inputs, values) for a in stage.arguments]
            (result_type,) = (t for t in stage.op.infer(operands) if isinstance(t, TensorType))
            if result_type.shape != values[0].shape:
                raise ShapeError(
                    f"stage {number}, {stage.op.name}, changes the shape from {values[0]} to "
                    f"{result_type}"
                )
            values.append(result_type)
        return (values[-1],)

    @staticmethod
    def _operand(
        argument: int, inputs: Sequence[Operand | None], values: Sequence[TensorType]
    ) -> Operand | None:
        """Return the operand that an argument of a stage refers to. Raises ShapeError."""
        if argument >= 0:
            if argument >= len(inputs):
                raise ShapeError(
                    f"a stage reads input {argument}, but the fused op has only "
                    f"{counted(len(inputs), 'input')}, numbered from 0"
                )
            return inputs[argument]
        if -argument > len(values):
            raise ShapeError(
                f"stage {len(values)} reads the result of stage {-argument - 1}, which is not "
                "computed before it"
            )
        return Operand(values[-argument - 1])

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self.root.count_flop(inputs[: self.root_inputs])

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        values = [self.root.reference(*inputs[: self.root_inputs])[0]]
        for stage in self.stages:
            arrays = [inputs[a] if a >= 0 else values[-a - 1] for a in stage.arguments]
            values.append(stage.op.reference(*arrays)[0])
        return (values[-1],)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        from smelt.ops._fused_conformance_cases import fused_cases

        yield from fused_cases()


class FusedPair(Composite):
    """Two ops, the second of which reads the only result of the first (the intermediate).

    The first ``first_inputs`` inputs of the node are those of the first op. The inputs of the
    second op are the intermediate and the other inputs of the node. A backend does not have to
    store the intermediate, unless ``returns_intermediate`` makes it the last result of the node.

    Shapes: those of the second op, then the intermediate's if it is returned.

    Dtypes: those of the second op, then the intermediate's if it is returned.

    Raises ShapeError: when the inputs of an op do not fit, or the first op has several results.

    Source: design, "Fused ops".
    """

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
        intermediate = self.first.infer(_leading(inputs, self.first_inputs, "first_inputs"))
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

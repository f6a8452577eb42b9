"""If: one of two regions, as a condition says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Graph, Op
from smelt.ops._operands import given, present, sample
from smelt.ops._region import infer_region, require_condition, run_region, truth
from smelt.ops.mul import Mul
from smelt.ops.sub import Sub
from smelt.types import DType, SymbolicDim, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class If(Op):
    """The results of ``then_branch`` where the condition holds, of ``else_branch`` elsewhere.

    The inputs are the condition, then the captures, which are the inputs of both branches in the
    same order. Where the branches' results differ in an extent and the condition is not constant,
    the extent is the symbol ``{count_symbol}_{result}_{axis}``, which a run determines and whose
    largest value the graph declares.

    Shapes: (condition of one element, captures…) -> the branches' results.

    Dtypes: the condition is bool; captures and results are any.

    Raises ShapeError: when the captures do not fit the branches, the results differ in number, type
    or rank, or they differ in an extent and ``count_symbol`` is empty.

    Source: ONNX If-21, with explicit captures.
    """

    name: ClassVar[str] = "if"

    then_branch: Graph
    else_branch: Graph
    count_symbol: str = ""

    @property
    @override
    def regions(self) -> tuple[Graph, ...]:
        return (self.then_branch, self.else_branch)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        known = require_condition(given(inputs, 0), self.name)
        results = [infer_region(self.name, region, inputs[1:]) for region in self.regions]
        if len(results[0]) != len(results[1]):
            counts = " and ".join(str(len(r)) for r in results)
            raise ShapeError(f"the branches of if have different numbers of results: {counts}")
        if known is not None:
            return tuple(o.type for o in results[0 if known else 1])
        pairs = zip(*results, strict=True)
        return tuple(self._merge(i, a.type, b.type) for i, (a, b) in enumerate(pairs))

    def _merge(self, index: int, a: ValueType, b: ValueType) -> ValueType:
        if a == b:
            return a
        text = f"result {index} of if is {a} in one branch and {b} in the other"
        if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
            raise ShapeError(text)
        if a.rank != b.rank or not self.count_symbol:
            raise ShapeError(text)
        shape: list[Dim] = []
        for axis, (left, right) in enumerate(zip(a.shape, b.shape, strict=True)):
            symbol = SymbolicDim.symbol(f"{self.count_symbol}_{index}_{axis}")
            shape.append(left if left == right else symbol)
        return TensorType(a.dtype, tuple(shape))

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        known = require_condition(given(inputs, 0), self.name)
        first, second = (infer_region(self.name, r, inputs[1:])[0].dims for r in self.regions)
        if known is not None:
            return first if known else second
        return first if first == second else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        region = self.then_branch if truth(present(inputs, 0)) else self.else_branch
        return tuple(run_region(region, inputs[1:]))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for truth_value in (True, False):
            flag = np.asarray(truth_value)
            yield Case(f"{truth_value}", cls(*_branches()), (flag, sample(2, 3)))
            constant = frozenset({0})
            arrays = (flag.reshape(1), sample(2, 3))
            yield Case(f"constant {truth_value}", cls(*_branches()), arrays, constants=constant)


def _branches() -> tuple[Graph, Graph]:
    """Twice the captured matrix, or the constant two less it."""
    made: list[Graph] = []
    for name, op in (("then", Mul()), ("else", Sub())):
        region = Graph(name)
        value = region.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
        two = region.add_constant(np.asarray(2, np.float32), "two")
        region.outputs = [region.add(op, two, value, name=f"{name}_result").output]
        made.append(region)
    return made[0], made[1]

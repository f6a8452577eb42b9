"""If: one of two regions, selected by a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Graph, Op, symbol_of
from smelt.ops._region import infer_region, require_condition, run_region, truth
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.ops.arithmetic import Mul, Sub
from smelt.types import DType, SymbolicDim, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class If(Op):
    """The results of ``then_branch`` if the condition is true, otherwise those of ``else_branch``.

    The inputs are the condition, then the captures, which are the inputs of both branches in the
    same order. If the results of the branches differ in an extent and the condition is not
    constant, the extent is the symbol ``{count_symbol}_{result}_{axis}``, which a run determines;
    the graph declares its upper bound.

    Shapes: (condition of one element, captures…) -> the branches' results.

    Dtypes: the condition is bool; captures and results have any type.

    Raises ShapeError: when the captures do not match the branches, the results of the branches
    differ in number, type or rank, or an extent differs and ``count_symbol`` is empty.

    Source: ONNX If-21, with explicit captures.
    """

    name: ClassVar[str] = "if"

    then_branch: Graph
    """Region that runs if the condition is true."""
    else_branch: Graph
    """Region that runs if the condition is false."""
    count_symbol: str = ""
    """Start of the names of the symbols of extents in which the branches differ."""

    @property
    @override
    def regions(self) -> tuple[Graph, ...]:
        return (self.then_branch, self.else_branch)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return self.infer_results(inputs)[0]

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return self.infer_results(inputs)[1]

    @override
    def infer_results(
        self, inputs: Sequence[Operand | None], /
    ) -> tuple[tuple[ValueType, ...], tuple[Dim, ...] | None]:
        condition = require_condition(operand_at(inputs, 0), self.name)
        results = [infer_region(self.name, region, inputs[1:]) for region in self.regions]
        if len(results[0]) != len(results[1]):
            counts = " and ".join(str(len(r)) for r in results)
            raise ShapeError(f"the branches of if have different numbers of results: {counts}")
        if condition is not None:
            selected = results[0 if condition else 1]
            return tuple(o.type for o in selected), selected[0].dims if selected else None
        pairs = list(zip(*results, strict=True))
        types = tuple(self._merge(i, a.type, b.type) for i, (a, b) in enumerate(pairs))
        same = bool(pairs) and pairs[0][0].dims == pairs[0][1].dims
        return types, pairs[0][0].dims if same else None

    def _merge(self, index: int, a: ValueType, b: ValueType) -> ValueType:
        """Return the common type of a result; extents that differ become symbols."""
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
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return self.reference_within({}, *inputs)

    @override
    def reference_within(
        self, most: Mapping[str, int], /, *inputs: Array | None
    ) -> tuple[Array, ...]:
        region = self.then_branch if truth(present(inputs, 0)) else self.else_branch
        return tuple(run_region(region, inputs[1:], self._inner_bounds(region, most)))

    def _inner_bounds(self, region: Graph, most: Mapping[str, int]) -> Mapping[str, int]:
        """Return the upper bounds of a branch's symbols, including those of the results."""
        inside = dict(most)
        for index, value in enumerate(region.outputs):
            for axis, extent in enumerate(value.tensor.shape):
                outer_name, inner_name = f"{self.count_symbol}_{index}_{axis}", symbol_of(extent)
                if outer_name in most and inner_name is not None:
                    inside[inner_name] = most[outer_name]
        return inside

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
    """Return regions that compute ``2 * x`` and ``2 - x`` for the captured matrix."""
    regions: list[Graph] = []
    for name, op in (("then", Mul()), ("else", Sub())):
        region = Graph(name)
        value = region.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
        two = region.add_constant(np.asarray(2, np.float32), "two")
        region.outputs = [region.add(op, two, value, name=f"{name}_result").output]
        regions.append(region)
    return regions[0], regions[1]

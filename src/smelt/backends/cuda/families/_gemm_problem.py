"""Matrix products, batched or not, with operands of any strides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis, broadcast_strides, coalesce_axes
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._product_specs import ImplicitGemmKernel
from smelt.backends.cuda._tile_configs import GemmShape
from smelt.backends.cuda.families._product_launches import GemmIterationSpace
from smelt.backends.cuda.families._product_operands import (
    as_factor,
    columns_first,
    factor_type,
    format_of_factor,
)
from smelt.backends.cuda.families._product_problem import ProductLowering, ProductProblem
from smelt.ops import Gemm
from smelt.types import Layout, TensorFormat, element_count, guessed_extent, override

if TYPE_CHECKING:
    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._product_problem import Formats
    from smelt.engine import View
    from smelt.ir import Constant, Node, Value
    from smelt.types import Dim


_MatrixAxes = tuple["int | None", "int | None"]
"""Axes of the rows and the columns of an operand; None for the one that a vector lacks."""


class GemmProblem(ProductProblem):
    """A Gemm or MatMul; the addend of a Gemm is its bias."""

    layout: ClassVar[Layout] = Layout.LINEAR

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        root = root_of(node)[0]
        self.gemm = root if isinstance(root, Gemm) else None
        trans_a, self.trans_b = (root.trans_a, root.trans_b) if isinstance(root, Gemm) else (0, 0)
        x, y = required_input(node, 0), required_input(node, 1)
        self.a_axes = _matrix_axes(x, trans_a, vector_axes=(None, 0))
        self.b_axes = _matrix_axes(y, self.trans_b, vector_axes=(0, None))
        self.rows, self.depth = (_extent(x, axis) for axis in self.a_axes)
        self.columns = _extent(y, self.b_axes[1])
        self.batch_rank = max(x.tensor.rank - 2, y.tensor.rank - 2, 0)

    @override
    def unsupported_reason(self) -> str | None:
        return "the reduction depth is 0" if self.depth == 0 else None

    @property
    @override
    def matrix_reason(self) -> str | None:
        x, weights = required_input(self.node, 0).tensor, required_input(self.node, 1)
        if weights.constant is None or weights.tensor.rank != 2 or x.rank < 2:
            return "the first operand is a vector, or the second is not a constant matrix"
        return None if isinstance(self.depth, int) else "the reduction depth is symbolic"

    @property
    @override
    def formats(self) -> Formats:
        operands = [None if v is None else format_of_factor(v) for v in self.node.inputs]
        if required_input(self.node, 1).constant is not None:
            operands[1] = None
        result = TensorFormat(self.node.output.tensor.dtype, self.layout)
        return (*operands[: self.root_inputs], *self.epilogue.formats), result

    @override
    def shape(self, target: CudaTarget) -> GemmShape:
        return GemmShape(
            guessed_extent(element_count(self.node.output.tensor.shape[: self.batch_rank])),
            guessed_extent(self.rows),
            guessed_extent(self.columns),
            guessed_extent(self.depth),
            target.operand_dtype(self.dtype),
            adds=len(self.node.inputs) > 3,
        )

    @override
    def pack(self, tactic: Tactic) -> tuple[Constant, ...]:
        """Return a constant second operand with the elements of each column contiguous."""
        weights = required_input(self.node, 1).constant
        if weights is None:
            return ()
        weights = columns_first(weights, is_transposed=bool(self.trans_b))
        return (as_factor(weights, factor_type(tactic), tactic),)

    @override
    def bias_strides(self, view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return broadcast_strides(view, shape)


def _matrix_axes(value: Value, is_transposed: int, vector_axes: _MatrixAxes) -> _MatrixAxes:
    """Return an operand's axes of rows and columns; ``vector_axes`` if it is a vector."""
    rank = value.tensor.rank
    if rank == 1:
        return vector_axes
    return (rank - 1, rank - 2) if is_transposed else (rank - 2, rank - 1)


def _extent(value: Value, axis: int | None) -> Dim:
    """Return the extent of an axis; 1 without one."""
    return 1 if axis is None else value.tensor.shape[axis]


def _stride(view: View, axis: int | None) -> Dim:
    """Return the stride along an axis; 0 without one."""
    return 0 if axis is None else view.strides[axis]


def _batch_strides(view: View, batch_rank: int) -> tuple[Dim, ...]:
    """Return the strides along the batch axes of the result; 0 where the operand is broadcast."""
    batch = replace(view, shape=view.shape[:-2], strides=view.strides[:-2], halo=())
    return broadcast_strides(batch, (1,) * batch_rank)


class GemmLowering(ProductLowering):
    """Lowering of a matrix product; batch axes are rows if all rows have the same factor."""

    def __init__(self, problem: GemmProblem, tactic: Tactic, operands: Operands) -> None:
        super().__init__(problem, tactic, operands)
        self.problem = problem
        rank, row_axis = problem.batch_rank, problem.a_axes[0]
        factors = zip(*(_batch_strides(v, rank) for v in (self.x, self.weights)), strict=True)
        batch_axes = [
            Axis(self.out.shape[axis], (*strides, *self.strides(axis)))
            for axis, strides in enumerate(factors)
        ]
        row_strides = self.strides(None if row_axis is None else rank)
        row = Axis(problem.rows, (_stride(self.x, row_axis), 0, *row_strides))
        is_one_matrix = all(axis.strides[1] == 0 for axis in batch_axes)
        self.rows = coalesce_axes([*batch_axes, row]) if is_one_matrix else [row]
        matrices = [] if is_one_matrix else batch_axes
        self.matrices = coalesce_axes([axis for axis in matrices if axis.extent != 1])

    def _second_strides(self) -> tuple[Dim, Dim]:
        """Return the strides of the second operand between columns and within a column."""
        y = self.weights
        if not self.is_packed:
            row, column = self.problem.b_axes
            return _stride(y, column), _stride(y, row)
        return (y.strides[-2] if len(y.shape) > 1 else 0), 1

    @override
    def kernel(self) -> ImplicitGemmKernel:
        problem, json, gemm = self.problem, self.scalars.json, self.problem.gemm
        strides = _stride(self.x, problem.a_axes[1]), self._second_strides()[1]
        return ImplicitGemmKernel(
            stack=tuple(self.scalars.all_json((m.extent, *m.strides)) for m in self.matrices),
            run=json(problem.depth),
            inner_k_strides=(json(strides[0]), json(strides[1])),
            bias_scale=1.0 if gemm is None else gemm.beta,
            alpha=1.0 if gemm is None else gemm.alpha,
            clamps_edges=strides == (1, 1),
            constants=self.constants,
            prefetches_weights=self.is_packed,
            **problem.epilogue_fields(),
            **self.options,
        )

    @override
    def iteration_space(self) -> GemmIterationSpace:
        last = None if self.problem.b_axes[1] is None else len(self.out.shape) - 1
        strides = (0, self._second_strides()[0], *self.strides(last))
        columns = Axis(self.problem.columns, strides)
        count = element_count(tuple(axis.extent for axis in self.matrices))
        return GemmIterationSpace(tuple(self.rows), (-1,) * len(self.rows), columns, count)

"""Matrix products, batched or not, with operands of any strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis, broadcast_strides, coalesce_axes
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import guessed_extent
from smelt.backends.cuda._product_kernels import ImplicitGemmKernel
from smelt.backends.cuda._product_schedules import GemmShape
from smelt.backends.cuda.families._gemm_launches import GemmIterationSpace
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, format_of_factor
from smelt.backends.cuda.families._product_problem import ProductLowering, ProductProblem
from smelt.ir import Constant
from smelt.ops import Gemm, Transpose
from smelt.types import Layout, TensorFormat, element_count, override

if TYPE_CHECKING:
    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._product_problem import Formats
    from smelt.engine import View
    from smelt.ir import Node, Value
    from smelt.types import Dim


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An operand: its batch axes, and its axes of rows and columns."""

    batch_shape: tuple[Dim, ...]
    row: int | None
    column: int | None
    is_transposed: bool = False

    @staticmethod
    def of(value: Value, *, transposed: bool, vector_is_column: bool) -> _Matrix:
        """Return the axes of an operand."""
        rank = value.tensor.rank
        if rank == 1:
            return _Matrix((), 0, None) if vector_is_column else _Matrix((), None, 0)
        row, column = (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)
        return _Matrix(value.tensor.shape[:-2], row, column, transposed)

    def stride(self, view: View, axis: int | None) -> Dim:
        """Return the stride along an axis; 0 without one."""
        return 0 if axis is None else view.strides[axis]

    def batch_stride(self, view: View, axis: int) -> Dim:
        """Return the stride along a batch axis, counted from the last; 0 if broadcast."""
        if -axis > len(self.batch_shape) or self.batch_shape[axis] == 1:
            return 0
        return view.strides[: len(self.batch_shape)][axis]


class GemmProblem(ProductProblem):
    """A Gemm or MatMul; the addend of a Gemm is its bias."""

    layout: ClassVar[Layout] = Layout.LINEAR

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        root = root_of(node)[0]
        self.gemm = root if isinstance(root, Gemm) else None
        transposed = (root.trans_a, root.trans_b) if isinstance(root, Gemm) else (0, 0)
        x, y = required_input(node, 0), required_input(node, 1)
        self.a = _Matrix.of(x, transposed=bool(transposed[0]), vector_is_column=False)
        self.b = _Matrix.of(y, transposed=bool(transposed[1]), vector_is_column=True)
        self.rows, self.depth = _extent(x, self.a.row), _extent(x, self.a.column)
        self.columns = _extent(y, self.b.column)
        self.batch_rank = max(len(self.a.batch_shape), len(self.b.batch_shape))

    @override
    def unsupported_reason(self) -> str | None:
        return "the operands have no elements" if self.depth == 0 else None

    @property
    @override
    def matrix_reason(self) -> str | None:
        x, weights = required_input(self.node, 0).tensor, required_input(self.node, 1)
        if weights.constant is None or weights.tensor.rank != 2 or x.rank < 2:
            return "the second operand is not a constant matrix"
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
        rank = weights.type.rank
        if rank > 1 and not self.b.is_transposed:
            order = (*range(rank - 2), rank - 1, rank - 2)
            name = f"{weights.name}.columns_first"
            weights = Constant.derive(name, Transpose(order), weights)
        return (as_factor(weights, factor_type(tactic), tactic),)

    @override
    def lowering(self, tactic: Tactic, operands: Operands) -> ProductLowering:
        return _GemmLowering(self, tactic, operands)

    @override
    def bias_strides(self, view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return broadcast_strides(view, shape)


def _extent(value: Value, axis: int | None) -> Dim:
    """Return the extent of an axis; 1 without one."""
    return 1 if axis is None else value.tensor.shape[axis]


class _GemmLowering(ProductLowering):
    """Lowering of a matrix product; batch axes are rows if all rows have the same factor."""

    def __init__(self, problem: GemmProblem, tactic: Tactic, operands: Operands) -> None:
        super().__init__(problem, tactic, operands)
        self.problem = problem
        batch_axes, row = self._axes()
        is_one_matrix = all(axis.strides[1] == 0 for axis in batch_axes)
        self.rows = coalesce_axes([*batch_axes, row]) if is_one_matrix else [row]
        matrices = [] if is_one_matrix else batch_axes
        self.matrices = coalesce_axes([axis for axis in matrices if axis.extent != 1])

    def _axes(self) -> tuple[list[Axis], Axis]:
        """Return the batch axes and the row axis."""
        problem, a, b = self.problem, self.problem.a, self.problem.b
        batch_axes: list[Axis] = []
        for axis in range(problem.batch_rank):
            from_last = axis - problem.batch_rank
            factors = a.batch_stride(self.x, from_last), b.batch_stride(self.weights, from_last)
            batch_axes.append(Axis(self.out.shape[axis], (*factors, *self.strides(axis))))
        row = None if a.row is None else problem.batch_rank
        return batch_axes, Axis(problem.rows, (a.stride(self.x, a.row), 0, *self.strides(row)))

    def _second_strides(self) -> tuple[Dim, Dim]:
        """Return the strides of the second operand between columns and within a column."""
        b, y = self.problem.b, self.weights
        if not self.is_packed:
            return b.stride(y, b.column), b.stride(y, b.row)
        return (y.strides[-2] if len(y.shape) > 1 else 0), 1

    @override
    def kernel(self) -> ImplicitGemmKernel:
        problem, json = self.problem, self.scalars.json
        strides = problem.a.stride(self.x, problem.a.column), self._second_strides()[1]
        gemm = problem.gemm
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
        last = None if self.problem.b.column is None else len(self.out.shape) - 1
        strides = (0, self._second_strides()[0], *self.strides(last))
        columns = Axis(self.problem.columns, strides)
        count = element_count(tuple(axis.extent for axis in self.matrices))
        return GemmIterationSpace(tuple(self.rows), (-1,) * len(self.rows), columns, count)

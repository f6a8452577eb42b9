"""Family of matrix products, batched or not, with operands of any strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis, broadcast_strides, coalesce_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import guessed_extent
from smelt.backends.cuda._implicit_gemm import ImplicitGemmKernel, write_implicit_gemm
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import (
    FLOATS,
    extra_views,
    plan_epilogue,
    planned_epilogue,
)
from smelt.backends.cuda.families._gemm_launches import (
    ACCUMULATOR_BYTES,
    GemmIterationSpace,
    launches_of,
)
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, format_of_factor
from smelt.backends.cuda.families._gemm_tiles import GemmShape, kernel_options, tiles_for
from smelt.ir import Constant
from smelt.ops import Gemm, MatMul, Transpose
from smelt.types import Layout, TensorFormat, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Launch, Step, View
    from smelt.ir import Node, Value
    from smelt.types import Dim


class GemmFamily(Family[CudaTarget]):
    """Family of products; each program computes a tile of one matrix of the batch."""

    name: ClassVar[str] = "gemm"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, count = root_of(node)
        if not isinstance(root, Gemm | MatMul):
            return
        epilogue = plan_epilogue(node, Layout.LINEAR, _addend_count(node))
        reason = _unsupported_reason(node) or (epilogue if isinstance(epilogue, str) else None)
        if reason or isinstance(epilogue, str):
            yield Refusal(self.name, str(reason))
            return
        operand_formats = [
            None if value is None else format_of_factor(value) for value in node.inputs[:count]
        ]
        if required_input(node, 1).constant is not None:
            operand_formats[1] = None
        result = TensorFormat(node.output.tensor.dtype, Layout.LINEAR)
        inputs = (*operand_formats, *epilogue.formats)
        partial_bytes = element_count(node.output.tensor.shape) * ACCUMULATOR_BYTES
        for choice, seconds in tiles_for(shape_of(node, target), target):
            yield choice.tactic(self.name, inputs, result, partial_bytes, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """Return a constant second operand with the elements of each column contiguous."""
        weights = required_input(node, 1).constant
        if weights is None:
            return ()
        rank = weights.type.rank
        if rank > 1 and not _factors(node)[1].is_transposed:
            order = (*range(rank - 2), rank - 1, rank - 2)
            name = f"{weights.name}.columns_first"
            weights = Constant.derive(name, Transpose(order), weights)
        return (as_factor(weights, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _GemmLowering(node, tactic, operands).launches()

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


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


def _factors(node: Node) -> tuple[_Matrix, _Matrix]:
    """Return the axes of both operands."""
    root = root_of(node)[0]
    transposed = (root.trans_a, root.trans_b) if isinstance(root, Gemm) else (0, 0)
    a = _Matrix.of(required_input(node, 0), transposed=bool(transposed[0]), vector_is_column=False)
    return a, _Matrix.of(
        required_input(node, 1), transposed=bool(transposed[1]), vector_is_column=True
    )


def _extent(value: Value, axis: int | None) -> Dim:
    """Return the extent of an axis; 1 without one."""
    return 1 if axis is None else value.tensor.shape[axis]


def _addend(node: Node) -> Value | None:
    """Return the C operand of a Gemm, or None."""
    root, count = root_of(node)
    return node.inputs[2] if isinstance(root, Gemm) and count > 2 else None


def _addend_count(node: Node) -> int:
    """Return the number of epilogue operands that are C: 0 or 1."""
    return int(_addend(node) is not None)


def _unsupported_reason(node: Node) -> str | None:
    """Return why the family cannot run a product, or None."""
    kind = required_input(node, 0).tensor.dtype
    if kind not in FLOATS:
        return f"supports floating-point types only, not {kind.value}"
    depth = _extent(required_input(node, 0), _factors(node)[0].column)
    return "the operands have no elements" if depth == 0 else None


def has_transposed_first_operand(node: Node) -> bool:
    """Return whether the first operand of a product is transposed."""
    return _factors(node)[0].is_transposed


def shape_of(node: Node, target: CudaTarget) -> GemmShape:
    """Return the shape of a product."""
    a, b = _factors(node)
    matrices = element_count(
        node.output.tensor.shape[: max(len(a.batch_shape), len(b.batch_shape))]
    )
    x, y = required_input(node, 0), required_input(node, 1)
    rows, columns = guessed_extent(_extent(x, a.row)), guessed_extent(_extent(y, b.column))
    depth, dtype = guessed_extent(_extent(x, a.column)), target.operand_dtype(x.tensor.dtype)
    return GemmShape(
        guessed_extent(matrices), rows, columns, depth, dtype, adds=len(node.inputs) > 3
    )


class _GemmLowering:
    """Lowering of a product onto the memory of its operands."""

    def __init__(self, node: Node, tactic: Tactic, operands: Operands) -> None:
        self.node, self.tactic = node, tactic
        self.x = input_view(operands, 0)
        self.y = operands.packed[0] if operands.packed else input_view(operands, 1)
        self.is_packed = bool(operands.packed)
        self.out = operands.outputs[0]
        self.a, self.b = _factors(node)
        self.extras = extra_views(node, operands)
        if _addend(node) is not None:
            view = input_view(operands, 2)
            self.extras.insert(0, (view, broadcast_strides(view, self.out.shape)))
        self.views = [self.x, self.y, *(view for view, _ in self.extras), self.out]
        self.workspace = operands.workspace
        self.scalars = LaunchScalars()

    def epilogue_strides(self, axis: int | None) -> tuple[Dim, ...]:
        """Return the strides of epilogue operands and result along a result axis."""
        if axis is None:
            return (0,) * (len(self.extras) + 1)
        return (*(strides[axis] for _, strides in self.extras), self.out.strides[axis])

    def second_strides(self) -> tuple[Dim, Dim]:
        """Return the strides of the second operand between columns and within a column."""
        if not self.is_packed:
            return self.b.stride(self.y, self.b.column), self.b.stride(self.y, self.b.row)
        return (self.y.strides[-2] if len(self.y.shape) > 1 else 0), 1

    def constant_extras(self) -> Iterator[bool]:
        """Return whether each epilogue operand is a weight."""
        first = 2 if _addend(self.node) is not None else root_of(self.node)[1]
        return (v.constant is not None for v in self.node.inputs[first:] if v is not None)

    def axes(self) -> tuple[list[Axis], Axis]:
        """Return the batch axes and the row axis."""
        a, b = self.a, self.b
        batch_rank = max(len(a.batch_shape), len(b.batch_shape))
        batch_axes: list[Axis] = []
        for axis in range(batch_rank):
            operand_strides = (
                _batch_stride(a, self.x, axis - batch_rank),
                _batch_stride(b, self.y, axis - batch_rank),
            )
            batch_axes.append(
                Axis(self.out.shape[axis], (*operand_strides, *self.epilogue_strides(axis)))
            )
        row = None if a.row is None else batch_rank
        rows = Axis(
            _extent(required_input(self.node, 0), a.row),
            (a.stride(self.x, a.row), 0, *self.epilogue_strides(row)),
        )
        return batch_axes, rows

    def launches(self) -> tuple[Launch, ...]:
        """Return one launch, or those of a split-K product."""
        a, b, root = self.a, self.b, root_of(self.node)[0]
        batch_axes, row = self.axes()
        rows = [row]
        if all(axis.strides[1] == 0 for axis in batch_axes):
            batch_axes, rows = [], coalesce_axes([*batch_axes, row])
        columns_stride, rows_stride = self.second_strides()
        matrices = coalesce_axes([axis for axis in batch_axes if axis.extent != 1])
        last = None if b.column is None else len(self.out.shape) - 1
        json = self.scalars.json
        kernel = ImplicitGemmKernel(
            stack=tuple(self.scalars.all_json((a.extent, *a.strides)) for a in matrices),
            rows=(),
            columns=(),
            windows=(),
            start=0,
            run=json(_extent(required_input(self.node, 0), a.column)),
            inner_k_strides=(json(a.stride(self.x, a.column)), json(rows_stride)),
            tap_stride=0,
            depth=0,
            bias=_addend(self.node) is not None,
            bias_scale=root.beta if isinstance(root, Gemm) else 1.0,
            alpha=root.alpha if isinstance(root, Gemm) else 1.0,
            stages=planned_epilogue(self.node, Layout.LINEAR, _addend_count(self.node)).stages,
            clamps_edges=a.stride(self.x, a.column) == 1 and rows_stride == 1,
            constants=(False, self.is_packed, *self.constant_extras(), False),
            **kernel_options(self.tactic, prefetches_weights=self.is_packed),
        )
        columns = Axis(
            _extent(required_input(self.node, 1), b.column),
            (0, columns_stride, *self.epilogue_strides(last)),
        )
        count = element_count(tuple(axis.extent for axis in matrices))
        iteration_space = GemmIterationSpace(tuple(rows), (-1,) * len(rows), columns, count)
        return launches_of(
            self.tactic.family, kernel, iteration_space, self.views, self.scalars, self.workspace
        )


def _batch_stride(factor: _Matrix, view: View, axis: int) -> Dim:
    """Return the stride along a batch axis, counted from the last; 0 if broadcast."""
    if -axis > len(factor.batch_shape) or factor.batch_shape[axis] == 1:
        return 0
    return view.strides[: len(factor.batch_shape)][axis]

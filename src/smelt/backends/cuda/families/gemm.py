"""Products of matrices, in stacks too, with either factor read through any strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends._axes import Axis, broadcast_strides, join_axes
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of, view_of
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._costs import guess
from smelt.backends.cuda._product import ProductKernel, write_product
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import (
    FLOATS,
    extra_views,
    plan_epilogue,
    planned_epilogue,
)
from smelt.backends.cuda.families._nodes import finished
from smelt.backends.cuda.families._tiles import Shape, tiles_for
from smelt.ops.gemm import Gemm
from smelt.ops.mat_mul import MatMul
from smelt.ops.transpose import Transpose
from smelt.types import Layout, TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Launch, Step, View
    from smelt.ir import Node, Value
    from smelt.types import Dim


class GemmFamily(Family[CudaTarget]):
    """Rows are the first factor's, columns the second's; matrices of a stack are programs."""

    name: ClassVar[str] = "gemm"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, count = root_of(node)
        if not isinstance(root, Gemm | MatMul):
            return
        epilogue = plan_epilogue(node, Layout.LINEAR, _addend_count(node))
        reason = _why_not(node) or (epilogue if isinstance(epilogue, str) else None)
        if reason or isinstance(epilogue, str):
            yield Refusal(self.name, str(reason))
            return
        own = tuple(_format(value) for value in node.inputs[:count])
        result = TensorFormat(node.output.tensor.dtype, Layout.LINEAR)
        for options, seconds in tiles_for(_shape(node), target):
            inputs = (*own, *epilogue.formats)
            yield Tactic(self.name, options, inputs, (result,), cost_hint=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_Lowering(node, tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_product(kernel)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A factor: the axes of its stack, and which axis is the rows' and the columns'."""

    stack: tuple[Dim, ...]
    row: int | None
    column: int | None

    @staticmethod
    def of(value: Value, *, transposed: bool, vector_is_column: bool) -> _Matrix:
        rank = value.tensor.rank
        if rank == 1:
            return _Matrix((), 0, None) if vector_is_column else _Matrix((), None, 0)
        row, column = (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)
        return _Matrix(value.tensor.shape[:-2], row, column)

    def stride(self, view: View, axis: int | None) -> Dim:
        return 0 if axis is None else view.strides[axis]


def _factors(node: Node) -> tuple[_Matrix, _Matrix]:
    root = root_of(node)[0]
    turned = (root.trans_a, root.trans_b) if isinstance(root, Gemm) else (0, 0)
    a = _Matrix.of(value_of(node, 0), transposed=bool(turned[0]), vector_is_column=False)
    return a, _Matrix.of(value_of(node, 1), transposed=bool(turned[1]), vector_is_column=True)


def _extent(value: Value, axis: int | None) -> Dim:
    return 1 if axis is None else value.tensor.shape[axis]


def _addend(node: Node) -> Value | None:
    root, count = root_of(node)
    return node.inputs[2] if isinstance(root, Gemm) and count > 2 else None


def _addend_count(node: Node) -> int:
    return int(_addend(node) is not None)


def _why_not(node: Node) -> str | None:
    kind = value_of(node, 0).tensor.dtype
    if kind not in FLOATS:
        return f"computes in floating point, not {kind.value}"
    depth = _extent(value_of(node, 0), _factors(node)[0].column)
    return "the factors are empty" if depth == 0 else None


def _format(value: Value | None) -> TensorFormat | None:
    """Factors are read through any strides; only transposes make such windows."""
    if value is None:
        return None
    made = value.producer
    turned = made is not None and isinstance(made.op, Transpose)
    layout = Layout.STRIDED if turned and value.constant is None else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, layout)


def _shape(node: Node) -> Shape:
    a, b = _factors(node)
    stack = element_count(node.output.tensor.shape[: max(len(a.stack), len(b.stack))])
    x, y = value_of(node, 0), value_of(node, 1)
    rows, columns = guess(_extent(x, a.row)), guess(_extent(y, b.column))
    return Shape(guess(stack), rows, columns, guess(_extent(x, a.column)), x.tensor.dtype)


class _Lowering:
    """One launch on the memory of its operands."""

    def __init__(self, node: Node, tactic: Tactic, operands: Operands) -> None:
        self.node, self.tactic = node, tactic
        self.x, self.y = view_of(operands, 0), view_of(operands, 1)
        self.out = operands.outputs[0]
        self.a, self.b = _factors(node)
        self.extras = extra_views(node, operands)
        if _addend(node) is not None:
            view = view_of(operands, 2)
            self.extras.insert(0, (view, broadcast_strides(view, self.out.shape)))
        self.views = [self.x, self.y, *(view for view, _ in self.extras), self.out]
        self.scalars = Scalars()

    def along(self, axis: int | None) -> tuple[Dim, ...]:
        """Strides of the extra operands and the result along an axis of the result."""
        if axis is None:
            return (0,) * (len(self.extras) + 1)
        return (*(strides[axis] for _, strides in self.extras), self.out.strides[axis])

    def axes(self) -> tuple[list[Axis], Axis]:
        """The stack, and the rows; where the second factor is one, all of it is rows."""
        a, b = self.a, self.b
        depth = max(len(a.stack), len(b.stack))
        stack: list[Axis] = []
        for axis in range(depth):
            own = (_stack_stride(a, self.x, axis - depth), _stack_stride(b, self.y, axis - depth))
            stack.append(Axis(self.out.shape[axis], (*own, *self.along(axis))))
        row = None if a.row is None else depth
        rows = Axis(
            _extent(value_of(self.node, 0), a.row),
            (a.stride(self.x, a.row), 0, *self.along(row)),
        )
        return stack, rows

    def launch(self) -> Launch:
        options: dict[str, Any] = dict(self.tactic.parameters)
        bm, bn, _ = tile = options["tile"]
        a, b, root = self.a, self.b, root_of(self.node)[0]
        stack, row = self.axes()
        rows = [row]
        if all(axis.strides[1] == 0 for axis in stack):
            stack, rows = [], join_axes([*stack, row])
        matrices = join_axes([axis for axis in stack if axis.extent != 1])
        columns = _extent(value_of(self.node, 1), b.column)
        last = None if b.column is None else len(self.out.shape) - 1
        json = self.scalars.all_json
        kernel = ProductKernel(
            operands=(),
            stack=tuple(json((axis.extent, *axis.strides)) for axis in matrices),
            rows=tuple((*json((axis.extent, *axis.strides)), -1) for axis in rows),
            columns=json((columns, 0, b.stride(self.y, b.column), *self.along(last))),
            windows=(),
            start=0,
            run=self.scalars.json(_extent(value_of(self.node, 0), a.column)),
            run_strides=(
                self.scalars.json(a.stride(self.x, a.column)),
                self.scalars.json(b.stride(self.y, b.row)),
            ),
            tap_stride=0,
            tile=tile,
            bias=_addend(self.node) is not None,
            bias_scale=root.beta if isinstance(root, Gemm) else 1.0,
            alpha=root.alpha if isinstance(root, Gemm) else 1.0,
            stages=planned_epilogue(self.node, Layout.LINEAR, _addend_count(self.node)).stages,
            precision="ieee",
            warps=options["warps"],
            pipeline=options["pipeline"],
        )
        places = element_count(tuple(axis.extent for axis in rows))
        count = element_count(tuple(axis.extent for axis in matrices))
        chunks = count * ceil_div(columns, bn) * ceil_div(places, bm)
        return finished(kernel, GemmFamily.name, self.views, self.scalars, chunks)


def _stack_stride(factor: _Matrix, view: View, axis: int) -> Dim:
    """Along an axis of the result's stack, counted from its end; 0 where the factor repeats."""
    if -axis > len(factor.stack) or factor.stack[axis] == 1:
        return 0
    return view.strides[: len(factor.stack)][axis]

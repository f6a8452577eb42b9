"""Matrix products: Gemm, and MatMul of stacks of matrices.

A constant second factor is packed into panels when the engine is built. Any other is packed into
the workspace by a launch before the product. Transposed factors differ only in their strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic, root_of
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._node_operands import input_view, required_input, workspace_of
from smelt.backends._storage import packed_strides
from smelt.backends.cpu._epilogue import plan_epilogue
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._refusals import check_float_values
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import WORD_BYTES
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._operand_packing import (
    LINEAR,
    constant_of,
    dot_product_of,
    epilogue_formats,
    epilogue_operand_strides,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    reduced_precision_products,
    reshape,
    result_shape,
    transpose,
)
from smelt.backends.cpu.families._runtime_packing import write_packing
from smelt.backends.cpu.families._tiling import TilingProblem, ranked_tilings, static_extent
from smelt.engine import KernelSpec, Launch, Parameters, Step, View
from smelt.ops import Gemm, MatMul, Transpose
from smelt.types import Dim, DType, Layout, Shape, TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from smelt.ir import Constant, Node, Op, Value

STRIDED: Final = TensorFormat(DType.FLOAT32, Layout.STRIDED)
"""float32 with any strides, such as a transposed view."""


@dataclass(frozen=True, slots=True)
class _MatrixOperand:
    """Factor of a product as a stack of matrices, with the axes of its rows and columns."""

    stack: Shape
    rows: Dim
    columns: Dim
    row_axis: int | None
    """Axis of the tensor that holds the rows; None if the matrix is a row vector."""
    column_axis: int | None
    """Axis of the tensor that holds the columns; None if the matrix is a column vector."""

    def stride(self, view: View, axis: int | None) -> Dim:
        """Return the stride along an axis; 0 for an axis that the tensor does not have."""
        return 0 if axis is None else view.strides[axis]


def _factor(value: Value, *, transposed: bool, vector_is_column: bool) -> _MatrixOperand:
    """Return a tensor as a factor; a vector is a column if ``vector_is_column``, else a row."""
    shape = value.tensor.shape
    if len(shape) == 1:
        return (
            _MatrixOperand((), shape[0], 1, 0, None)
            if vector_is_column
            else _MatrixOperand((), 1, shape[0], None, 0)
        )
    row, column = len(shape) - 2, len(shape) - 1
    if transposed:
        row, column = column, row
    return _MatrixOperand(shape[:-2], shape[row], shape[column], row, column)


class GemmFamily(Family[CpuTarget]):
    """Matrix products over packed panels of the second factor."""

    name: ClassVar[str] = "gemm"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, count = root_of(node)
        if not isinstance(root, Gemm | MatMul):
            return
        _check(node)
        extra_formats = epilogue_formats(node, _channel_axis(node))
        if extra_formats and _right(node).column_axis is None:
            raise NodeRefusedError("a matrix-vector product with an epilogue is not supported")
        root_formats = [_read_format(node, index) for index in range(count)]
        for options, seconds in _candidates(node, target):
            for result in _result_formats(node):
                formats = (*root_formats, *extra_formats)
                tactic = Tactic(self.name, options, formats, (result,), estimated_seconds=seconds)
                yield replace(tactic, workspace_bytes=_workspace_bytes(node, tactic))

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        tactics = reduced_precision_products(node, tactic, dtype, target)
        return tuple(replace(t, workspace_bytes=_workspace_bytes(node, t)) for t in tactics)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        options = tactic.options
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        root = root_of(node)[0]
        packed: tuple[Constant, ...] = ()
        b = required_input(node, 1)
        if _is_packed(node):
            permuted = isinstance(root, Gemm) and root.trans_b
            if b.tensor.rank == 1:
                source = reshape(constant_of(b), 1, -1)
            else:
                source = constant_of(b) if permuted else transpose(constant_of(b), 1, 0)
            packed = pack_panels(source, 1, lanes, vectors, dot_product_of(tactic))
        addend = _addend(node)
        if addend is not None and addend.constant is not None:
            bias = pack_bias(addend.constant, 1, lanes) if _is_bias(node) else addend.constant
            packed += (bias,)
        return packed + pack_epilogue_constants(node, _channel_axis(node))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _Lowering(node, tactic, operands).steps()

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return write_microkernel(kernel) if kernel["kernel"] == "panels" else write_packing(kernel)


# ---- the node


def _check(node: Node) -> None:
    """Check that the family supports a product."""
    check_float_values(*node.inputs[: root_of(node)[1]], node.output)
    b = _right(node)
    if b.columns == 0 or b.rows == 0:
        raise NodeRefusedError("a matrix is empty")


def _channel_axis(node: Node) -> int:
    """Return the axis of the result's columns; -1 for the product of two vectors."""
    return len(result_shape(node)) - 1


def _left(node: Node) -> _MatrixOperand:
    """Return the first factor as a stack of matrices."""
    root, a = root_of(node)[0], required_input(node, 0)
    return _factor(a, transposed=_flag(root, "trans_a"), vector_is_column=False)


def _right(node: Node) -> _MatrixOperand:
    """Return the second factor as a stack of matrices."""
    root = root_of(node)[0]
    return _factor(
        required_input(node, 1), transposed=_flag(root, "trans_b"), vector_is_column=True
    )


def _flag(root: Op, name: str) -> bool:
    """Return an attribute of Gemm as a boolean; False for MatMul."""
    return isinstance(root, Gemm) and bool(getattr(root, name))


def _is_packed(node: Node) -> bool:
    """Return whether the second factor is one constant matrix, packed at build time."""
    b = required_input(node, 1)
    return b.constant is not None and b.tensor.rank <= 2


def _addend(node: Node) -> Value | None:
    """Return the addend C of Gemm, or None if there is none."""
    root, count = root_of(node)
    return node.inputs[2] if isinstance(root, Gemm) and count > 2 else None


def _is_bias(node: Node) -> bool:
    """Return whether the sums can start from the addend: a constant row without scaling."""
    root, addend = root_of(node)[0], _addend(node)
    if addend is None or addend.constant is None or not isinstance(root, Gemm):
        return False
    shape, is_unscaled = addend.tensor.shape, root.alpha == root.beta == 1.0
    columns = _right(node).columns
    return is_unscaled and shape[-1:] == (columns,) and element_count(shape) == columns


def _is_read(node: Node, index: int) -> bool:
    """Return whether the kernel reads an input from its own memory, not from a packed constant."""
    value = node.inputs[index]
    if value is None:
        return False
    if index == 1:
        return not _is_packed(node)
    return not (index == 2 and value.constant is not None)


def _read_format(node: Node, index: int) -> TensorFormat | None:
    """Return the format in which an input is read; None if it is packed or absent.

    The kernel reads factors with any strides, so a factor that a transpose produces needs no copy.
    """
    if not _is_read(node, index):
        return None
    value = node.inputs[index]
    producer = None if value is None else value.producer
    return STRIDED if index < 2 and producer and isinstance(producer.op, Transpose) else LINEAR


def _result_formats(node: Node) -> tuple[TensorFormat, ...]:
    """Return the formats in which the result may be written.

    If the only user is a transpose, the result may be written with the strides that it wants.
    """
    users = node.output.users
    permuted = len(users) == 1 and isinstance(users[0].op, Transpose)
    return (LINEAR, STRIDED) if permuted and isinstance(root_of(node)[0], MatMul) else (LINEAR,)


def _constants_after_panels(node: Node) -> int:
    """Return the number of packed constants after the panels of weights."""
    addend = _addend(node)
    addend_count = int(addend is not None and addend.constant is not None)
    return addend_count + len(pack_epilogue_constants(node, _channel_axis(node)))


def _workspace_bytes(node: Node, tactic: Tactic) -> Dim:
    """Return the workspace in bytes for a second factor that is packed at run time."""
    if _is_packed(node):
        return 0
    b, options = _right(node), tactic.options
    width = options.integer("lanes") * options.integer("vectors")
    padded = ceil_div(b.columns, width) * width
    return element_count(b.stack) * padded * dot_product_of(tactic).words(b.rows) * WORD_BYTES


def _problem(node: Node) -> TilingProblem:
    """Return the extents that determine the choice of tiles.

    Unknown columns and depths count as 128.
    """
    a, b = _left(node), _right(node)
    stack = element_count(result_shape(node)[: max(len(a.stack), len(b.stack))])
    rows, images = static_extent(a.rows), static_extent(stack)
    if not b.stack and rows is not None and images is not None:
        rows, images = rows * images, 1
    elif not b.stack and rows == 1:
        rows, images = None, 1
    columns, depth = static_extent(b.columns), static_extent(b.rows)
    return TilingProblem(images, 1, 1, rows, columns or 128, depth or 128)


def _candidates(node: Node, target: CpuTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the options and estimated seconds of the five best tilings and splits."""
    lanes, problem = target.vector_bits // 32, _problem(node)
    a_bytes = problem.pixels * problem.depth * WORD_BYTES
    for tiling in ranked_tilings(problem, a_bytes, target, 5):
        yield tiling.options(lanes), tiling.seconds


# ---- lowering


@dataclass(slots=True)
class _Lowering:
    """Lowers one node to launches."""

    node: Node
    tactic: Tactic
    operands: Operands

    def steps(self) -> tuple[Step, ...]:
        """Return the launches: packing of a non-constant second factor, then the product."""
        node, packed = self.node, list(self.operands.packed)
        steps: list[Step] = []
        if _is_packed(node):
            count = len(packed) - _constants_after_panels(node)
            panels, packed = packed[:count], packed[count:]
        else:
            panels = [workspace_of(node, self.operands)]
            steps.append(self.pack_launch(panels[0]))
        bias = [packed.pop(0)] if _is_bias(node) else []
        product, extras = self.product(packed, has_bias=bool(bias))
        a, out = input_view(self.operands, 0), self.operands.outputs[0]
        views = (a, *panels, *bias, *extras, out)
        steps.append(product.launch(GemmFamily.name, self.tactic.parameters, views))
        return tuple(steps)

    def product(self, packed: list[View], *, has_bias: bool) -> tuple[ImplicitGemm, list[View]]:
        """Return the product, and the views of its extra operands."""
        node, root = self.node, root_of(self.node)[0]
        a, b = _left(node), _right(node)
        x, shape = input_view(self.operands, 0), result_shape(node)
        depth = max(len(a.stack), len(b.stack))
        epilogue = plan_epilogue(node)
        addend = _addend(node)
        constant_addend = (
            packed.pop(0) if addend is not None and addend.constant and not has_bias else None
        )
        extras = epilogue_operand_strides(node, self.operands, packed, _channel_axis(node))
        operand_strides = [self.walk(strides, depth) for _, strides in extras]
        views = [view for view, _ in extras]
        if addend is not None and not has_bias and isinstance(root, Gemm):
            view_of_addend = constant_addend or input_view(self.operands, 2)
            strides = broadcast_strides(view_of_addend, shape)
            operand_strides.append(self.walk(strides, depth))
            views.append(view_of_addend)
            epilogue = epilogue.after("add_scaled", len(operand_strides) - 1, beta=root.beta)
        return ImplicitGemm(
            images=shape[:depth],
            width=a.rows,
            filters=b.columns,
            taps=(1, 1, b.rows),
            a=GemmStrides(_stack_strides(a, x.strides, depth), 0, 0, a.stride(x, a.row_axis)),
            a_taps=(0, 0, a.stride(x, a.column_axis)),
            b_images=_stack_strides(b, packed_strides(b.stack, Layout.LINEAR)[0], depth),
            out=replace(self.walk(self.operands.outputs[0].strides, depth), channel=1),
            extras=tuple(operand_strides),
            epilogue=epilogue,
            has_bias=has_bias,
            alpha=root.alpha if isinstance(root, Gemm) else 1.0,
            has_uniform_panels=not _is_packed(node),
        ), views

    def walk(self, strides: tuple[Dim, ...], depth: int) -> GemmStrides:
        """Return strides along the result's axes as strides along stack, row and column."""
        has_rows = _left(self.node).row_axis is not None
        has_columns = _right(self.node).column_axis is not None
        row = strides[depth] if has_rows else 0
        channel = strides[-1] if has_columns else 0
        return GemmStrides(strides[:depth], 0, 0, row, channel)

    def pack_launch(self, workspace: View) -> Launch:
        """Return the launch that packs the second factor into the workspace."""
        b, view = _right(self.node), input_view(self.operands, 1)
        options, scalars = self.tactic.options, LaunchScalars()
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        panels = ceil_div(b.columns, lanes * vectors)
        spec = kernel_spec(
            GemmFamily.name,
            kernel="pack",
            dot_product=dot_product_of(self.tactic).name,
            dtype=view.dtype.value,
            lanes=lanes,
            vectors=vectors,
            stack=scalars.all_json(b.stack),
            strides=scalars.all_json(view.strides[: len(b.stack)]),
            columns=scalars.json(b.columns),
            rows=scalars.json(b.rows),
            panels=scalars.json(panels),
            column_stride=scalars.json(b.stride(view, b.column_axis)),
            row_stride=scalars.json(b.stride(view, b.row_axis)),
        )
        chunks = element_count(b.stack) * panels
        return Launch(spec, (view, workspace), (1,), scalars.values, chunks)


def _stack_strides(factor: _MatrixOperand, strides: tuple[Dim, ...], depth: int) -> tuple[Dim, ...]:
    """Return a factor's strides along the result's stack; 0 where it broadcasts."""
    own_strides = tuple(
        0 if extent == 1 else stride for extent, stride in zip(factor.stack, strides, strict=False)
    )
    return (0,) * (depth - len(own_strides)) + own_strides

"""Convolution of any rank and grouping, summed over taps without unfolding."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, cast

from smelt.backends._axes import Axis, join_axes
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
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops.conv import Conv
from smelt.ops.transpose import Transpose
from smelt.types import Layout, TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Launch, Step, View
    from smelt.ir import Node, Value
    from smelt.types import Dim


class ConvFamily(Family[CudaTarget]):
    """Implicit products: rows are pixels, columns filters, sums run over taps and channels."""

    name: ClassVar[str] = "conv"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, count = root_of(node)
        if not isinstance(root, Conv):
            return
        epilogue = plan_epilogue(node, Layout.CHANNELS_LAST, _bias_count(node))
        reason = _why_not(node) or (epilogue if isinstance(epilogue, str) else None)
        if reason or isinstance(epilogue, str):
            yield Refusal(self.name, str(reason))
            return
        kind = value_of(node, 0).tensor.dtype
        image = TensorFormat(kind, Layout.CHANNELS_LAST)
        bias = [TensorFormat(kind, Layout.LINEAR) if _bias(node) else None][: count - 2]
        for options, seconds in tiles_for(_shape(node, root), target):
            inputs = (image, None, *bias, *epilogue.formats)
            yield Tactic(self.name, options, inputs, (image,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = value_of(node, 1).constant
        if weights is None:
            raise InternalError(f"{node} has tactics, but its weights are not constant")
        rank = weights.type.rank
        order = (0, *range(2, rank), 1)
        return (Constant.derive(f"{weights.name}.taps_first", Transpose(order), weights),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = cast("Conv", root_of(node)[0])
        return (_Lowering(node, root, tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_product(kernel)


def _bias(node: Node) -> Value | None:
    return node.inputs[2] if root_of(node)[1] > 2 else None


def _bias_count(node: Node) -> int:
    return int(_bias(node) is not None)


def _why_not(node: Node) -> str | None:
    kind, weights = value_of(node, 0).tensor.dtype, value_of(node, 1)
    if kind not in FLOATS:
        return f"computes in floating point, not {kind.value}"
    if weights.constant is None:
        return f"the weights {weights.name} are not constant"
    if weights.tensor.shape[0] == 0:
        return "there are no filters"
    return None


def _shape(node: Node, root: Conv) -> Shape:
    filters, *rest = (cast("int", e) for e in value_of(node, 1).tensor.shape)
    rows = prod(guess(e) for axis, e in enumerate(node.output.tensor.shape) if axis != 1)
    columns = filters // root.group
    return Shape(root.group, rows, columns, prod(rest), value_of(node, 0).tensor.dtype)


class _Lowering:
    """One launch on the memory of its operands."""

    def __init__(self, node: Node, root: Conv, tactic: Tactic, operands: Operands) -> None:
        x, out = view_of(operands, 0), operands.outputs[0]
        self.node, self.root, self.tactic = node, root, tactic
        self.x, self.out = x, out
        extras = extra_views(node, operands)
        if _bias(node) is not None:
            view = view_of(operands, 2)
            strides = tuple(view.strides[0] if axis == 1 else 0 for axis in range(len(out.shape)))
            extras.insert(0, (view, strides))
        self.extras = extras
        self.views: list[View] = [x, operands.packed[0], *(view for view, _ in extras), out]
        self.scalars = Scalars()

    def strides(self, axis: int) -> tuple[Dim, ...]:
        """Of the extra operands and the result, along an axis of the result."""
        return (*(strides[axis] for _, strides in self.extras), self.out.strides[axis])

    def launch(self) -> Launch:
        node, root = self.node, self.root
        options: dict[str, Any] = dict(self.tactic.parameters)
        tile = options["tile"]
        filters, depth, *window = (cast("int", e) for e in value_of(node, 1).tensor.shape)
        count = prod(window)
        columns = filters // root.group
        rows = self.rows()
        group = (
            depth * self.x.strides[1],
            columns * depth * count,
            *(columns * s for s in self.strides(1)),
        )
        epilogue = planned_epilogue(node, Layout.CHANNELS_LAST, _bias_count(node))
        kernel = ProductKernel(
            operands=(),
            stack=((root.group, *self.scalars.all_json(group)),) if root.group > 1 else (),
            rows=tuple(rows),
            columns=(columns, 0, depth * count, *self.scalars.all_json(self.strides(1))),
            windows=self.windows() if window_is_wide(root) else (),
            start=self.scalars.json(self.padding_stride()) if window_is_wide(root) else 0,
            run=depth,
            run_strides=(self.scalars.json(self.x.strides[1]), 1),
            tap_stride=depth,
            tile=tile,
            bias=_bias(node) is not None,
            bias_scale=1.0,
            alpha=1.0,
            stages=epilogue.stages,
            precision="ieee",
            warps=options["warps"],
            pipeline=options["pipeline"],
        )
        places = element_count(tuple(e for a, e in enumerate(self.out.shape) if a != 1))
        chunks = root.group * ceil_div(columns, tile[1]) * ceil_div(places, tile[0])
        return finished(kernel, ConvFamily.name, self.views, self.scalars, chunks)

    def rows(self) -> list[tuple[Any, ...]]:
        """The axes of the places; those whose windows stay inside are joined where they run on."""
        root, shape = self.root, self.out.shape
        found: list[tuple[Any, ...]] = []
        plain: list[Axis] = []

        def flush() -> None:
            found.extend(
                (*self.scalars.all_json((axis.extent, *axis.strides)), -1)
                for axis in join_axes(plain)
            )
            plain.clear()

        for axis in (0, *range(2, len(shape))):
            step = 1 if axis == 0 else root.strides[axis - 2]
            strides = (self.x.strides[axis] * step, 0, *self.strides(axis))
            if axis >= 2 and window_is_wide(root) and self.leaves_image(axis - 2):
                flush()
                found.append((*self.scalars.all_json((shape[axis], *strides)), axis - 2))
            else:
                plain.append(Axis(shape[axis], strides))
        flush()
        return found

    def leaves_image(self, axis: int) -> bool:
        """Whether a window along a spatial axis reaches outside of the image."""
        root = self.root
        reach = (root.kernel_shape[axis] - 1) * root.dilations[axis] + 1
        before, _ = root.pad_pairs[axis]
        count, extent = self.out.shape[2 + axis], self.x.shape[2 + axis]
        end = (count - 1) * root.strides[axis] + reach - before
        return before > 0 or not (isinstance(end, int) and isinstance(extent, int)) or end > extent

    def padding_stride(self) -> Dim:
        """From the input's first element back to the first tap of the first window, in elements."""
        total: Dim = 0
        for axis, (before, _) in enumerate(self.root.pad_pairs):
            total = total + self.x.strides[2 + axis] * before
        return total

    def windows(self) -> tuple[tuple[Any, ...], ...]:
        root = self.root
        return tuple(
            (
                root.kernel_shape[axis],
                self.scalars.json(self.x.strides[2 + axis] * root.dilations[axis]),
                root.strides[axis],
                root.dilations[axis],
                root.pad_pairs[axis][0],
                self.scalars.json(self.x.shape[2 + axis]),
            )
            for axis in range(len(root.kernel_shape))
        )


def window_is_wide(root: Conv) -> bool:
    """Whether a window has more than one tap, or padding makes places without any."""
    return any(k > 1 for k in root.kernel_shape) or any(root.pads)

"""Convolutions of any rank and grouping, and sums of two, as implicit GEMMs.

Rows are pixels, columns filters; reductions run over taps and channels, then over the channels of
the second image of a sum.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis, coalesce_axes
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._product_specs import ImplicitGemmKernel
from smelt.backends.cuda._tile_configs import GemmShape
from smelt.backends.cuda.families._product_launches import GemmIterationSpace
from smelt.backends.cuda.families._product_operands import (
    as_factor,
    end_in_whole,
    factor_type,
    taps_in_rows,
    variable_weights_reason,
    weights_of,
)
from smelt.backends.cuda.families._product_problem import Problem, ProductLowering, ProductProblem
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Concat, Conv, ConvSum
from smelt.types import Layout, TensorFormat, fixed_shape, override

if TYPE_CHECKING:
    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._product_problem import Formats
    from smelt.engine import View
    from smelt.ir import Node
    from smelt.types import Dim

_WRITTEN_TAPS: Final = 49
"""Maximum number of taps of a depthwise kernel, whose taps are unrolled. 49 are the taps of a 7x7
window; chosen without a measurement."""


class ImageProblem(Problem):
    """A problem whose first operand is an image, stored channels last."""

    layout: ClassVar[Layout] = Layout.CHANNELS_LAST

    @property
    @override
    def formats(self) -> Formats:
        """Formats of the inputs and the result; weights are packed."""
        image = TensorFormat(self.dtype, self.layout)
        bias = [TensorFormat(self.dtype, Layout.LINEAR) if self.bias else None]
        images = (image, None) * (self.operand_count // 2)
        present_bias = bias[: self.root_inputs - self.operand_count]
        return (*images, *present_bias, *self.epilogue.formats), image

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Shape of the weights."""
        return fixed_shape(required_input(self.node, 1).tensor.shape)

    @override
    def bias_strides(self, view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(view.strides[0] if axis == 1 else 0 for axis in range(len(shape)))

    @override
    def unsupported_reason(self) -> str | None:
        return variable_weights_reason(required_input(self.node, 1))


class ConvProblem(ImageProblem, ProductProblem):
    """A convolution, or the sum of one and a pointwise one of a second image."""

    def __init__(self, node: Node, root: Conv, second: Conv | None = None) -> None:
        super().__init__(node)
        self.root, self.second = root, second
        self.is_sum = second is not None
        self.operand_count = 4 if self.is_sum else 2
        self.supports_split_k = not self.is_sum

    @override
    def unsupported_reason(self) -> str | None:
        if self.second is not None and (reason := self._why_no_sum(self.second)):
            return reason
        if reason := super().unsupported_reason():
            return reason
        return "the convolution has no filters" if self.filter_shape[0] == 0 else None

    def _why_no_sum(self, second: Conv) -> str | None:
        """Return why no kernel adds the second convolution, or None."""
        if self.root.group > 1 or second.group > 1:
            return "grouped convolution is not supported"
        if any(second.pads) or set(second.kernel_shape) != {1}:
            return "the second convolution is not pointwise (1x1, no padding)"
        return variable_weights_reason(required_input(self.node, 3))

    @property
    def second_image_channels(self) -> int:
        """Channels of the second image; 0 without one."""
        shape = fixed_shape(required_input(self.node, 3).tensor.shape) if self.is_sum else (0, 0)
        return shape[1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has one filter of its own, with few enough taps to unroll."""
        filters, depth, *window = self.filter_shape
        return depth == 1 and filters == self.root.group > 1 and prod(window) <= _WRITTEN_TAPS

    @property
    @override
    def dense_reason(self) -> str | None:
        is_depthwise = self.reason is None and self.is_depthwise
        return (
            "depthwise convolutions are handled by the depthwise family"
            if is_depthwise
            else self.reason
        )

    @property
    @override
    def matrix_reason(self) -> str | None:
        return "grouped convolution is not supported" if self.root.group > 1 else None

    @override
    def shape(self, target: CudaTarget) -> GemmShape:
        filters, inner_k, *window = self.filter_shape
        images = [required_input(self.node, n) for n in range(0, self.operand_count, 2)]
        group = self.root.group
        return GemmShape(
            matrices=group,
            rows=count_of(self.node.output) // filters,
            columns=filters // group,
            depth=inner_k * prod(window) + self.second_image_channels,
            dtype=target.operand_dtype(self.dtype),
            # The estimates of sums were fitted without these two.
            adds=not self.is_sum and len(self.node.inputs) > 3,
            windows=not self.is_sum and prod(window) > 1,
            run=inner_k,
            image=sum(map(count_of, images)) // group,
            summed_images=len(images),
        )

    @override
    def pack(self, tactic: Tactic) -> tuple[Constant, ...]:
        """Return each filter tap by tap, followed by the second convolution's."""
        rows = taps_in_rows(weights_of(self.node))
        if self.is_sum:
            second = taps_in_rows(weights_of(self.node, 3))
            rows = Constant.derive(f"{rows.name}+{second.name}", Concat(1), rows, second)
        return (as_factor(end_in_vectors(rows), factor_type(tactic), tactic),)


def conv_problem_of(node: Node) -> ConvProblem | None:
    """Return the description of a convolution or a sum of two; None for any other op."""
    root = root_of(node)[0]
    if isinstance(root, ConvSum):
        return ConvProblem(node, root.first, root.second)
    return ConvProblem(node, root) if isinstance(root, Conv) else None


def required_conv(node: Node) -> ConvProblem:
    """Return the description of a convolution or a sum. Raises InternalError for any other op."""
    problem = conv_problem_of(node)
    if problem is None:
        raise InternalError(f"{node} is neither a convolution nor a sum of two convolutions")
    return problem


def end_in_vectors(rows: Constant) -> Constant:
    """Return rows padded with zeros to whole vectors."""
    return end_in_whole(rows, f"{rows.name}.padded", VECTOR)


def in_vectors(count: int) -> int:
    """Return a length padded to whole vectors: what follows begins at an aligned one."""
    return -(-count // VECTOR) * VECTOR


class ConvLowering(ProductLowering):
    """Lowering of a convolution; schedules override how rows and filters are numbered."""

    def __init__(
        self,
        problem: ConvProblem,
        tactic: Tactic,
        operands: Operands,
        root: Conv | None = None,
        run: int = 0,
    ) -> None:
        """Gather the operands.

        Args:
            problem: the convolution with its epilogue.
            tactic: tactic of the node.
            operands: memory of the node.
            root: convolution of the stored image, if it is another one.
            run: channels of the stored image, if more than the convolution has.
        """
        super().__init__(problem, tactic, operands)
        self.problem, self.root = problem, root or problem.root
        self.filters, channels, *_ = problem.filter_shape
        self.run = run or channels
        self.columns = self.filters // self.root.group

    @property
    def column_length(self) -> int:
        """Packed length of a filter."""
        return in_vectors(
            self.run * prod(self.root.kernel_shape) + self.problem.second_image_channels
        )

    @override
    def strides(self, axis: int | None) -> tuple[Dim, ...]:
        """Return the strides of second image, epilogue operands and result along a result axis."""
        strides = super().strides(axis)
        if axis is None or self.problem.second is None:
            return strides
        step = self.problem.second.strides[axis - 2] if axis >= 2 else 1
        return (self.images[0].strides[axis] * step if axis != 1 else 0, *strides)

    @override
    def kernel(self) -> ImplicitGemmKernel:
        group, columns = self.root.group, self.columns
        factors = (self.run * self.x.strides[1], columns * self.column_length)
        strides = (*factors, *(columns * stride for stride in self.strides(1)))
        return ImplicitGemmKernel(
            stack=((group, *self.scalars.all_json(strides)),) if group > 1 else (),
            **self.product_fields(),
            **self.window_fields(),
            **self.options,
        )

    def product_fields(self) -> dict[str, Any]:
        """Return the kernel fields of the reduction."""
        return {
            "run": self.run,
            "inner_k_strides": (self.scalars.json(self.x.strides[1]), 1),
            "tap_stride": self.run,
            "depth": self.column_length,
            "factors": 2 + len(self.images),
            "second_image_channels": self.problem.second_image_channels,
        }

    def window_fields(self) -> dict[str, Any]:
        """Return the kernel fields of the window and the epilogue."""
        is_wide = self.is_wide
        return {
            "windows": self.windows() if is_wide else (),
            "start": self.scalars.json(self.padding_stride()) if is_wide else 0,
            "clamps_edges": self.x.strides[1] == 1,
            "constants": self.constants,
            **self.problem.epilogue_fields(),
        }

    @override
    def iteration_space(self) -> GemmIterationSpace:
        columns = Axis(self.columns, (0, self.column_length, *self.strides(1)))
        return GemmIterationSpace(*self.rows(), columns, self.root.group)

    def rows(self) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
        """Return the axes of the rows, and the window axis along each, or -1.

        Axes whose windows stay inside the image are coalesced.
        """
        shape, steps = self.out.shape, (1, 1, *self.root.strides)

        def window_of(axis: int) -> int:
            return axis - 2 if axis >= 2 and self.is_wide and self.leaves_image(axis - 2) else -1

        rows: list[tuple[Axis, int]] = []
        for window, axes in groupby((0, *range(2, len(shape))), window_of):
            group = [
                Axis(shape[a], (self.x.strides[a] * steps[a], 0, *self.strides(a))) for a in axes
            ]
            rows += [(row, window) for row in coalesce_axes(group)]
        return tuple(row for row, _ in rows), tuple(window for _, window in rows)

    @property
    def is_wide(self) -> bool:
        """Whether a window has more than one tap, or there is padding."""
        return any(k > 1 for k in self.root.kernel_shape) or any(self.root.pads)

    def leaves_image(self, axis: int) -> bool:
        """Return whether windows along a spatial axis extend outside the image."""
        root = self.root
        window_span = (root.kernel_shape[axis] - 1) * root.dilations[axis] + 1
        before, _ = root.pad_pairs[axis]
        count, extent = self.out.shape[2 + axis], self.x.shape[2 + axis]
        end = (count - 1) * root.strides[axis] + window_span - before
        return before > 0 or not (isinstance(end, int) and isinstance(extent, int)) or end > extent

    def padding_stride(self) -> Dim:
        """Return the distance from the first window's first tap to the input's first element."""
        total: Dim = 0
        for axis, (before, _) in enumerate(self.root.pad_pairs):
            total = total + self.x.strides[2 + axis] * before
        return total

    def windows(self) -> tuple[tuple[Any, ...], ...]:
        """Return the axes of the window as a spec holds them."""
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

"""Family of convolutions of any rank and grouping, as implicit GEMMs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._iteration_space import Axis, coalesce_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import count_of, guessed_extent
from smelt.backends.cuda._implicit_gemm import ImplicitGemmKernel, write_implicit_gemm
from smelt.backends.cuda._kernel_source import VECTOR
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
from smelt.backends.cuda.families._gemm_operands import (
    as_factor,
    factor_type,
    taps_in_rows,
    weights_of,
)
from smelt.backends.cuda.families._gemm_tiles import GemmShape, kernel_options, tiles_for
from smelt.ir import Constant
from smelt.ops import Conv, ConvSum, Pad
from smelt.types import Layout, TensorFormat, element_count, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Launch, Step
    from smelt.ir import Node, Value
    from smelt.types import Dim


_WRITTEN_TAPS: Final = 49
"""Maximum number of taps of a depthwise kernel, whose taps are unrolled. 49 are the taps of a 7x7
window; chosen without a measurement."""


class ConvFamily(Family[CudaTarget]):
    """Family of implicit GEMMs: rows are pixels, columns filters, reductions taps and channels."""

    name: ClassVar[str] = "conv"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv):
            return
        if reason := reason_against(node):
            yield Refusal(self.name, reason)
            return
        if is_depthwise(node, root):
            yield Refusal(self.name, "depthwise: handled by the depthwise family")
            return
        inputs, output = formats_of(node)
        positions = element_count(
            tuple(e for a, e in enumerate(node.output.tensor.shape) if a != 1)
        )
        partial_bytes = positions * (required_input(node, 1).tensor.shape[0] * ACCUMULATOR_BYTES)
        for choice, seconds in tiles_for(product_shape(node, root, target), target):
            yield choice.tactic(self.name, inputs, output, partial_bytes, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return (as_factor(pack_filters(weights_of(node)), factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(Conv, node)
        return ConvLowering(node, root, tactic, operands).launches()

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


def pack_filters(weights: Constant) -> Constant:
    """Return filters in the order kernels read: tap by tap, padded with zeros to whole vectors."""
    return end_in_vectors(taps_in_rows(weights))


def end_in_vectors(rows: Constant) -> Constant:
    """Return rows padded with zeros to whole vectors."""
    _, length = fixed_shape(rows.type.shape)
    if _padded(length) == length:
        return rows
    ends = Constant(f"{rows.name}.ends", np.array([0, 0, 0, _padded(length) - length]))
    return Constant.derive(f"{rows.name}.padded", Pad(), rows, ends)


def _padded(depth: int) -> int:
    """Return the packed length of a filter: each filter begins at an aligned vector."""
    return -(-depth // VECTOR) * VECTOR


def _own_count(node: Node) -> int:
    """Return the number of image and weight inputs."""
    return 4 if isinstance(root_of(node)[0], ConvSum) else 2


def _bias(node: Node) -> Value | None:
    """Return the bias of a node, or None."""
    count = _own_count(node)
    return node.inputs[count] if root_of(node)[1] > count else None


def bias_count(node: Node) -> int:
    """Return the number of epilogue operands that are its bias: 0 or 1."""
    return int(_bias(node) is not None)


def reason_against(node: Node) -> str | None:
    """Return why no GPU kernel computes a convolution or a sum of two, or None."""
    root, _ = root_of(node)
    if isinstance(root, ConvSum) and (reason := _why_no_sum(node, root)):
        return reason
    kind, weights = required_input(node, 0).tensor.dtype, required_input(node, 1)
    if kind not in FLOATS:
        return f"supports floating-point types only, not {kind.value}"
    if weights.constant is None:
        return f"the weights {weights.name} are not constant"
    if weights.tensor.shape[0] == 0:
        return "there are no filters"
    epilogue = plan_epilogue(node, Layout.CHANNELS_LAST, bias_count(node))
    return epilogue if isinstance(epilogue, str) else None


def _why_no_sum(node: Node, root: ConvSum) -> str | None:
    """Return why no GPU kernel computes a sum of two convolutions, or None."""
    if root.first.group > 1 or root.second.group > 1:
        return "grouped convolution is not supported"
    if any(root.second.pads) or set(root.second.kernel_shape) != {1}:
        return "the second convolution is not pointwise (1x1)"
    weights = required_input(node, 3)
    return None if weights.constant is not None else f"{weights.name} is not constant"


def is_depthwise(node: Node, root: Conv) -> bool:
    """Return whether each channel has one filter of its own, with few enough taps to unroll."""
    filters, depth, *window = fixed_shape(required_input(node, 1).tensor.shape)
    return depth == 1 and filters == root.group > 1 and prod(window) <= _WRITTEN_TAPS


def formats_of(node: Node) -> tuple[tuple[TensorFormat | None, ...], TensorFormat]:
    """Return the formats of a convolution's inputs and result; weights are packed."""
    kind, count = required_input(node, 0).tensor.dtype, root_of(node)[1]
    image, own_count = TensorFormat(kind, Layout.CHANNELS_LAST), _own_count(node)
    bias = [TensorFormat(kind, Layout.LINEAR) if _bias(node) else None][: count - own_count]
    epilogue = planned_epilogue(node, Layout.CHANNELS_LAST, bias_count(node))
    return (*(image, None) * (own_count // 2), *bias, *epilogue.formats), image


def product_shape(node: Node, root: Conv, target: CudaTarget) -> GemmShape:
    """Return the shape of the product that a convolution computes."""
    filters, *rest = fixed_shape(required_input(node, 1).tensor.shape)
    rows = prod(guessed_extent(e) for axis, e in enumerate(node.output.tensor.shape) if axis != 1)
    columns = filters // root.group
    dtype = target.operand_dtype(required_input(node, 0).tensor.dtype)
    adds = len(node.inputs) > 3
    image = count_of(required_input(node, 0)) // root.group
    windows = prod(rest[1:]) > 1
    return GemmShape(root.group, rows, columns, prod(rest), dtype, adds, rest[0], image, windows)


class ConvLowering:
    """Lowering of a convolution onto the memory of its operands."""

    def __init__(
        self,
        node: Node,
        root: Conv,
        tactic: Tactic,
        operands: Operands,
        run: int = 0,
        second: Conv | None = None,
    ) -> None:
        """Gather the operands in the order of the kernels.

        Args:
            node: the convolution with its epilogue.
            root: the convolution that is summed.
            tactic: tactic of the node.
            operands: memory of the node.
            run: channels of the stored image, if more than the convolution has.
            second: pointwise convolution of a second image that is added, if any.
        """
        x, out = input_view(operands, 0), operands.outputs[0]
        self.run = run
        self.node, self.root, self.tactic = node, root, tactic
        self.x, self.out = x, out
        extras = extra_views(node, operands)
        if _bias(node) is not None:
            view = input_view(operands, _own_count(node))
            strides = tuple(view.strides[0] if axis == 1 else 0 for axis in range(len(out.shape)))
            extras.insert(0, (view, strides))
        self.extras = extras
        self.second = None if second is None else (second, input_view(operands, 2))
        others = [] if self.second is None else [self.second[1]]
        self.views = [x, operands.packed[0], *others, *(view for view, _ in extras), out]
        self.workspace = operands.workspace
        self.scalars = LaunchScalars()

    def strides(self, axis: int) -> tuple[Dim, ...]:
        """Return the strides of second image, epilogue operands and result along a result axis."""
        epilogue_strides = (*(strides[axis] for _, strides in self.extras), self.out.strides[axis])
        if self.second is None:
            return epilogue_strides
        root, view = self.second
        step = root.strides[axis - 2] if axis >= 2 else 1
        return (view.strides[axis] * step if axis != 1 else 0, *epilogue_strides)

    def launches(self) -> tuple[Launch, ...]:
        """Return one launch, or those of a split-K product."""
        node, root = self.node, self.root
        filters, depth, *_ = fixed_shape(required_input(node, 1).tensor.shape)
        depth = self.run or depth
        columns = filters // root.group
        second = 0 if self.second is None else fixed_extent(self.second[1].shape[1])
        column_length = self.column_length(depth * prod(root.kernel_shape) + second)
        group = (
            depth * self.x.strides[1],
            columns * column_length,
            *(columns * s for s in self.strides(1)),
        )
        kernel = ImplicitGemmKernel(
            stack=((root.group, *self.scalars.all_json(group)),) if root.group > 1 else (),
            run=depth,
            inner_k_strides=(self.scalars.json(self.x.strides[1]), 1),
            tap_stride=depth,
            depth=column_length,
            factors=2 if self.second is None else 3,
            second_inner_k=second,
            **self.common(),
            **kernel_options(self.tactic),
        )
        iteration_space = self.iteration_space(
            Axis(columns, (0, column_length, *self.strides(1))), root.group
        )
        return launches_of(
            self.tactic.family, kernel, iteration_space, self.views, self.scalars, self.workspace
        )

    def column_length(self, total: int) -> int:
        """Return the packed length of a filter of ``total`` elements."""
        return _padded(total)

    def common(self) -> dict[str, Any]:
        """Return the fields that all kernels of convolutions have: window and epilogue."""
        node, root = self.node, self.root
        is_wide = window_is_wide(root)
        return {
            "rows": (),
            "columns": (),
            "windows": self.windows() if is_wide else (),
            "start": self.scalars.json(self.padding_stride()) if is_wide else 0,
            "bias": _bias(node) is not None,
            "bias_scale": 1.0,
            "alpha": 1.0,
            "stages": planned_epilogue(node, Layout.CHANNELS_LAST, bias_count(node)).stages,
            "clamps_edges": self.x.strides[1] == 1,
            "constants": self.constants(),
        }

    def constants(self) -> tuple[bool, ...]:
        """Return whether each operand is a weight."""
        own_count = _own_count(self.node)
        first = own_count if _bias(self.node) is not None else root_of(self.node)[1]
        extras = (v.constant is not None for v in self.node.inputs[first:] if v is not None)
        return (False, True, *[False] * (self.second is not None), *extras, False)

    def iteration_space(self, columns: Axis, groups: int) -> GemmIterationSpace:
        """Return the result's axes; axes whose windows stay inside the image are coalesced."""
        root, shape = self.root, self.out.shape
        axes: list[Axis] = []
        windows: list[int] = []
        plain: list[Axis] = []

        def flush() -> None:
            axes.extend(coalesce_axes(plain))
            windows.extend([-1] * (len(axes) - len(windows)))
            plain.clear()

        for axis in (0, *range(2, len(shape))):
            step = 1 if axis == 0 else root.strides[axis - 2]
            strides = (self.x.strides[axis] * step, 0, *self.strides(axis))
            if axis >= 2 and window_is_wide(root) and self.leaves_image(axis - 2):
                flush()
                axes.append(Axis(shape[axis], strides))
                windows.append(axis - 2)
            else:
                plain.append(Axis(shape[axis], strides))
        flush()
        return GemmIterationSpace(tuple(axes), tuple(windows), columns, groups)

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


def window_is_wide(root: Conv) -> bool:
    """Return whether a window has more than one tap, or there is padding."""
    return any(k > 1 for k in root.kernel_shape) or any(root.pads)

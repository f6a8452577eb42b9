"""Half2 packing: convolutions, pools and elementwise ops on the elements of paired images.

To a kernel, the image within a pair is the innermost axis of each image, along which windows have
one tap. So kernels of other layouts are used; they move at least two elements at a time, whatever
the number of channels. If the number of images is odd, the last one is paired with an image that is
computed and never read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Aliasing, Operands, Tactic, refuse_if, with_storage_dtype
from smelt.backends._fused_programs import root_of, stages_of, unsupported_elementwise_reason
from smelt.backends._iteration_space import Axis, coalesce_axes, sort_axes
from smelt.backends._node_operands import input_view
from smelt.backends._view_family import permute_axes, window_along
from smelt.backends.cuda._cost_model import memory_seconds
from smelt.backends.cuda._elementwise import unsupported_op_reason
from smelt.backends.cuda._elementwise_kernel import PointwiseWriter, fields_of, pointwise_launch
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._implicit_gemm import WRITERS
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.backends.cuda.families._conv_problem import ConvLowering, ConvProblem, conv_problem_of
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS
from smelt.backends.cuda.families._tile_candidates import tiles_for
from smelt.backends.cuda.families.pool import PoolWriter, pool_launch, pool_options
from smelt.ops import AveragePool, Concat, Conv, MaxPool, Split
from smelt.types import DType, Layout, TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Launch, Parameters, Step, View
    from smelt.ir import Constant, Node, Value
    from smelt.types import Dim

HALF2_PACKING: Final = "half2_packing"
"""Family of the kernels that pack and unpack pairs."""
_BLOCK: Final = 1024
"""Positions per program of these kernels. Chosen without a measurement."""
_MIN_RANK: Final = 3
"""Minimum rank of packed tensors."""
_ALIASING: Final[dict[type, Aliasing]] = {Concat: Aliasing.CONCAT, Split: Aliasing.VIEW}
"""Ops that are views also of packed tensors."""


class Half2Family(CudaFamily):
    """Family of ops on packed images: 16-bit, at least two images, if the target requests it."""

    name: ClassVar[str] = "half2"
    uses_int32_offsets: ClassVar[bool] = True
    excludes_other_families: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        is_supported = isinstance(root, Conv | MaxPool | AveragePool | Concat | Split)
        if not target.uses_half2 or not (is_supported or node.op.elementwise):
            return
        refuse_if(_unsupported_reason(node, target))
        inputs = tuple(_format(node, index) for index in range(len(node.inputs)))
        outputs = tuple(TensorFormat(v.tensor.dtype, Layout.PAIRED) for v in node.outputs)
        if aliasing := _ALIASING.get(type(root)):
            yield Tactic(self.name, (), inputs, outputs, aliasing=aliasing)
            return
        for options, seconds in _options(node, target):
            yield Tactic(self.name, options, inputs, outputs, estimated_seconds=seconds)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with narrow storage; views have the type of their source.

        Kernels write 16 bits for every reader, also for a softmax, whose logits are stored wider.
        """
        is_narrow = tactic.aliasing is not Aliasing.NONE or bool(node.output.users)
        return (with_storage_dtype(dtype, node, tactic, narrows_all_outputs=is_narrow),)

    @override
    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        parts = node.inputs if tactic.aliasing is Aliasing.CONCAT else node.outputs
        windows: list[View] = []
        first: Dim = 0
        for value in parts:
            channels: Dim = 1 if value is None else value.tensor.shape[1]
            windows.append(window_along(view, 1, first, channels))
            first = first + channels
        return tuple(windows)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        problem = conv_problem_of(node)
        return () if problem is None else problem.pack(tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root, _ = root_of(node)
        if isinstance(root, Conv):
            return _Half2ConvLowering(ConvProblem(node, root), tactic, operands).launches()
        if isinstance(root, MaxPool | AveragePool):
            x, out = map(_pairs_as_channels, (input_view(operands, 0), operands.outputs[0]))
            return (pool_launch(tactic, _with_pair_axis(root), (x, out), ((), ())),)
        out = operands.outputs[0]
        views = [_broadcast_over_pair(view, out) for view in operands.inputs if view is not None]
        return (pointwise_launch(self.name, [*views, out], stages_of(node)),)

    @override
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        if "schedule" in kernel.options:
            return WRITERS[kernel["schedule"]]
        return PoolWriter if "include_pad" in kernel.options else PointwiseWriter


class _Half2ConvLowering(ConvLowering):
    """Lowering of a convolution with the pair as one more axis, which no window moves along."""

    def __init__(self, problem: ConvProblem, tactic: Tactic, operands: Operands) -> None:
        root = problem.root
        before, after = zip(*root.pad_pairs, strict=True)
        along_axes = (root.kernel_shape, root.strides, root.dilations)
        kernel, strides, dilations = ((*numbers, 1) for numbers in along_axes)
        deeper = Conv(kernel, strides, (*before, 0, *after, 0), dilations, root.group)
        super().__init__(problem, tactic, operands, deeper)
        rank = len(self.out.shape)
        self.extras = [
            (view, strides if len(strides) == rank else (*strides, 0))
            for view, strides in self.extras
        ]


def _unsupported_reason(node: Node, target: CudaTarget) -> str | None:
    """Return why a node cannot run on packed images, or None."""
    root, count = root_of(node)
    out = node.outputs[0].tensor
    if target.narrow_dtype.size_bytes != DType.FLOAT16.size_bytes or out.dtype not in FLOATS:
        return "half2 packing needs a 16-bit floating-point type"
    if out.rank < _MIN_RANK or out.shape[0] == 1:
        return "half2 packing needs a batch of at least two images"
    if isinstance(root, Concat | Split) and root.axis % out.rank != 1:
        return "half2 packing supports concat and split along the channel axis only"
    parts = node.inputs[:1] if isinstance(root, Split) else node.inputs
    for value in parts:
        if value is not None and (reason := _why_not_packed(value, node)):
            return reason
    if isinstance(root, Conv):
        return ConvProblem(node, root).dense_reason
    if isinstance(root, MaxPool | AveragePool):
        return None if len(node.inputs) == count else "half2 pooling supports no epilogue"
    if isinstance(root, Concat | Split):
        return None
    return unsupported_elementwise_reason(node, unsupported_op_reason)


def _why_not_packed(value: Value, node: Node) -> str | None:
    """Return why an operand is neither packed like the result nor the same for all images."""
    out, kind = node.outputs[0].tensor, value.tensor
    is_image = kind.rank == out.rank and kind.shape[0] == out.shape[0]
    if is_image and value.constant is None:
        reason = f"{value.name!r} is {kind.dtype.value}; only {FLOAT_NAMES} are supported"
        return None if kind.dtype in FLOATS else reason
    repeats = value.constant is not None and (kind.rank < out.rank or kind.shape[0] == 1)
    is_weight = value.constant is not None and isinstance(root_of(node)[0], Conv)
    if repeats or is_weight:
        return None
    return f"{value.name!r} is neither packed as half2 nor constant"


def _format(node: Node, index: int) -> TensorFormat | None:
    """Return the format of an input; None if it is packed at build time or absent."""
    value = node.inputs[index]
    root, count = root_of(node)
    if value is None or (index == 1 and count > 1 and isinstance(root, Conv | Split)):
        return None
    layout = Layout.LINEAR if value.constant is not None else Layout.PAIRED
    return TensorFormat(value.tensor.dtype, layout)


def _options(node: Node, target: CudaTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the parameters of the node's tactics with their estimated seconds."""
    root, _ = root_of(node)
    if isinstance(root, Conv):
        for choice, seconds in tiles_for(ConvProblem(node, root).shape(target), target):
            if choice.split_k == 1:
                yield choice.parameters, seconds
    elif isinstance(root, MaxPool | AveragePool):
        yield from pool_options(node, target)
    else:
        yield (), memory_seconds(node, target)


def _pairs_as_channels(view: View) -> View:
    """Return the view with the pair as channels of images along the original channels."""
    return permute_axes(view, (0, len(view.shape) - 1, *range(1, len(view.shape) - 1)))


def _with_pair_axis(root: MaxPool | AveragePool) -> MaxPool | AveragePool:
    """Return the pool with one more leading axis, which no window moves along."""
    before, after = zip(*root.pad_pairs, strict=True)
    along_axes = (root.kernel_shape, root.strides, root.dilations)
    kernel, strides, dilations = ((1, *numbers) for numbers in along_axes)
    pads = (0, *before, 0, *after)
    return replace(root, kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations)


def _broadcast_over_pair(view: View, out: View) -> View:
    """Return an operand that is not packed, broadcast over both images of a pair."""
    if len(view.shape) == len(out.shape):
        return view
    return replace(view, shape=(*view.shape, 1), strides=(*view.strides, 0))


# ---- packing and unpacking


def half2_packing_launch(source: View, destination: View) -> Launch:
    """Return the launch that packs images into pairs or unpacks them."""
    to_half2 = len(destination.shape) > len(source.shape)
    single, half2 = (source, destination) if to_half2 else (destination, source)
    images, inner = single.shape[0], range(1, len(single.shape))
    axes = [Axis(single.shape[a], (single.strides[a], half2.strides[a])) for a in inner]
    axes = coalesce_axes(sort_axes([a for a in axes if a.extent != 1], 0)) or [Axis(1, (0, 0))]
    places = element_count(tuple(axis.extent for axis in axes))
    return kernel_launch(
        HALF2_PACKING,
        (source, destination),
        ceil_div(images, 2) * ceil_div(places, _BLOCK),
        axes=fields_of(axes),
        places=places,
        images=images,
        strides=(single.strides[0], half2.strides[0]),
        to_half2=to_half2,
    )


class Half2PackingWriter(KernelWriter):
    """Writer of the kernel that packs images; a missing second image is packed as zeros."""

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        axes: Any = k["axes"]
        places = s.extent(k["places"])
        single, pair = k["strides"]
        blocks = f"(({places} + {_BLOCK - 1}) // {_BLOCK})"
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"both = program // {blocks}")
        s.line(f"i = (program % {blocks}) * {_BLOCK} + tl.arange(0, {_BLOCK})")
        s.line("e = tl.arange(0, 2)")
        s.line(f"i_ok = (i < {places})[:, None] & (e < 2)[None, :]")
        s.line(f"there = i_ok & (both * 2 + e < {s.extent(k['images'])})[None, :]")
        names = s.coordinates("i", axes, "c")
        offsets = [f"(i * 0 + {s.offset(names, axes, n)})[:, None]" for n in range(2)]
        single_offset = f"{offsets[0]} + (e * 0 + {s.sum_of(('both * 2 + e', single))})[None, :]"
        half2_offset = f"{offsets[1]} + ({s.sum_of(('both', pair))} + e)[None, :]"
        if k["to_half2"]:
            s.line(f"x = {s.load(0, single_offset, 'there')}")
            s.store(1, half2_offset, "x", "i_ok")
        else:
            s.line(f"x = {s.load(0, half2_offset, 'there')}")
            s.store(1, single_offset, "x", "there")
        return s.text()

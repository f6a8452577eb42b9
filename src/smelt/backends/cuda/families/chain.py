"""A convolution, and one of single pixels that reads its result, in one launch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, cast

from smelt.backends._axes import Axis
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._links import links_in, links_of
from smelt.backends._nodes import value_of
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._chain import CHAIN, ChainKernel, write_chain
from smelt.backends.cuda._source import LEAST_VECTOR
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._chain_tiles import first_shape, then_columns, tiles_for_chain
from smelt.backends.cuda.families._epilogue import planned_epilogue
from smelt.backends.cuda.families._grid import kernel_on
from smelt.backends.cuda.families._nodes import why_wide
from smelt.backends.cuda.families._tiles import choices
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    ConvLowering,
    bias_count,
    formats_of,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily
from smelt.engine import Launch, View, parameters
from smelt.ops.conv import Conv
from smelt.ops.conv_sum import ConvSum
from smelt.types import DType, Layout, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._links import Links
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node, Op
    from smelt.types import Dim


class ChainFamily(Family[CudaTarget]):
    """Two products by programs that have what is between them."""

    name: ClassVar[str] = CHAIN
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        links = links_of(node)
        if links is None:
            return
        if reason := _why_not(links, target):
            yield Refusal(self.name, reason)
            return
        first, between = formats_of(links.first)
        second, out = formats_of(links.second)
        inputs = (*first, *second[1:])
        outputs = (out, between) if links.keeps else (out,)
        for choice, seconds in tiles_for_chain(links, target):
            options = parameters(**dataclasses.asdict(choice))
            yield Tactic(self.name, options, inputs, outputs, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        links = links_in(node)
        first = ConvSumFamily() if _is_sum(links) else ConvFamily()
        return (*first.pack(links.first, tactic), *ConvFamily().pack(links.second, tactic))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_ChainLowering(links_in(node), tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_chain(kernel)


def may_chain(first: Node, second: Node) -> bool:
    """Whether two nodes are convolutions of one group, the second of the first's own pixels."""
    return _why_no_chain(root_of(first)[0], root_of(second)[0]) is None


def _is_sum(links: Links) -> bool:
    """Whether the first product is of two images."""
    return isinstance(root_of(links.first)[0], ConvSum)


def _why_no_chain(first: Op, second: Op) -> str | None:
    """Why no kernel computes two ops one behind the other, whatever their operands; or None."""
    own = first.first if isinstance(first, ConvSum) else first
    if not isinstance(own, Conv) or not isinstance(second, Conv):
        return "its ops are no convolutions"
    if own.group > 1 or second.group > 1:
        return "the channels are in groups"
    if set(second.kernel_shape) != {1} or any(second.pads) or set(second.strides) != {1}:
        return "the second convolution reads more, or less, than the same pixels"
    return None


def _why_not(links: Links, target: CudaTarget) -> str | None:
    if reason := _why_no_chain(root_of(links.first)[0], root_of(links.second)[0]):
        return reason
    for node in (links.first, links.second):
        if reason := reason_against(node):
            return reason
    if links.first.output in links.second.inputs[1:]:
        return "the second convolution's epilogue reads the first one's result"
    if target.pairs:
        return "images go in pairs"
    shape = first_shape(links, target)
    if not shape.run or shape.run % LEAST_VECTOR:
        return "the channels of its first image fill no vectors"
    return why_wide(shape.dtype)


# ---- on memory


class _ChainLowering(ConvLowering):
    """The first convolution, whose places have the second's operands as well."""

    def __init__(self, links: Links, tactic: Tactic, operands: Operands) -> None:
        first, root = links.first, root_of(links.first)[0]
        count, kind = len(first.inputs), first.output.tensor
        if links.keeps:
            between = operands.outputs[1]
        else:
            strides = contiguous_strides(kind, Layout.CHANNELS_LAST)
            between = View(0, 0, DType.FLOAT16, kind.shape, strides)
        own = Operands(operands.inputs[:count], (between,), operands.packed[:1])
        is_sum = isinstance(root, ConvSum)
        main = root.first if isinstance(root, ConvSum) else cast("Conv", root)
        second = root.second if isinstance(root, ConvSum) else None
        super().__init__(first, main, tactic, own, second=second)
        self.links, self.keeps = links, links.keeps
        self.factor_count = 3 if is_sum else 2
        out = operands.outputs[0]
        others = Operands((between, *operands.inputs[count:]), (out,), operands.packed[1:])
        self.then = ConvLowering(
            links.second, cast("Conv", root_of(links.second)[0]), tactic, others
        )
        stored: list[View] = self.views if links.keeps else self.views[:-1]
        self.weights = len(stored)
        """Which operand the second's weights are."""
        self.views: list[View] = [*stored, *self.then.views[1:]]

    @override
    def strides(self, axis: int) -> tuple[Dim, ...]:
        """Of all operands behind the first's weights."""
        own = super().strides(axis)[: None if self.keeps else -1]
        if axis == 1:
            return (*own, *[0] * (len(self.views) - self.weights))
        return (*own, 0, *self.then.strides(axis))

    @override
    def constants(self) -> tuple[bool, ...]:
        own = super().constants()[: None if self.keeps else -1]
        return (*own, *self.then.constants()[1:])

    def launch(self) -> Launch:
        """The one launch."""
        filters, depth, *_ = (cast("int", e) for e in value_of(self.node, 1).tensor.shape)
        columns, second_node = then_columns(self.links), self.links.second
        biases = bias_count(second_node)
        second = 0 if self.second is None else cast("int", self.second[1].shape[1])
        own, then = (cast("int", view.shape[1]) for view in self._packed())
        before = [0] * (self.weights + 1)
        then_strides = (*before, *self.then.strides(1))
        options: dict[str, Any] = {**choices(self.tactic), "sums": CHAIN}
        kernel = ChainKernel(
            stack=(),
            run=depth,
            run_strides=(self.scalars.json(self.x.strides[1]), 1),
            tap_stride=depth,
            depth=own,
            factors=self.factor_count,
            second_run=second,
            then_columns=(columns, *self.scalars.all_json(then_strides)),
            then_depth=then,
            then_bias=biases > 0,
            then_stages=planned_epilogue(second_node, Layout.CHANNELS_LAST, biases).stages,
            weights=self.weights,
            keeps=self.keeps,
            **self.common(),
            **options,
        )
        grid = self.grid(Axis(filters, (0, own, *self.strides(1))), 1)
        kernel = kernel_on(kernel, grid, self.views, self.scalars)
        down = kernel.programs or ceil_div(grid.places, kernel.tile[0])
        chunks = ceil_div(columns, kernel.then_tile) * down
        last = len(self.views) - 1
        writes = (self.weights - 1, last) if self.keeps else (last,)
        spec = kernel.spec(self.tactic.family)
        return Launch(spec, tuple(self.views), writes, self.scalars.values, chunks)

    def _packed(self) -> tuple[View, View]:
        return self.views[1], self.views[self.weights]

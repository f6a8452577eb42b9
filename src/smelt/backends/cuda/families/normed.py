"""A normalisation, and a product that reads its rows, in one launch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._links import links_in, links_of
from smelt.backends._nodes import value_of, view_of
from smelt.backends.cuda._normed import NORMED, NormedKernel, write_normed
from smelt.backends.cuda._product import ProductKernel
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._grid import kernel_on
from smelt.backends.cuda.families._tiles import behind_tiles
from smelt.backends.cuda.families.ahead import (
    MOST_DEPTH,
    matrix_shape,
    ranked_choices,
    why_not_ahead,
)
from smelt.backends.cuda.families.gemm import GemmFamily, GemmLowering, is_turned
from smelt.backends.cuda.families.rows import RowsFamily, own_inputs
from smelt.engine import Launch, parameters
from smelt.ops import Gemm, LayerNormalization, MatMul, RMSNormalization
from smelt.types import ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._links import Links
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim


class NormedFamily(Family[CudaTarget]):
    """Products by programs that normalise the rows they read."""

    name: ClassVar[str] = NORMED
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        links = links_of(node)
        if links is None or not may_norm(links.first, links.second):
            return
        norms = [t for t in RowsFamily().tactics(links.first, target) if isinstance(t, Tactic)]
        products = [t for t in GemmFamily().tactics(links.second, target) if isinstance(t, Tactic)]
        reason = _why_not(links) or why_not_ahead(links.second, target)
        if reason or not norms or not products:
            yield Refusal(self.name, reason or "no family has one of them")
            return
        shape, step = matrix_shape(links.second, target)
        inputs = (*norms[0].inputs, *products[0].inputs[1:])
        outputs = (*products[0].outputs, *norms[0].outputs)[: 1 + links.keeps]
        apart = min(norm.cost_hint for norm in norms)
        # Without a clock no launch is saved: it is said to take what both do.
        for seconds, choice in behind_tiles(ranked_choices(shape, step, target), shape, target):
            for asks in (False, True):
                options = parameters(**dict(choice.parameters(shape)), asks=asks)
                yield Tactic(self.name, options, inputs, outputs, cost_hint=seconds + apart)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return GemmFamily().pack(links_in(node).second, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_Lowering(links_in(node), tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_normed(kernel)


def may_norm(first: Node, second: Node) -> bool:
    """Whether two nodes are a normalisation of rows, and a product of these and a matrix."""
    is_norm = isinstance(first.op, LayerNormalization | RMSNormalization)
    return is_norm and isinstance(root_of(second)[0], Gemm | MatMul)


def _why_not(links: Links) -> str | None:
    rows = value_of(links.first, 0).tensor
    norm = cast("LayerNormalization | RMSNormalization", links.first.op)
    if norm.axis % rows.rank != rows.rank - 1 or rows.rank < 2:
        return "what is normalised are no rows"
    if any(v is not None and v.tensor.shape != rows.shape[-1:] for v in links.first.inputs[1:]):
        return "rows are scaled by what is no row"
    if is_turned(links.second):
        return "the product's rows are its first factor's columns"
    if not isinstance(rows.shape[-1], int) or rows.shape[-1] > MOST_DEPTH:
        return f"rows of {rows.shape[-1]} leave no room for a tile"
    if links.first.output in links.second.inputs[1:]:
        return "the product's epilogue reads the rows"
    return None


class _Lowering(GemmLowering):
    """The product, whose places have the normalisation's operands as well."""

    def __init__(self, links: Links, tactic: Tactic, operands: Operands) -> None:
        count = len(links.first.inputs)
        own = Operands(
            (view_of(operands, 0), *operands.inputs[count:]), operands.outputs[:1], operands.packed
        )
        super().__init__(links.second, tactic, own)
        self.links = links
        self.scales, self.weights = own_inputs(links.first, operands)
        self.kept = operands.outputs[1:]
        self.views = [*self.views[:2], *self.scales, *self.kept, *self.views[2:]]

    @override
    def along(self, axis: int | None) -> tuple[Dim, ...]:
        own: list[Dim] = [0] * (len(self.scales) + len(self.kept))
        if self.kept and axis is not None and axis != len(self.out.shape) - 1:
            own[-1] = self.kept[0].strides[axis]
        return (*own, *super().along(axis))

    def launch(self) -> Launch:
        """The one launch."""
        kernel, grid = self.product()
        fields = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(ProductKernel)}
        first, last = kernel.factors, len(self.views) - 1
        fields["factors"] = first + len(self.scales) + len(self.kept)
        beside = (*self.weights, *[False] * len(self.kept))
        fields["constants"] = (*kernel.constants[:first], *beside, *kernel.constants[first:])
        norm = cast("LayerNormalization | RMSNormalization", self.links.first.op)
        made = NormedKernel(
            **fields,
            centres=isinstance(norm, LayerNormalization),
            epsilon=norm.epsilon,
            scales=len(self.scales),
            keeps=bool(self.kept),
        )
        made = kernel_on(made, grid, self.views, self.scalars)
        (bm, bn, _) = made.tile
        chunks = ceil_div(grid.places, bm) * ceil_div(grid.columns.extent, bn)
        writes = (fields["factors"] - 1, last) if self.kept else (last,)
        spec = made.spec(self.tactic.family)
        return Launch(spec, tuple(self.views), writes, self.scalars.values, chunks)

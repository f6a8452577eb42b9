"""Stem convolutions as tiled products of the pixels that a first launch writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Operands, Tactic, refuse_if, with_storage_dtype
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._product_costs import stem_copy_seconds
from smelt.backends.cuda.families._conv_problem import end_in_vectors
from smelt.backends.cuda.families._product_family import ProductFamily
from smelt.backends.cuda.families._product_operands import as_factor, taps_in_rows
from smelt.backends.cuda.families._stem_problem import STEM, ImagePackingWriter, StemProblem
from smelt.backends.cuda.families._tile_candidates import tiles_for
from smelt.engine import parameters
from smelt.ops import Conv
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node


class StemFamily(ProductFamily):
    """Family of dense convolutions of images whose channels do not fill a vector."""

    name: ClassVar[str] = STEM

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], Conv):
            return
        problem = StemProblem(node)
        refuse_if(problem.stem_reason)
        shape = problem.shape(target)
        sizes = shape.size + problem.dtype.size_bytes
        copy_seconds = stem_copy_seconds(shape.image, target, sizes)
        for config, seconds in tiles_for(shape, target):
            if config.split_k == 1:
                tactic = self.tactic(problem, config, seconds + copy_seconds)
                yield replace(tactic, workspace_bytes=problem.pixel_bytes)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        made = with_storage_dtype(dtype, node, tactic)
        if required_input(node, 0).producer is None:  # a binding is read directly, in its own type
            made = replace(made, input_formats=(tactic.input_formats[0], *made.input_formats[1:]))
        options = {**made.options, "factors": dtype.value}
        return (replace(made, parameters=parameters(**options)),)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        filters = self.pack_filters(StemProblem(node))
        return (as_factor(filters, factors_of(tactic), tactic),)

    def pack_filters(self, problem: StemProblem) -> Constant:
        """Return the filters in the order in which the kernel reads them."""
        return end_in_vectors(taps_in_rows(problem.widened()))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        problem = StemProblem(node)
        root, run = problem.root, problem.run
        copy, runs = problem.write_pixels(factors_of(tactic), operands, self.run_read(run))
        pads, kernel_shape = (0,) * len(root.pads), (*root.kernel_shape[:-1], 1)
        unpadded = replace(root, pads=pads, kernel_shape=kernel_shape)
        run_operands = replace(operands, inputs=(runs, *operands.inputs[1:]))
        product = self.lowering(problem, without_factors(tactic), run_operands, unpadded, run)
        return (copy, *product.launches())

    def run_read(self, run: int) -> int:
        """Return how many elements of a window's row are read."""
        return run

    @override
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        return super().writer_of(kernel) if "schedule" in kernel.options else ImagePackingWriter


def factors_of(tactic: Tactic) -> DType:
    """Return the element type that the product is computed in."""
    options = tactic.options
    return DType(options["factors"]) if "factors" in options else tactic.output_formats[0].dtype


def without_factors(tactic: Tactic) -> Tactic:
    """Return the tactic without the element type among its parameters."""
    return replace(tactic, parameters=tuple(p for p in tactic.parameters if p[0] != "factors"))

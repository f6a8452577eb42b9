"""Family of a stem convolution fused with max pooling: a copy to pixels, then one launch.

The result of a stem is the largest tensor of many networks, and pooling keeps a quarter of it. Here
it is never stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends import op_as
from smelt.backends._base import Operands, Tactic, refuse_if
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends._pair_nodes import pair_nodes_of
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.backends.cuda._product_costs import stem_pool_seconds
from smelt.backends.cuda._register_operand_kernel import FRAGMENT, ROWS
from smelt.backends.cuda._stem_pool_kernel import FUSED_STEM_POOL, StemPoolWriter
from smelt.backends.cuda.families._conv_problem import in_vectors
from smelt.backends.cuda.families._product_launches import needs_int64_offsets
from smelt.backends.cuda.families._stem_problem import StemProblem
from smelt.backends.cuda.families.stem import factors_of, without_factors
from smelt.backends.cuda.families.stem_direct import (
    COLUMNS,
    StemDirectFamily,
    why_not_direct,
    window_length,
)
from smelt.engine import parameters
from smelt.ops import Conv, Fused, FusedPair, MaxPool, Relu, Stage
from smelt.types import ceil_div, fixed_extent, guessed_extent, override, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Launch, Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim, DType

_PROGRAMS_PER_SM: Final = 3
"""Programs per multiprocessor. ResNet-50's stem at batch 128 takes 130 µs with three programs and
152 with two on an H200 (docs/lab/products-on-gpus.md)."""
_REGISTERS: Final = 168
"""Maximum registers per thread that allow this number of programs. 65,536 registers over three
programs of 128 threads, rounded down to a multiple of 8."""
_WAVES: Final = (1, 2, 4)
"""Numbers of waves to try. Chosen without a measurement."""
_PROGRAM_DIVISORS: Final = (1, 4, 8)
"""Divisors of the number of programs if the batch is symbolic: it may be larger than guessed, so
programs with more rows are also tried."""


class FusedStemPoolFamily(CudaFamily):
    """Family of 16-bit stems on GPUs with WGMMA, with or without ReLU, and 2-D max pools."""

    name: ClassVar[str] = FUSED_STEM_POOL
    writer: ClassVar[type[KernelWriter]] = StemPoolWriter
    uses_int32_offsets: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, FusedPair):
            return
        pair_nodes = pair_nodes_of(node)
        if not may_pool(pair_nodes.first, pair_nodes.second):
            return
        refuse_if(_unsupported_reason(pair_nodes, target))
        problem = _StemPoolProblem(pair_nodes)
        inputs, output = problem.stem.formats
        max_programs = _PROGRAMS_PER_SM * target.multiprocessors
        if symbols_of(problem.images):
            programs = [max_programs // fewer for fewer in _PROGRAM_DIVISORS]
        else:
            programs = [max_programs * waves for waves in _WAVES]
        for rows_per_program in dict.fromkeys(map(problem.rows_per_program, programs)):
            options = parameters(
                tile=(ROWS, problem.columns, FRAGMENT),
                rows_per_program=rows_per_program,
                registers=_REGISTERS,
                num_warps=4,
                num_stages=1,
            )
            seconds = problem.seconds(rows_per_program, target)
            tactic = Tactic(self.name, options, inputs, (output,), estimated_seconds=seconds)
            yield replace(tactic, workspace_bytes=problem.stem.pixel_bytes)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return StemDirectFamily().reduced_precision_tactics(node, tactic, dtype, target)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return StemDirectFamily().pack(pair_nodes_of(node).first, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _StemPoolProblem(pair_nodes_of(node)).launches(tactic, operands)


def may_pool(first: Node, second: Node) -> bool:
    """Return whether two nodes are a stem and a max pool of its result."""
    are_ops = isinstance(root_of(first)[0], Conv) and isinstance(second.op, MaxPool)
    return are_ops and not StemProblem(first).stem_reason


def _unsupported_reason(pair_nodes: PairNodes, target: CudaTarget) -> str | None:
    """Return why the family cannot run a pair of nodes, or None."""
    first, pool = pair_nodes.first, op_as(MaxPool, pair_nodes.second)
    root = root_as(Conv, first)
    if reason := why_not_direct(StemProblem(first), target):
        return reason
    if target.uses_half2:
        return "the images are packed as half2 pairs, which are not supported"
    if pair_nodes.returns_intermediate:
        return "the result of the stem convolution has other readers than the pooling"
    if _stages(first) not in {(), (Stage(Relu(), (-1,)),)}:
        return "the epilogue of the stem has more than a bias and a ReLU"
    extents = (*required_input(first, 0).tensor.shape[2:], *first.output.tensor.shape[2:])
    if len(extents) != 4 or not all(isinstance(extent, int) for extent in extents):
        return "the image does not have two spatial axes of known extents"
    if {*root.dilations, *pool.dilations} != {1}:
        return "the convolution or the pooling window is dilated"
    windows = list(zip(pool.kernel_shape, pool.strides, pool.pad_pairs, strict=True))
    if any(max(pair) >= taps for taps, _, pair in windows):
        return "a pooling window may lie entirely in the padding"
    if not all(0 <= taps - step <= 1 for taps, step, _ in windows):
        return "the pooling windows overlap by more than one element, or leave gaps"
    return None


def _stages(node: Node) -> tuple[Stage, ...]:
    """Return the epilogue of a node."""
    return node.op.stages if isinstance(node.op, Fused) else ()


class _StemPoolProblem:
    """A stem and its pooling."""

    def __init__(self, pair_nodes: PairNodes) -> None:
        self.first = pair_nodes.first
        self.pool, root = op_as(MaxPool, pair_nodes.second), root_as(Conv, self.first)
        self.images = pair_nodes.second.output.tensor.shape[0]
        self.pooled = cast("tuple[int, int]", pair_nodes.second.output.tensor.shape[2:])
        self.stem_extents = cast("tuple[int, int]", self.first.output.tensor.shape[2:])
        befores = (before for before, _ in self.pool.pad_pairs)
        self.windows = tuple(zip(self.pool.kernel_shape, self.pool.strides, befores, strict=True))
        """Pooling taps, stride and padding before, of both axes."""
        self.stem = StemProblem(self.first, replace(root, pads=self._pads(root)))
        """Stem with its padding extended to all rows that any pooling window covers."""
        self.filters = self.stem.filter_shape[0]
        self.columns = next(n for n in COLUMNS if self.filters % n == 0)

    def _pads(self, root: Conv) -> tuple[int, ...]:
        """Return the extended padding."""
        (taps, step, pad_top), _ = self.windows
        rows_below = (self.pooled[0] - 1) * step + taps - pad_top - self.stem_extents[0]
        top, left, bottom, right = root.pads
        lines = root.strides[0]
        return (top + pad_top * lines, left, bottom + max(0, rows_below) * lines, right)

    @property
    def strips(self) -> Dim:
        """Number of strips of all images; a strip is as high as an image."""
        return ceil_div(self.images * self.pooled[1], ROWS) * (self.filters // self.columns)

    def rows_per_program(self, programs: int) -> int:
        """Return the pooled rows per program for a maximum number of programs."""
        parts = max(1, programs // max(1, guessed_extent(self.strips)))
        return -(-self.pooled[0] // parts)

    def seconds(self, rows_per_program: int, target: CudaTarget) -> float:
        """Return the estimated seconds of both launches."""
        (taps, step, _), (column_taps, _, _) = self.windows
        keeps_last_row = taps > step
        tiles = (rows_per_program * (taps - keeps_last_row) + keeps_last_row) * column_taps
        programs = guessed_extent(self.strips) * -(-self.pooled[0] // rows_per_program)
        image, length = count_of(required_input(self.first, 0)), window_length(self.stem)
        return stem_pool_seconds(image, length, tiles, programs, _PROGRAMS_PER_SM, target)

    def launches(self, tactic: Tactic, operands: Operands) -> tuple[Launch, ...]:
        """Return the copy to pixels and the launch over strips."""
        root, run, options = self.stem.root, self.stem.run, without_factors(tactic).options
        copy, runs = self.stem.write_pixels(factors_of(tactic), operands, in_vectors(run))
        bias = [input_view(operands, 2)] if self.stem.bias is not None else []
        out = operands.outputs[0]
        strips = kernel_launch(
            tactic.family,
            (runs, operands.packed[0], *bias, out),
            self.strips * -(-self.pooled[0] // options.integer("rows_per_program")),
            images=(self.images, runs.strides[0]),
            line=fixed_extent(runs.strides[2]),
            lines=root.strides[0],
            pixel=self.stem.width * root.strides[1],
            taps=root.kernel_shape[0],
            run=run,
            depth=window_length(self.stem),
            stem=self.stem_extents,
            pooled=self.pooled,
            pool=self.windows,
            filters=self.filters,
            strides=(out.strides[0], *out.strides[2:]),
            bias=bool(bias),
            has_relu=bool(_stages(self.first)),
            uses_int64_offsets=(needs_int64_offsets(runs), needs_int64_offsets(out)),
            **options,
        )
        return (copy, strips)

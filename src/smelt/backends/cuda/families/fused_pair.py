"""Family of fused pairs: a convolution and a pointwise one that reads its result, in one launch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, product
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Operands, Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends._pair_nodes import pair_nodes_of
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._cost_model import gpu_spec_of, tile_extent
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._fused_pair import FUSED_PAIR, FusedPairWriter
from smelt.backends.cuda._kernel_source import MIN_VECTOR, KernelWriter
from smelt.backends.cuda._product_costs import fused_pair_seconds
from smelt.backends.cuda._product_specs import FusedPairKernel
from smelt.backends.cuda._tile_configs import FusedPairShape, FusedPairTiles
from smelt.backends.cuda.families._conv_problem import ConvLowering, required_conv
from smelt.backends.cuda.families._product_launches import launch_of
from smelt.backends.cuda.families._product_operands import wide_operand_reason
from smelt.backends.cuda.families._tile_candidates import OWN_SHARED_BYTES
from smelt.engine import View
from smelt.ops import Conv, ConvSum, FusedPair
from smelt.types import DType, Layout, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Launch, Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_MAX_COLUMNS: Final = 256
"""Maximum columns of the first product in one tile, or of the second if the first is blocked.
Chosen without a measurement."""
_ROWS: Final = (16, 32, 64, 128)
"""Rows of tiles. Chosen without a measurement."""
_COLUMNS: Final = (32, 64, 128, 256)
"""Columns of tiles. Chosen without a measurement."""
_MAX_CANDIDATES: Final = 8
"""Maximum number of non-persistent candidates. Chosen without a measurement."""
_MAX_PERSISTENT_CANDIDATES: Final = 4
"""Maximum number of persistent candidates. Chosen without a measurement."""
_PERSISTENT_PENALTY: Final = 1.001
"""Factor on a hint, so that a persistent candidate ranks just after the one it borrows it from."""
_MAX_SIMILAR_CANDIDATES: Final = 2
"""Maximum number of candidates with equal tiles and warps. Chosen without a measurement."""
_FEW_WARPS: Final = 4
"""Number of warps that any number of rows supports."""
_MAX_AREA: Final = {4: 64 * 256, 8: 128 * 256}
"""Maximum elements of the larger tile, by number of warps. Chosen without a measurement."""
_WIDE_ROWS: Final = 64
"""Minimum rows of a tile for more warps, each of which needs rows of its own. On an H200 eight
warps of 64 rows took 54.9 µs where four took 31.7 (docs/lab/products-on-gpus.md), so they are not
the first guess."""
_MAX_KEPT_DEPTH: Final = 256
"""Maximum reduction depth of the first product for which pixels are kept, in elements. Chosen
without a measurement."""
_PERSISTENT_TILES: Final = ((64, 128, 4), (32, 64, 4), (64, 64, 4), (128, 64, 8))
"""Rows, columns of the first product, and warps of persistent programs, the likelier first. Chosen
without a measurement."""
_MAX_COLUMN_BLOCKS: Final = 4
"""Maximum number of column blocks of a persistent program. Chosen without a measurement."""
_MAX_WEIGHTS: Final = 1 << 16
"""Maximum number of weights that a persistent program keeps, in elements. Chosen without a
measurement."""


class FusedPairConvFamily(CudaFamily):
    """Family of fused pairs whose intermediate stays on chip."""

    name: ClassVar[str] = FUSED_PAIR
    writer: ClassVar[type[KernelWriter]] = FusedPairWriter
    uses_int32_offsets: ClassVar[bool] = True
    supports_reversed_tiles: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, FusedPair):
            return
        pair_nodes = pair_nodes_of(node)
        refuse_if(_unsupported_reason(pair_nodes, target))
        first, intermediate = required_conv(pair_nodes.first).formats
        second, out = required_conv(pair_nodes.second).formats
        inputs = (*first, *second[1:])
        outputs = (out, intermediate) if pair_nodes.returns_intermediate else (out,)
        for choice, seconds in _tiles_of(pair_nodes, target):
            yield Tactic(self.name, choice.parameters, inputs, outputs, estimated_seconds=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes = pair_nodes_of(node)
        problems = map(required_conv, (pair_nodes.first, pair_nodes.second))
        return tuple(constant for problem in problems for constant in problem.pack(tactic))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_FusedPairLowering(pair_nodes_of(node), tactic, operands).launch(),)


def can_fuse_pair(first: Node, second: Node) -> bool:
    """Return whether the kernel supports two convolutions, the second pointwise on the first."""
    return _unsupported_pair_reason(first, second) is None


def _unsupported_pair_reason(first: Node, second: Node) -> str | None:
    """Return why no kernel computes a pair of ops, whatever their operands, or None."""
    conv, then = root_of(first)[0], root_of(second)[0]
    conv = conv.first if isinstance(conv, ConvSum) else conv
    if not isinstance(conv, Conv) or not isinstance(then, Conv):
        return "at least one of the two ops is not a convolution"
    if conv.group > 1 or then.group > 1:
        return "grouped convolution is not supported"
    if set(then.kernel_shape) != {1} or any(then.pads) or set(then.strides) != {1}:
        return "the second convolution is not pointwise (1x1, stride 1, no padding)"
    return None


def _unsupported_reason(pair_nodes: PairNodes, target: CudaTarget) -> str | None:
    """Return why the family cannot run a pair of nodes, or None."""
    nodes = (pair_nodes.first, pair_nodes.second)
    if reason := _unsupported_pair_reason(*nodes):
        return reason
    for node in nodes:
        if reason := required_conv(node).reason:
            return reason
    if pair_nodes.first.output in pair_nodes.second.inputs[1:]:
        return "the epilogue of the second convolution reads the result of the first"
    if target.uses_half2:
        return "the images are packed as half2 pairs, which are not supported"
    shape = required_conv(pair_nodes.first).shape(target)
    if not shape.run or shape.run % MIN_VECTOR:
        return (
            f"the channel count {shape.run} of the first input is not a positive multiple of the "
            f"vector width {MIN_VECTOR}"
        )
    return wide_operand_reason(shape.dtype)


# ---- tiles, ranked by the cost terms of single products


def _tiles_of(pair_nodes: PairNodes, target: CudaTarget) -> Iterator[tuple[FusedPairTiles, float]]:
    """Yield the most promising tiles with their estimated seconds, best first."""
    problem = _FusedPairProblem(pair_nodes, target)
    gpu = gpu_spec_of(target)
    ranked = [(fused_pair_seconds(problem.pair, c, gpu), c) for c in problem.choices()]
    similar: Counter[tuple[int, ...]] = Counter()
    best: list[tuple[FusedPairTiles, float]] = []
    for seconds, choice in sorted(ranked, key=itemgetter(0)):
        kind = (*choice.tile[:2], choice.second_tile, choice.num_warps)
        similar[kind] += 1
        if similar[kind] <= _MAX_SIMILAR_CANDIDATES and len(best) < _MAX_CANDIDATES:
            best.append((choice, seconds))
    if not best:
        return
    # There is no estimate for persistent programs: some are tried, and none ranks first.
    hints = [_PERSISTENT_PENALTY * seconds for _, seconds in (*best, best[-1])[1:]]
    persistent = islice(problem.persistent_configs(), _MAX_PERSISTENT_CANDIDATES)
    best += [(config, hints[min(k, len(hints) - 1)]) for k, config in enumerate(persistent)]
    yield from sorted(best, key=itemgetter(1))


class _FusedPairProblem:
    """Sizes of both products, and the tiles that fit them."""

    def __init__(self, pair_nodes: PairNodes, target: CudaTarget) -> None:
        self.shape = required_conv(pair_nodes.first).shape(target)
        self.columns = required_conv(pair_nodes.second).filter_shape[0]
        extras = pair_nodes.second.inputs[root_of(pair_nodes.second)[1] :]
        adds = any(v is not None and v.constant is None for v in extras)
        self.pair = FusedPairShape(self.shape, self.columns, adds, pair_nodes.returns_intermediate)
        self.target = target
        self.is_short = self.shape.depth <= _MAX_KEPT_DEPTH and not self.shape.windows
        """Whether programs may keep all pixels of their rows."""

    def choices(self) -> Iterator[FusedPairTiles]:
        """Yield every candidate that fits the shapes and the GPU."""
        shape = self.shape
        all_columns, second_tile = tile_extent(shape.columns), tile_extent(self.columns)
        steps = sorted({min(64, tile_extent(shape.run)), min(128, tile_extent(shape.run))})
        for bm in _ROWS:
            if bm > tile_extent(shape.rows):
                continue
            if all_columns <= _MAX_COLUMNS:
                for bn, bk, num_stages in product(_COLUMNS, steps, (1, 2, 3, 4, 6)):
                    yield from self._fitting((bm, all_columns, bk), bn, num_stages)
            if second_tile <= _MAX_COLUMNS and self.is_short:
                bk = min(64, tile_extent(shape.run))
                is_even = shape.summed_images == 1 or not (shape.run % bk or shape.depth % bk)
                for block_columns, num_stages in product(_COLUMNS, (1, 2, 3, 4)):
                    if block_columns < shape.columns and is_even:
                        yield from self._fitting((bm, block_columns, bk), second_tile, num_stages)

    def persistent_configs(self) -> Iterator[FusedPairTiles]:
        """Yield candidates whose programs keep the weights of both products."""
        shape, second_tile = self.shape, tile_extent(self.columns)
        weights = shape.columns * (shape.depth + second_tile)
        bk = min(64, tile_extent(shape.run))
        is_small = second_tile <= _MAX_COLUMNS and weights <= _MAX_WEIGHTS
        if not self.is_short or not is_small or shape.depth % bk or shape.run % bk:
            return
        for (bm, bn, num_warps), num_stages in product(_PERSISTENT_TILES, (3, 2)):
            column_blocks, rest = divmod(shape.columns, bn)
            prefetched = (num_stages - 1) * bm * (shape.depth + shape.adds * shape.columns)
            elements = weights + prefetched + bm * bn * 3 // 2
            needed_bytes = elements * shape.dtype.size_bytes + OWN_SHARED_BYTES
            programs_per_sm = min(2, self.target.shared_bytes // needed_bytes)
            if not rest and 1 < column_blocks <= _MAX_COLUMN_BLOCKS and programs_per_sm:
                programs = programs_per_sm * self.target.multiprocessors
                yield FusedPairTiles(
                    tile=(bm, bn, bk),
                    second_tile=second_tile,
                    num_warps=num_warps,
                    num_stages=num_stages,
                    row_programs=programs,
                    prefetches_epilogue=True,
                )

    def _fitting(
        self, tile: tuple[int, int, int], second_tile: int, num_stages: int
    ) -> Iterator[FusedPairTiles]:
        """Yield the numbers of warps for which a candidate fits."""
        bm, bn, bk = tile
        shape, needed_bytes = self.shape, self.target.shared_bytes - OWN_SHARED_BYTES
        steps = -(-shape.depth // bk) if bn >= shape.columns else -(-shape.columns // bn)
        is_piped = num_stages > 1
        is_too_deep = num_stages > steps + 1 or is_piped != (steps > 1)
        if second_tile > tile_extent(self.columns) or is_too_deep:
            return
        for num_warps in (4, 8):
            choice = FusedPairTiles(
                tile=tile, second_tile=second_tile, num_warps=num_warps, num_stages=num_stages
            )
            is_valid = num_warps == _FEW_WARPS or bm >= _WIDE_ROWS
            is_valid = is_valid and bm * max(bn, second_tile) <= _MAX_AREA[num_warps]
            if is_valid and self.shared_bytes(choice) <= needed_bytes:
                yield choice

    def shared_bytes(self, choice: FusedPairTiles) -> int:
        """Return the maximum shared memory of a program in bytes, on any GPU.

        If the first product is blocked, tensor cores may read the pixels (in whole steps) and the
        intermediate from shared memory, and epilogue operands may pass through it.
        """
        shape, (bm, bn, bk) = self.shape, choice.tile
        if choice.keeps_columns(self.pair):
            return choice.prefetched_bytes(self.pair, shape.depth)
        depth = -(-shape.depth // bk) * bk
        staged_bytes = bm * (depth + bn) * shape.size
        return choice.prefetched_bytes(self.pair, depth) + staged_bytes


# ---- lowering


class _FusedPairLowering(ConvLowering):
    """Lowering of the first convolution, with the second's operands on the same rows."""

    def __init__(self, pair_nodes: PairNodes, tactic: Tactic, operands: Operands) -> None:
        first = pair_nodes.first
        count, kind = len(first.inputs), first.output.tensor
        if pair_nodes.returns_intermediate:
            intermediate = operands.outputs[1]
        else:
            strides = contiguous_strides(kind, Layout.CHANNELS_LAST)
            intermediate = View(0, 0, DType.FLOAT16, kind.shape, strides)
        first_operands = Operands(operands.inputs[:count], (intermediate,), operands.packed[:1])
        super().__init__(required_conv(first), tactic, first_operands)
        self.returns_intermediate = pair_nodes.returns_intermediate
        inputs = (intermediate, *operands.inputs[count:])
        second_operands = Operands(inputs, operands.outputs[:1], operands.packed[1:])
        second = required_conv(pair_nodes.second)
        self.second_lowering = ConvLowering(second, tactic, second_operands)
        stored: list[View] = self.views if pair_nodes.returns_intermediate else self.views[:-1]
        self.weight_operand = len(stored)
        """Number of the operand that holds the second convolution's weights."""
        self.views: list[View] = [*stored, *self.second_lowering.views[1:]]
        first_constants = self.constants[: len(stored)]
        self.constants = (*first_constants, *self.second_lowering.constants[1:])

    @override
    def strides(self, axis: int | None) -> tuple[Dim, ...]:
        """Return the strides of all operands after the first convolution's weights."""
        first_strides = super().strides(axis)[: None if self.returns_intermediate else -1]
        if axis == 1:
            return (*first_strides, *[0] * (len(self.views) - self.weight_operand))
        return (*first_strides, 0, *self.second_lowering.strides(axis))

    def launch(self) -> Launch:
        """Return the launch."""
        second = self.second_lowering
        before = [0] * (self.weight_operand + 1)
        second_strides = self.scalars.all_json((*before, *second.strides(1)))
        epilogue = second.problem.epilogue_fields()
        kernel = FusedPairKernel(
            schedule=FUSED_PAIR,
            second_columns=(second.filters, *second_strides),
            second_depth=second.column_length,
            second_bias=epilogue["bias"],
            second_stages=epilogue["stages"],
            weights=self.weight_operand,
            returns_intermediate=self.returns_intermediate,
            **self.product_fields(),
            **self.window_fields(),
            **self.options,
        )
        space, last = self.iteration_space(), len(self.views) - 1
        launch = launch_of(self.tactic.family, kernel, space, self.views, self.scalars)
        row_programs = kernel.row_programs or ceil_div(space.row_count, kernel.tile[0])
        return replace(
            launch,
            writes=(self.weight_operand - 1, last) if self.returns_intermediate else (last,),
            chunks=ceil_div(second.filters, kernel.second_tile) * row_programs,
        )

"""Products of few rows by programs that have their weights before anything else.

With one image a launch is over in two microseconds, much of which its programs wait for what they
read. Weights need not be waited for: they are loaded while the launch before still runs, and what
is left behind it is one load of rows, one product, one store. All steps of a sum are in registers
and shared memory at once, so long sums are cut into pieces, and programs are no more than can start
at the same time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of
from smelt.backends.cuda._costs import WARP_LANES, Work, gpu_of, product_seconds, seconds_of
from smelt.backends.cuda._product import write_product
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._grid import SUM_BYTES
from smelt.backends.cuda.families._nodes import why_wide
from smelt.backends.cuda.families._tiles import OWN_SHARED_BYTES, adding_seconds, behind_tiles
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    is_depthwise,
    product_shape,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily, sum_shape
from smelt.backends.cuda.families.gemm import GemmFamily, is_turned, shape_of
from smelt.engine import parameters
from smelt.ops import Gemm, MatMul
from smelt.ops.conv import Conv
from smelt.ops.conv_sum import ConvSum
from smelt.types import element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda.families._tiles import Shape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node

AHEAD: Final = "ahead"
_TILES: Final = ((16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64))
"""Rows and columns."""
_WARPS: Final = 4
_PIECES: Final = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18)
_KEPT: Final = 3
_KEPT_IN_PIECES: Final = 2
_MOST_BESIDE: Final = 2
"""Programs of a multiprocessor."""
_MOST_REGISTERS: Final = 220
_OWN_REGISTERS: Final = 40
"""Of a thread, beside factors and sums."""
_MOST_DEPTH: Final = 640
"""Longer sums are cut."""
_MOST_OF_PIECE: Final = 256
_LONGEST_STEP: Final = 128
_LEAST_STEP: Final = 32


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    pieces: int

    def depth(self, shape: Shape) -> int:
        """Of a program's sum."""
        return shape.depth // self.pieces

    def registers(self, shape: Shape) -> float:
        """Of a thread."""
        (bm, bn, _), adds = self.tile, shape.adds and self.pieces == 1
        return _OWN_REGISTERS + ((bm + bn) * self.depth(shape) / 2 + bm * bn * (1 + adds / 2)) / (
            _WARPS * WARP_LANES
        )

    def programs(self, shape: Shape) -> int:
        """One for each tile, and each piece."""
        tiles = -(-shape.rows // self.tile[0]) * -(-shape.columns // self.tile[1])
        return tiles * self.pieces

    def fits(self, shape: Shape, target: CudaTarget) -> bool:
        """Whether all programs run at once, with all that they have."""
        bm, bn, step = self.tile
        depth, is_cut = self.depth(shape), self.pieces > 1
        room = (bm + bn) * depth * shape.dtype.size_bytes
        return (
            is_cut == (shape.depth > _MOST_DEPTH)
            and shape.depth % (step * self.pieces) == 0
            and depth <= (_MOST_OF_PIECE if is_cut else _MOST_DEPTH)
            and (bm == _TILES[0][0] or bm < 2 * shape.rows)
            and (bn == _TILES[0][1] or bn < 2 * shape.columns)
            and self.registers(shape) <= _MOST_REGISTERS
            and _MOST_BESIDE * room <= target.shared_bytes - OWN_SHARED_BYTES
            and self.programs(shape) <= _MOST_BESIDE * target.multiprocessors
        )

    def parameters(self, shape: Shape) -> Parameters:
        """The decision as data."""
        return parameters(
            tile=self.tile,
            warps=_WARPS,
            pipeline=1,
            sums=AHEAD,
            precision="ieee",
            early=shape.adds and self.pieces == 1,
            pieces=self.pieces,
        )


class AheadFamily(Family[CudaTarget]):
    """What others compute step by step, where one matrix of weights multiplies all rows."""

    name: ClassVar[str] = AHEAD
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        base = _base_of(node)
        if base is None:
            return
        if reason := _why_not(node, target):
            yield Refusal(self.name, reason)
            return
        plain = next(base.tactics(node, target), None)
        if not isinstance(plain, Tactic):
            return  # that family says why, or nothing is summed
        shape, step = _shape(node, target)
        choices = [_Choice((*tile, step), pieces) for tile, pieces in product(_TILES, _PIECES)]
        found = [(_seconds(shape, c, target), c) for c in choices if c.fits(shape, target)]
        if not found:
            yield Refusal(self.name, "its programs do not all run at once")
            return
        kept = _KEPT if shape.depth <= _MOST_DEPTH else _KEPT_IN_PIECES
        ranked = sorted(found, key=lambda pair: pair[0])[:kept]
        sums = element_count(node.output.tensor.shape) * SUM_BYTES
        for seconds, choice in behind_tiles(ranked, shape, target):
            room = sums * choice.pieces if choice.pieces > 1 else 0
            options, formats = choice.parameters(shape), (plain.inputs, plain.outputs)
            yield Tactic(self.name, options, *formats, workspace_bytes=room, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return _known_base(node).pack(node, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _known_base(node).lower(node, tactic, operands)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_product(kernel)


def _base_of(node: Node) -> Family[CudaTarget] | None:
    """The family of the same product step by step, if there is one."""
    root = root_of(node)[0]
    if isinstance(root, Gemm | MatMul):
        return GemmFamily()
    if not isinstance(root, Conv | ConvSum) or reason_against(node):
        return None  # the other families say why
    return ConvFamily() if isinstance(root, Conv) else ConvSumFamily()


def _known_base(node: Node) -> Family[CudaTarget]:
    return cast("Family[CudaTarget]", _base_of(node))


def _shape(node: Node, target: CudaTarget) -> tuple[Shape, int]:
    """The product, whatever is stacked being rows; and how long steps of its sum are."""
    root = root_of(node)[0]
    if isinstance(root, ConvSum):
        shape = sum_shape(node, root, target)
        return shape, gcd(shape.run, shape.depth, _LONGEST_STEP)
    if isinstance(root, Conv):
        shape = product_shape(node, root, target)
        return shape, gcd(shape.run, _LONGEST_STEP)
    shape = shape_of(node, target)
    shape = dataclasses.replace(shape, matrices=1, rows=shape.matrices * shape.rows)
    return shape, gcd(shape.depth, _LONGEST_STEP)


def _why_not(node: Node, target: CudaTarget) -> str | None:
    root, (shape, step) = root_of(node)[0], _shape(node, target)
    if isinstance(root, Conv | ConvSum):
        if shape.matrices > 1 or (isinstance(root, Conv) and is_depthwise(node, root)):
            return "the channels are in groups"
    elif reason := _why_no_matrix(node):
        return reason
    if reason := why_wide(shape.dtype):
        return reason
    if not target.starts_early:
        return f"{target.architecture} starts no launch early"
    return f"a sum of {shape.depth} has steps of {step}" if step < _LEAST_STEP else None


def _why_no_matrix(node: Node) -> str | None:
    x, weights = value_of(node, 0).tensor, value_of(node, 1)
    if weights.constant is None or weights.tensor.rank != 2 or x.rank < 2:
        return "the second factor is no matrix of weights"
    if not isinstance(x.shape[-2 if is_turned(node) else -1], int):
        return "the sum's length is not known"
    return None


def _seconds(shape: Shape, choice: _Choice, target: CudaTarget) -> float:
    """What a launch takes, by the terms of other products, once its weights are there."""
    (bm, bn, _), size, gpu = choice.tile, shape.dtype.size_bytes, gpu_of(target)
    programs, depth, first = choice.programs(shape), choice.depth(shape), shape.rows * shape.depth
    busy = product_seconds((bm, bn, depth), _WARPS, shape.dtype, "ieee", gpu)
    written = bm * bn * (size * (1 + shape.adds) if choice.pieces == 1 else SUM_BYTES)
    work = Work(
        programs=programs,
        warps=_WARPS,
        registers=choice.registers(shape),
        shared_bytes=(bm + bn) * depth * size,
        steps=1,
        held=1,
        step_seconds=busy,
        turn_seconds=0.0,
        chain_seconds=0.0,
        step_bytes=float(bm * depth * size),
        end_bytes=float(written),
        sums=bm * bn / (_WARPS * WARP_LANES),
        fetched_bytes=float(programs) * ((bm + bn) * depth * size + written),
        source_bytes=float(size * (shape.image or first)),
        moved_bytes=float(size * (first + shape.columns * (shape.depth + shape.rows))),
    )
    added = adding_seconds(shape, choice.pieces, work, gpu) if choice.pieces > 1 else 0.0
    return seconds_of(work, gpu) + added

"""Products of few rows by programs that have their weights before anything else.

With one image a launch is over in two microseconds, much of which its programs wait for what they
read. Weights need not be waited for: they are loaded while the launch before still runs, and what
is left behind it is one load of rows, one product, one store. All steps of a sum are in registers
and shared memory at once, so sums are short, and programs no more than can start at the same time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of
from smelt.backends.cuda._costs import WARP_LANES, Work, gpu_of, product_seconds, seconds_of
from smelt.backends.cuda._product import write_product
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._tiles import OWN_SHARED_BYTES, behind_tiles
from smelt.backends.cuda.families.gemm import GemmFamily, is_turned, shape_of
from smelt.engine import parameters
from smelt.ops import Gemm, MatMul
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda.families._tiles import Shape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node

AHEAD: Final = "ahead"
_BASE: Final = GemmFamily()
_TILES: Final = ((16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64))
"""Rows and columns."""
_WARPS: Final = 4
_KEPT: Final = 3
_MOST_BESIDE: Final = 2
"""Programs of a multiprocessor."""
_MOST_REGISTERS: Final = 220
_OWN_REGISTERS: Final = 40
"""Of a thread, beside factors and sums."""
_MOST_DEPTH: Final = 640
_LONGEST_STEP: Final = 128
_LEAST_STEP: Final = 32


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a tactic decides."""

    tile: tuple[int, int, int]

    def registers(self, shape: Shape) -> float:
        """Of a thread."""
        bm, bn, _ = self.tile
        return _OWN_REGISTERS + ((bm + bn) * shape.depth / 2 + bm * bn * (1 + shape.adds / 2)) / (
            _WARPS * WARP_LANES
        )

    def programs(self, shape: Shape) -> int:
        """One for each tile."""
        return -(-shape.rows // self.tile[0]) * -(-shape.columns // self.tile[1])

    def fits(self, shape: Shape, target: CudaTarget) -> bool:
        """Whether all programs run at once, with all that they have."""
        bm, bn, _ = self.tile
        room = (bm + bn) * shape.depth * shape.dtype.size_bytes
        return (
            (bm == _TILES[0][0] or bm < 2 * shape.rows)
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
            early=shape.adds,
            pieces=1,
        )


class AheadFamily(Family[CudaTarget]):
    """What ``gemm`` computes step by step, where one matrix of weights multiplies all rows."""

    name: ClassVar[str] = AHEAD
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], Gemm | MatMul):
            return
        if reason := _why_not(node, target):
            yield Refusal(self.name, reason)
            return
        base = next(_BASE.tactics(node, target))
        if isinstance(base, Refusal):
            return  # that family says why
        shape, step = _shape(node, target)
        choices = [c for c in (_Choice((*tile, step)) for tile in _TILES) if c.fits(shape, target)]
        if not choices:
            yield Refusal(self.name, "its programs do not all run at once")
            return
        found = [(_seconds(shape, choice, target), choice) for choice in choices]
        ranked = sorted(found, key=lambda pair: pair[0])[:_KEPT]
        for seconds, choice in behind_tiles(ranked, shape_of(node, target), target):
            options = choice.parameters(shape)
            yield Tactic(self.name, options, base.inputs, base.outputs, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return _BASE.pack(node, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _BASE.lower(node, tactic, operands)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_product(kernel)


def _shape(node: Node, target: CudaTarget) -> tuple[Shape, int]:
    """The product, whatever is stacked being rows; and how long steps of its sum are."""
    shape = shape_of(node, target)
    shape = dataclasses.replace(shape, matrices=1, rows=shape.matrices * shape.rows)
    return shape, gcd(shape.depth, _LONGEST_STEP)


def _why_not(node: Node, target: CudaTarget) -> str | None:
    x, weights = value_of(node, 0).tensor, value_of(node, 1)
    if weights.constant is None or weights.tensor.rank != 2 or x.rank < 2:
        return "the second factor is no matrix of weights"
    if not isinstance(x.shape[-2 if is_turned(node) else -1], int):
        return "the sum's length is not known"
    shape, step = _shape(node, target)
    if shape.dtype.size_bytes != DType.FLOAT16.size_bytes:
        return "its factors have more than 16 bits"
    if not target.starts_early:
        return f"{target.architecture} starts no launch early"
    if step < _LEAST_STEP or shape.depth > _MOST_DEPTH:
        return f"a sum of {shape.depth} has steps of {step}, or leaves no room for a tile"
    return None


def _seconds(shape: Shape, choice: _Choice, target: CudaTarget) -> float:
    """What a launch takes, by the terms of other products, once its weights are there."""
    (bm, bn, _), size, gpu = choice.tile, shape.dtype.size_bytes, gpu_of(target)
    programs, first = choice.programs(shape), shape.rows * shape.depth
    busy = product_seconds((bm, bn, shape.depth), _WARPS, shape.dtype, "ieee", gpu)
    written = bm * bn * size * (1 + shape.adds)
    return seconds_of(
        Work(
            programs=programs,
            warps=_WARPS,
            registers=choice.registers(shape),
            shared_bytes=(bm + bn) * shape.depth * size,
            steps=1,
            held=1,
            step_seconds=busy,
            turn_seconds=0.0,
            chain_seconds=0.0,
            step_bytes=float(bm * shape.depth * size),
            end_bytes=float(written),
            sums=bm * bn / (_WARPS * WARP_LANES),
            fetched_bytes=float(programs) * ((bm + bn) * shape.depth * size + written),
            source_bytes=float(size * first),
            moved_bytes=float(size * (first + shape.columns * (shape.depth + shape.rows))),
        ),
        gpu,
    )

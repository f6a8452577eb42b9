"""Tiles for products: which are worth trying, by what the GPU could do at best."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._base import Tactic
from smelt.backends.cuda._costs import BYTES_PER_SECOND, LAUNCH_SECONDS
from smelt.engine import parameters
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.types import Dim, TensorFormat

_KEPT: Final = 24
_KEPT_ALIKE: Final = 3
"""Of tiles with as many rows and columns so many are kept."""
_FLOPS: Final = 6.8e14
"""Of the whole GPU on its tensor cores, in 16 bits."""
_SLOW_FLOPS: Final = {"ieee": 4.0e13, "tf32x3": 1.0e14, "tf32": 3.0e14}
_SHARED_BYTES_PER_SECOND: Final = 3.6e10
"""What one multiprocessor gets from the second-level cache."""
_LATENCY_SECONDS: Final = 9.0e-7
"""From asking for a tile's factors to having them."""
_TILE_SECONDS: Final = 1.5e-6
"""Beginning and end of a tile."""
_ADDING_SECONDS: Final = 2.0e-6
"""Of the launch that adds the pieces of a sum."""
_SCATTERED: Final = 6.0
"""How much longer steps take whose elements are read one by one."""
_REGISTERS: Final = 65536
_THREADS: Final = 2048
_WARP_LANES: Final = 32
_VECTOR: Final = 8
_LEAST_VECTOR: Final = 4
"""Elements of a load that may run ahead."""
_LARGEST_TILE: Final = 128 * 256
_LEAST_AREA: Final = {4: 0, 8: 64 * 128}
_MOST_AREA: Final = {4: 128 * 128, 8: _LARGEST_TILE}
"""Elements of a tile for a number of warps."""
_HALF_SIZES: Final = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256))
_SINGLE_SIZES: Final = ((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64))
"""Rows, columns and steps of tiles, by the factors' element type."""
_FEW_STEPS: Final = 64
"""Shorter steps of a sum in 16 bits are for shorter sums alone."""
_OWN_SHARED_BYTES: Final = 2048
"""Shared memory beside the factors."""
_LEAST_WIDE_ROWS: Final = 64
"""Tiles of fewer rows go through the older, half as fast instructions."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents of a product."""

    matrices: int
    rows: int
    columns: int
    depth: int
    dtype: DType
    """Of the factors."""
    adds: bool = False
    """Whether the epilogue reads a tensor."""
    run: int = 0
    """Elements of the depth that lie side by side; 0 for all of them."""
    image: int = 0
    """Elements of the first factor, where windows read them several times."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    warps: int
    pipeline: int
    precision: str
    early: bool = False
    pieces: int = 1

    def tactic(
        self,
        family: str,
        inputs: tuple[TensorFormat | None, ...],
        output: TensorFormat,
        sum_bytes: Dim,
        seconds: float,
    ) -> Tactic:
        """The decision as data; ``sum_bytes`` is what the sums of one piece take."""
        options = parameters(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        room = sum_bytes * self.pieces if self.pieces > 1 else 0
        return Tactic(family, options, inputs, (output,), workspace_bytes=room, cost_hint=seconds)


def choices(tactic: Tactic, *, asks: bool = True) -> dict[str, Any]:
    """What a tactic's parameters say of its kernel; ``asks`` for weights ahead."""
    known = {"sums": "product", "asks": asks, "added": 1, "piece_stride": 0}
    return {**known, **dict(tactic.parameters)}


def tiles_for(shape: Shape, target: CudaTarget) -> Iterator[tuple[Choice, float]]:
    """Yield the most promising tiles, with their estimated seconds, best first."""
    found = [(_seconds(shape, choice, target), choice) for choice in _choices(shape, target)]
    found.sort(key=lambda pair: pair[0])
    kept: dict[tuple[int, int, bool, bool], int] = {}
    count = 0
    for seconds, choice in found:
        kind = (*choice.tile[:2], choice.early, choice.pieces > 1)
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= _KEPT_ALIKE and count < _KEPT:
            count += 1
            yield choice, seconds


def _choices(shape: Shape, target: CudaTarget) -> Iterator[Choice]:
    """Every tile that fits the product and the GPU."""
    is_single = shape.dtype is DType.FLOAT32
    precisions = _precisions(target) if is_single else ("ieee",)
    for tile in product(*(_SINGLE_SIZES if is_single else _HALF_SIZES)):
        most = (shape.rows, shape.columns, shape.depth)
        if any(size > max(16, _power(m)) for size, m in zip(tile, most, strict=True)):
            continue
        if tile[2] < min(_FEW_STEPS, _power(shape.depth)) and not is_single:
            continue
        steps, area = -(-shape.depth // tile[2]), tile[0] * tile[1]
        if area > _LARGEST_TILE:
            continue
        all_warps = [w for w in (4, 8) if _LEAST_AREA[w] <= area <= _MOST_AREA[w]]
        for pipeline, pieces in product(
            _pipelines(shape, tile, steps, target), _pieces(shape, tile, steps, target)
        ):
            if pipeline > -(-steps // pieces) + 1:
                continue
            earlies = {False, shape.adds and pieces == 1}
            for precision, early, warps in product(precisions, sorted(earlies), all_warps):
                yield Choice(tile, warps, pipeline, precision, early, pieces)


def _precisions(target: CudaTarget) -> tuple[str, ...]:
    """How float32 may be multiplied; three products of tf32 are as good as one of float32."""
    if not target.has_tf32:
        return ("ieee",)
    return ("ieee", "tf32x3", "tf32") if target.allows_tf32 else ("ieee", "tf32x3")


def _pipelines(
    shape: Shape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """How many steps' factors may be held: one where nothing can run ahead."""
    each = (tile[0] + tile[1]) * tile[2] * shape.dtype.size_bytes
    most = (target.shared_bytes - _OWN_SHARED_BYTES) // each
    if most and (steps == 1 or shape.run % _VECTOR):
        yield 1
    if steps == 1 or shape.run % _LEAST_VECTOR:
        return
    for pipeline in (2, 3) if shape.dtype is DType.FLOAT32 else (2, 3, 4, 6, 8):
        if pipeline <= most:
            yield pipeline


def _pieces(
    shape: Shape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """Into how many parts a sum may be cut: only while that gives idle multiprocessors work."""
    yield 1
    tiles = shape.matrices * -(-shape.rows // tile[0]) * -(-shape.columns // tile[1])
    for pieces in (2, 3, 4, 6, 8):
        if (
            shape.matrices == 1
            and pieces * 2 <= steps
            and tiles * pieces <= 2 * target.multiprocessors
        ):
            yield pieces


def _seconds(shape: Shape, choice: Choice, target: CudaTarget) -> float:
    bm, bn, bk = choice.tile
    size = shape.dtype.size_bytes
    tiles = shape.matrices * -(-shape.rows // bm) * -(-shape.columns // bn)
    steps = -(-shape.depth // bk // choice.pieces)
    tiles *= choice.pieces
    each = -(-tiles // target.multiprocessors)
    held = max(1, choice.pipeline) * (bm + bn) * bk * size + _OWN_SHARED_BYTES
    threads = choice.warps * _WARP_LANES
    beside = min(
        target.shared_bytes // held,
        _THREADS // threads,
        _REGISTERS // (bm * bn + threads * 64),
    )
    beside = max(1, min(each, beside))
    rate = _SLOW_FLOPS[choice.precision] if shape.dtype is DType.FLOAT32 else _FLOPS
    if bm < _LEAST_WIDE_ROWS:
        rate *= 0.55
    work = 2.0 * bm * bn * bk * target.multiprocessors / rate
    if shape.run % _LEAST_VECTOR:
        work *= _SCATTERED
    moved = (bm + bn) * bk * size / (_SHARED_BYTES_PER_SECOND * 3)
    ahead = max(1, min(choice.pipeline - 1, steps))
    step = max(beside * max(work, moved), _LATENCY_SECONDS / ahead)
    written = bm * bn * size * (1 + shape.adds) * beside / (_SHARED_BYTES_PER_SECOND * 3)
    own = -(-each // beside) * (steps * step + _TILE_SECONDS + written)
    first = shape.image or shape.rows * shape.depth
    read = first + shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    floor = shape.matrices * read * size / BYTES_PER_SECOND
    apart = _ADDING_SECONDS if choice.pieces > 1 else 0.0
    return LAUNCH_SECONDS + max(own, floor) + apart


def _power(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()

"""Tiles for products: which are worth trying, by what the GPU could do at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._costs import BYTES_PER_SECOND, LAUNCH_SECONDS
from smelt.engine import parameters
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Parameters

_FLOPS: Final = {DType.FLOAT16: 7.0e14, DType.BFLOAT16: 7.0e14, DType.FLOAT32: 4.0e13}
"""Products a second of the whole GPU, by element type; float32 without tensor cores."""
_STEP_SECONDS: Final = 4.0e-7
"""Latency of one step of a tile's sum that nothing hides."""
_TILES: Final = (
    (16, 32, 64), (16, 64, 64), (32, 32, 64), (32, 64, 64), (64, 32, 64), (64, 64, 64),
    (64, 128, 64), (128, 64, 64), (128, 128, 64), (128, 256, 64), (16, 32, 128), (32, 32, 128),
    (32, 32, 32), (64, 64, 32), (128, 64, 32), (128, 128, 32),
)  # fmt: skip
_KEPT: Final = 8
_LARGE_TILE: Final = 128 * 128


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents of a product."""

    matrices: int
    rows: int
    columns: int
    depth: int
    dtype: DType


def tiles_for(shape: Shape, target: CudaTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the options of the most promising tiles, with their estimated seconds, best first."""
    found: list[tuple[float, Parameters]] = []
    for tile in _TILES:
        bm, bn, bk = tile
        if bn > 2 * max(16, _power(shape.columns)) or bk > 2 * max(32, _power(shape.depth)):
            continue
        warps = 8 if bm * bn >= _LARGE_TILE else 4
        for pipeline in (3, 4):
            size = pipeline * (bm + bn) * bk * shape.dtype.size_bytes
            if size > target.shared_bytes:
                continue
            options = parameters(tile=tile, warps=warps, pipeline=pipeline)
            found.append((_seconds(shape, tile, target) * (1 + 0.01 * pipeline), options))
    for seconds, options in sorted(found, key=lambda pair: pair[0])[:_KEPT]:
        yield options, seconds


def _seconds(shape: Shape, tile: tuple[int, int, int], target: CudaTarget) -> float:
    bm, bn, bk = tile
    tiles = shape.matrices * -(-shape.rows // bm) * -(-shape.columns // bn)
    waves = -(-tiles // target.multiprocessors)
    steps = -(-shape.depth // bk)
    rate = _FLOPS.get(shape.dtype, 1e13) / target.multiprocessors
    work = 2.0 * bm * bn * bk * steps / rate
    size = shape.dtype.size_bytes
    traffic = tiles * (bm + bn) * bk * steps * size / (3 * BYTES_PER_SECOND)
    read = (shape.rows + shape.columns) * shape.depth + shape.rows * shape.columns
    moved = shape.matrices * read * size / BYTES_PER_SECOND
    return LAUNCH_SECONDS + max(waves * max(work, steps * _STEP_SECONDS / 4), traffic, moved)


def _power(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()

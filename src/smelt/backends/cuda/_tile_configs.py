"""Sizes of a product, and the parameters of the schedules that compute it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.engine import parameters

if TYPE_CHECKING:
    from smelt.engine import Parameters
    from smelt.types import DType


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Extents of a product."""

    matrices: int
    rows: int
    columns: int
    depth: int
    dtype: DType
    """Element type of the operands."""
    adds: bool = False
    """Whether the epilogue reads a tensor."""
    run: int = 0
    """Elements of the depth that are contiguous (inner K); 0 for all of them."""
    image: int = 0
    """Elements of A if windows read them several times, else 0."""
    windows: bool = False
    """Whether windows have several taps, which may lie outside the image."""
    summed_images: int = 1
    """Number of images whose windows are summed."""

    @property
    def size(self) -> int:
        """Size of an element of the operands in bytes."""
        return self.dtype.size_bytes

    @property
    def a_elements(self) -> int:
        """Number of distinct elements of A."""
        return self.image or self.rows * self.depth


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Parameters of a product's tactic, whatever its schedule."""

    omitted_if_empty: ClassVar[tuple[str, ...]] = ("row_programs", "schedule")
    """Parameters that tactics do not mention if they are 0 or empty."""
    tile: tuple[int, int, int]
    """Rows, columns and step of the reduction."""
    num_warps: int
    num_stages: int
    input_precision: str = "ieee"
    prefetches_epilogue: bool = False
    split_k: int = 1
    row_programs: int = 0
    """Persistent programs that share a block of columns; 0 if each program computes one tile."""
    schedule: str = ""
    """Schedule of `ImplicitGemmKernel`; empty for the one that the family always has."""

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return self.num_warps * WARP_LANES

    @property
    def parameters(self) -> Parameters:
        """Parameters of the tactic."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return parameters(
            **{k: v for k, v in values.items() if v or k not in self.omitted_if_empty}
        )


@dataclass(frozen=True, slots=True)
class FusedPairShape:
    """Sizes of a fused pair."""

    first: GemmShape
    columns: int
    """Columns of the second product."""
    adds: bool
    """Whether the second product's epilogue reads a non-constant tensor."""
    returns_intermediate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPairTiles(TileConfig):
    """Parameters of a fused pair's tactic; the tile is that of the first product."""

    omitted_if_empty: ClassVar[tuple[str, ...]] = ("schedule",)
    second_tile: int
    """Columns of the second product in a tile."""

    def keeps_columns(self, shape: FusedPairShape) -> bool:
        """Return whether all columns of the first product are in one tile."""
        return self.tile[1] >= shape.first.columns

    def prefetched_bytes(self, shape: FusedPairShape, depth: int) -> int:
        """Return the bytes of prefetched data and the intermediate.

        ``depth`` is the reduction depth of the pixels that are kept if columns are blocked.
        """
        bm, bn, bk = self.tile
        if self.keeps_columns(shape):
            elements = self.num_stages * (bm + bn) * bk + bn * (self.second_tile + bm)
        else:
            step = bn * (depth + self.second_tile) + bm * bn * shape.first.adds
            elements = self.num_stages * step + bm * bn
        return elements * shape.first.size

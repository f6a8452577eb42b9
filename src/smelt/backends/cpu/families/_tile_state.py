"""Position of the microkernel in its loops while its LLVM IR is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from smelt.backends.cpu._emit import Int, Reg


@dataclass(slots=True)
class TileState:
    """Operand addresses for the current image and group, and the tile that is being computed."""

    a: Reg
    """Address of the first factor's first tap for pixel (0, 0) of the image and group."""
    out: Reg
    """Address of the result's pixel (0, 0), first channel of the group."""
    extras: list[Reg]
    """Addresses of the epilogue's extra operands at the same position."""
    group: Int
    images: list[Int]
    """Coordinates of the image along each axis of the stack."""
    rows: tuple[Int, Int]
    """First row of tiles of the chunk, and the one after the last."""
    columns: tuple[Int, Int]
    """First column of tiles of the chunk, and the one after the last."""
    panel: Int = 0
    """Index of the panel within the group."""
    panel_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the panel's packed weights."""
    vectors: int = 0
    """Number of vectors of the panel that are computed."""
    width: int = 0
    """Number of channels of the panel as it is stored, padding included."""
    masks: list[Reg | None] = dataclasses.field(default_factory=list["Reg | None"])
    """For each vector, the mask of channels to store; None for a full vector."""
    reduction_pass: int = 0
    """Index of the pass over the rows of the window."""
    tile_index: Int = 0
    """Index of the tile within the chunk, which selects its slot of unfinished sums."""
    prefetch_ahead: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the part of the next panel that this tile prefetches."""
    tiles_before: Int = 0
    """Number of tiles in the chunks and panels before this panel."""
    next_weights_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the part of later launches' weights that this tile prefetches."""

"""Where a microkernel is while its text is written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from smelt.backends.cpu._emit import Int, Reg


@dataclass(slots=True)
class TileState:
    """Where the kernel is: pointers at the current image and group, and the tile being computed."""

    a: Reg
    out: Reg
    extras: list[Reg]
    group: Int
    images: list[Int]
    rows: tuple[Int, Int]
    columns: tuple[Int, Int]
    panel: Int = 0
    panel_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    vectors: int = 0
    width: int = 0
    """Channels of the panel as it is stored."""
    masks: list[Reg | None] = dataclasses.field(default_factory=list["Reg | None"])
    reduction_pass: int = 0
    tile_index: Int = 0
    prefetch_ahead: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """What the tile asks for of the next panel."""
    tiles_before: Int = 0
    """Tiles of the chunks and panels before."""
    next_weights_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """What the tile asks for of later weights."""

"""The bridge between memories: lines, repeated to surfaces, repeated to a cube.

Source: NVDLA documentation, Unit Description, "Bridge DMA"; Programming Guide, "BDMA programming".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer, in bytes and true counts (registers hold atoms and counts less one)."""

    source: int
    target: int
    line_bytes: int
    line_count: int = 1
    source_line_stride: int = 0
    target_line_stride: int = 0
    surface_count: int = 1
    source_surface_stride: int = 0
    target_surface_stride: int = 0


def transfer(settings: Transfer, source_memory: bytes, target_memory: bytearray) -> None:
    """Copy every line of every surface; source and target do not overlap."""
    for surface in range(settings.surface_count):
        for line in range(settings.line_count):
            source = settings.source + surface * settings.source_surface_stride
            source += line * settings.source_line_stride
            target = settings.target + surface * settings.target_surface_stride
            target += line * settings.target_line_stride
            piece = source_memory[source : source + settings.line_bytes]
            target_memory[target : target + settings.line_bytes] = piece

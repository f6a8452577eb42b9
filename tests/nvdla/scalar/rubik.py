"""The reshaping engine: contract, split and merge, byte for byte.

Source: NVDLA documentation, Unit Description, "RUBIK" and its figures; Programming Guide, "Rubik
programming".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.nvdla.scalar.surfaces import (
    FeatureSurface,
    PlanarSurface,
    read_integer,
    write_integer,
)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A contraction: input size in elements, and how many columns and lines each one becomes."""

    width: int
    height: int
    channels: int
    stride_x: int
    stride_y: int
    source: FeatureSurface
    target: FeatureSurface

    @property
    def output_channels(self) -> int:
        """How many channels are left."""
        return self.channels // (self.stride_x * self.stride_y)


@dataclass(frozen=True, slots=True)
class PlaneMove:
    """A split or a merge of a cube of this size."""

    width: int
    height: int
    channels: int
    feature: FeatureSurface
    planes: PlanarSurface


def contract(settings: Contraction, memory: bytearray) -> None:
    """Spread blocks of channels over lines and columns.

    Block ``dy * stride_x + dx`` of the input's channels becomes position (dy, dx) of every
    stride_y by stride_x square (figure of contract mode).
    """
    byte_count = settings.source.precision.byte_count
    before = bytes(memory)
    for dy, dx in np.ndindex(settings.stride_y, settings.stride_x):
        first = (dy * settings.stride_x + dx) * settings.output_channels
        size = (settings.output_channels, settings.height, settings.width)
        for channel, line, column in np.ndindex(size):
            source = settings.source.element_address(first + channel, line, column)
            target = settings.target.element_address(
                channel, line * settings.stride_y + dy, column * settings.stride_x + dx
            )
            element = read_integer(before, source, byte_count)
            write_integer(memory, target, byte_count, element)


def split(settings: PlaneMove, memory: bytearray) -> None:
    """Write each channel of a feature cube to its own plane (figure of split and merge)."""
    byte_count = settings.feature.precision.byte_count
    for index in np.ndindex(settings.channels, settings.height, settings.width):
        element = read_integer(memory, settings.feature.element_address(*index), byte_count)
        write_integer(memory, settings.planes.element_address(*index), byte_count, element)


def merge(settings: PlaneMove, memory: bytearray) -> None:
    """Write planes to the channels of a feature cube (figure of split and merge)."""
    byte_count = settings.feature.precision.byte_count
    for index in np.ndindex(settings.channels, settings.height, settings.width):
        element = read_integer(memory, settings.planes.element_address(*index), byte_count)
        write_integer(memory, settings.feature.element_address(*index), byte_count, element)

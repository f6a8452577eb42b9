"""Weights in memory: the four orders, and sparse compression.

Source: NVDLA documentation, In-memory data formats, "Weight Format". Weights here are raw whole
numbers (halves as their bits), as kernel, channel, line, column. Sizes that the documentation
gives for 1024 16-bit multipliers (groups of 16 or 32 kernels, blocks of 64 channels) are those of
the implementation at hand in others, so both are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.nvdla.scalar.surfaces import read_integer, write_integer

if TYPE_CHECKING:
    from tests.nvdla.scalar.arithmetic import Cube, Precision

SURFACE_ALIGNMENT: Final = 128
"""Weights, masks and group sizes each fill whole multiples of this many bytes."""

_G: Final = (
    (Fraction(1), Fraction(0), Fraction(0)),
    (Fraction(1, 2), Fraction(1, 2), Fraction(1, 2)),
    (Fraction(1, 2), Fraction(-1, 2), Fraction(1, 2)),
    (Fraction(0), Fraction(0), Fraction(1)),
)


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How an implementation groups weights."""

    precision: Precision
    kernels_per_group: int
    channels_per_block: int


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """The three surfaces of compressed weights."""

    weights: bytes
    mask: bytes
    group_sizes: bytes


def group_kernels(kernel_count: int, kernels_per_group: int) -> list[range]:
    """Split kernels into groups; the last may be smaller."""
    return [
        range(start, min(start + kernels_per_group, kernel_count))
        for start in range(0, kernel_count, kernels_per_group)
    ]


def order_direct(weights: Cube, layout: WeightLayout) -> list[list[int]]:
    """Return each group's elements in memory order: C' > K > W > H > C.

    Source: "Basic Weight for Direct Convolution"; channel blocks are not filled up.
    """
    kernels, channels, lines, columns = weights.shape
    groups: list[list[int]] = []
    for group in group_kernels(kernels, layout.kernels_per_group):
        elements: list[int] = []
        for start in range(0, channels, layout.channels_per_block):
            stop = min(start + layout.channels_per_block, channels)
            for line in range(lines):
                for column in range(columns):
                    for kernel in group:
                        block = weights[kernel, start:stop, line, column]
                        elements.extend(int(element) for element in block)
        groups.append(elements)
    return groups


def extend_image_weights(weights: Cube) -> Cube:
    """Turn each line of a kernel into one column of W*C channels (pre-extension).

    Source: "Basic Weight for image input": pixels stay interleaved, so a line's channel is
    ``column * channels + channel``.
    """
    kernels, channels, lines, columns = weights.shape
    extended = np.zeros((kernels, channels * columns, lines, 1), np.int64)
    for kernel, channel, line, column in np.ndindex(weights.shape):
        extended[kernel, column * channels + channel, line, 0] = weights[
            kernel, channel, line, column
        ]
    return extended


def order_image(weights: Cube, layout: WeightLayout, line_count: int) -> list[list[int]]:
    """Return each group's elements of an image convolution, ``line_count`` lines combined.

    Source: "Basic Weight for image input" and "Weight Channel Post-extension for image input":
    with 2 or 4, neighbouring lines of one kernel stand together and the last may be fewer.
    """
    extended = extend_image_weights(weights)
    if line_count == 1:
        return order_direct(extended, layout)
    kernels, channels, lines, _ = extended.shape
    groups: list[list[int]] = []
    for group in group_kernels(kernels, layout.kernels_per_group):
        elements: list[int] = []
        for first in range(0, lines, line_count):
            for kernel in group:
                for line in range(first, min(first + line_count, lines)):
                    elements.extend(int(extended[kernel, c, line, 0]) for c in range(channels))
        groups.append(elements)
    return groups


def extend_winograd_weights(
    weights: Cube, stride_x: int, stride_y: int, channels_per_atom: int
) -> Cube:
    """Make a strided kernel a 3 by 3 one with more channels (Winograd channel extension).

    Source: "Basic Weight for Winograd Convolution", phase 1 and its figure: channels fill whole
    atoms, and position (dy, dx) of a stride window is channel block ``dy * stride_x + dx``.
    """
    kernels, channels = weights.shape[:2]
    padded = -(-channels // channels_per_atom) * channels_per_atom
    extended = np.zeros((kernels, padded * stride_x * stride_y, 3, 3), np.int64)
    for kernel, channel, line, column in np.ndindex(weights.shape):
        block = line % stride_y * stride_x + column % stride_x
        place = (kernel, block * padded + channel, line // stride_y, column // stride_x)
        extended[place] = weights[kernel, channel, line, column]
    return extended


def transform_winograd_weights(weights: Cube) -> list[list[list[list[Fraction]]]]:
    """Return G g G^T of every 3 by 3 kernel plane, exactly, as nested [kernel][channel][4][4].

    Source: Unit Description, "Winograd Convolution"; software scales and rounds the answer.
    """
    kernels, channels, _, _ = weights.shape
    return [
        [_transform_plane(weights[kernel, channel]) for channel in range(channels)]
        for kernel in range(kernels)
    ]


def _transform_plane(plane: Cube) -> list[list[Fraction]]:
    rows = range(3)
    return [
        [
            sum((_G[i][a] * int(plane[a, b]) * _G[j][b] for a in rows for b in rows), Fraction(0))
            for j in range(4)
        ]
        for i in range(4)
    ]


def order_winograd(weights: Cube, layout: WeightLayout) -> list[list[int]]:
    """Return each group's elements of 4 by 4 kernels: cubes of 4x4x4, kernels, then channels.

    Source: "Basic Weight for Winograd Convolution", phase 2. Inside a cube the text gives no
    order; that of all other weights is taken: channels, columns, lines.
    """
    kernels, channels, _, _ = weights.shape
    groups: list[list[int]] = []
    for group in group_kernels(kernels, layout.kernels_per_group):
        elements: list[int] = []
        for start in range(0, channels, 4):
            for kernel in group:
                for line, column, lane in np.ndindex(4, 4, 4):
                    elements.append(int(weights[kernel, start + lane, line, column]))
        groups.append(elements)
    return groups


def pack_weights(groups: list[list[int]], precision: Precision) -> bytes:
    """Return the bytes of uncompressed weights: groups stand compactly, zeros fill the end."""
    elements = [element for group in groups for element in group]
    return _fill_up(_bytes_from_elements(elements, precision.byte_count))


def compress_weights(groups: list[list[int]], precision: Precision) -> CompressedWeights:
    """Return the three surfaces of compressed weights.

    Source: "Sparse Compression option": a mask bit for each element, first element in the lowest
    bit; zeros are left out; a group's remaining bytes stand in its 32-bit size.
    """
    bits: list[int] = []
    kept: list[int] = []
    sizes: list[int] = []
    for group in groups:
        bits.extend(int(element != 0) for element in group)
        remaining = [element for element in group if element != 0]
        kept.extend(remaining)
        sizes.append(len(remaining) * precision.byte_count)
    mask = bytearray(-(-len(bits) // 8))
    for position, bit in enumerate(bits):
        mask[position // 8] |= bit << position % 8
    return CompressedWeights(
        weights=_fill_up(_bytes_from_elements(kept, precision.byte_count)),
        mask=_fill_up(bytes(mask)),
        group_sizes=_fill_up(_bytes_from_elements(sizes, 4)),
    )


def decompress_weights(
    compressed: CompressedWeights, group_lengths: list[int], precision: Precision
) -> list[list[int]]:
    """Return each group's elements, given how many every group has.

    Source: "Sparse Compression option". A group starts at the sum of the sizes before it.
    """
    groups: list[list[int]] = []
    start_bit = start_byte = 0
    for number, length in enumerate(group_lengths):
        group: list[int] = []
        position = start_byte
        for bit in range(start_bit, start_bit + length):
            present = compressed.mask[bit // 8] >> bit % 8 & 1
            group.append(
                read_integer(compressed.weights, position, precision.byte_count) if present else 0
            )
            position += precision.byte_count * present
        start_bit += length
        start_byte += read_integer(compressed.group_sizes, 4 * number, 4)
        groups.append(group)
    return groups


def _bytes_from_elements(elements: list[int], byte_count: int) -> bytes:
    packed = bytearray(len(elements) * byte_count)
    for number, element in enumerate(elements):
        write_integer(packed, number * byte_count, byte_count, element)
    return bytes(packed)


def _fill_up(data: bytes) -> bytes:
    return data + bytes(-len(data) % SURFACE_ALIGNMENT)

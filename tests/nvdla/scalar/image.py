"""Pixel input of the convolution: formats in memory, mean and converter.

Source: NVDLA documentation, In-memory data formats, "Pixel Format" and equation 1; Programming
Guide, PIXEL_SIGN_OVERRIDE, PIXEL_X/Y_OFFSET and ZERO_PADDING_VALUE; CDMA register manual for the
formats' numbers. A packed name lists components from the highest bits down, so ``T_A8B8G8R8`` has
red in its first byte. The convolution sees R(Y), G(U), B(V), A(X) in this order, whatever the
format's order was (Unit Description, "Convolution with Image Input").
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from tests.nvdla.scalar.arithmetic import (
    Cube,
    HalfCube,
    Precision,
    saturate,
    shift_right,
    sign_extend,
)
from tests.nvdla.scalar.floats import write_half
from tests.nvdla.scalar.surfaces import halves_from_bits

CHANNEL_ORDER: Final = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}
CONVOLUTION_INFINITY: Final = Fraction(65536)
"""What the convolution takes for infinity in direct and image mode ("FP16 Supporting")."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane: its components from the lowest bits up, each a letter and a bit count."""

    components: tuple[tuple[str, int], ...]
    pixel_bytes: int


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """One pixel format and its number in D_DATAIN_FORMAT.PIXEL_FORMAT."""

    name: str
    number: int
    planes: tuple[Plane, ...]
    is_float: bool
    input_precision: Precision
    """Its IN_PRECISION."""
    largest_x_offset: int

    @property
    def channel_count(self) -> int:
        """How many channels the convolution sees."""
        return sum(len(plane.components) for plane in self.planes)

    def component_bits(self, channel: int) -> int:
        """Return the bits of the component that becomes a channel."""
        for plane in self.planes:
            for letter, bits in plane.components:
                if CHANNEL_ORDER[letter] == channel:
                    return bits
        msg = f"{self.name} has no channel {channel}"
        raise ValueError(msg)


def _parse_format(number: int, name: str) -> PixelFormat:
    """Read a format's layout from its name."""
    planes: list[Plane] = []
    for text in name.removeprefix("T_").removesuffix("_N444").split("___"):
        components: list[tuple[str, int]] = []
        for character in text.split("_")[0]:
            if character.isalpha():
                components.append((character, 0))
            else:
                letter, bits = components[-1]
                components[-1] = (letter, 10 * bits + int(character))
        components.reverse()
        bits = sum(bits for _, bits in components)
        wide = bits if len(components) == 4 else sum(_container(b) for _, b in components)
        planes.append(Plane(tuple(components), wide // 8))
    bits = max(bits for plane in planes for _, bits in plane.components)
    first = planes[0].pixel_bytes
    return PixelFormat(
        name=name,
        number=number,
        planes=tuple(planes),
        is_float=name.endswith("_F"),
        input_precision=_input_precision(name, bits),
        largest_x_offset=32 // first - 1,
    )


def _input_precision(name: str, bits: int) -> Precision:
    """Return what the format holds; the table of pixel formats has T_R16_F under int16."""
    if bits == 8:
        return Precision.INT8
    return Precision.FP16 if name.endswith("16_F") else Precision.INT16


def _container(bits: int) -> int:
    return 8 if bits <= 8 else 16


_NAMES: Final = (
    "T_R8",
    "T_R10",
    "T_R12",
    "T_R16",
    "T_R16_I",
    "T_R16_F",
    "T_A16B16G16R16",
    "T_X16B16G16R16",
    "T_A16B16G16R16_F",
    "T_A16Y16U16V16",
    "T_V16U16Y16A16",
    "T_A16Y16U16V16_F",
    "T_A8B8G8R8",
    "T_A8R8G8B8",
    "T_B8G8R8A8",
    "T_R8G8B8A8",
    "T_X8B8G8R8",
    "T_X8R8G8B8",
    "T_B8G8R8X8",
    "T_R8G8B8X8",
    "T_A2B10G10R10",
    "T_A2R10G10B10",
    "T_B10G10R10A2",
    "T_R10G10B10A2",
    "T_A2Y10U10V10",
    "T_V10U10Y10A2",
    "T_A8Y8U8V8",
    "T_V8U8Y8A8",
    "T_Y8___U8V8_N444",
    "T_Y8___V8U8_N444",
    "T_Y10___U10V10_N444",
    "T_Y10___V10U10_N444",
    "T_Y12___U12V12_N444",
    "T_Y12___V12U12_N444",
    "T_Y16___U16V16_N444",
    "T_Y16___V16U16_N444",
)

PIXEL_FORMATS: Final = tuple(_parse_format(number, name) for number, name in enumerate(_NAMES))


@dataclass(frozen=True, slots=True)
class ImageSurface:
    """An image in memory: one address and line stride for each plane, and a column to start at."""

    pixel_format: PixelFormat
    addresses: tuple[int, ...]
    line_strides: tuple[int, ...]
    x_offset: int = 0


@dataclass(frozen=True, slots=True)
class PixelConverter:
    """The mean and converter registers of the convolution's DMA.

    ``means`` (MEAN_RY, MEAN_GU, MEAN_BV, MEAN_AX) stand in for ``offset`` where MEAN_FORMAT
    enables them.
    """

    is_enabled: bool = False
    is_signed: bool = False
    means: tuple[int, int, int, int] | None = None
    offset: int = 0
    scale: int = 1
    truncate: int = 0

    def offset_of(self, channel: int) -> int:
        """Return what is subtracted from a channel."""
        return self.offset if self.means is None else self.means[channel]


def read_image(memory: bytes | bytearray, surface: ImageSurface, height: int, width: int) -> Cube:
    """Read the raw components, not yet extended to a sign, as channel, line, column.

    Components of 10 and 12 bits that are not packed stand in the low bits of two bytes.
    """
    pixels = np.zeros((surface.pixel_format.channel_count, height, width), np.int64)
    for number, plane in enumerate(surface.pixel_format.planes):
        start = surface.addresses[number] + surface.x_offset * plane.pixel_bytes
        for line in range(height):
            for column in range(width):
                address = start + line * surface.line_strides[number] + column * plane.pixel_bytes
                raw = int.from_bytes(memory[address : address + plane.pixel_bytes], "little")
                for letter, value in _split_pixel(raw, plane):
                    pixels[CHANNEL_ORDER[letter], line, column] = value
    return pixels


def write_image(memory: bytearray, surface: ImageSurface, pixels: Cube) -> None:
    """Write raw components where ``read_image`` finds them."""
    _, height, width = pixels.shape
    for number, plane in enumerate(surface.pixel_format.planes):
        start = surface.addresses[number] + surface.x_offset * plane.pixel_bytes
        for line in range(height):
            for column in range(width):
                address = start + line * surface.line_strides[number] + column * plane.pixel_bytes
                raw = shift = 0
                for letter, bits in plane.components:
                    raw |= int(pixels[CHANNEL_ORDER[letter], line, column]) << shift
                    shift += _component_step(plane, bits)
                memory[address : address + plane.pixel_bytes] = raw.to_bytes(
                    plane.pixel_bytes, "little"
                )


def _split_pixel(raw: int, plane: Plane) -> list[tuple[str, int]]:
    values: list[tuple[str, int]] = []
    for letter, bits in plane.components:
        values.append((letter, raw & (1 << bits) - 1))
        raw >>= _component_step(plane, bits)
    return values


def _component_step(plane: Plane, bits: int) -> int:
    return bits if len(plane.components) == 4 else _container(bits)


def convert_integer_pixels(
    pixels: Cube,
    pixel_format: PixelFormat,
    converter: PixelConverter,
    precision: Precision,
    *,
    is_high: bool = False,
) -> Cube:
    """Make integer components the convolution's int8 or int16.

    Source: In-memory data formats, equation 1; Programming Guide, PIXEL_SIGN_OVERRIDE: an enabled
    converter takes 17 bits, extended as the override says; with a disabled one the stored bits
    are the number. Nothing says at which end of 16 bits fewer ones stand: ``is_high`` chooses.
    """
    converted = np.zeros_like(pixels)
    for index in np.ndindex(pixels.shape):
        bits = 8 if pixel_format.component_bits(0) == 8 else 16
        raw = int(pixels[index])
        if is_high and bits == 16:
            raw <<= 16 - pixel_format.component_bits(index[0])
        if not converter.is_enabled:
            converted[index] = sign_extend(raw, precision.width_bits)
            continue
        wide = sign_extend(raw, bits) if converter.is_signed else raw
        moved = (wide - converter.offset_of(index[0])) * converter.scale
        shifted = saturate(shift_right(moved, converter.truncate), 17)
        converted[index] = saturate(shifted, precision.width_bits)
    return converted


def convert_pixels_to_half(
    pixels: Cube, pixel_format: PixelFormat, converter: PixelConverter
) -> HalfCube:
    """Make components the convolution's fp16: integers convert, halves stay as they are.

    Source: In-memory data formats, equation 1 (int2fp); Precision Preservation, whose table of
    converters has no offset from fp16 to fp16. Its line on cc_cvt contradicts that (fp16 would lose
    its mean); NVIDIA's published hardware source decides: there the converter hands fp16 on.
    """
    converted = np.zeros(pixels.shape, np.float16)
    for index in np.ndindex(pixels.shape):
        raw = int(pixels[index])
        offset = converter.offset_of(index[0])
        if pixel_format.is_float or not converter.is_enabled:
            converted[index] = halves_from_bits(np.array([raw]))[0]
        else:
            bits = _container(pixel_format.component_bits(index[0]))
            wide = sign_extend(raw, bits) if converter.is_signed else raw
            shifted = shift_right((wide - offset) * converter.scale, converter.truncate)
            converted[index] = write_half(Fraction(saturate(shifted, 17)))
    return converted


def pad_image(
    converted: Cube,
    padding: tuple[int, int, int, int],
    side_value: int,
    edge_value: int,
) -> Cube:
    """Put padding (left, right, top, bottom) around a converted image.

    Source: Programming Guide, ZERO_PADDING_VALUE, and the figure of pixels in the buffer: left and
    right padding lie in the buffer, so they are the DMA's value; top and bottom lines are the
    sequencer's, as it stands. The guide has the DMA's value go through its converter; in NVIDIA's
    published hardware source, register-transfer level and C model alike, it replaces the
    converter's output. No official trace pads an image, so the source decides.
    """
    left, right, top, bottom = padding
    channels, height, width = converted.shape
    padded = np.full((channels, top + height + bottom, left + width + right), edge_value, np.int64)
    for channel in range(channels):
        for line in range(height):
            for column in range(left + width + right):
                inside = left <= column < left + width
                padded[channel, top + line, column] = (
                    converted[channel, line, column - left] if inside else side_value
                )
    return padded

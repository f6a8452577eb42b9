"""Random valid configurations of every unit, for tests that run hardware against the models.

Limits come from the documentation's section "Limitation" (Programming Guide) and from the widths of
the registers. Large arrays are drawn by a seed: hypothesis then shrinks configurations, not pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from hypothesis import strategies as st

from tests.nvdla.scalar.arithmetic import Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.cdp import FloatNormalization, Normalization
from tests.nvdla.scalar.convolution import Convolution, HalfWeights, Padding
from tests.nvdla.scalar.image import PIXEL_FORMATS, PixelConverter, PixelFormat
from tests.nvdla.scalar.pdp import Method, Pooling, Split
from tests.nvdla.scalar.surfaces import bits_from_halves
from tests.nvdla.scalar.tables import float_luts, luts

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

SPACES: Final = st.sampled_from((1, 0))
"""Main memory and the second memory, by the numbers of the RAM_TYPE fields."""
INTEGERS: Final = st.sampled_from((Precision.INT8, Precision.INT16))
ONLY_INT8: Final = st.just(Precision.INT8)
_SEEDS: Final = st.integers(0, 2**32 - 1)
_INT16: Final = st.integers(-(2**15), 2**15 - 1)


def draw_cube(draw: DrawFn, shape: tuple[int, ...], precision: Precision) -> Cube:
    """Draw whole numbers: of the full range, its ends, or near zero."""
    generator = np.random.default_rng(draw(_SEEDS))
    limit = 1 << precision.width_bits - 1
    style = draw(st.sampled_from(("full", "ends", "small")))
    if style == "full":
        return generator.integers(-limit, limit, shape)
    if style == "small":
        return generator.integers(-8, 9, shape)
    ends: Cube = generator.choice(np.array([-limit, limit - 1, 0, 1, -1]), shape)
    return ends


def draw_halves(draw: DrawFn, shape: tuple[int, ...], *, largest: float = 256.0) -> HalfCube:
    """Draw halves: eighths of whole numbers, numbers of all sizes, or denormals among them."""
    generator = np.random.default_rng(draw(_SEEDS))
    style = draw(st.sampled_from(("eighths", "spread", "denormal")))
    if style == "eighths":
        return (generator.integers(-64, 65, shape) / 8).astype(np.float16)
    low = -24.0 if style == "denormal" else -8.0
    magnitudes = 2.0 ** generator.uniform(low, np.log2(largest), shape)
    halves: HalfCube = (magnitudes * generator.choice([-1, 1], shape)).astype(np.float16)
    return halves


def _strew_specials(draw: DrawFn, halves: HalfCube) -> HalfCube:
    """Put infinities and numbers that are none in a few places, or nowhere."""
    specials = draw(st.lists(st.sampled_from((np.inf, -np.inf, np.nan)), max_size=3))
    generator = np.random.default_rng(draw(_SEEDS))
    for special in specials:
        halves[tuple(generator.integers(0, halves.shape))] = special
    return halves


# ---- convolution


@dataclass(frozen=True, slots=True)
class DirectCase:
    """A direct convolution of one or several cubes, its weights perhaps compressed."""

    settings: Convolution
    batches: list[Cube]
    weights: Cube
    is_compressed: bool
    output_shift: int


@st.composite
def direct_cases(
    draw: DrawFn, precisions: st.SearchStrategy[Precision] = INTEGERS, *, is_plain: bool = False
) -> DirectCase:
    """Draw a direct convolution with dilation and, unless plain, batches and compression."""
    precision = draw(precisions)
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    settings = _draw_convolution(draw, precision, kernel, dilation)
    size = [draw(st.integers(max(1, (kernel[i] - 1) * dilation[i] + 1), 8)) for i in range(2)]
    channels = draw(st.sampled_from((1, 3, 16, 33, 64, 70)))
    kernels = draw(st.sampled_from((1, 5, 16, 17, 33)))
    count = 1 if is_plain else draw(st.sampled_from((1, 1, 2, 3)))
    weights = draw_cube(draw, (kernels, channels, *kernel), precision)
    is_compressed = not is_plain and draw(st.booleans())
    if is_compressed:
        mask = np.random.default_rng(draw(_SEEDS)).random(weights.shape)
        weights = np.where(mask < draw(st.sampled_from((0.1, 0.5, 0.9))), 0, weights)
    shape = (channels, size[0], size[1])
    batches = [draw_cube(draw, shape, precision) for _ in range(count)]
    shift = draw(st.integers(0, 20))
    return DirectCase(_fit(settings, shape, kernel), batches, weights, is_compressed, shift)


def _draw_convolution(
    draw: DrawFn, precision: Precision, kernel: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> Convolution:
    extent = [(kernel[i] - 1) * dilation[i] + 1 for i in range(2)]
    padding = Padding(
        left=draw(st.integers(0, min(extent[1] - 1, 5))),
        right=draw(st.integers(0, min(extent[1] - 1, 5))),
        top=draw(st.integers(0, min(extent[0] - 1, 5))),
        bottom=draw(st.integers(0, min(extent[0] - 1, 5))),
        value=draw(st.integers(0, 0xFFFF)),
    )
    return Convolution(
        precision=precision,
        stride_x=draw(st.integers(1, 3)),
        stride_y=draw(st.integers(1, 3)),
        dilation_x=dilation[1],
        dilation_y=dilation[0],
        padding=padding,
        accumulator_bits=34 if precision is Precision.INT8 else 48,
        clip_truncate=draw(st.integers(0, 12)),
    )


def _fit(
    settings: Convolution, shape: tuple[int, int, int], kernel: tuple[int, int]
) -> Convolution:
    """Take padding from right and bottom until every padded column and line is used.

    Source: Programming Guide, limits of convolution; strides go to 1 where that cannot be.
    """
    lines, columns = settings.output_shape(shape, kernel)
    pad = settings.padding
    spare_y = pad.top + shape[1] + pad.bottom - (kernel[0] - 1) * settings.dilation_y - 1
    spare_x = pad.left + shape[2] + pad.right - (kernel[1] - 1) * settings.dilation_x - 1
    rest_y = spare_y - (lines - 1) * settings.stride_y
    rest_x = spare_x - (columns - 1) * settings.stride_x
    stride_y, stride_x = settings.stride_y, settings.stride_x
    bottom, right = pad.bottom - rest_y, pad.right - rest_x
    if bottom < 0:
        stride_y, bottom = 1, pad.bottom
    if right < 0:
        stride_x, right = 1, pad.right
    padding = replace(pad, bottom=bottom, right=right)
    return replace(settings, stride_x=stride_x, stride_y=stride_y, padding=padding)


@dataclass(frozen=True, slots=True)
class ImageCase:
    """A convolution of pixels."""

    settings: Convolution
    pixel_format: PixelFormat
    converter: PixelConverter
    x_offset: int
    pixels: Cube
    weights: Cube
    line_count: int
    """How many lines post-extension combines."""
    edge_value: int
    """The sequencer's padding value; the settings' padding holds the DMA's."""
    output_shift: int


@st.composite
def image_cases(draw: DrawFn) -> ImageCase:
    """Draw an integer image convolution of every format, with and without its converter.

    What 10 and 12 bits become without a converter is written nowhere, so these have one.
    """
    pixel_format = draw(st.sampled_from([f for f in PIXEL_FORMATS if not f.is_float]))
    is_enabled = draw(st.booleans()) or pixel_format.component_bits(0) in {10, 12}
    precision = draw(INTEGERS) if is_enabled else pixel_format.input_precision
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    settings = _draw_convolution(draw, precision, kernel)
    size = (draw(st.integers(kernel[0], 9)), draw(st.integers(kernel[1], 9)))
    channels = pixel_format.channel_count
    generator = np.random.default_rng(draw(_SEEDS))
    pixels = np.stack(
        [
            generator.integers(0, 1 << pixel_format.component_bits(channel), size)
            for channel in range(channels)
        ]
    )
    converter = _draw_pixel_converter(draw, pixel_format, is_enabled=is_enabled)
    settings = _fit(settings, (channels, *size), kernel)
    widest = max(settings.stride_x * channels, channels * kernel[1])
    line_counts = [1] + [count for count, most in ((2, 32), (4, 16)) if widest <= most]
    return ImageCase(
        settings=settings,
        pixel_format=pixel_format,
        converter=converter,
        x_offset=draw(st.integers(0, pixel_format.largest_x_offset))
        if len(pixel_format.planes) == 1
        else 0,
        pixels=pixels,
        weights=draw_cube(draw, (draw(st.sampled_from((1, 7, 33))), channels, *kernel), precision),
        line_count=draw(st.sampled_from(line_counts)),
        edge_value=draw(st.integers(0, 0xFFFF)),
        output_shift=draw(st.integers(0, 16)),
    )


def _draw_pixel_converter(
    draw: DrawFn, pixel_format: PixelFormat, *, is_enabled: bool
) -> PixelConverter:
    """Draw mean and converter; whether 10 and 12 bits have a sign is written nowhere."""
    if not is_enabled:
        return PixelConverter()
    small = st.integers(-200, 200)
    has_sign = pixel_format.component_bits(0) in {8, 16}
    return PixelConverter(
        is_enabled=True,
        is_signed=has_sign and draw(st.booleans()),
        means=draw(st.none() | st.tuples(small, small, small, small)),
        offset=draw(_INT16),
        scale=draw(st.integers(-300, 300)),
        truncate=draw(st.integers(0, 12)),
    )


@dataclass(frozen=True, slots=True)
class HalfImageCase:
    """A convolution of pixels in fp16, without padding."""

    settings: Convolution
    pixel_format: PixelFormat
    converter: PixelConverter
    pixels: Cube
    weights: HalfWeights


@st.composite
def half_image_cases(draw: DrawFn) -> HalfImageCase:
    """Draw an fp16 convolution of integer or floating-point pixels, with their means."""
    formats = [f for f in PIXEL_FORMATS if f.component_bits(0) in {8, 16}]
    pixel_format = draw(
        st.sampled_from(formats) | st.sampled_from([f for f in formats if f.is_float])
    )
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    shape = (pixel_format.channel_count, draw(st.integers(3, 6)), draw(st.integers(3, 6)))
    if pixel_format.is_float:
        pixels = bits_from_halves(draw_halves(draw, shape, largest=16.0))
        converter = _draw_pixel_converter(draw, pixel_format, is_enabled=draw(st.booleans()))
    else:
        generator = np.random.default_rng(draw(_SEEDS))
        pixels = generator.integers(0, 1 << pixel_format.component_bits(0), shape)
        converter = _draw_pixel_converter(draw, pixel_format, is_enabled=True)
    return HalfImageCase(
        settings=Convolution(precision=Precision.FP16),
        pixel_format=pixel_format,
        converter=converter,
        pixels=pixels,
        weights=draw_halves(draw, (draw(st.sampled_from((1, 17))), shape[0], *kernel), largest=1.0),
    )


@dataclass(frozen=True, slots=True)
class WinogradCase:
    """A Winograd convolution with 4 by 4 kernels."""

    settings: Convolution
    data: Cube
    weights: Cube
    is_compressed: bool
    output_shift: int


@st.composite
def winograd_cases(draw: DrawFn) -> WinogradCase:
    """Draw a Winograd convolution; its output is 4 or 8 lines by 8 columns.

    The padded input has whole tiles: two columns and lines more than the windows reach. The kernel
    that was transformed spans three strides, of which the last may be part.
    """
    precision = draw(INTEGERS)
    strides = draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (2, 2))))
    lines, columns = draw(st.sampled_from((4, 8))), 8
    atom = 32 // precision.byte_count
    pads = st.integers(0, 2)
    padding = draw(st.builds(Padding, pads, pads, pads, pads, st.integers(0, 0xFFFF)))
    height = (lines + 4) * strides[0] - padding.top - padding.bottom
    width = (columns + 4) * strides[1] - padding.left - padding.right
    channels = atom * strides[0] * strides[1]
    kernels = draw(st.sampled_from((1, 3)))
    settings = Convolution(
        precision=precision,
        stride_x=strides[1],
        stride_y=strides[0],
        padding=padding,
        accumulator_bits=34 if precision is Precision.INT8 else 48,
        clip_truncate=draw(st.integers(0, 8)),
        pra_truncate=draw(st.integers(0, 2)),
    )
    return WinogradCase(
        settings=settings,
        data=draw_cube(draw, (atom, height, width), precision),
        weights=draw_cube(draw, (kernels, channels, 4, 4), precision),
        is_compressed=draw(st.booleans()),
        output_shift=draw(st.integers(0, 16)),
    )


@dataclass(frozen=True, slots=True)
class HalfDirectCase:
    """A direct convolution in fp16."""

    settings: Convolution
    data: HalfCube
    weights: HalfWeights


@st.composite
def half_direct_cases(draw: DrawFn) -> HalfDirectCase:
    """Draw an fp16 convolution, whose padding value is zero."""
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    settings = _draw_convolution(draw, Precision.FP16, kernel)
    settings = replace(settings, padding=replace(settings.padding, value=0), clip_truncate=0)
    channels = draw(st.sampled_from((1, 16, 33, 70)))
    shape = (channels, draw(st.integers(kernel[0], 5)), draw(st.integers(kernel[1], 5)))
    weights = draw_halves(draw, (draw(st.sampled_from((1, 5, 17))), channels, *kernel), largest=4.0)
    data = draw_halves(draw, shape, largest=16.0)
    data, weights = _strew_specials(draw, data), _strew_specials(draw, weights)
    return HalfDirectCase(_fit(settings, shape, kernel), data, weights)


# ---- pooling


@dataclass(frozen=True, slots=True)
class PoolingCase:
    """A pooling of whole numbers, in strips or whole."""

    settings: Pooling
    data: Cube
    split: Split | None
    source_space: int
    target_space: int


@dataclass(frozen=True, slots=True)
class HalfPoolingCase:
    """A pooling of halves."""

    settings: Pooling
    data: HalfCube


@st.composite
def pooling_cases(draw: DrawFn, precisions: st.SearchStrategy[Precision] = INTEGERS) -> PoolingCase:
    """Draw a pooling of int8 or int16."""
    precision = draw(precisions)
    settings = _draw_pooling(draw, precision)
    value = draw(st.integers(-(1 << precision.width_bits - 1), (1 << precision.width_bits - 1) - 1))
    settings = replace(settings, padding_values=tuple(value * n for n in range(1, 8)))
    split = draw(st.none() | _splits(settings))
    if split is None:
        width = _draw_extent(
            draw, settings.kernel_width, settings.stride_x, settings.pad_left, settings.pad_right
        )
    else:
        width = sum(columns for columns, _ in split.strips())
    data = draw_cube(
        draw, (draw(st.integers(1, 40)), _draw_height(draw, settings), width), precision
    )
    return PoolingCase(settings, data, split, draw(SPACES), draw(SPACES))


@st.composite
def half_pooling_cases(draw: DrawFn) -> HalfPoolingCase:
    """Draw a pooling of fp16, perhaps with numbers that are not numbers."""
    settings = _draw_pooling(draw, Precision.FP16)
    width = _draw_extent(
        draw, settings.kernel_width, settings.stride_x, settings.pad_left, settings.pad_right
    )
    data = draw_halves(draw, (draw(st.integers(1, 20)), _draw_height(draw, settings), width))
    return HalfPoolingCase(replace(settings, nan_is_zero=False), data)


def _draw_pooling(draw: DrawFn, precision: Precision) -> Pooling:
    width, height = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    return Pooling(
        method=draw(st.sampled_from(Method)),
        precision=precision,
        kernel_width=width,
        kernel_height=height,
        stride_x=draw(st.integers(1, 8)),
        stride_y=draw(st.integers(1, 8)),
        pad_left=draw(st.integers(0, width - 1)),
        pad_right=draw(st.integers(0, width - 1)),
        pad_top=draw(st.integers(0, height - 1)),
        pad_bottom=draw(st.integers(0, height - 1)),
        reciprocals=(0x10000 // width, 0x10000 // height),
    )


def _draw_extent(draw: DrawFn, kernel: int, stride: int, before: int, after: int) -> int:
    """Draw an input extent whose every element is used by some window."""
    least = 1
    while (least - 1) * stride + kernel - before - after < 1:
        least += 1
    count = draw(st.integers(least, least + 3))
    return (count - 1) * stride + kernel - before - after


def _draw_height(draw: DrawFn, settings: Pooling) -> int:
    return _draw_extent(
        draw, settings.kernel_height, settings.stride_y, settings.pad_top, settings.pad_bottom
    )


@st.composite
def _splits(draw: DrawFn, settings: Pooling) -> Split:
    """Draw strips by the equations of the Programming Guide's limits of PDP."""
    kernel, stride = settings.kernel_width, settings.stride_x
    overlap = kernel - stride
    least = max(1, -(-max(overlap, 1) // stride), -(-(settings.pad_right + 1) // stride))
    first_out = draw(st.integers(1, 3))
    while (first_out - 1) * stride + kernel - settings.pad_left < max(1, overlap):
        first_out += 1
    mid_out = draw(st.integers(least, least + 2))
    last_out = draw(st.integers(least + 1, least + 3))
    return Split(
        first_in=(first_out - 1) * stride + kernel - settings.pad_left,
        first_out=first_out,
        mid_in=mid_out * stride,
        mid_out=mid_out,
        last_in=last_out * stride - settings.pad_right,
        last_out=last_out,
        count=draw(st.integers(2, 4)),
    )


# ---- normalisation


@dataclass(frozen=True, slots=True)
class NormalizationCase:
    """A normalisation of whole numbers."""

    settings: Normalization
    data: Cube
    source_space: int
    target_space: int


@dataclass(frozen=True, slots=True)
class FloatNormalizationCase:
    """A normalisation of halves."""

    settings: FloatNormalization
    data: HalfCube


@st.composite
def normalization_cases(
    draw: DrawFn, precisions: st.SearchStrategy[Precision] = INTEGERS
) -> NormalizationCase:
    """Draw a normalisation of int8 or int16."""
    precision = draw(precisions)
    narrow = precision is Precision.INT8
    settings = Normalization(
        precision=precision,
        lut=draw(luts(largest_start=2**14, largest_select=15, largest_value=2**37 - 1)),
        local_size=draw(st.sampled_from((3, 5, 7, 9))),
        input_converter=Converter(
            offset=draw(st.integers(-128, 127) if narrow else _INT16),
            scale=draw(st.sampled_from((1, 1, 2, -3, 100))),
            shift=draw(st.integers(0, 6)),
        ),
        output_converter=Converter(
            offset=draw(st.integers(-(2**20), 2**20)),
            scale=draw(_INT16),
            shift=draw(st.integers(0, 40)),
        ),
        skips_square_sum=draw(st.booleans()),
        skips_multiplier=draw(st.booleans()),
    )
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return NormalizationCase(
        settings, draw_cube(draw, shape, precision), draw(SPACES), draw(SPACES)
    )


@st.composite
def float_normalization_cases(draw: DrawFn) -> FloatNormalizationCase:
    """Draw a normalisation of fp16 whose answers stay in range."""
    settings = FloatNormalization(
        lut=draw(float_luts()),
        local_size=draw(st.sampled_from((3, 5, 7, 9))),
        skips_square_sum=draw(st.booleans()),
        skips_multiplier=draw(st.booleans()),
    )
    shape = (draw(st.integers(1, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return FloatNormalizationCase(settings, draw_halves(draw, shape, largest=8.0))


# ---- reshaping and moving


@dataclass(frozen=True, slots=True)
class ContractionCase:
    """A contraction."""

    precision: Precision
    stride_x: int
    stride_y: int
    cube: Cube
    source_space: int
    target_space: int


@dataclass(frozen=True, slots=True)
class PlaneCase:
    """A cube that is split into planes, or merged from them."""

    precision: Precision
    is_split: bool
    cube: Cube
    source_space: int
    target_space: int


@dataclass(frozen=True, slots=True)
class TransferCase:
    """A transfer, in atoms of 32 bytes; strides are line and surface plus slack."""

    line_atoms: int
    line_count: int
    surface_count: int
    source_slack: tuple[int, int]
    target_slack: tuple[int, int]
    seed: int
    source_space: int
    target_space: int


@st.composite
def contraction_cases(draw: DrawFn) -> ContractionCase:
    """Draw a contraction; channels fill whole atoms."""
    precision = draw(st.sampled_from(Precision))
    strides = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    channels = strides[0] * strides[1] * 32 // precision.byte_count * draw(st.integers(1, 2))
    shape = (channels, draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    stored = Precision.INT16 if precision is Precision.FP16 else precision
    cube = draw_cube(draw, shape, stored)
    return ContractionCase(precision, *strides, cube, draw(SPACES), draw(SPACES))


@st.composite
def plane_cases(draw: DrawFn) -> PlaneCase:
    """Draw a split or a merge."""
    precision = draw(st.sampled_from(Precision))
    shape = (draw(st.integers(1, 70)), draw(st.integers(1, 4)), draw(st.integers(1, 70)))
    stored = Precision.INT16 if precision is Precision.FP16 else precision
    cube = draw_cube(draw, shape, stored)
    return PlaneCase(precision, draw(st.booleans()), cube, draw(SPACES), draw(SPACES))


def transfer_cases() -> st.SearchStrategy[TransferCase]:
    """Draw a transfer."""
    slack = st.tuples(st.integers(0, 2), st.integers(0, 2))
    few = st.integers(1, 4)
    return st.builds(TransferCase, few, few, few, slack, slack, _SEEDS, SPACES, SPACES)

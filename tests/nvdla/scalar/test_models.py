"""The scalar models on examples small enough to be worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.nvdla.scalar.arithmetic import (
    Converter,
    Cube,
    HalfCube,
    Precision,
    saturate,
    shift_right,
    shift_signed,
    sign_extend,
)
from tests.nvdla.scalar.bdma import Transfer, transfer
from tests.nvdla.scalar.floats import (
    FP17,
    HALF,
    SINGLE,
    floor_log2,
    halves_are_close,
    read_half,
    write_half,
)
from tests.nvdla.scalar.rubik import Contraction, PlaneMove, contract, merge, split
from tests.nvdla.scalar.surfaces import (
    FeatureSurface,
    OperandSurface,
    PlanarSurface,
    bits_from_halves,
    halves_from_bits,
    read_feature,
    read_operands,
    write_feature,
    write_operands,
)
from tests.nvdla.scalar.weights import (
    WeightLayout,
    compress_weights,
    decompress_weights,
    extend_winograd_weights,
    order_direct,
    order_image,
    order_winograd,
    pack_weights,
    transform_winograd_weights,
)


def numbers(*values: int) -> Cube:
    return np.array(values, np.int64)


def halves(*values: float) -> HalfCube:
    return np.array(values, np.float16)


# ---- arithmetic


@pytest.mark.parametrize(
    ("value", "shift", "expected"),
    [(5, 1, 3), (-5, 1, -3), (4, 3, 1), (3, 3, 0), (-4, 3, -1), (-3, 3, 0), (7, 0, 7)],
)
def test_a_right_shift_rounds_halves_away_from_zero(value: int, shift: int, expected: int) -> None:
    assert shift_right(value, shift) == expected


def test_a_negative_shift_goes_left() -> None:
    assert (shift_signed(-3, -2), shift_signed(6, 2)) == (-12, 2)


def test_saturation_keeps_the_ends_of_twos_complement() -> None:
    assert [saturate(v, 8) for v in (-129, -128, 127, 128)] == [-128, -128, 127, 127]
    assert (sign_extend(0x87, 8), sign_extend(0x187, 8), sign_extend(0x7F, 8)) == (-121, -121, 127)


def test_a_converter_subtracts_scales_shifts_and_saturates() -> None:
    # (10 - 3) * 5 = 35; 35 / 4 = 8.75 -> 9.  (-100 - 3) * 5 = -515; / 4 = -128.75 -> -129 -> -128.
    converter = Converter(offset=3, scale=5, shift=2)
    assert (converter.apply(10, 8), converter.apply(-100, 8)) == (9, -128)


# ---- floating point


def test_rounding_to_halves_agrees_with_numpy_up_to_overflow() -> None:
    generator = np.random.default_rng(1)
    for value in generator.standard_normal(200) * 10.0 ** generator.integers(-9, 5, 200):
        if abs(value) < 65504:
            assert float(HALF.round(Fraction(value))) == float(np.float16(value))
            rounded = float(SINGLE.round(Fraction(value)))
            assert rounded == float(np.float32(value))


def test_overflow_gives_the_largest_number_and_nan_stays() -> None:
    assert HALF.round(Fraction(70000)) == 65504
    assert FP17.largest == 4292870144
    assert write_half(Fraction(-1_000_000)) == np.float16(-65504)
    assert np.isnan(write_half(None))
    assert read_half(float("nan"), infinity=Fraction(1)) is None
    assert read_half(float("nan"), infinity=Fraction(1), nan_is_zero=True) == 0
    assert read_half(float("-inf"), infinity=Fraction(65536)) == -65536


def test_halves_have_denormals_and_wider_formats_flush_them() -> None:
    assert HALF.round(Fraction(1, 2**24)) == Fraction(1, 2**24)
    assert HALF.round(Fraction(1, 2**25)) == 0  # a tie, to the even zero
    assert FP17.round(Fraction(1, 2**31)) == 0
    assert [floor_log2(Fraction(v)) for v in (1, Fraction(3, 4), 8, Fraction(7))] == [0, -1, 3, 2]


def test_closeness_counts_units_in_the_last_place() -> None:
    one, other = halves(1.0, 2048.0), halves(1.0, 2050.0)
    assert halves_are_close(one, other, units=1)
    assert not halves_are_close(one, other)
    assert not halves_are_close(one, halves(1.0, float("nan")), units=9)


# ---- surfaces


@pytest.mark.parametrize(("atom_bytes", "expected"), [(8, 100 + 256 + 32 + 16 + 3)])
def test_an_element_lies_in_its_atom(atom_bytes: int, expected: int) -> None:
    surface = FeatureSurface(100, 32, 256, atom_bytes, Precision.INT8)
    assert surface.element_address(channel=11, line=1, column=2) == expected  # 11 = 1 * 8 + 3


def test_atoms_of_every_size_hold_channels_by_precision() -> None:
    wide = FeatureSurface(0, 64, 1024, 32, Precision.INT16)
    assert wide.channels_per_atom == 16
    assert wide.element_address(17, 0, 1) == 1024 + 32 + 2
    middle = FeatureSurface(0, 64, 1024, 16, Precision.INT8)
    assert middle.element_address(17, 2, 0) == 1024 + 128 + 1


def test_a_feature_cube_comes_back_from_memory() -> None:
    cube = np.arange(-9, 9, dtype=np.int64).reshape(3, 2, 3)
    memory = bytearray(512)
    surface = FeatureSurface(32, 64, 128, 8, Precision.INT16)
    write_feature(memory, surface, cube)
    assert (read_feature(memory, surface, (3, 2, 3)) == cube).all()
    assert memory[32:38] == bytes([0xF7, 0xFF, 0xFD, 0xFF, 0x03, 0x00])  # -9, -3, 3


def test_operands_of_two_components_stand_in_pairs() -> None:
    adds = numbers(1, 2, 3).reshape(3, 1, 1)
    multiplies = numbers(4, 5, 6).reshape(3, 1, 1)
    memory = bytearray(64)
    surface = OperandSurface(0, 0, 0, 32, 2, 2, is_per_kernel=True)
    write_operands(memory, surface, (adds, multiplies))
    assert memory[:12] == bytes([1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0])
    first, second = read_operands(memory, surface, (3, 2, 2))
    assert (first[:, 1, 1] == numbers(1, 2, 3)).all()
    assert (second[:, 0, 1] == numbers(4, 5, 6)).all()


def test_an_operand_atom_grows_with_its_components() -> None:
    surface = OperandSurface(0, 4096, 8192, 16, 2, 2, is_per_kernel=False)
    assert surface.component_address(18, 1, 2, 1) == 8192 + 4096 + 2 * 64 + 2 * 4 + 2


def test_halves_pass_through_bits() -> None:
    cube = halves(1.0, -2.0, float("inf"))
    assert bits_from_halves(cube).tolist() == [0x3C00, 0xC000, 0x7C00]
    assert (halves_from_bits(bits_from_halves(cube)) == cube).all()


# ---- weights

TINY = WeightLayout(Precision.INT8, kernels_per_group=2, channels_per_block=2)


def test_direct_weights_stand_by_blocks_positions_and_kernels() -> None:
    weights = np.zeros((3, 3, 1, 2), np.int64)
    for kernel, channel, line, column in np.ndindex(weights.shape):
        weights[kernel, channel, line, column] = 100 * kernel + 10 * channel + column
    first = [0, 10, 100, 110, 1, 11, 101, 111, 20, 120, 21, 121]
    second = [200, 210, 201, 211, 220, 221]
    assert order_direct(weights, TINY) == [first, second]


def test_image_weights_turn_a_line_into_channels() -> None:
    weights = np.zeros((1, 2, 3, 2), np.int64)
    for _, channel, line, column in np.ndindex(weights.shape):
        weights[0, channel, line, column] = 100 * line + 10 * column + channel
    plain = order_image(weights, WeightLayout(Precision.INT8, 2, 64), 1)
    assert plain == [[0, 1, 10, 11, 100, 101, 110, 111, 200, 201, 210, 211]]


def test_post_extension_puts_neighbouring_lines_of_a_kernel_together() -> None:
    weights = np.zeros((2, 1, 3, 1), np.int64)
    for kernel, _, line, _ in np.ndindex(weights.shape):
        weights[kernel, 0, line, 0] = 10 * kernel + line
    layout = WeightLayout(Precision.INT8, 2, 64)
    assert order_image(weights, layout, 2) == [[0, 1, 10, 11, 2, 12]]
    assert order_image(weights, layout, 4) == [[0, 1, 2, 10, 11, 12]]


def test_a_strided_kernel_extends_to_three_by_three() -> None:
    weights = np.arange(25, dtype=np.int64).reshape(1, 1, 5, 5)
    extended = extend_winograd_weights(weights, 2, 2, channels_per_atom=4)
    assert extended.shape == (1, 16, 3, 3)
    assert extended[0, 0].tolist() == [[0, 2, 4], [10, 12, 14], [20, 22, 24]]
    assert extended[0, 4].tolist() == [[1, 3, 0], [11, 13, 0], [21, 23, 0]]
    assert extended[0, 8].tolist() == [[5, 7, 9], [15, 17, 19], [0, 0, 0]]
    assert not extended[0, 1:4].any()


def test_winograd_weights_are_transformed_and_ordered_by_cubes_of_four() -> None:
    weights = np.ones((1, 1, 3, 3), np.int64)
    plane = transform_winograd_weights(weights)[0][0]
    assert plane[0] == [1, Fraction(3, 2), Fraction(1, 2), 1]
    assert plane[1][1] == Fraction(9, 4)
    ordered = np.arange(2 * 8 * 16, dtype=np.int64).reshape(2, 8, 4, 4)
    (group,) = order_winograd(ordered, TINY)
    assert group[:5] == [0, 16, 32, 48, 1]  # four channels, then the next column
    assert group[64:66] == [128, 144]  # the second kernel's first cube
    assert group[128] == 64  # the first kernel's second cube


def test_weights_fill_whole_multiples_of_128_bytes() -> None:
    packed = pack_weights([[1, -1], [300]], Precision.INT16)
    assert packed[:6] == bytes([1, 0, 255, 255, 44, 1])
    assert len(packed) == 128


def test_compression_leaves_out_zeros_and_marks_them_in_the_mask() -> None:
    groups = [[0, 5, 0, -1, 7], [0, 0, 9]]
    compressed = compress_weights(groups, Precision.INT8)
    assert compressed.weights[:5] == bytes([5, 255, 7, 9, 0])
    assert compressed.mask[:2] == bytes([0b10011010, 0])  # 0 1 0 1 1 0 0 1, lowest bit first
    assert compressed.group_sizes[:8] == bytes([3, 0, 0, 0, 1, 0, 0, 0])
    assert {len(compressed.weights), len(compressed.mask), len(compressed.group_sizes)} == {128}
    assert decompress_weights(compressed, [5, 3], Precision.INT8) == groups


# ---- bridge and reshaping


def test_a_transfer_repeats_lines_and_surfaces() -> None:
    source = bytes(range(64))
    target = bytearray(64)
    settings = Transfer(
        source=0,
        target=8,
        line_bytes=2,
        line_count=2,
        source_line_stride=4,
        target_line_stride=2,
        surface_count=2,
        source_surface_stride=32,
        target_surface_stride=16,
    )
    transfer(settings, source, target)
    assert target[8:12] == bytes([0, 1, 4, 5])
    assert target[24:28] == bytes([32, 33, 36, 37])
    assert sum(map(bool, target)) == 7  # the byte 0 itself was copied too


def test_contraction_spreads_channel_blocks_over_positions() -> None:
    memory = bytearray(4096)
    source = FeatureSurface(0, 32, 64, 8, Precision.INT8)
    target = FeatureSurface(2048, 128, 1024, 8, Precision.INT8)
    cube = np.arange(48 * 2, dtype=np.int64).reshape(48, 1, 2)
    write_feature(memory, source, cube)
    contract(Contraction(2, 1, 48, 2, 3, source, target), memory)
    out = read_feature(memory, target, (8, 3, 4))
    # Channel 0: blocks 0..5 start at channels 0, 8, ... 40; each channel has two columns.
    assert out[0].tolist() == [[0, 16, 1, 17], [32, 48, 33, 49], [64, 80, 65, 81]]
    assert out[7, 2, 3] == cube[47, 0, 1]


def test_split_and_merge_undo_each_other() -> None:
    memory = bytearray(4096)
    feature = FeatureSurface(0, 64, 256, 8, Precision.INT16)
    planes = PlanarSurface(1024, 64, 128, Precision.INT16)
    cube = np.arange(5 * 2 * 3, dtype=np.int64).reshape(5, 2, 3)
    write_feature(memory, feature, cube)
    split(PlaneMove(3, 2, 5, feature, planes), memory)
    assert memory[1024:1030] == bytes([0, 0, 1, 0, 2, 0])
    assert memory[1024 + 4 * 128 + 64] == 27  # channel 4, line 1, column 0
    other = FeatureSurface(2048, 64, 256, 8, Precision.INT16)
    merge(PlaneMove(3, 2, 5, other, planes), memory)
    assert (read_feature(memory, other, (5, 2, 3)) == cube).all()

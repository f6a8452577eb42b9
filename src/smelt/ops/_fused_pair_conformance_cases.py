"""Test cases of fused pairs: an expansion or a stem, and the convolution or pooling after it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smelt.ir import Case
from smelt.ops._conformance_data import floats
from smelt.ops.activations import Clip, HardSwish, Relu, Sigmoid
from smelt.ops.arithmetic import Add, Mul
from smelt.ops.convolution import Conv, ConvSum
from smelt.ops.fusion import Fused, FusedPair, Stage
from smelt.ops.pooling import MaxPool

_SAME = (1, 1, 1, 1)
_ZERO, _SIX = np.array(0, np.float32), np.array(6, np.float32)


def fused_pair_cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _plain()
    yield from _activated()
    yield from _windows()
    yield from _residuals()
    yield from _pixels()
    yield from _pooled()


def _arrays(
    channels: tuple[int, int], image: tuple[int, int, int], windows: tuple[int, int]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]:
    """Return the image, then weights and bias of the first and of the second convolution."""
    few, many = channels
    batch, height, width = image
    return (
        floats(batch, few, height, width),
        floats(many, few, windows[0], windows[0], seed=1),
        floats(many, seed=2),
        floats(many, 1, windows[1], windows[1], seed=3),
        floats(many, seed=4),
    )


def _plain() -> Iterator[Case]:
    """Yield 1x1 expansions with a depthwise convolution and no epilogues."""
    constants = frozenset({1, 2, 3, 4})
    for many, height, width in ((40, 9, 7), (65, 5, 15), (7, 3, 3)):
        op = FusedPair(Conv((1, 1)), 3, Conv((3, 3), pads=_SAME, group=many))
        arrays = _arrays((5, many), (2, height, width), (1, 3))
        yield Case(f"expand_to_{many}", op, arrays, constants=constants)
    op = FusedPair(Conv((1, 1)), 2, Conv((3, 3), (2, 2), (0, 0, 1, 1), group=33))
    x, w, _, taps, _ = _arrays((4, 33), (1, 12, 12), (1, 3))
    yield Case("no_bias_stride_2", op, (x, w, taps), constants=frozenset({1, 2}))


def _activated() -> Iterator[Case]:
    """Yield expansions whose two convolutions have activations."""
    x, w, bias, taps, row = _arrays((6, 48), (2, 10, 11), (1, 3))
    clip = Fused(Conv((1, 1)), 3, (Stage(Clip(), (-1, 3, 4)),))
    depthwise = Conv((3, 3), (2, 2), _SAME, group=48)
    op = FusedPair(clip, 5, Fused(depthwise, 3, (Stage(Clip(), (-1, 3, 4)),)))
    arrays = (x, w, bias, _ZERO, _SIX, taps, row, _ZERO, _SIX)
    yield Case("clip_stride_2", op, arrays, constants=frozenset(range(1, 9)))
    first = Fused(Conv((1, 1)), 3, (Stage(Sigmoid(), (-1,)), Stage(Mul(), (-1, -2))))
    second = Fused(Conv((5, 5), pads=(2, 2, 2, 2), group=48), 3, (Stage(HardSwish(), (-1,)),))
    wide = (x, w, bias, floats(48, 1, 5, 5, seed=5), row)
    yield Case("swish_5x5", FusedPair(first, 3, second), wide, constants=frozenset({1, 2, 3, 4}))


def _windows() -> Iterator[Case]:
    """Yield pairs with a stem, large padding, dilation or large strides."""
    constants = frozenset({1, 2, 3, 4})
    stem = Fused(Conv((3, 3), (2, 2), _SAME), 3, (Stage(Relu(), (-1,)),))
    op = FusedPair(stem, 3, Conv((3, 3), pads=_SAME, group=24))
    yield Case("stem", op, _arrays((3, 24), (1, 18, 17), (3, 3)), constants=constants)
    for name, pads in (("above", (20, 0, 0, 0)), ("below", (0, 0, 20, 0))):
        op = FusedPair(Conv((1, 1)), 3, Conv((3, 3), pads=pads, group=24))
        arrays = _arrays((3, 24), (1, 9, 8), (1, 3))
        yield Case(f"padding_alone_{name}", op, arrays, constants=constants)
    wide = Conv((3, 3), dilations=(2, 2), pads=(2, 2, 2, 2), group=20)
    arrays = _arrays((3, 20), (1, 8, 9), (1, 3))
    yield Case("dilated", FusedPair(Conv((1, 1)), 3, wide), arrays, constants=constants)
    far = Conv((3, 3), (3, 3), (2, 3, 3, 2), group=20)
    yield Case("all_halo", FusedPair(Conv((1, 1)), 3, far), arrays, constants=constants)


def _residuals() -> Iterator[Case]:
    x, w, bias, taps, row = _arrays((5, 19), (2, 8, 6), (1, 3))
    add = (Stage(Add(), (-1, 3)),)
    first = Fused(Conv((1, 1)), 3, add)
    second = Fused(Conv((3, 3), pads=_SAME, group=19), 3, (*add, Stage(Relu(), (-2,))))
    arrays = (x, w, bias, floats(2, 19, 8, 6, seed=6), taps, row, floats(2, 19, 8, 6, seed=7))
    yield Case("residuals", FusedPair(first, 4, second), arrays, constants=frozenset({1, 2, 4, 5}))


def _pixels() -> Iterator[Case]:
    """Yield pairs whose second convolution is 1x1; some return the intermediate, too."""
    x, w, bias = floats(2, 24, 7, 6), floats(18, 24, 1, 1, seed=1), floats(18, seed=2)
    taken, row = floats(70, 18, 1, 1, seed=3), floats(70, seed=4)
    clip = Fused(Conv((1, 1)), 3, (Stage(Clip(), (-1, 3, 4)),))
    arrays = (x, w, bias, taken, row, _ZERO, _SIX)
    constants = frozenset(range(1, 7))
    yield Case("reduced", FusedPair(Conv((1, 1)), 3, clip), arrays, constants=constants)
    wide = (x, floats(136, 24, 1, 1, seed=5), floats(136, seed=6), floats(2, 136, 7, 6, seed=7))
    relu = Fused(Conv((1, 1)), 3, (Stage(Relu(), (-1,)),))
    first = Fused(Conv((1, 1)), 3, (Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))))
    narrow = (floats(24, 136, 1, 1, seed=8), floats(24, seed=9))
    op = FusedPair(first, 4, relu, returns_intermediate=True)
    yield Case("expanded_kept", op, (*wide, *narrow), constants=frozenset({1, 2, 4, 5}))
    window = Fused(Conv((3, 3), (2, 2), _SAME), 3, (Stage(Relu(), (-1,)),))
    few = (x, floats(18, 24, 3, 3, seed=1), bias, taken, row)
    op, constants = FusedPair(window, 3, relu, returns_intermediate=True), frozenset({1, 2, 3, 4})
    yield Case("window_kept", op, few, constants=constants)
    both = Fused(ConvSum(Conv((1, 1)), Conv((1, 1), (2, 2))), 5, (Stage(Relu(), (-1,)),))
    image, own = floats(2, 16, 14, 12, seed=8), floats(136, 16, 1, 1, seed=9)
    many = (*wide[:2], image, own, wide[2], *narrow)
    op = FusedPair(both, 5, relu, returns_intermediate=True)
    yield Case("sum_kept", op, many, constants=frozenset({1, 3, 4, 5, 6}))
    even = (floats(2, 32, 9, 8), floats(128, 32, 1, 1, seed=1), floats(128, seed=2))
    ends = (floats(2, 128, 9, 8, seed=3), floats(48, 128, 1, 1, seed=4), floats(48, seed=5))
    op = FusedPair(first, 4, relu, returns_intermediate=True)
    yield Case("even_kept", op, (*even, *ends), constants=frozenset({1, 2, 4, 5}))


def _pooled() -> Iterator[Case]:
    """Yield pairs of a stem and a max pooling."""
    stem = Fused(Conv((7, 7), (2, 2), (3, 3, 3, 3)), 3, (Stage(Relu(), (-1,)),))
    window = MaxPool((3, 3), (2, 2), _SAME)
    bias, constants = floats(16, seed=2), frozenset({1, 2})
    arrays = floats(2, 3, 23, 21), floats(16, 3, 7, 7, seed=1), bias
    yield Case("pooled", FusedPair(stem, 3, window), arrays, constants=constants)
    op = FusedPair(Conv((3, 3), (2, 2)), 3, MaxPool((3, 3), (2, 2), ceil_mode=True))
    arrays = floats(1, 3, 18, 25), floats(16, 3, 3, 3, seed=1), bias
    yield Case("pooled_ceil", op, arrays, constants=constants)
    op = FusedPair(Conv((5, 5), pads=(2, 2, 2, 2)), 2, MaxPool((2, 2), (2, 2), (1, 1, 0, 0)))
    few = floats(1, 1, 13, 11), floats(16, 1, 5, 5, seed=1)
    yield Case("pooled_apart", op, few, constants=frozenset({1}))

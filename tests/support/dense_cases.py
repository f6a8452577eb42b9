"""Convolutions and products of the sizes that networks have.

The ops' own cases are small: some tactics want more channels, more pixels or longer sums.
"""

from __future__ import annotations

from typing import Final

from smelt.ir import Case
from smelt.ops import Add, Conv, ConvTranspose, Fused, MatMul, MaxPool, Relu, Stage
from tests.support.noise import noise


def _conv(
    channels: tuple[int, int],
    image: tuple[int, int],
    size: int,
    *,
    stride: int = 1,
    group: int = 1,
    batch: int = 2,
    epilogue: bool = False,
) -> Case:
    """A convolution with bias; with an epilogue it adds a residual and rectifies too."""
    before, after = channels
    op = Conv((size, size), pads=(size // 2,) * 4, strides=(stride, stride), group=group)
    weights = noise(after, before // group, size, size, seed=1)
    arrays = [noise(batch, before, *image), weights, noise(after, seed=2)]
    name = f"{batch}x{before}x{image[0]}x{image[1]} by {after}x{size}x{size} / {stride} in {group}"
    if not epilogue:
        return Case(name, op, tuple(arrays), constants=frozenset({1, 2}))
    (result,) = op.reference(*arrays)
    fused = Fused(op, 3, (Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))))
    residual = noise(*result.shape, seed=3)
    return Case(f"{name}, fused", fused, (*arrays, residual), constants=frozenset({1, 2}))


DENSE_CASES: Final = (
    _conv((3, 32), (31, 45), 7, stride=2, batch=1),
    _conv((3, 16), (24, 24), 3, stride=2),
    _conv((64, 64), (14, 14), 3, batch=1, epilogue=True),
    _conv((32, 48), (13, 17), 3),
    _conv((40, 100), (9, 30), 3, epilogue=True),
    _conv((16, 24), (28, 28), 5),
    _conv((20, 33), (15, 17), 3, stride=2, epilogue=True),
    _conv((24, 40), (47, 33), 3, epilogue=True),
    _conv((32, 32), (30, 41), 3, stride=2),
    _conv((24, 40), (21, 20), 5, stride=2, batch=1),
    _conv((64, 120), (7, 7), 1, batch=3, epilogue=True),
    _conv((24, 144), (28, 28), 1, batch=1),
    _conv((48, 96), (15, 15), 1, stride=2),
    _conv((32, 64), (12, 12), 3, group=4),
    _conv((72, 72), (19, 21), 3, group=72),
    _conv((40, 40), (20, 11), 5, stride=2, group=40, epilogue=True),
    Case(
        "transposed",
        ConvTranspose((4, 4), strides=(2, 2), pads=(1, 1, 1, 1)),
        (noise(2, 32, 9, 11), noise(32, 20, 4, 4, seed=1)),
        constants=frozenset({1}),
    ),
    Case("pooled", MaxPool((3, 3), strides=(2, 2), ceil_mode=True), (noise(2, 40, 27, 35),)),
    Case("thin", MatMul(), (noise(1, 1500), noise(1500, 301)), constants=frozenset({1})),
    Case("square", MatMul(), (noise(130, 257), noise(257, 190)), constants=frozenset({1})),
    Case("stacked", MatMul(), (noise(2, 4, 60, 33), noise(2, 4, 33, 70, seed=1))),
)

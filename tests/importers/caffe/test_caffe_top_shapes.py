"""Shapes of tops at bottoms of 2 to 5 axes, against the rules of Caffe's layers, written anew."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

import pytest

from smelt.importers.caffe import _layer_table  # pyright: ignore[reportPrivateUsage]
from tests.importers.caffe.builders import evaluate, f32, input_text, layer_text, random_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array

    Shape = tuple[int, ...]
    Rule = Callable[[Shape], Iterator["Case"]]

EXTENTS = (2, 6, 4, 5, 3)
RANKS = (2, 3, 4, 5)


@dataclass(frozen=True)
class Case:
    """A layer on a bottom of a shape, and the shapes that its tops have in Caffe."""

    tops: list[Shape]
    parameters: str = ""
    weights: Sequence[Array] = ()
    others: Sequence[Shape] = ()
    """Shapes of further bottoms."""


def _axes(shape: Shape, first: int = 0) -> Iterator[tuple[int, int]]:
    """Each axis from ``first`` on, counted from the front and as it may be written."""
    for axis in range(first, len(shape)):
        yield axis, axis
        yield axis, axis - len(shape)


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _same(parameters: str = "", *weights: Sequence[int]) -> Rule:
    """The rule of layers whose top has the shape of the bottom."""

    def cases(shape: Shape) -> Iterator[Case]:
        yield Case([shape], parameters, [random_array(*w, low=0.5) for w in weights])

    return cases


def _arg_max(shape: Shape) -> Iterator[Case]:
    rest = [1] * max(0, len(shape) - 3)  # num_top_axes is at least 3
    yield Case([(shape[0], 1, 1, *rest)])
    yield Case([(shape[0], 2, 1, *rest)], "argmax_param { out_max_val: true }")
    for axis, written in _axes(shape):
        for more in ("", "out_max_val: true"):
            yield Case([_with(shape, axis, 1)], f"argmax_param {{ axis: {written} {more} }}")


def _operand(kind: str) -> Rule:
    """The rule of Scale and Bias, whose second operand is blobs or a bottom."""

    def cases(shape: Shape) -> Iterator[Case]:
        for axis, written in _axes(shape, 1):
            for count in range(1, len(shape) - axis + 1):
                extents = shape[axis : axis + count]
                text = f"{kind}_param {{ axis: {written} num_axes: {count} }}"
                yield Case([shape], text, [random_array(*extents)])
        for count in range(1, len(shape) + 1):
            yield Case([shape], f"{kind}_param {{ axis: 0 }}", others=[shape[:count]])

    return cases


def _concat(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        top, other = _with(shape, axis, shape[axis] + 7), _with(shape, axis, 7)
        yield Case([top], f"concat_param {{ axis: {written} }}", others=[other])


def _convolution(shape: Shape) -> Iterator[Case]:
    if len(shape) > 2:
        kernel = [3] * (len(shape) - 2)
        top = (shape[0], 8, *((d + 2 - 3) // 2 + 1 for d in shape[2:]))
        text = "convolution_param { num_output: 8 kernel_size: 3 pad: 1 stride: 2 }"
        yield Case([top], text, [random_array(8, shape[1], *kernel), random_array(8)])


def _deconvolution(shape: Shape) -> Iterator[Case]:
    if len(shape) > 2:
        kernel = [3] * (len(shape) - 2)
        top = (shape[0], 8, *(2 * (d - 1) + 3 - 2 for d in shape[2:]))
        text = "convolution_param { num_output: 8 kernel_size: 3 pad: 1 stride: 2 }"
        yield Case([top], text, [random_array(shape[1], 8, *kernel), random_array(8)])


def _crop(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        like = (*shape[:axis], *(d - 1 for d in shape[axis:]))
        yield Case([like], f"crop_param {{ axis: {written} offset: 1 }}", others=[like])


def _eltwise(shape: Shape) -> Iterator[Case]:
    for operation in ("PROD", "SUM", "MAX"):
        text = f"eltwise_param {{ operation: {operation} }}"
        yield Case([shape], text, others=[shape])
        yield Case([shape], text, others=[shape, shape])


def _embed(shape: Shape) -> Iterator[Case]:
    text = "embed_param { num_output: 7 input_dim: 3"
    table = random_array(3, 7)
    yield Case([(*shape, 7)], f"{text} bias_term: false }}", [table])
    yield Case([(*shape, 7)], f"{text} }}", [table, random_array(7)])


def _flatten(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        for end in range(axis, len(shape)):
            top = (*shape[:axis], prod(shape[axis : end + 1]), *shape[end + 1 :])
            for stop in (end, end - len(shape)):
                yield Case([top], f"flatten_param {{ axis: {written} end_axis: {stop} }}")


def _inner_product(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        depth = prod(shape[axis:])
        text = f"inner_product_param {{ num_output: 7 axis: {written} "
        weights = [random_array(7, depth), random_array(7)]
        yield Case([(*shape[:axis], 7)], text + "}", weights)
        transposed = [random_array(depth, 7)]
        yield Case([(*shape[:axis], 7)], text + "transpose: true bias_term: false }", transposed)


def _mvn(shape: Shape) -> Iterator[Case]:
    top = (*shape, *[1] * (4 - len(shape)))  # num, channels, height, width
    yield Case([top], "mvn_param { across_channels: true }")
    if len(shape) > 2:
        yield Case([top])
        yield Case([top], "mvn_param { normalize_variance: false }")


def _permute(shape: Shape) -> Iterator[Case]:
    for rest in permutations(range(1, len(shape))):
        order = (0, *rest)
        text = " ".join(f"order: {axis}" for axis in order)
        yield Case([tuple(shape[axis] for axis in order)], f"permute_param {{ {text} }}")


def _pooling(shape: Shape) -> Iterator[Case]:
    for pool in ("MAX", "AVE"):
        yield Case([(*shape[:2], 1, 1)], f"pooling_param {{ pool: {pool} global_pooling: true }}")
        top = (*shape[:2], *(-(-(d - 2) // 2) + 1 for d in shape[2:]))
        yield Case([top], f"pooling_param {{ pool: {pool} kernel_size: 2 stride: 2 }}")


def _reduction(shape: Shape) -> Iterator[Case]:
    for operation in ("SUM", "ASUM", "SUMSQ", "MEAN"):
        for axis, written in _axes(shape, 1):
            text = f"reduction_param {{ operation: {operation} axis: {written}"
            yield Case([shape[:axis]], f"{text} }}")
            yield Case([shape[:axis]], f"{text} coeff: 2 }}")


def _reshape(shape: Shape) -> Iterator[Case]:
    for axis, _ in _axes(shape, 1):
        for count in range(len(shape) - axis + 1):
            joined = prod(shape[axis : axis + count])
            top = (*shape[:axis], 1, joined, *shape[axis + count :])
            dims = "shape { dim: 1 dim: -1 }"
            yield Case([top], f"reshape_param {{ {dims} axis: {axis} num_axes: {count} }}")
    yield Case([(*shape, 1)], "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }")
    yield Case([(shape[0], prod(shape[1:]))], "reshape_param { shape { dim: 0 dim: -1 } }")


def _slice(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        tops = [_with(shape, axis, 1), _with(shape, axis, shape[axis] - 1)]
        yield Case(tops, f"slice_param {{ axis: {written} slice_point: 1 }}")
        yield Case([_with(shape, axis, 1)] * shape[axis], f"slice_param {{ axis: {written} }}")


def _softmax(shape: Shape) -> Iterator[Case]:
    for _, written in _axes(shape):
        yield Case([shape], f"softmax_param {{ axis: {written} }}")


def _tile(shape: Shape) -> Iterator[Case]:
    for axis, written in _axes(shape, 1):
        top = _with(shape, axis, 3 * shape[axis])
        yield Case([top], f"tile_param {{ axis: {written} tiles: 3 }}")


def _enlarged(parameters: str) -> Rule:
    """The rule of layers that double the height and the width of an image."""

    def cases(shape: Shape) -> Iterator[Case]:
        yield Case([(*shape[:2], 2 * shape[2], 2 * shape[3])], parameters)

    return cases


def _split(shape: Shape) -> Iterator[Case]:
    yield Case([shape, shape])


CHANNELS = EXTENTS[1:2]
IMAGES = (4,)
"""Ranks of the layers that Caffe refuses on any other blob than images."""
LEGACY = (2, 3, 4)
"""Ranks of the layers that read num, channels, height and width."""
RULES: dict[str, tuple[Rule, Sequence[int]]] = {
    **dict.fromkeys(
        ("AbsVal", "BNLL", "Dropout", "ELU", "Exp", "Power", "ReLU", "ReLU6", "Sigmoid", "TanH"),
        (_same(), RANKS),
    ),
    "ArgMax": (_arg_max, RANKS),
    "BatchNorm": (_same("", CHANNELS, CHANNELS, (1,)), RANKS),
    "Bias": (_operand("bias"), RANKS),
    "Concat": (_concat, RANKS),
    "Convolution": (_convolution, RANKS),
    "Crop": (_crop, RANKS),
    "Deconvolution": (_deconvolution, RANKS),
    "Eltwise": (_eltwise, RANKS),
    "Embed": (_embed, RANKS),
    "Flatten": (_flatten, RANKS),
    "InnerProduct": (_inner_product, RANKS),
    "Interp": (_enlarged("interp_param { height: 8 width: 10 }"), IMAGES),
    "LRN": (_same("lrn_param { local_size: 3 }"), IMAGES),
    "Log": (_same("log_param { shift: 5 }"), RANKS),
    "MVN": (_mvn, LEGACY),
    "Normalize": (_same("norm_param { channel_shared: false }", CHANNELS), LEGACY),
    "PReLU": (_same("", CHANNELS), RANKS),
    "Permute": (_permute, RANKS),
    "Pooling": (_pooling, IMAGES),
    "Reduction": (_reduction, RANKS),
    "Reshape": (_reshape, RANKS),
    "Scale": (_operand("scale"), RANKS),
    "ShuffleChannel": (_same("shuffle_channel_param { group: 2 }"), IMAGES),
    "Slice": (_slice, RANKS),
    "Softmax": (_softmax, RANKS),
    "Split": (_split, RANKS),
    "Threshold": (_same(), RANKS),
    "Tile": (_tile, RANKS),
    "Upsample": (_enlarged("upsample_param { scale: 2 }"), IMAGES),
}
ELSEWHERE = {"ConvolutionDepthwise", "DetectionOutput", "PriorBox"}
"""The first is Convolution by another name; the others have bottoms of certain shapes only, with
which the tests of detection networks run them."""


def test_every_layer_type_has_a_rule() -> None:
    assert RULES.keys() | ELSEWHERE == _layer_table.LAYERS.keys()


@pytest.mark.parametrize(
    ("kind", "rank"),
    [(kind, rank) for kind, (_, ranks) in RULES.items() for rank in ranks],
)
def test_tops_have_the_shapes_that_caffe_gives_them(kind: str, rank: int) -> None:
    shape = EXTENTS[:rank]
    for case in RULES[kind][0](shape):
        bottoms = {"data": shape} | {f"b{i}": other for i, other in enumerate(case.others)}
        tops = [f"t{i}" for i in range(len(case.tops))]
        text = "".join(input_text(extents, name) for name, extents in bottoms.items())
        text += layer_text(kind, case.parameters, bottoms=list(bottoms), tops=tops)
        inputs = {name: random_array(*s, low=0, high=1) for name, s in bottoms.items()}
        weights = {"out": [f32(array) for array in case.weights]} if case.weights else {}
        results = evaluate(text, weights, inputs)
        assert [results[top].shape for top in tops] == case.tops, case.parameters

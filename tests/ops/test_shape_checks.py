"""Shapes that fit, with symbols too, and messages for those that do not."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from smelt.errors import ShapeError
from smelt.ir import Graph
from smelt.ops import (
    LRN,
    LSTM,
    AveragePool,
    BatchNormalization,
    Conv,
    ConvTranspose,
    Crop,
    DequantizeLinear,
    DetectionOutput,
    Expand,
    Fused,
    Gelu,
    Gemm,
    GroupNormalization,
    LpPool,
    MatMul,
    MaxPool,
    Op,
    Operand,
    PRelu,
    PriorBox,
    QuantizeLinear,
    Relu,
    Resize,
    Softmax,
)
from smelt.types import DType, Shape, SymbolicDim, TensorType, evaluate_dim

N, H, W = (SymbolicDim.symbol(name) for name in "nhw")
_SMALL = st.integers(1, 4)


def operands(*shapes: Shape, dtype: DType = DType.FLOAT32) -> list[Operand | None]:
    return [Operand(TensorType(dtype, shape)) for shape in shapes]


def result(op: Op, *shapes: Shape) -> Shape:
    (kind,) = op.infer(operands(*shapes))
    assert isinstance(kind, TensorType)
    return kind.shape


@hypothesis.given(
    extent=st.integers(1, 40),
    kernel=_SMALL,
    stride=_SMALL,
    dilation=st.integers(1, 3),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    ceil_mode=st.booleans(),
)
def test_symbolic_windows_are_those_of_every_extent(
    extent: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil_mode: bool
) -> None:
    reach = (kernel - 1) * dilation + 1
    hypothesis.assume(max(before, after) < reach)
    hypothesis.assume(extent + before + after >= reach)
    op = MaxPool((kernel,), (stride,), (before, after), (dilation,), ceil_mode=ceil_mode)
    starts = range(-before, extent, stride) if ceil_mode else range(-before, extent + after, stride)
    end = extent + after + (stride - 1 if ceil_mode else 0)
    expected = sum(start + reach <= end for start in starts)
    assert result(op, (N, 3, extent)) == (N, 3, expected)
    symbolic = result(op, (N, 3, W))[2]
    assert evaluate_dim(symbolic, {"w": extent}) == expected


def test_symbols_pass_through_a_convolution() -> None:
    op = Conv((3, 3), (2, 2), (1, 1, 1, 1))
    batch, channels, height, width = result(op, (N, 3, H, W), (8, 3, 3, 3))
    assert (batch, channels) == (N, 8)
    assert evaluate_dim(height, {"h": 225}) == 113
    assert evaluate_dim(width, {"w": 224}) == 112
    upsampled = result(ConvTranspose((2, 2), (2, 2)), (N, 3, H, W), (3, 8, 2, 2))
    assert upsampled == (N, 8, 2 * H, 2 * W)


def test_products_keep_symbolic_stacks() -> None:
    assert result(MatMul(), (N, 12, H, 64), (N, 12, 64, H)) == (N, 12, H, H)
    assert result(MatMul(), (N, H, 64), (64, 32)) == (N, H, 32)
    assert result(Gemm(trans_b=True), (N, 64), (10, 64), (10,)) == (N, 10)


def test_a_step_count_may_be_a_symbol() -> None:
    kinds = LSTM(8).infer(operands((H, N, 4), (1, 32, 4), (1, 32, 8)))
    assert [k.shape for k in kinds if isinstance(k, TensorType)] == [(H, 1, N, 8), *[(1, N, 8)] * 2]


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (
            Conv((3, 3)),
            [(1, 4, 8, 8), (8, 3, 3, 3)],
            "input has 4 channels, but the weights expect 3: 3 per group, with group=1$",
        ),
        (
            Conv((3, 3), group=3),
            [(1, 6, 8, 8), (8, 2, 3, 3)],
            "number of filters is 8; it must be a multiple of the number of groups, 3",
        ),
        (
            Conv((5, 5)),
            [(1, 3, 4, 9), (8, 3, 5, 5)],
            "axis 2 of input 0 has 4 elements, padded by 0 and 0; a window of 5 does not fit",
        ),
        (Conv((3, 3)), [(1, 3, 8), (8, 3, 3, 3)], "must have rank 4"),
        (Conv((3, 3)), [(1, 3, 8, 8), (8, 3, 3, 3), (7,)], r"bias of conv is \[7\].*must be \[8\]"),
        (Conv((3, 3)), [(1, 3, 8, 8)], "conv has 1 input; expected 2 to 3"),
        (ConvTranspose((2, 2)), [(1, 4, 8, 8), (3, 8, 2, 2)], "channels, but the weights expect 3"),
        (
            Gemm(),
            [(2, 3), (4, 5)],
            "axis 1 of input 0 and axis 0 of input 1 have the extents 3 and 4",
        ),
        (Gemm(), [(2, 3), (3, 5), (2, 4)], r"\[2, 4\] of C of gemm does not broadcast to \[2, 5\]"),
        (
            MatMul(),
            [(2, 3), (4, 5)],
            "axis 1 of input 0 and axis 0 of input 1 have the extents 3 and 4",
        ),
        (MatMul(), [(N, 3, 4), (H, 4, 5)], "whether n equals h"),
        (AveragePool((2, 2)), [(1, 3, 8)], "must have rank 4"),
        (LpPool((2, 2), p=0), [(1, 3, 8, 8)], "p of lp_pool is 0"),
        (
            Fused(Relu(), 7, ()),
            [(3,)],
            "root_inputs is 7; it must be from 0 to",
        ),
        (Fused(Relu(), -1, ()), [(3,)], "root_inputs is -1; it must be from 0 to"),
        (BatchNormalization(), [(1, 3, 8, 8), (3,), (3,), (4,), (3,)], "mean of batch_norm"),
        (
            GroupNormalization(2),
            [(1, 3, 8), (3,), (3,)],
            "number of channels is 3; it must be a multiple of the number of groups, 2",
        ),
        (PRelu(), [(2, 3), (4, 2, 3)], "slope of prelu"),
        (Softmax(axis=2), [(2, 3)], "axis 2 is out of range for a tensor of rank 2"),
        (LRN(2, region="within_channel"), [(1, 3, 8, 8)], "odd for within_channel"),
        (LRN(3, region="nowhere"), [(1, 3, 8, 8)], "region is 'nowhere'"),
        (Gelu(approximate="erf"), [(3,)], "approximate of gelu"),
        (LSTM(8), [(5, 2, 4), (1, 32, 3), (1, 32, 8)], "W of lstm"),
        (LSTM(8, "upward"), [(5, 2, 4), (1, 32, 4), (1, 32, 8)], "direction is 'upward'"),
        (LSTM(8, clip=0.0), [(5, 2, 4), (1, 32, 4), (1, 32, 8)], "clip of lstm is 0.0; it must be"),
        (LSTM(8, activations=("Tanh",)), [(5, 2, 4), (1, 32, 4), (1, 32, 8)], "it must have 3"),
        (QuantizeLinear(), [(1, 3, 8), (4,)], r"scale is \[4\]; it must be \[3\]"),
        (PriorBox((10.0,), (5.0,)), [(1, 3, 4, 4), (1, 3, 8, 8)], "must exceed that of min_size"),
        (PriorBox((10.0,)), [(1, 3, 4), (1, 3, 8, 8)], "must have rank 4"),
        (
            DetectionOutput(3),
            [(1, 40), (1, 36), (1, 2, 48)],
            "locations for each image is 40; .*need 48",
        ),
        (
            DetectionOutput(3),
            [(1, 48), (1, 24), (1, 2, 48)],
            "confidences for each image is 24; .*need 36",
        ),
        (
            Crop(offset=(3,)),
            [(1, 3, 8, 8), (1, 3, 6, 6)],
            "axis 2 of input 0 has 8 elements; a crop of 6 elements from offset 3 does not fit",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    op: Op, shapes: list[Shape], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(operands(*shapes))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (float("inf"), "a scale of resize is inf; it must be at most 1,099,511,627,776"),
        (2.0**41, "MAX_EXTENT"),
        (2.0**40, "MAX_TENSOR_BYTES"),
        (0.0, "a scale of resize is 0.0; it must be positive"),
        (float("nan"), "must be positive"),
    ],
)
def test_a_scale_that_is_too_large_is_refused_by_the_limits_name(
    scale: float, message: str
) -> None:
    graph = Graph("resize")
    scales = graph.add_constant(np.array([1, scale], np.float32), "scales")
    data = graph.add_input("x", TensorType(DType.FLOAT32, (1, 3)))
    with pytest.raises(ShapeError, match=message):
        graph.add(Resize(), data, None, scales, name="z")


@pytest.mark.parametrize("scale", [2.0**20, 1e9])
def test_a_large_scale_makes_a_large_extent(scale: float) -> None:
    (data,) = operands((N,))
    scales = Operand.constant(np.array([scale], np.float32))
    (made,) = Resize().infer([data, None, scales])
    assert made == TensorType(DType.FLOAT32, (N * int(scale),))


def test_elements_that_are_not_followed_are_said_to_be_so() -> None:
    shape = Operand(TensorType(DType.INT64, (1,)))
    with pytest.raises(
        ShapeError, match=r"known before a run: give a constant, or compute this input from shapes"
    ):
        Expand().infer([*operands((1,)), shape])


def test_element_types_are_checked() -> None:
    with pytest.raises(ShapeError, match="relu has element type bool; it must be one of float64"):
        Relu().infer(operands((3,), dtype=DType.BOOL))
    mixed = [*operands((2, 3)), *operands((3, 4), dtype=DType.FLOAT16)]
    with pytest.raises(ShapeError, match="float32 and float16"):
        MatMul().infer(mixed)
    with pytest.raises(ShapeError, match="dequantize_linear has element type float32"):
        DequantizeLinear().infer(operands((3,), ()))
    with pytest.raises(ShapeError, match="element type float32; it must be one of"):
        QuantizeLinear(output_dtype=DType.FLOAT32).infer(operands((3,), ()))


@pytest.mark.parametrize(
    "attributes",
    [{"strides": (1,)}, {"pads": (1, 1)}, {"pads": (-1, 0, 0, 0)}, {"dilations": (0, 1)}],
)
def test_attributes_of_a_window_are_checked_when_the_op_is_made(
    attributes: dict[str, tuple[int, ...]],
) -> None:
    with pytest.raises(ShapeError, match=next(iter(attributes))):
        Conv((3, 3), **attributes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_operand_of_a_constant_is_enough_to_infer() -> None:
    (kind,) = Relu().infer([Operand.constant(np.zeros((2, 3), np.float16))])
    assert kind == TensorType(DType.FLOAT16, (2, 3))

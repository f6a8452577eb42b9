"""Test cases of fused ops: epilogues and elementwise chains as they occur in networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smelt.ir import Case
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._quantized_conformance_cases import quantized_cases
from smelt.ops.activations import Clip, Gelu, HardSwish, LeakyRelu, PRelu, Relu, Sigmoid
from smelt.ops.arithmetic import Add, Mul, Sub
from smelt.ops.convolution import Conv
from smelt.ops.fusion import Fused, Stage
from smelt.ops.indexing import Gather
from smelt.ops.math_functions import Asinh, Atan, Tanh
from smelt.ops.matrix_products import Gemm, MatMul
from smelt.ops.pooling import AveragePool

_SAME = Conv((3, 3), pads=(1, 1, 1, 1))
_CURVES = (Stage(Atan(), (-1,)), Stage(Asinh(), (-2,)), Stage(Sub(), (-2, -3)))
"""Stages that backends compute in several steps each, and whose results are read twice."""


def fused_cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _convolutions()
    yield from _products()
    yield from _chains()
    yield from quantized_cases()


def _convolutions() -> Iterator[Case]:
    """Yield convolutions with common epilogues: bias, residual, scale, clip, PRelu, swish."""
    x, w = floats(2, 3, 9, 7), floats(17, 3, 3, 3, seed=1)
    row, bias = floats(17, seed=2), floats(17, 1, 1, seed=3)
    residual = floats(2, 17, 9, 7, seed=4)
    constants = frozenset({1, 2})
    bias_relu = (Stage(Add(), (-1, 2)), Stage(Relu(), (-2,)))
    yield Case("conv_bias_relu", Fused(_SAME, 2, bias_relu), (x, w, bias), constants=constants)
    op = Fused(_SAME, 3, (Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))))
    yield Case("conv_residual_relu", op, (x, w, row, residual), constants=constants)
    op = Fused(_SAME, 3, (Stage(Relu(), (-1,)), Stage(Sub(), (3, -2))))
    yield Case("conv_relu_from_residual", op, (x, w, row, residual), constants=constants)
    stages = (Stage(Mul(), (-1, 2)), Stage(Add(), (-2, 3)), Stage(Clip(), (-3, 4, 5)))
    zero, one = np.array(0, np.float32), np.array(1, np.float32)
    arrays = (x, w, floats(17, 1, 1, seed=5), bias, zero, one)
    constants = frozenset(range(1, 6))
    yield Case("conv_scale_bias_clip", Fused(_SAME, 2, stages), arrays, constants=constants)
    op = Fused(_SAME, 3, (Stage(PRelu(), (-1, 3)),))
    slope = floats(17, 1, 1, seed=6)
    yield Case("conv_prelu", op, (x, w, row, slope), constants=frozenset({1, 2, 3}))
    op = Fused(_SAME, 3, (Stage(Sigmoid(), (-1,)), Stage(Mul(), (-1, -2))))
    yield Case("conv_swish", op, (x, w, row), constants=frozenset({1, 2}))
    yield from _small_convolutions()


def _small_convolutions() -> Iterator[Case]:
    """Yield depthwise, 1x1, float16 and pooling ops with epilogues."""
    depthwise = Conv((3, 3), (2, 2), (1, 1, 1, 1), group=33)
    arrays = (floats(1, 33, 9, 9), floats(33, 1, 3, 3, seed=1), floats(33, seed=2))
    op = Fused(depthwise, 3, (Stage(HardSwish(), (-1,)),))
    yield Case("depthwise_hard_swish", op, arrays, constants=frozenset({1, 2}))
    arrays = (floats(1, 1, 5, 5), floats(1, 1, 1, 1, seed=1), floats(1, seed=2))
    op = Fused(Conv((1, 1)), 3, (Stage(LeakyRelu(0.1), (-1,)),))
    yield Case("one_channel_leaky", op, arrays, constants=frozenset({1, 2}))
    kind = np.float16
    half = (floats(1, 9, 5, 5, dtype=kind), floats(7, 9, 3, 3, dtype=kind, seed=1))
    bias = floats(7, 1, 1, dtype=kind, seed=2)
    op = Fused(_SAME, 2, (Stage(Add(), (-1, 2)), Stage(Relu(), (-2,))))
    yield Case("conv_bias_relu_float16", op, (*half, bias), HALF_TOLERANCE, frozenset({1, 2}))
    op = Fused(AveragePool((2, 2), (2, 2)), 1, (Stage(Relu(), (-1,)), Stage(Mul(), (-2, 1))))
    image, scale = floats(1, 17, 6, 6), floats(1, 17, 1, 1, seed=1)
    yield Case("pool_relu_scale", op, (image, scale), constants=frozenset({1}))


def _products() -> Iterator[Case]:
    """Yield Gemm and MatMul with epilogues."""
    a, b, bias = floats(5, 33), floats(33, 17, seed=1), floats(17, seed=2)
    constants = frozenset({1, 2})
    op = Fused(Gemm(), 2, (Stage(Add(), (-1, 2)), Stage(Sigmoid(), (-2,))))
    yield Case("gemm_bias_sigmoid", op, (a, b, bias), constants=constants)
    op = Fused(Gemm(trans_b=True), 3, (Stage(Relu(), (-1,)),))
    arrays = (a, floats(1, 33, seed=1), floats(1, seed=2))
    yield Case("gemm_one_column_relu", op, arrays, constants=constants)
    yield Case("gemm_atan_asinh", Fused(Gemm(), 2, _CURVES), (a, b), constants=frozenset({1}))
    stages = (Stage(Add(), (-1, 2)), Stage(Gelu(), (-2,)), Stage(Add(), (-3, 3)))
    stack = (floats(2, 5, 33), b, bias, floats(2, 5, 17, seed=3))
    yield Case("mat_mul_gelu_residual", Fused(MatMul(), 2, stages), stack, constants=constants)


def _chains() -> Iterator[Case]:
    """Yield chains of elementwise ops, also after a Gather."""
    x, y, row = floats(3, 5, 33), floats(3, 5, 33, seed=1), floats(33, seed=2)
    op = Fused(Add(), 2, (Stage(Mul(), (-1, 2)), Stage(Relu(), (-2,))))
    yield Case("add_mul_relu", op, (x, y, row), constants=frozenset({2}))
    op = Fused(Mul(), 2, (Stage(Tanh(), (-1,)), Stage(Mul(), (-2, 0)), Stage(Add(), (-3, -1))))
    yield Case("inputs_and_results_read_again", op, (x, y))
    yield Case("add_atan_asinh", Fused(Add(), 2, _CURVES), (x, y))
    op = Fused(Sigmoid(), 1, (Stage(Mul(), (0, -1)),))
    yield Case("swish_of_a_scalar", op, (floats(seed=3),))
    table, indices = floats(19, 24), np.array([[3, -1, 0], [7, 3, 18]])
    op = Fused(Gather(), 2, (Stage(Add(), (-1, 2)), Stage(Mul(), (-2, 3))))
    arrays = (table, indices, floats(1, 3, 24, seed=1), floats(2, 3, 1, seed=2))
    yield Case("picked_add_mul", op, arrays, constants=frozenset({0, 2}))
    yield Case("empty", Fused(Add(), 2, (Stage(Relu(), (-1,)),)), (floats(0, 3), floats(3)))

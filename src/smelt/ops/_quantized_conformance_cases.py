"""Test cases of fused ops on int8 and uint8 as they occur in quantised networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smelt.ir import Array, Case
from smelt.ops._conformance_data import any_integers, floats, integers
from smelt.ops.activations import HardSwish, Relu
from smelt.ops.arithmetic import Add, Mul, Sub
from smelt.ops.cast import Cast
from smelt.ops.convolution import ConvInteger
from smelt.ops.fusion import Fused, Stage
from smelt.ops.matrix_products import MatMulInteger
from smelt.ops.pooling import AveragePool, GlobalAveragePool
from smelt.ops.quantization import DequantizeLinear, QuantizeLinear
from smelt.types import DType

_REAL = Stage(Cast(DType.FLOAT32), (-1,))
_QUANTIZE = QuantizeLinear(axis=None)
_DEQUANTIZE = DequantizeLinear(axis=None)
_ONE = np.array(1, np.float32)


def quantized_cases() -> Iterator[Case]:
    """Yield all cases."""
    for kind in ("uint8", "int8"):
        yield from _convolutions(np.dtype(kind))
        yield from _products(np.dtype(kind))
        yield from _means(np.dtype(kind))
        yield from _chains(np.dtype(kind))


def _convolutions(kind: np.dtype[np.generic]) -> Iterator[Case]:
    """Yield integer convolutions that are scaled, quantised, or have a residual."""
    signed = np.dtype("int8")
    shapes = (
        ("3x3", ConvInteger((3, 3), pads=(1, 1, 1, 1)), 20, 37),
        ("1x1", ConvInteger((1, 1)), 64, 64),
        ("stem", ConvInteger((3, 3), (2, 2), (1, 1, 1, 1)), 3, 32),
        ("depthwise", ConvInteger((3, 3), pads=(1, 1, 1, 1), group=70), 70, 70),
        ("depthwise_stride", ConvInteger((3, 3), (2, 2), (1, 1, 1, 1), group=64), 64, 64),
    )
    for name, op, before, after in shapes:
        x = any_integers(2, before, 9, 11, dtype=kind)
        w = any_integers(after, before // op.group, *op.kernel_shape, seed=1, dtype=signed)
        bias = integers(after, low=-9999, high=9999, seed=2)
        factor = floats(after, 1, 1, low=0.0001, high=0.001, seed=3)
        zero = np.array(9, kind)
        own = (x, w, zero, None, bias)
        scaled = (_REAL, Stage(Mul(), (-2, 5)))
        stages = (*scaled, Stage(_QUANTIZE, (-3, 6, 7)))
        arrays = (*own, factor, _ONE, zero)
        constants = frozenset(range(1, len(arrays)))
        case = f"{name}_{kind.name}"
        yield Case(case, Fused(op, 5, stages), arrays, constants=constants)
        yield Case(f"{case}_to_floats", Fused(op, 5, scaled), arrays[:6], constants=constants)
        if op.strides == (1, 1):
            yield _residual(case, op, arrays, kind)


def _residual(
    name: str, op: ConvInteger, arrays: tuple[Array | None, ...], kind: np.dtype[np.generic]
) -> Case:
    """Return a case that is quantised before and after a residual is added."""
    *own, factor, one, zero = arrays
    x, w = own[:2]
    shape = (2, 0 if w is None else w.shape[0], *(() if x is None else x.shape[2:]))
    again = np.array(0.7, np.float32)
    stages = (
        _REAL,
        Stage(Mul(), (-2, 5)),
        Stage(_QUANTIZE, (-3, 6, 10)),
        Stage(_DEQUANTIZE, (-4, 7, 10)),
        Stage(_DEQUANTIZE, (8, 9, 10)),
        Stage(Add(), (-5, -6)),
        Stage(Relu(), (-7,)),
        Stage(_QUANTIZE, (-8, 11, 10)),
    )
    residual, scale = any_integers(*shape, seed=4, dtype=kind), np.array(0.4, np.float32)
    inputs = (*own, factor, None, again, residual, scale, zero, one)
    constants = frozenset(range(1, len(inputs))) - {8}
    return Case(f"{name}_residual", Fused(op, 5, stages), inputs, constants=constants)


def _products(kind: np.dtype[np.generic]) -> Iterator[Case]:
    """Yield an integer matrix product with dequantised results."""
    a, b = any_integers(5, 66, dtype=kind), any_integers(66, 37, seed=1, dtype=np.dtype("int8"))
    bias = integers(37, low=-9999, high=9999, seed=2)
    factor, zero = floats(37, low=0.0001, high=0.001, seed=3), np.array(9, kind)
    scale = np.array(0.3, np.float32)
    arrays = (a, b, zero, None, bias, factor, scale, zero)
    stages = (
        _REAL,
        Stage(Mul(), (-2, 5)),
        Stage(HardSwish(), (-3,)),
        Stage(_QUANTIZE, (-4, 6, 7)),
        Stage(_DEQUANTIZE, (-5, 6, 7)),
    )
    constants = frozenset(range(1, len(arrays)))
    yield Case(f"product_{kind.name}", Fused(MatMulInteger(), 5, stages), arrays, 2e-2, constants)


def _means(kind: np.dtype[np.generic]) -> Iterator[Case]:
    """Yield average poolings of quantised tensors."""
    zero, scale = np.array(9, kind), np.array(0.7, np.float32)
    stages = (Stage(Sub(), (-1, 1)), Stage(Mul(), (-2, 2)), Stage(_QUANTIZE, (-3, 3, 4)))
    arrays = (any_integers(2, 70, 6, 6, dtype=kind), np.array(9, np.float32), scale, _ONE, zero)
    constants = frozenset(range(1, 5))
    op = Fused(GlobalAveragePool(), 1, stages)
    yield Case(f"whole_mean_{kind.name}", op, arrays, constants=constants)
    op = Fused(AveragePool((2, 2), (2, 2)), 1, stages)
    yield Case(f"mean_{kind.name}", op, arrays, constants=constants)


def _chains(kind: np.dtype[np.generic]) -> Iterator[Case]:
    """Yield a quantised addition and a change of scale."""
    zero, scale = np.array(9, kind), np.array(0.7, np.float32)
    stages = (Stage(_DEQUANTIZE, (3, 4, 2)), Stage(Add(), (-1, -2)), Stage(_QUANTIZE, (-3, 4, 2)))
    x, y = any_integers(2, 33, 5, 5, dtype=kind), any_integers(2, 33, 5, 5, seed=1, dtype=kind)
    arrays = (x, scale, zero, y, np.array(0.9, np.float32))
    op = Fused(_DEQUANTIZE, 3, stages)
    yield Case(f"sum_{kind.name}", op, arrays, constants=frozenset({1, 2, 4}))
    other = np.array(11, kind)
    op = Fused(_DEQUANTIZE, 3, (Stage(_QUANTIZE, (-1, 3, 4)),))
    arrays = (x, scale, zero, np.array(0.9, np.float32), other)
    yield Case(f"other_steps_{kind.name}", op, arrays, constants=frozenset({1, 2, 3, 4}))

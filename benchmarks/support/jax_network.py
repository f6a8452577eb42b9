"""Networks of steps in JAX, which gives them to XLA.

Only processes that measure XLA import this.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.support.onnx_steps import Network

jax: Any = importlib.import_module("jax")
jnp: Any = jax.numpy
lax: Any = jax.lax


def jax_function(network: Network, dtype: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a compiled function of the constants and the inputs, and the constants."""
    constants: dict[str, Any] = {}
    for name, array in network.constants.items():
        kind = dtype if array.dtype.kind == "f" else array.dtype
        constants[name] = jnp.asarray(array, kind)

    def run(constants: dict[str, Any], *inputs: Any) -> list[Any]:
        return network.run(TABLE, constants, inputs)

    return jax.jit(run), constants


def _conv(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Any:
    made = lax.conv_general_dilated(
        x,
        w,
        strides,
        _pairs(pads),
        rhs_dilation=dilations,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=group,
    )
    return made if b is None else made + b.reshape(1, -1, 1, 1)


def _max_pool(
    x: Any, *, size: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil_mode: bool
) -> Any:
    edges = [
        (low, _high(extent, low, high, window, stride) if ceil_mode else high)
        for extent, (low, high), window, stride in zip(
            x.shape[2:], _pairs(pads), size, strides, strict=True
        )
    ]
    low = np.asarray(-np.inf, x.dtype)
    window, steps = (1, 1, *size), (1, 1, *strides)
    return lax.reduce_window(x, low, lax.max, window, steps, [(0, 0), (0, 0), *edges])


def _pairs(pads: Sequence[int]) -> list[tuple[int, int]]:
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def _high(extent: int, low: int, high: int, window: int, stride: int) -> int:
    """Padding after the last element for windows that reach beyond it."""
    count = -(-(extent + low + high - window) // stride)
    return max(high, count * stride + window - extent - low)


def _gemm(x: Any, w: Any, b: Any = None, *, is_transposed: bool) -> Any:
    made = x @ (w.T if is_transposed else w)
    return made if b is None else made + b


def _attention(q: Any, k: Any, v: Any, *, scale: float) -> Any:
    weights = jax.nn.softmax((q @ k).astype(jnp.float32) * scale, -1)
    return weights.astype(v.dtype) @ v


def _layer_norm(x: Any, w: Any, b: Any, *, epsilon: float) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return (centred / deviation).astype(x.dtype) * w + b


def _reshape(x: Any, *, shape: Sequence[int]) -> Any:
    return x.reshape([x.shape[k] if size == 0 else size for k, size in enumerate(shape)])


def _concat(*arrays: Any, axis: int) -> Any:
    return jnp.concatenate(arrays, axis)


def _flatten(x: Any, *, axis: int) -> Any:
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _clip(x: Any, *, low: float, high: float) -> Any:
    return jnp.clip(x, low, high)


def _gather(x: Any, indices: Any, *, axis: int) -> Any:
    return jnp.take(x, indices, axis, mode="clip")


def _gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def _average(x: Any) -> Any:
    return x.mean((2, 3), keepdims=True)


def _same(x: Any) -> Any:
    return x


def _softmax(x: Any, *, axis: int) -> Any:
    return jax.nn.softmax(x, axis)


def _transpose(x: Any, *, axes: Sequence[int]) -> Any:
    return jnp.transpose(x, axes)


TABLE: Final[dict[str, Callable[..., Any]]] = {
    "Add": jnp.add,
    "Attention": _attention,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": jnp.divide,
    "Erf": lax.erf,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _average,
    "Identity": _same,
    "LayerNormalization": _layer_norm,
    "MatMul": jnp.matmul,
    "MaxPool": _max_pool,
    "Mul": jnp.multiply,
    "Relu": jax.nn.relu,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Transpose": _transpose,
}

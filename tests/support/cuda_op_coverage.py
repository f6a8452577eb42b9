"""Which ops have kernels for GPUs, on Hopper: trials fail where there is none, others skip."""

from __future__ import annotations

from typing import Final

from tests.support.trials import HALF2, TF32

_HERE: Final = "tests/support/cuda_op_coverage.py"
WITHOUT_KERNELS: Final = frozenset({
    "batch_normalization", "bitwise_not", "compress", "constant_of_shape", "conv_integer", "crop",
    "cum_sum", "dequantize_linear", "detection_output", "dynamic_quantize_linear", "einsum",
    "gather_nd", "group_normalization", "if", "instance_normalization", "loop",
    "lp_normalization", "lp_pool", "mat_mul_integer", "non_max_suppression", "non_zero",
    "normalize", "one_hot", "prior_box", "quantize_linear", "range", "rnn", "round_mantissa",
    "scatter_elements", "scatter_nd", "shape", "size", "top_k", "trilu",
})  # fmt: skip
"""For no element type."""
_WITHOUT_FLOATS: Final = frozenset({"and", "bit_shift", "mod", "not", "or", "xor"})
"""No element is stored in 16 bits instead."""
_IN_HALF2: Final = frozenset({
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "average_pool", "ceil",
    "celu", "clip", "concat", "conv", "cos", "cosh", "dense", "div", "elu", "erf", "exp", "floor",
    "fused", "gelu", "hard_sigmoid", "hard_swish", "identity", "leaky_relu", "log", "max",
    "max_pool", "mean", "min", "mish", "mul", "neg", "pow", "prelu", "reciprocal", "relu",
    "round", "selu", "shrink", "sigmoid", "sign", "sin", "sinh", "softplus", "softsign", "split",
    "sqrt", "sub", "sum", "swish", "tan", "tanh", "thresholded_relu",
})  # fmt: skip
"""Kernels take images in pairs, and give them."""
_OF_FACTORS: Final = frozenset({"conv", "conv_sum", "dense", "fused", "gemm", "mat_mul"})
"""tf32 rounds what they multiply; others compute as in float32."""


def has_kernels(op: str, how: str) -> bool:
    """Whether kernels compute an op's cases.

    Args:
        op: its name, or what stands for one in requests.
        how: the storage of a request, or how the interpreter is told to choose trials.
    """
    if how == HALF2:
        return op in _IN_HALF2
    if how == TF32:
        return op in _OF_FACTORS
    lacking = WITHOUT_KERNELS
    if how in {"float16", "bfloat16"}:
        lacking |= _WITHOUT_FLOATS
    elif how in {"float32", "sampled", "covering", "all"}:
        lacking |= {"fused_pair"}
    return op not in lacking


def kernel_coverage_error(op: str, how: str, count: int) -> str:
    """What is wrong if an op has ``count`` trials; empty where nothing is."""
    if has_kernels(op, how) == (count > 0):
        return ""
    if count:
        return f"kernels for GPUs compute {op} ({how}) now: say so in {_HERE}"
    return f"no kernel for GPUs computes {op} ({how}): it has lost them, or say so in {_HERE}"

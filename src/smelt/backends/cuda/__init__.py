"""Kernels for NVIDIA GPUs: Triton, compiled ahead of time; no GPU is needed to build."""

from smelt.backends.cuda._backend import CudaBackend
from smelt.backends.cuda._gauge import GAUGE_BLOCK, change_kernel, error_kernel, flush_kernel
from smelt.backends.cuda._pool import CompilerPool
from smelt.backends.cuda._target import CudaTarget, target_named
from smelt.backends.cuda._triton import (
    compile_kernel,
    function_of,
    generator_edition,
    load_triton,
    require_triton,
    why_no_gluon,
)
from smelt.backends.cuda._turns import in_turns

__all__ = [
    "GAUGE_BLOCK",
    "CompilerPool",
    "CudaBackend",
    "CudaTarget",
    "change_kernel",
    "compile_kernel",
    "error_kernel",
    "flush_kernel",
    "function_of",
    "generator_edition",
    "in_turns",
    "load_triton",
    "require_triton",
    "target_named",
    "why_no_gluon",
]

"""Kernels for NVIDIA GPUs: Triton, compiled ahead of time; no GPU is needed to build."""

from smelt.backends.cuda._backend import CudaBackend
from smelt.backends.cuda._pool import CompilerPool
from smelt.backends.cuda._target import CudaTarget, target_named
from smelt.backends.cuda._triton import (
    compile_kernel,
    function_of,
    generator_edition,
    load_triton,
)

__all__ = [
    "CompilerPool",
    "CudaBackend",
    "CudaTarget",
    "compile_kernel",
    "function_of",
    "generator_edition",
    "load_triton",
    "target_named",
]

"""CUDA backend: Triton kernels for NVIDIA GPUs, compiled ahead of time without a GPU."""

from smelt.backends.cuda._backend import CudaBackend
from smelt.backends.cuda._compiler_pool import CompilerPool
from smelt.backends.cuda._result_check_kernels import (
    RESULT_CHECK_BLOCK,
    cache_flush_kernel,
    error_kernel,
    mismatch_kernel,
)
from smelt.backends.cuda._target import CudaTarget, target_named
from smelt.backends.cuda._triton import (
    compile_kernel,
    generator_version,
    gluon_unavailable_reason,
    require_triton,
)

__all__ = [
    "RESULT_CHECK_BLOCK",
    "CompilerPool",
    "CudaBackend",
    "CudaTarget",
    "mismatch_kernel",
    "compile_kernel",
    "error_kernel",
    "cache_flush_kernel",
    "generator_version",
    "require_triton",
    "target_named",
    "gluon_unavailable_reason",
]

"""Code generation for CPUs: kernels as LLVM IR, compiled and linked into one image."""

from smelt.backends.cpu._backend import CpuBackend, compile_runtime, generator_version
from smelt.backends.cpu._compile import compile_ir
from smelt.backends.cpu._link import link
from smelt.backends.cpu._target import (
    CpuTarget,
    host_target,
    host_target_with,
    processor_text,
    target_named,
    target_of,
)

__all__ = [
    "CpuBackend",
    "CpuTarget",
    "compile_ir",
    "compile_runtime",
    "generator_version",
    "host_target",
    "host_target_with",
    "link",
    "processor_text",
    "target_named",
    "target_of",
]

"""The CUDA backend: its families, its copies, and kernels to cubins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from smelt.backends._base import Backend, CodeImage, Family
from smelt.backends._fusion import op_as_json
from smelt.backends._reference import ReferenceFamily
from smelt.backends._windows import WindowFamily
from smelt.backends.cuda._pointwise import pointwise_launch, write_pointwise
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda._triton import compile_kernel, generator_edition
from smelt.backends.cuda.families.conv import ConvFamily
from smelt.backends.cuda.families.elementwise import ElementwiseFamily
from smelt.backends.cuda.families.gemm import GemmFamily
from smelt.backends.cuda.families.pool import PoolFamily
from smelt.backends.cuda.families.rows import RowsFamily
from smelt.errors import InternalError
from smelt.ops.identity import Identity
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda import CudaKernel
    from smelt.engine import KernelSpec, Step, View

COPY: Final = "copy"


class KernelCache(Protocol):
    """Keeps compiled kernels between builds."""

    def get(self, kernel: KernelSpec, target: CudaTarget, /) -> bytes | None:
        """The kernel's record, if it is known and unharmed."""
        ...

    def put(self, kernel: KernelSpec, target: CudaTarget, content: bytes, /) -> None:
        """Keep a kernel's record."""
        ...


class CudaBackend(Backend[CudaTarget]):
    """Compiles for NVIDIA GPUs: NHWC or linear, through Triton, with or without a GPU."""

    name: ClassVar[str] = "cuda"

    def __init__(self, cache: KernelCache | None = None, *, jobs: int = 2) -> None:
        """A backend that keeps compiled kernels in ``cache`` and compiles ``jobs`` at a time."""
        self.families: tuple[Family[CudaTarget], ...] = (
            WindowFamily(),
            ConvFamily(),
            ElementwiseFamily(),
            GemmFamily(),
            PoolFamily(),
            RowsFamily(),
            ReferenceFamily(),
        )
        self.cache = cache
        self.jobs = jobs

    @override
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        kinds = (source.dtype.value,)
        stages = ((op_as_json(Identity()), (0,), kinds),)
        return (pointwise_launch(COPY, [source, destination], stages),)

    @override
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        raise InternalError(f"no kernel for GPUs reads a halo, and {view} has one of {value}")

    @property
    @override
    def edition(self) -> str:
        return generator_edition()[:12]

    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        """The kernel's text."""
        if kernel.family == COPY:
            return write_pointwise(kernel)
        return self.family(kernel.family).generate(kernel, target)

    @override
    def compile(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> CodeImage:
        unique = {kernel.symbol: kernel for kernel in kernels}

        def build(kernel: KernelSpec) -> bytes:
            return b"".join(self._record(kernel, part) for part in target.parts)

        with ThreadPoolExecutor(self.jobs) as pool:
            records = list(pool.map(build, unique.values()))
        code = bytearray()
        symbols: list[tuple[str, int]] = []
        for symbol, record in zip(unique, records, strict=True):
            symbols.append((symbol, len(code)))
            code += record
        return CodeImage(bytes(code), tuple(sorted(symbols)))

    def _record(self, kernel: KernelSpec, target: CudaTarget) -> bytes:
        if self.cache is not None and (known := self.cache.get(kernel, target)) is not None:
            return known
        made: CudaKernel = compile_kernel(kernel, self.generate(kernel, target), target)
        record = made.to_bytes()
        if self.cache is not None:
            self.cache.put(kernel, target, record)
        return record

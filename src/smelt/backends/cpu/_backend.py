"""The CPU backend: its kernel families, copies, and compilation to machine code."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from smelt.backends._base import Backend, CodeImage, Family
from smelt.backends._code_cache import codegen_version_of
from smelt.backends._host_families import PartitionFamily, ReferenceFamily
from smelt.backends._view_family import ViewFamily
from smelt.backends.cpu._compile import compile_ir
from smelt.backends.cpu._link import link
from smelt.backends.cpu._native_runtime import runtime_image
from smelt.backends.cpu._target import (
    CpuTarget,
    llvm_version,
    processor_text,
    target_named,
    target_of,
)
from smelt.backends.cpu.families.attention import AttentionFamily
from smelt.backends.cpu.families.axis_scan import AxisScanFamily
from smelt.backends.cpu.families.conv import ConvFamily
from smelt.backends.cpu.families.data_movement import data_movement_family
from smelt.backends.cpu.families.deconv import DeconvFamily
from smelt.backends.cpu.families.depthwise import DepthwiseFamily
from smelt.backends.cpu.families.depthwise_int8 import DepthwiseInt8Family
from smelt.backends.cpu.families.elementwise import ElementwiseFamily
from smelt.backends.cpu.families.fill import FillFamily
from smelt.backends.cpu.families.fused_conv_depthwise import FusedConvDepthwiseFamily
from smelt.backends.cpu.families.gemm import GemmFamily
from smelt.backends.cpu.families.index_predicate import IndexPredicateFamily
from smelt.backends.cpu.families.indexing import GatherFamily, ScatterFamily
from smelt.backends.cpu.families.int8_product import Int8ProductFamily
from smelt.backends.cpu.families.lrn import LrnFamily
from smelt.backends.cpu.families.normalize import NormalizeFamily
from smelt.backends.cpu.families.pool import PoolFamily
from smelt.backends.cpu.families.quantize import QuantizeFamily
from smelt.backends.cpu.families.recurrent import GruFamily, LstmFamily
from smelt.backends.cpu.families.reduce import ReduceFamily
from smelt.backends.cpu.families.reformat import (
    CLEAR,
    COPY,
    clear_launch,
    copy_launch,
    generate_clear,
    generate_copy,
)
from smelt.backends.cpu.families.resample import ResampleFamily
from smelt.backends.cpu.families.shape_values import ShapeValuesFamily
from smelt.backends.cpu.families.unfused_conv_depthwise import UnfusedConvDepthwiseFamily
from smelt.backends.cpu.families.weight_prefetch import prefetch_weights
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.devices.cpu import abi, processor_count
from smelt.engine import Fingerprint, KernelSpec, Step, View, detect_host
from smelt.types import override, parallel_map

if TYPE_CHECKING:
    from smelt.backends._plan_passes import PlanPass


class ObjectCache(Protocol):
    """Cache of compiled kernels that lasts from build to build."""

    def get(self, kernel: KernelSpec, target: CpuTarget, /) -> bytes | None:
        """Return the kernel's object, or None if it is not cached or is damaged."""
        ...

    def put(self, kernel: KernelSpec, target: CpuTarget, content: bytes, /) -> None:
        """Store a kernel's object."""
        ...


class CpuBackend(Backend[CpuTarget]):
    """Backend for CPUs: LLVM IR on float32 and narrower tensors, linear or channels-last."""

    name: ClassVar[str] = "cpu"
    source_language: ClassVar[str] = "LLVM IR"
    supported_composite_ops: ClassVar[tuple[str, ...]] = (
        "attention",
        "fused_pair",
        "int8_products",
    )
    plan_passes: tuple[PlanPass, ...] = (prefetch_weights,)

    def __init__(self, cache: ObjectCache | None = None, *, jobs: int | None = None) -> None:
        """Create a backend that caches compiled kernels in ``cache``.

        ``jobs`` is the number of kernels that are compiled at a time, by default one per processor.
        """
        self.families: tuple[Family[CpuTarget], ...] = (
            ViewFamily(),
            AttentionFamily(),
            AxisScanFamily(),
            UnfusedConvDepthwiseFamily(),
            ConvFamily(),
            DeconvFamily(),
            DepthwiseFamily(),
            DepthwiseInt8Family(),
            ElementwiseFamily(),
            ShapeValuesFamily(),
            FillFamily(),
            GatherFamily(),
            GemmFamily(),
            GruFamily(),
            Int8ProductFamily(),
            LrnFamily(),
            LstmFamily(),
            data_movement_family(),
            NormalizeFamily(),
            FusedConvDepthwiseFamily(),
            IndexPredicateFamily(),
            PoolFamily(),
            QuantizeFamily(),
            ReduceFamily(),
            WinogradFamily(),
            ResampleFamily(),
            ScatterFamily(),
            PartitionFamily(),
            ReferenceFamily(),
        )
        self.cache = cache
        self.jobs = jobs or processor_count()
        self._made: dict[tuple[str, CpuTarget], bytes] = {}
        """Objects of precompiled kernels, by symbol and target."""

    @staticmethod
    @override
    def target_named(name: str) -> CpuTarget:
        return target_named(name)

    @staticmethod
    @override
    def targets_of(fingerprint: Fingerprint) -> tuple[CpuTarget]:
        return (target_of(fingerprint.architecture, fingerprint.features),)

    @staticmethod
    @override
    def target_text(architecture: str, features: Sequence[str]) -> str:
        return processor_text(architecture, features)

    @property
    @override
    def codegen_version(self) -> str:
        return generator_version()[:12]

    @override
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        return (copy_launch(source, destination),)

    @override
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        return (clear_launch(view, value),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        """Return the kernel's LLVM IR."""
        if kernel.family == COPY:
            return generate_copy(kernel, target)
        if kernel.family == CLEAR:
            return generate_clear(kernel, target)
        return self.family(kernel.family).generate(kernel, target)

    @override
    def precompile(self, kernels: Sequence[KernelSpec], target: CpuTarget) -> None:
        unique = {kernel.symbol: kernel for kernel in kernels}
        objects = self._objects(list(unique.values()), target)
        self._made |= {
            (name, target): object_code for name, object_code in zip(unique, objects, strict=True)
        }

    @override
    def compile(self, kernels: Sequence[KernelSpec], target: CpuTarget) -> CodeImage:
        unique = {kernel.symbol: kernel for kernel in kernels}
        return CodeImage(*link(self._objects(list(unique.values()), target)))

    def _objects(self, kernels: Sequence[KernelSpec], target: CpuTarget) -> list[bytes]:
        """Return the objects of several kernels, compiled in parallel."""
        return parallel_map(functools.partial(self._object, target=target), kernels, self.jobs)

    def _object(self, kernel: KernelSpec, target: CpuTarget) -> bytes:
        """Return the object of one kernel: precompiled, cached or compiled now."""
        if (precompiled := self._made.get((kernel.symbol, target))) is not None:
            return precompiled
        if self.cache is not None and (cached := self.cache.get(kernel, target)) is not None:
            return cached
        compiled = compile_ir(self.generate(kernel, target), target)
        if self.cache is not None:
            self.cache.put(kernel, target, compiled)
        return compiled


@functools.cache
def generator_version() -> str:
    """Return the hash of LLVM's version, the device interface and the code generators.

    Code of another version is not reused.
    """
    return codegen_version_of(
        Path(__file__).parent, f"{llvm_version()}, interface {abi.ABI_VERSION}"
    )


def compile_runtime(target: CpuTarget) -> CodeImage:
    """Return the run loop and worker loop for the target's architecture."""
    return CodeImage(*runtime_image(target.architecture, detect_host().system))

"""CUDA backend: its kernel families, copies, and compilation of kernels to cubins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from smelt.backends._base import Aliasing, Backend, CodeImage, Family, Refusal
from smelt.backends._concurrent_steps import group_concurrent_steps
from smelt.backends._partitions import PartitionFamily
from smelt.backends._reference import ReferenceFamily
from smelt.backends._views import ViewFamily
from smelt.backends.cuda._compiler_pool import CompilerPool
from smelt.backends.cuda._elementwise import EXPRESSIONS
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._float32_logits import keep_logits_float32
from smelt.backends.cuda._index_width import index_limits_of, index_overflow_reason
from smelt.backends.cuda._kernel_source import reverse_tile_order, without_pdl
from smelt.backends.cuda._mixed_precision import (
    reads_float32,
    with_float32_results,
    with_results_for_readers,
)
from smelt.backends.cuda._pointwise import write_pointwise
from smelt.backends.cuda._result_checks import RESULT_CHECK, write_result_check
from smelt.backends.cuda._target import CudaTarget, target_named
from smelt.backends.cuda._tile_order import alternate_tile_order
from smelt.backends.cuda._triton import generator_version
from smelt.backends.cuda.families.attention import AttentionFamily
from smelt.backends.cuda.families.cublaslt import CublasLtFamily
from smelt.backends.cuda.families.cudnn import CudnnFamily
from smelt.backends.cuda.families.deconv import DeconvFamily
from smelt.backends.cuda.families.depthwise import DepthwiseFamily
from smelt.backends.cuda.families.elementwise import ElementwiseFamily
from smelt.backends.cuda.families.fused_pair import FusedPairConvFamily, can_fuse_pair
from smelt.backends.cuda.families.fused_stem_pool import FusedStemPoolFamily, may_pool
from smelt.backends.cuda.families.gather import GatherFamily
from smelt.backends.cuda.families.half2 import (
    HALF2_PACKING,
    Half2Family,
    half2_packing_launch,
    write_half2_packing,
)
from smelt.backends.cuda.families.lrn import LrnFamily
from smelt.backends.cuda.families.move import COPY, copy_launch, data_movement_family
from smelt.backends.cuda.families.persistent_conv import PersistentConvFamily
from smelt.backends.cuda.families.pool import PoolFamily
from smelt.backends.cuda.families.prefetch_gemm import PrefetchGemmFamily
from smelt.backends.cuda.families.recurrent import RecurrentFamily
from smelt.backends.cuda.families.resample import ResampleFamily
from smelt.backends.cuda.families.row_reductions import RowReductionsFamily
from smelt.backends.cuda.families.stem import StemFamily
from smelt.backends.cuda.families.stem_direct import StemDirectFamily
from smelt.backends.cuda.families.tiled import ConvFamily, ConvSumFamily, GemmFamily
from smelt.backends.cuda.families.vendor_library import library_call
from smelt.backends.cuda.families.window_reuse_conv import WindowReuseConvFamily
from smelt.devices.cpu import processor_count
from smelt.devices.cuda import call_to_bytes
from smelt.engine import Launch
from smelt.errors import BuildError, InternalError
from smelt.ops import ALL_OPS
from smelt.types import DType, evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from smelt.backends._base import Tactic
    from smelt.devices.cuda import LoadedLibrary
    from smelt.engine import Fingerprint, KernelSpec, Step, View
    from smelt.ir import Node
    from smelt.types import Guard

_MAX_CONCURRENT_BLOCKS: Final = 1024
"""Maximum number of thread blocks of a launch that may run concurrently with others; larger
launches fill a GPU alone. Chosen without a measurement: about eight blocks for each of an H200's
132 multiprocessors."""
_LIBRARY_FAMILIES: Final[Mapping[str, Any]] = {f.name: f for f in (CublasLtFamily, CudnnFamily)}
"""Families of vendor libraries by the name of the library."""
_AUXILIARY_WRITERS: Final[Mapping[str, Callable[[KernelSpec], str]]] = {
    COPY: write_pointwise,
    HALF2_PACKING: write_half2_packing,
    RESULT_CHECK: write_result_check,
}
"""Writers of kernels that compute no node: copies between formats and checks of results."""


def _families(libraries: Sequence[LoadedLibrary]) -> tuple[Family[CudaTarget], ...]:
    """Return all families in the order in which candidates with equal estimates are preferred."""
    return (
        ViewFamily(),
        PrefetchGemmFamily(),
        AttentionFamily(),
        FusedPairConvFamily(),
        ConvFamily(),
        ConvSumFamily(),
        DeconvFamily(),
        DepthwiseFamily(),
        ElementwiseFamily(),
        GatherFamily(),
        GemmFamily(),
        PersistentConvFamily(),
        LrnFamily(),
        data_movement_family(),
        Half2Family(),
        PoolFamily(),
        RecurrentFamily(),
        ResampleFamily(),
        RowReductionsFamily(),
        WindowReuseConvFamily(),
        StemFamily(),
        StemDirectFamily(),
        FusedStemPoolFamily(),
        *(_LIBRARY_FAMILIES[library.provider](library) for library in libraries),
        PartitionFamily(),
        ReferenceFamily(),
    )


def _has_launches(tactic: Tactic) -> bool:
    """Return whether a tactic launches kernels."""
    return not tactic.runs_on_host and tactic.aliasing is Aliasing.NONE


class KernelCache(Protocol):
    """Cache of compiled kernels between builds."""

    def get(self, kernel: KernelSpec, target: CudaTarget, /) -> bytes | None:
        """Return the kernel's record; None if it is not cached or fails authentication."""
        ...

    def put(self, kernel: KernelSpec, target: CudaTarget, content: bytes, /) -> None:
        """Store a kernel's record."""
        ...


class CudaBackend(Backend[CudaTarget]):
    """Backend for NVIDIA GPUs: linear and channels-last tensors, with or without a GPU present."""

    name: ClassVar[str] = "cuda"
    source_language: ClassVar[str] = "Triton"
    has_short_sources: ClassVar[bool] = True
    composite_ops: ClassVar[tuple[str, ...]] = ("attention", "conv_sum", "gather")
    non_fusable_ops: ClassVar[tuple[str, ...]] = tuple(
        sorted(op.name for op in ALL_OPS if op.name not in EXPRESSIONS)
    )

    def __init__(
        self,
        cache: KernelCache | None = None,
        *,
        jobs: int | None = None,
        pool: CompilerPool | None = None,
        libraries: Sequence[LoadedLibrary] = (),
    ) -> None:
        """Create a backend.

        Args:
            cache: cache of compiled kernels; None compiles every kernel.
            jobs: number of kernels that are compiled at once; by default one per processor.
            pool: pool of compiler processes to use instead of a new one.
            libraries: loaded vendor libraries, whose algorithms become candidates.
        """
        self.families = _families(libraries)
        own = [family for family in self.families if isinstance(family, CudaFamily)]
        self._int32_families = {f.name for f in own if f.uses_int32_offsets}
        self._exclusive_families = {f.name for f in own if f.excludes_other_families}
        # Also without a library: recipes of engines name its tactics.
        known = (*own, *_LIBRARY_FAMILIES.values())
        self._fixed_type_families = {f.name for f in known if f.has_fixed_types}
        self._reversible_families = {f.name for f in own if f.supports_reversed_tiles}
        self.cache = cache
        self.pool = pool or CompilerPool(jobs or processor_count())
        self._records: dict[tuple[str, CudaTarget], bytes | Future[bytes]] = {}
        """Kernel records that exist or are being compiled, by kernel symbol and target."""

    @staticmethod
    @override
    def target_named(name: str) -> CudaTarget:
        return target_named(name)

    @staticmethod
    @override
    def targets_of(fingerprint: Fingerprint) -> tuple[CudaTarget, ...]:
        return target_named(fingerprint.architecture).parts

    @staticmethod
    @override
    def target_text(architecture: str, features: Sequence[str]) -> str:
        return " with ".join(filter(None, (architecture, ", ".join(features))))

    @override
    def candidates(
        self, node: Node, target: CudaTarget, storage: DType = DType.FLOAT32
    ) -> tuple[list[Tactic], list[Refusal]]:
        tactics, refusals = super().candidates(node, replace(target, narrow_dtype=storage), storage)
        int32_families = {t.family for t in tactics} & self._int32_families
        if int32_families and (reason := index_overflow_reason(node)):
            refusals += [Refusal(family, reason) for family in sorted(int32_families)]
            tactics = [tactic for tactic in tactics if tactic.family not in int32_families]
        tactics = [t for t in tactics if t.family in self._exclusive_families] or tactics
        return tactics if storage is DType.FLOAT32 else keep_logits_float32(
            node, tactics, self._fixed_type_families
        ), refusals

    @override
    def mixed_precision_candidates(
        self, node: Node, target: CudaTarget, storage: DType, kept: Collection[str]
    ) -> tuple[list[Tactic], list[Refusal]]:
        if not kept:
            return self.candidates(node, target, storage)
        node_storage = DType.FLOAT32 if reads_float32(node, kept) else storage
        tactics, refusals = self.candidates(node, target, node_storage)
        adjusted = (
            tactic
            if tactic.family in self._fixed_type_families
            else with_results_for_readers(node, tactic, storage, kept)
            for tactic in tactics
        )
        return list(dict.fromkeys(adjusted)), refusals

    @override
    def canonical_tactic(self, node: Node, tactic: Tactic) -> Tactic:
        is_fixed = tactic.family in self._fixed_type_families
        return tactic if is_fixed else with_float32_results(node, tactic)

    @override
    def can_fuse_pair(self, first: Node, second: Node) -> bool:
        return can_fuse_pair(first, second) or may_pool(first, second)

    @override
    def launch_variants(self, tactic: Tactic) -> tuple[Tactic, ...]:
        if not _has_launches(tactic):
            return ()
        forwards = replace(tactic, reversed_tile_order=False)
        return tuple(replace(forwards, uses_pdl=uses_pdl) for uses_pdl in (False, True))

    @override
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        is_half2_packing = len(source.shape) != len(destination.shape)
        return ((half2_packing_launch if is_half2_packing else copy_launch)(source, destination),)

    @override
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        raise InternalError(f"GPU kernels read no halos, but {view} has one of {value}")

    @property
    @override
    def codegen_version(self) -> str:
        return generator_version()[:12]

    @override
    def shape_guards(self, node: Node) -> tuple[Guard, ...]:
        return index_limits_of(node)

    @override
    def concurrent_groups(
        self, steps: Sequence[Step], largest: Mapping[str, int]
    ) -> list[list[int]]:
        return group_concurrent_steps(
            steps, lambda launch: evaluate_dim(launch.chunks, largest) <= _MAX_CONCURRENT_BLOCKS
        )

    @override
    def with_reversed_tiles(self, step: Step) -> Step:
        if not isinstance(step, Launch) or step.kernel.family not in self._reversible_families:
            return step
        return replace(step, kernel=reverse_tile_order(step.kernel))

    def alternate_tile_order(
        self,
        nodes: Iterable[Node],
        tactics: Mapping[Node, Tactic],
        sizes: Mapping[str, int],
        target: CudaTarget,
    ) -> dict[Node, Tactic]:
        """Return the tactics with every other large launch, in the order of ``nodes``, reversed."""
        reversible = [n for n in nodes if tactics[n].family in self._reversible_families]
        return alternate_tile_order(reversible, tactics, sizes, target)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        """Return the Triton source of a kernel."""
        if write := _AUXILIARY_WRITERS.get(kernel.family):
            text = write(kernel)
        else:
            text = self.family(kernel.family).generate(kernel, target)
        return text if target.uses_pdl else without_pdl(text)

    def begin(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> None:
        """Start the compilation of kernels without waiting; `records` waits for one."""
        for kernel in kernels:
            for part in target.parts:
                if (kernel.symbol, part) not in self._records:
                    self._records[kernel.symbol, part] = self._begin_kernel(kernel, part)

    def _begin_kernel(self, kernel: KernelSpec, part: CudaTarget) -> bytes | Future[bytes]:
        """Return the record of a kernel if it is available, else a future of its compilation."""
        if (call := library_call(kernel)) is not None:
            return call_to_bytes(call)
        cached = None if self.cache is None else self.cache.get(kernel, part)
        if cached is not None:
            return cached
        keep = None if self.cache is None else partial(self.cache.put, kernel, part)
        return self.pool.submit(kernel, self.generate(kernel, part), part, keep)

    def records(
        self, kernel: KernelSpec, target: CudaTarget, *, wait_s: float | None = None
    ) -> bytes:
        """Return the kernel's records for all parts of a target, compiled if necessary.

        Args:
            kernel: kernel to compile.
            target: GPUs to compile for.
            wait_s: maximum time to wait for each part, in seconds; None waits until it is compiled.

        Raises:
            BuildError: the kernel does not compile.
            TimeoutError: compilation has not finished within ``wait_s``.
            MissingExtraError: Triton is not installed.
        """
        self.begin([kernel], target)
        return b"".join(self._record(kernel, part, wait_s) for part in target.parts)

    def _record(self, kernel: KernelSpec, part: CudaTarget, wait_s: float | None) -> bytes:
        """Return the record for one GPU, waiting for its compilation."""
        entry = self._records[kernel.symbol, part]
        if isinstance(entry, bytes):
            return entry
        record = self._records[kernel.symbol, part] = entry.result(wait_s)
        return record

    @override
    def precompile(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> None:
        self.begin(kernels, target)
        for kernel in kernels:
            with suppress(BuildError):  # raised again when the record is requested
                self.records(kernel, target)

    @override
    def compile(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> CodeImage:
        unique = {kernel.symbol: kernel for kernel in kernels}
        self.begin(list(unique.values()), target)
        code = bytearray()
        symbols: list[tuple[str, int]] = []
        for symbol, kernel in unique.items():
            symbols.append((symbol, len(code)))
            code += self.records(kernel, target)
        return CodeImage(bytes(code), tuple(sorted(symbols)))

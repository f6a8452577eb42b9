"""CUDA backend: its kernel families, copies, and compilation of kernels to cubins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Aliasing, Backend, CodeImage, Family, Refusal
from smelt.backends._concurrent_steps import group_concurrent_steps
from smelt.backends._data_movement import DataMovementFamily
from smelt.backends._host_families import PartitionFamily, ReferenceFamily
from smelt.backends._view_family import ViewFamily
from smelt.backends.cuda._compiler_pool import CompilerPool
from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.backends.cuda._elementwise import EXPRESSIONS
from smelt.backends.cuda._elementwise_kernel import PointwiseWriter
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._index_limits import index_limits_of, index_overflow_reason
from smelt.backends.cuda._kernel_source import reverse_tile_order, without_pdl
from smelt.backends.cuda._result_check_kernels import RESULT_CHECK, ResultCheckWriter
from smelt.backends.cuda._target import CudaTarget, target_named
from smelt.backends.cuda._triton import generator_version
from smelt.backends.cuda.families.attention import AttentionFamily
from smelt.backends.cuda.families.cublaslt import CublasLtFamily
from smelt.backends.cuda.families.cudnn import CudnnFamily
from smelt.backends.cuda.families.data_movement import COPY, CudaCopyLowering, copy_launch
from smelt.backends.cuda.families.deconv import DeconvFamily
from smelt.backends.cuda.families.depthwise import DepthwiseFamily
from smelt.backends.cuda.families.elementwise import ElementwiseFamily
from smelt.backends.cuda.families.fused_pair import FusedPairConvFamily, can_fuse_pair
from smelt.backends.cuda.families.fused_stem_pool import FusedStemPoolFamily, may_pool
from smelt.backends.cuda.families.gather import GatherFamily
from smelt.backends.cuda.families.half2_image_pairs import (
    HALF2_PACKING,
    Half2Family,
    Half2PackingWriter,
    half2_packing_launch,
)
from smelt.backends.cuda.families.lrn import LrnFamily
from smelt.backends.cuda.families.persistent_conv import PersistentConvFamily
from smelt.backends.cuda.families.pool import PoolFamily
from smelt.backends.cuda.families.prefetch_gemm import PrefetchGemmFamily
from smelt.backends.cuda.families.recurrent import RecurrentFamily
from smelt.backends.cuda.families.resample import ResampleFamily
from smelt.backends.cuda.families.row_reductions import RowReductionsFamily
from smelt.backends.cuda.families.stem import StemFamily
from smelt.backends.cuda.families.stem_direct import StemDirectFamily
from smelt.backends.cuda.families.tiled_gemm import ConvFamily, ConvSumFamily, GemmFamily
from smelt.backends.cuda.families.vendor_library import library_call
from smelt.backends.cuda.families.window_reuse_conv import WindowReuseConvFamily
from smelt.devices.cpu import processor_count
from smelt.devices.cuda import call_to_bytes
from smelt.engine import Launch
from smelt.errors import BuildError, InternalError
from smelt.ops import ALL_OPS
from smelt.types import DType, element_count, evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from smelt.backends._base import Tactic
    from smelt.backends._code_cache import CodeCache
    from smelt.backends._plan_passes import UnallocatedPlan
    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.devices.cuda import LoadedLibrary
    from smelt.engine import Fingerprint, KernelSpec, Step, View
    from smelt.ir import Node, Value
    from smelt.types import Guard, TensorFormat

_MAX_CONCURRENT_BLOCKS: Final = 1024
"""Maximum number of thread blocks of a launch that may run concurrently with others; larger
launches fill a GPU alone. Chosen without a measurement: about eight blocks for each of an H200's
132 multiprocessors."""
_LARGE_L2_SHARE: Final = 0.5
"""Share of the L2 cache from which a launch counts as large; the data of smaller launches remain in
the cache in either order. Chosen without a measurement."""
_LIBRARY_FAMILIES: Final[Mapping[str, Any]] = {f.name: f for f in (CublasLtFamily, CudnnFamily)}
"""Families of vendor libraries by the name of the library."""
_AUXILIARY_WRITERS: Final[Mapping[str, type[KernelWriter]]] = {
    COPY: PointwiseWriter,
    HALF2_PACKING: Half2PackingWriter,
    RESULT_CHECK: ResultCheckWriter,
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
        DataMovementFamily(CudaCopyLowering()),
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


def _apply_launch_attributes(reversible: Collection[str], plan: UnallocatedPlan) -> None:
    """Give launches the tile order of their tactics, and whether they use PDL.

    ``reversible`` are the families whose tile order can be reversed.
    """
    for number, (step, tactic) in enumerate(zip(plan.steps, plan.tactics, strict=True)):
        if tactic is not None and isinstance(step, Launch):
            is_reversed = tactic.reversed_tile_order and step.kernel.family in reversible
            kernel = reverse_tile_order(step.kernel) if is_reversed else step.kernel
            plan.steps[number] = replace(step, kernel=kernel, uses_pdl=tactic.uses_pdl)


def _group_small_launches(plan: UnallocatedPlan) -> None:
    """Group independent launches that do not fill a GPU alone, so that they run at once."""

    def is_small(launch: Launch) -> bool:
        return evaluate_dim(launch.chunks, plan.largest) <= _MAX_CONCURRENT_BLOCKS

    plan.order(group_concurrent_steps(plan.steps, is_small))


def _touched_bytes(node: Node, tactic: Tactic, sizes: Mapping[str, int]) -> int:
    """Return how many bytes a node reads and writes, without packed weights."""
    values = (*node.inputs, *node.outputs)
    return sum(
        evaluate_dim(element_count(value.tensor.shape), sizes) * fmt.dtype.size_bytes
        for value, fmt in zip(values, tactic.formats, strict=True)
        if value is not None and fmt is not None
    )


class CudaBackend(Backend[CudaTarget]):
    """Backend for NVIDIA GPUs: linear and channels-last tensors, with or without a GPU present."""

    name: ClassVar[str] = "cuda"
    source_language: ClassVar[str] = "Triton"
    supports_mixed_precision: ClassVar[bool] = True
    has_short_sources: ClassVar[bool] = True
    supported_composite_ops: ClassVar[tuple[str, ...]] = ("attention", "conv_sum", "gather")
    non_fusable_ops: ClassVar[tuple[str, ...]] = tuple(
        sorted(op.name for op in ALL_OPS if op.name not in EXPRESSIONS)
    )

    def __init__(
        self,
        cache: CodeCache | None = None,
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
        self._fixed_type_families = {f.name for f in own if f.has_fixed_types}
        self._reversible_families = {f.name for f in own if f.supports_reversed_tiles}
        # No pass refers to the backend: its pool ends with the last reference to it.
        self.plan_passes = (
            partial(_apply_launch_attributes, self._reversible_families),
            _group_small_launches,
        )
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
    def candidates(self, node: Node, target: CudaTarget) -> tuple[list[Tactic], list[Refusal]]:
        precise = replace(target, narrow_dtype=node.precision)
        tactics, refusals = super().candidates(node, precise)
        int32_families = {t.family for t in tactics} & self._int32_families
        if int32_families and (reason := index_overflow_reason(node)):
            refusals += [Refusal(family, reason) for family in sorted(int32_families)]
            tactics = [tactic for tactic in tactics if tactic.family not in int32_families]
        tactics = [t for t in tactics if t.family in self._exclusive_families] or tactics
        if node.precision is DType.FLOAT32:
            tactics = [self._as_stored(node, tactic) for tactic in tactics]
        return tactics, refusals

    def _as_stored(self, node: Node, tactic: Tactic) -> Tactic:
        """Return a tactic for float32 that reads and writes 16 bits where these are stored.

        These are results, and operands of an epilogue, such as the mask of a softmax. Views and
        references are unchanged: views have the type of their source, and references compute in the
        model's types.
        """
        is_fixed = tactic.family in self._fixed_type_families
        if is_fixed or tactic.aliasing is not Aliasing.NONE or tactic.is_host_step:
            return tactic

        def stored(value: Value | None, fmt: TensorFormat | None) -> Any:
            if value is None or fmt is None or value.constant is not None:
                return fmt
            return replace(fmt, dtype=value.storage) if fmt.dtype is DType.FLOAT32 else fmt

        others = map(stored, node.inputs[1:], tactic.input_formats[1:])
        outputs = tuple(map(stored, node.outputs, tactic.output_formats))
        return replace(
            tactic, input_formats=(*tactic.input_formats[:1], *others), output_formats=outputs
        )

    @override
    def can_fuse_pair(self, first: Node, second: Node) -> bool:
        return can_fuse_pair(first, second) or may_pool(first, second)

    @override
    def launch_variants(self, tactic: Tactic) -> tuple[Tactic, ...]:
        if tactic.is_host_step or tactic.aliasing is not Aliasing.NONE:
            return ()  # it launches no kernels
        forwards = replace(tactic, reversed_tile_order=False)
        return tuple(replace(forwards, uses_pdl=uses_pdl) for uses_pdl in (False, True))

    @override
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        is_half2_packing = len(source.shape) != len(destination.shape)
        return ((half2_packing_launch if is_half2_packing else copy_launch)(source, destination),)

    @override
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        raise InternalError(f"{view} has a halo to fill with {value}, but GPU kernels use no halos")

    @property
    @override
    def codegen_version(self) -> str:
        return generator_version()[:12]

    @override
    def shape_guards(self, node: Node) -> tuple[Guard, ...]:
        return index_limits_of(node)

    def alternate_tile_order(
        self,
        nodes: Iterable[Node],
        tactics: Mapping[Node, Tactic],
        sizes: Mapping[str, int],
        target: CudaTarget,
    ) -> dict[Node, Tactic]:
        """Return the tactics with every other large launch, in the order of ``nodes``, reversed.

        The L2 cache still holds what a launch read and wrote last. If the next launch starts with
        its first tiles, these data are evicted before it reaches them. In reverse order (a
        serpentine tile order) it reads them first.
        """
        ordered = dict(tactics)
        min_bytes, is_reversed = _LARGE_L2_SHARE * gpu_spec_of(target).l2_bytes, False
        for node in nodes:
            tactic = tactics[node]
            is_reversible = tactic.family in self._reversible_families
            if is_reversible and _touched_bytes(node, tactic, sizes) >= min_bytes:
                ordered[node] = replace(tactic, reversed_tile_order=is_reversed)
                is_reversed = not is_reversed
        return ordered

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        """Return the Triton source of a kernel."""
        if writer := _AUXILIARY_WRITERS.get(kernel.family):
            text = writer(kernel).write()
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

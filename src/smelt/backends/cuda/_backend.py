"""The CUDA backend: its families, its copies, and kernels to cubins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from smelt.backends._base import Aliasing, Backend, CodeImage, Family, Refusal
from smelt.backends._reference import ReferenceFamily
from smelt.backends._schedule import grouped
from smelt.backends._windows import WindowFamily
from smelt.backends.cuda._elementwise import EXPRESSIONS
from smelt.backends.cuda._gauge import GAUGE, write_gauge
from smelt.backends.cuda._logits import keep_logits
from smelt.backends.cuda._mixed import reads_wide, results_for_readers, results_wide
from smelt.backends.cuda._pointwise import write_pointwise
from smelt.backends.cuda._pool import CompilerPool
from smelt.backends.cuda._reach import limits_of, why_too_far
from smelt.backends.cuda._source import without_early_start
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda._triton import generator_edition
from smelt.backends.cuda._turns import turned
from smelt.backends.cuda.families.ahead import AheadFamily
from smelt.backends.cuda.families.attention import AttentionFamily
from smelt.backends.cuda.families.chain import ChainFamily, may_chain
from smelt.backends.cuda.families.conv import ConvFamily
from smelt.backends.cuda.families.conv_sum import ConvSumFamily
from smelt.backends.cuda.families.cublaslt import CublasLtFamily
from smelt.backends.cuda.families.cudnn import CudnnFamily
from smelt.backends.cuda.families.deconv import DeconvFamily
from smelt.backends.cuda.families.depthwise import DepthwiseFamily
from smelt.backends.cuda.families.elementwise import ElementwiseFamily
from smelt.backends.cuda.families.gather import GatherFamily
from smelt.backends.cuda.families.gemm import GemmFamily
from smelt.backends.cuda.families.held import HeldFamily
from smelt.backends.cuda.families.libraries import library_call
from smelt.backends.cuda.families.lrn import LrnFamily
from smelt.backends.cuda.families.move import COPY, copy_launch, move_family
from smelt.backends.cuda.families.pairs import (
    PAIRING,
    PairsFamily,
    pairing_launch,
    write_pairing,
)
from smelt.backends.cuda.families.pool import PoolFamily
from smelt.backends.cuda.families.recurrent import RecurrentFamily
from smelt.backends.cuda.families.resample import ResampleFamily
from smelt.backends.cuda.families.rows import RowsFamily
from smelt.backends.cuda.families.sliding import SlidingFamily
from smelt.backends.cuda.families.stem import StemFamily
from smelt.backends.cuda.families.stem_direct import StemDirectFamily
from smelt.backends.cuda.families.stem_pool import StemPoolFamily, may_pool
from smelt.devices.cpu import processor_count
from smelt.devices.cuda import call_to_bytes
from smelt.errors import BuildError, InternalError
from smelt.ops import ALL_OPS
from smelt.types import DType, evaluate_dim, override

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from smelt.backends._base import Tactic
    from smelt.devices.cuda import OpenLibrary
    from smelt.engine import KernelSpec, Step, View
    from smelt.ir import Node
    from smelt.types import Guard

_FEW_BLOCKS: Final = 1024
"""Launches of more fill a GPU by themselves."""
_NEAR: Final = (
    "ahead", "attention", "chain", "conv", "conv_sum", "cudnn", "depthwise", "gemm", "held",
    "pairs", "sliding", "stem", "stem_direct", "stem_pool",
)  # fmt: skip
"""Families whose kernels count in 32 bits."""
_LIBRARY_FAMILIES: Final[Mapping[str, Any]] = {f.name: f for f in (CublasLtFamily, CudnnFamily)}


def _moves(tactic: Tactic) -> bool:
    """Whether a tactic has launches."""
    return not tactic.is_reference and tactic.aliasing is Aliasing.NONE


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
    composed: ClassVar[tuple[str, ...]] = ("attention", "conv_sum", "gather")
    never_fused: ClassVar[tuple[str, ...]] = tuple(
        sorted(op.name for op in ALL_OPS if op.name not in EXPRESSIONS)
    )

    def __init__(
        self,
        cache: KernelCache | None = None,
        *,
        jobs: int | None = None,
        pool: CompilerPool | None = None,
        libraries: Sequence[OpenLibrary] = (),
    ) -> None:
        """A backend that keeps compiled kernels in ``cache`` and compiles ``jobs`` at a time.

        Unless told otherwise, it compiles one kernel a processor. What ``libraries`` propose is
        among the candidates.
        """
        self.families: tuple[Family[CudaTarget], ...] = (
            WindowFamily(),
            AheadFamily(),
            AttentionFamily(),
            ChainFamily(),
            ConvFamily(),
            ConvSumFamily(),
            DeconvFamily(),
            DepthwiseFamily(),
            ElementwiseFamily(),
            GatherFamily(),
            GemmFamily(),
            HeldFamily(),
            LrnFamily(),
            move_family(),
            PairsFamily(),
            PoolFamily(),
            RecurrentFamily(),
            ResampleFamily(),
            RowsFamily(),
            SlidingFamily(),
            StemFamily(),
            StemDirectFamily(),
            StemPoolFamily(),
            *(_LIBRARY_FAMILIES[library.provider](library) for library in libraries),
            ReferenceFamily(),
        )
        self.cache = cache
        self.pool = pool or CompilerPool(jobs or processor_count())
        self._made: dict[tuple[str, CudaTarget], bytes | Future[bytes]] = {}
        """Records, and those on their way."""

    @override
    def candidates(
        self, node: Node, target: CudaTarget, storage: DType = DType.FLOAT32
    ) -> tuple[list[Tactic], list[Refusal]]:
        tactics, refusals = super().candidates(node, replace(target, narrow=storage), storage)
        if any(tactic.family in _NEAR for tactic in tactics) and (reason := why_too_far(node)):
            refused = sorted({tactic.family for tactic in tactics} & set(_NEAR))
            refusals += [Refusal(family, reason) for family in refused]
            tactics = [tactic for tactic in tactics if tactic.family not in _NEAR]
        pairs = [tactic for tactic in tactics if tactic.family == PairsFamily.name]
        tactics = pairs or tactics
        return tactics if storage is DType.FLOAT32 else keep_logits(node, tactics), refusals

    @override
    def mixed_candidates(
        self, node: Node, target: CudaTarget, storage: DType, kept: Collection[str]
    ) -> tuple[list[Tactic], list[Refusal]]:
        if not kept:
            return self.candidates(node, target, storage)
        own = DType.FLOAT32 if reads_wide(node, kept) else storage
        tactics, refusals = self.candidates(node, target, own)
        made = (results_for_readers(node, tactic, storage, kept) for tactic in tactics)
        return list(dict.fromkeys(made)), refusals

    @override
    def as_listed(self, node: Node, tactic: Tactic) -> Tactic:
        return results_wide(node, tactic)

    @override
    def may_chain(self, first: Node, second: Node) -> bool:
        return may_chain(first, second) or may_pool(first, second)

    @override
    def variants(self, tactic: Tactic) -> tuple[Tactic, ...]:
        if not _moves(tactic):
            return ()
        forwards = replace(tactic, backwards=False)
        return tuple(replace(forwards, starts_early=early) for early in (False, True))

    @override
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        in_pairs = len(source.shape) != len(destination.shape)
        return ((pairing_launch if in_pairs else copy_launch)(source, destination),)

    @override
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        raise InternalError(f"no kernel for GPUs reads a halo, and {view} has one of {value}")

    @property
    @override
    def edition(self) -> str:
        return generator_edition()[:12]

    @override
    def limits(self, node: Node) -> tuple[Guard, ...]:
        return limits_of(node)

    @override
    def groups(self, steps: Sequence[Step], largest: Mapping[str, int]) -> list[list[int]]:
        return grouped(steps, lambda launch: evaluate_dim(launch.chunks, largest) <= _FEW_BLOCKS)

    @override
    def turned(self, step: Step) -> Step:
        return turned(step)

    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        """The kernel's text."""
        copies = {COPY: write_pointwise, PAIRING: write_pairing}
        if kernel.family in copies:
            text = copies[kernel.family](kernel)
        elif kernel.family == GAUGE:
            text = write_gauge(kernel)
        else:
            text = self.family(kernel.family).generate(kernel, target)
        return text if target.starts_early else without_early_start(text)

    def begin(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> None:
        """Have kernels compiled, and go on; `records` waits for one."""
        for kernel in kernels:
            for part in target.parts:
                if (kernel.symbol, part) not in self._made:
                    self._made[kernel.symbol, part] = self._begun(kernel, part)

    def _begun(self, kernel: KernelSpec, part: CudaTarget) -> bytes | Future[bytes]:
        if (call := library_call(kernel)) is not None:
            return call_to_bytes(call)
        known = None if self.cache is None else self.cache.get(kernel, part)
        if known is not None:
            return known
        keep = None if self.cache is None else partial(self.cache.put, kernel, part)
        return self.pool.submit(kernel, self.generate(kernel, part), part, keep)

    def records(
        self, kernel: KernelSpec, target: CudaTarget, *, wait_s: float | None = None
    ) -> bytes:
        """The kernel's records, compiled if need be.

        Args:
            kernel: what to compile.
            target: for which GPUs.
            wait_s: how long to wait at most for each; else until it is compiled.

        Raises:
            BuildError: the compiler refuses it.
            TimeoutError: it is not compiled yet.
            MissingExtraError: Triton is not installed.
        """
        self.begin([kernel], target)
        return b"".join(self._record(kernel, part, wait_s) for part in target.parts)

    def _record(self, kernel: KernelSpec, part: CudaTarget, wait_s: float | None) -> bytes:
        made = self._made[kernel.symbol, part]
        if isinstance(made, bytes):
            return made
        record = self._made[kernel.symbol, part] = made.result(wait_s)
        return record

    @override
    def prepare(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> None:
        self.begin(kernels, target)
        for kernel in kernels:
            with suppress(BuildError):  # whoever needs this one will be told
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

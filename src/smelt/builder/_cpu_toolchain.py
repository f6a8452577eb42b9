"""The toolchain for CPUs and for the null device, based on LLVM."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from smelt.backends import CodeCache
from smelt.backends.cpu import (
    CpuBackend,
    compile_runtime,
    generator_version,
    host_target_with,
    processor_text,
    target_named,
)
from smelt.builder._toolchain import Toolchain
from smelt.config import target_name
from smelt.devices.cpu import abi, default_thread_count, native_runtime
from smelt.engine import VERSION, Fingerprint, detect_host
from smelt.errors import UnsupportedError
from smelt.tuner import (
    BenchmarkTimer,
    CostModelTimer,
    CpuBench,
    CpuPlanFixture,
    InNetworkTrial,
    InNetworkTuner,
)
from smelt.types import Limit, counted, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.builder._toolchain import LinkedCode, Progress, Purpose, TunedGraph, TuningRequest
    from smelt.devices import DeviceName
    from smelt.devices.cpu import NativeRuntime
    from smelt.engine import KernelSpec
    from smelt.ir import Node
    from smelt.tuner import Timer

_TARGET_NAMES: Final = ("native", "x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64", "aarch64")
"""The named targets against which the fingerprint of an engine is compared, in this order."""
_ISOLATED_TUNING_TIME_SHARE: Final = 0.45
"""Share of the tuning time in which candidates are timed alone; the rest is for trials in the whole
network.
"""


class CpuToolchain(Toolchain):
    """Compiles with LLVM, and times candidates if this machine can run the target's code."""

    def __init__(self, kind: str, target: CpuTarget) -> None:
        """Create a toolchain for ``target``; ``kind`` is ``"cpu"`` or ``"null"``."""
        self.kind = kind
        self.target: CpuTarget = target
        self.backend = CpuBackend(CodeCache.open(generator_version()))
        self.workers = default_thread_count()

    @classmethod
    @override
    def open(
        cls, device: DeviceName, precision: str, *, use_libraries: bool, purpose: Purpose
    ) -> CpuToolchain:
        """Return the toolchain for a named target, or for this machine if none is named.

        Precision only affects storage on CPUs, and there are no libraries to choose from.
        """
        target = target_named(device.target) if device.target else _default_target()
        return cls(device.kind.name, target)

    @classmethod
    @override
    def from_fingerprint(cls, fingerprint: Fingerprint, device: str | None) -> CpuToolchain:
        """If the target has no name, use this machine's restricted to the engine's features."""
        target = _target_of(fingerprint) or host_target_with(fingerprint.features)
        return cls(fingerprint.device, target)

    @property
    @override
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            device=self.kind,
            architecture=self.target.architecture,
            features=self.target.features,
            system=detect_host().system,
            abi=abi.ABI_VERSION,
            version=VERSION,
        )

    @property
    @override
    def can_measure(self) -> bool:
        host, target = detect_host(), self.target
        is_subset = set(target.features) <= set(host.features)
        return target.architecture == host.architecture and is_subset

    @property
    @override
    def timing_key(self) -> str:
        host = detect_host()
        processor = host.processor or processor_text(host.architecture, host.features)
        return f"{processor}, {counted(self.workers, 'thread')}"

    @override
    def timer(self, tuning: TuningRequest) -> Timer:
        effort = tuning.effort
        if effort is None or not self.can_measure:
            return CostModelTimer()
        bench = CpuBench(
            self.backend, self.target, self._runtime(), threads=self.workers, sizes=tuning.sizes
        )
        return BenchmarkTimer(
            bench,
            tuning.timings,
            max_timed=effort.candidates,
            repeats=effort.repeats,
            runs_per_mean=effort.runs_per_mean,
            seconds=(tuning.deadline - time.perf_counter()) * _ISOLATED_TUNING_TIME_SHARE,
            seconds_per_trial=effort.seconds_per_trial,
            min_sample_seconds=effort.min_sample_seconds,
        )

    @override
    def tune_in_network(self, draft: TunedGraph, spent_s: float) -> TunedGraph:
        # Fused pairs are not tuned on CPUs.
        tuning = draft.tuning
        if tuning.effort is None or not self.can_measure:
            return draft
        if not tuning.fits(Limit.MAX_TRIAL_BYTES):
            return draft

        def open_fixture(assignments: Sequence[dict[Node, Tactic]]) -> CpuPlanFixture:
            return CpuPlanFixture(
                tuning.graph,
                assignments,
                self.backend,
                self.target,
                self._runtime(),
                symbols=tuning.symbols,
                sizes=tuning.sizes,
                threads=self.workers,
            )

        InNetworkTuner(
            tuning.graph,
            draft.choice,
            InNetworkTrial(tuning.graph, open_fixture, sizes=tuning.sizes),
            self.backend,
            tuning.timings,
            effort=tuning.effort.network,
            where=f"{self.target.name}, {self.workers} threads",
            sizes=tuning.sizes,
            fits_workspace=tuning.fits_workspace,
            deadline=tuning.deadline,
            compile_seconds=spent_s,
            progress=tuning.progress,
        ).run()
        return draft

    @override
    def link(self, kernels: Sequence[KernelSpec], progress: Progress) -> LinkedCode:
        progress(0, 1)
        image = self.backend.compile(kernels, self.target)
        progress(1, 1)
        return image, compile_runtime(self.target)

    def _runtime(self) -> NativeRuntime:
        image = compile_runtime(self.target)
        return native_runtime(image.code, dict(image.symbols))


def _default_target() -> CpuTarget:
    """Return the target from the environment, or this machine's."""
    name = target_name()
    try:
        return target_named(name or "native")
    except UnsupportedError as error:
        if name is None:
            raise
        raise UnsupportedError(f"SMELT_TARGET={name!r} in the environment: {error}") from error


def _target_of(fingerprint: Fingerprint) -> CpuTarget | None:
    """Return the named target for which an engine was built, or None."""
    for name in _TARGET_NAMES:
        with suppress(UnsupportedError):  # this machine may have no kernel generator
            target = target_named(name)
            target_key = (target.architecture, target.features)
            if target_key == (fingerprint.architecture, fingerprint.features):
                return target
    return None

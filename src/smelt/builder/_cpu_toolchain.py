"""Building for processors, and for the device that computes nothing: LLVM."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from smelt.backends import CodeCache
from smelt.backends.cpu import (
    CpuBackend,
    compile_runtime,
    generator_edition,
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
    CpuScene,
    HintTimer,
    Laboratory,
    MeasuringTimer,
    NetworkTrial,
    Rehearsal,
)
from smelt.types import Limit, counted, override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends import CodeImage, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.builder._toolchain import Alternatives, Draft, Tuning
    from smelt.devices.cpu import NativeRuntime
    from smelt.engine import KernelSpec
    from smelt.ir import Node
    from smelt.tuner import Timer
    from smelt.types import DeviceName

_PROCESSORS: Final = ("native", "x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64", "aarch64")
_SHARE_ALONE: Final = 0.45
"""The share of the tuning's time after which candidates are no longer timed alone."""


class CpuToolchain(Toolchain):
    """LLVM, and the clock of this machine where it runs the target's code."""

    def __init__(self, kind: str, target: CpuTarget) -> None:
        """Make code for ``target``; ``kind`` is "cpu" or "null"."""
        self.kind = kind
        self._target = target
        self.backend = CpuBackend(CodeCache.open(generator_edition()))
        self.workers = default_thread_count()

    @property
    @override
    def target(self) -> CpuTarget:
        return self._target

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
    def has_clock(self) -> bool:
        host, target = detect_host(), self.target
        is_subset = set(target.features) <= set(host.features)
        return target.architecture == host.architecture and is_subset

    @property
    @override
    def place(self) -> str:
        host = detect_host()
        processor = host.processor or processor_text(host.architecture, host.features)
        return f"{processor}, {counted(self.workers, 'thread')}"

    @override
    def timer(self, tuning: Tuning) -> Timer:
        effort = tuning.effort
        if effort is None or not self.has_clock:
            return HintTimer()
        laboratory = Laboratory(
            self.backend, self.target, self._runtime(), threads=self.workers, sizes=tuning.sizes
        )
        return MeasuringTimer(
            laboratory,
            tuning.timings,
            keep=effort.candidates,
            repeats=effort.repeats,
            averaged=effort.averaged,
            seconds=(tuning.deadline - time.perf_counter()) * _SHARE_ALONE,
            seconds_each=effort.seconds_each,
            sample_seconds=effort.sample_seconds,
        )

    @override
    def improve(self, draft: Draft, others: Alternatives | None, spent_s: float) -> Draft:
        del others  # nothing is chained here
        tuning = draft.tuning
        if tuning.effort is None or not self.has_clock:
            return draft
        if not tuning.fits(Limit.MAX_TRIAL_BYTES):
            return draft

        def open_scene(casts: Sequence[dict[Node, Tactic]]) -> CpuScene:
            return CpuScene(
                tuning.graph,
                casts,
                self.backend,
                self.target,
                self._runtime(),
                symbols=tuning.symbols,
                sizes=tuning.sizes,
                threads=self.workers,
            )

        NetworkTrial(
            tuning.graph,
            draft.choice,
            Rehearsal(tuning.graph, open_scene, sizes=tuning.sizes),
            self.backend,
            tuning.timings,
            effort=tuning.effort.network,
            where=f"{self.target.name}, {self.workers} threads",
            sizes=tuning.sizes,
            may_play=tuning.may_play,
            deadline=tuning.deadline,
            ahead_s=spent_s,
            progress=tuning.progress,
        ).run()
        return draft

    @override
    def link(
        self, kernels: Sequence[KernelSpec], progress: Callable[[int, int], None]
    ) -> tuple[CodeImage, CodeImage]:
        progress(0, 1)
        image = self.backend.compile(kernels, self.target)
        progress(1, 1)
        return image, compile_runtime(self.target)

    def _runtime(self) -> NativeRuntime:
        image = compile_runtime(self.target)
        return native_runtime(image.code, dict(image.symbols))


def open_toolchain(
    device: DeviceName, precision: str, *, libraries: bool, advice: str
) -> CpuToolchain:
    """The toolchain for a target; without one, for this machine.

    Precisions are all of storage, and no library has anything to offer.

    Raises:
        UnsupportedError: there is no such target; it names the environment's variable where that
            says which.
    """
    del precision, libraries, advice
    return CpuToolchain(
        device.kind, target_named(device.target) if device.target else _usual_target()
    )


def _usual_target() -> CpuTarget:
    """The target where a device's name has none: the environment's, else this machine."""
    name = target_name()
    try:
        return target_named(name or "native")
    except UnsupportedError as error:
        if name is None:
            raise
        raise UnsupportedError(f"SMELT_TARGET={name!r} in the environment: {error}") from error


def toolchain_of(fingerprint: Fingerprint, device: str | None = None) -> CpuToolchain:
    """The toolchain that made an engine, or one for this machine as far as its features go."""
    del device
    target = _processor_of(fingerprint) or host_target_with(fingerprint.features)
    return CpuToolchain(fingerprint.device, target)


def _processor_of(fingerprint: Fingerprint) -> CpuTarget | None:
    """What an engine was made for: this machine, or a target that has a name; None for neither."""
    for name in _PROCESSORS:
        with suppress(UnsupportedError):  # this machine may be none that has kernels
            target = target_named(name)
            known = (target.architecture, target.features)
            if known == (fingerprint.architecture, fingerprint.features):
                return target
    return None

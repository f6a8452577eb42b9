"""The toolchain for NVIDIA GPUs, based on Triton; it works with and without a GPU."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from typing import TYPE_CHECKING, Final

from smelt.backends import CodeCache, CodeImage, WeightStore, build_plan
from smelt.backends.cuda import (
    CudaBackend,
    generator_version,
    gluon_unavailable_reason,
    require_triton,
    target_named,
)
from smelt.builder._options import EFFORTS, HALF2, PRECISIONS, TF32
from smelt.builder._toolchain import Toolchain
from smelt.devices.cuda import ABI_VERSION, LIBRARIES, SIZE_FEATURE, cuda_device, selected_device
from smelt.engine import VERSION, Fingerprint
from smelt.errors import (
    Argument,
    BuildError,
    DeviceError,
    EngineFormatError,
    InternalError,
    MissingExtraError,
)
from smelt.ops import FusedPair
from smelt.runtime import gpu_named
from smelt.tuner import (
    BenchmarkTimer,
    CostModelTimer,
    CudaBench,
    CudaPlanFixture,
    InNetworkTrial,
    InNetworkTuner,
    with_pair_pdl,
)
from smelt.types import Limit, override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaTarget
    from smelt.builder._toolchain import LinkedCode, Progress, Purpose, TunedGraph, TuningRequest
    from smelt.devices import DeviceName
    from smelt.devices.cuda import CudaDevice, LoadedLibrary
    from smelt.engine import KernelSpec
    from smelt.ir import Node
    from smelt.tuner import InNetworkEffort, Timer

_LOG = logging.getLogger(__name__)
_SIZE_FEATURE_PREFIX: Final = f"{SIZE_FEATURE}="
_COPY_SECONDS: Final = 2.0e-6
"""Estimated time in seconds of a small copy between formats, including its launch."""
_COPY_BYTES_PER_SECOND: Final = 2.5e12
"""Estimated rate of large copies between formats, in bytes read and written per second."""
_CANDIDATES_RATIO: Final = 3
"""Candidates to time per candidate of a `TuningEffort`, which counts those of a CPU build. GPUs
have more candidates, and all processors compile them while the GPU measures.
"""
_SLOW_CANDIDATES_RATIO: Final = 2
"""The same ratio for long launches, for which the best candidate ranks higher in the estimates
(docs/lab/tuning-on-gpus.md).
"""
_ISOLATED_TUNING_TIME_SHARE: Final = 0.7
"""Share of the tuning time in which candidates are timed alone; the rest is for trials in the whole
network.
"""
_SHORT_PLAN_SECONDS: Final = 3e-4
"""Duration in seconds below which a plan runs several times per sample."""
_CHANGE_SUBSETS: Final = 5
"""Number of subsets of a pass's changes that are compared in whole plans."""
_SECONDS_PER_PLAN: Final = 0.03
"""Estimated time in seconds to assemble a plan, record its graphs and check its results."""
_MAX_PAIR_TIME_RATIO: Final = 1.05
"""Largest ratio of a fused pair's isolated time to that of its parts at which it is still tried in
the network.
"""
_MIN_MEASURED_GAIN: Final = 0.002
"""Share of a network's time that fused pairs, or another tile order, must save."""
_RECOMPILE_TIME_SHARE: Final = 0.2
"""Time limit for compiling candidates for the trials in the network, as a share of the time for
compiling and timing them alone. Most kernels are the same in both.
"""


def _gpu_effort(effort: InNetworkEffort) -> InNetworkEffort:
    """Return an effort adapted to GPUs, which have more candidates and shorter plans."""
    return dataclasses.replace(
        effort,
        min_plan_seconds=0.0,
        short_plan_seconds=_SHORT_PLAN_SECONDS,
        extra_candidates=2 * effort.extra_candidates,
        change_subsets=_CHANGE_SUBSETS,
    )


class CudaToolchain(Toolchain):
    """Compiles with Triton, and times candidates if the target is a GPU of this machine."""

    workers = 0

    def __init__(
        self, target: CudaTarget, index: int | None = None, libraries: Sequence[LoadedLibrary] = ()
    ) -> None:
        """Create a toolchain for ``target``, which is GPU number ``index`` unless that is None.

        The kernels of ``libraries`` are added to the candidates.

        Raises:
            MissingExtraError: Triton is not installed.
        """
        require_triton()
        self.target: CudaTarget = target
        self.index = index
        self.device = None if index is None else f"cuda:{index}"
        self.backend = self._kernels = CudaBackend(
            CodeCache.open(generator_version()), libraries=libraries
        )
        self.libraries = tuple(_library_requirement(x.provider, x.version) for x in libraries)

    @classmethod
    @override
    def open(
        cls, device: DeviceName, precision: str, *, use_libraries: bool, purpose: Purpose
    ) -> CudaToolchain:
        """Return the toolchain for named architectures, or for a GPU of this machine.

        Without an index, the GPU that the calling thread has selected is used. With
        ``use_libraries``, the installed libraries compete with the generated kernels.
        """
        if device.target:
            return cls(_with_precisions(target_named(device.target), {precision}))
        try:
            gpu = selected_device() if device.index is None else cuda_device(device.index)
        except MissingExtraError as error:
            require_triton()  # building needs the compiler, too, and one extra brings both
            raise MissingExtraError(error.package, "cuda-build") from error
        except DeviceError as error:
            raise _no_gpu_error(error, purpose) from error
        target = dataclasses.replace(
            target_named(gpu.properties.architecture),
            multiprocessors=gpu.properties.multiprocessors,
        )
        installed = _installed_libraries(gpu) if use_libraries else ()
        return cls(_with_precisions(target, {precision}), gpu.index, installed)

    @classmethod
    @override
    def from_fingerprint(cls, fingerprint: Fingerprint, device: str | None) -> CudaToolchain:
        """Libraries that the engine calls are opened on ``device``, or on the selected GPU."""
        target = target_named(fingerprint.architecture)
        sizes = [
            f.removeprefix(_SIZE_FEATURE_PREFIX)
            for f in fingerprint.features
            if f.startswith(_SIZE_FEATURE_PREFIX)
        ]
        if len(sizes) != 1 or not re.fullmatch(r"[1-9][0-9]{0,4}", sizes[0]):
            raise EngineFormatError(
                "the engine does not record the number of multiprocessors that it was tuned for; "
                "the file is damaged: build it again"
            )
        target = dataclasses.replace(target, multiprocessors=int(sizes[0]))
        called = _required_libraries(fingerprint.features)
        libraries = [LIBRARIES[name].open(gpu_named(device), called[name]) for name in called]
        return cls(_with_precisions(target, fingerprint.features), libraries=libraries)

    @property
    @override
    def name(self) -> str:
        return f"cuda:{self.target.architecture}"

    @property
    @override
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            device="cuda",
            architecture=self.target.architecture,
            features=_features(self.target),
            system="any",
            abi=ABI_VERSION,
            version=VERSION,
        )

    @property
    @override
    def can_measure(self) -> bool:
        return self.index is not None

    @property
    @override
    def timing_key(self) -> str:
        if self.index is None:
            raise InternalError(
                f"{self.name} cannot be timed on this machine, so it has no timing key"
            )
        return cuda_device(self.index).timing_key

    @override
    def parts(self) -> dict[str, CudaTarget]:
        return {f"cuda:{part.architecture}": part for part in self.target.parts}

    @override
    def supports_precision(self, precision: str, part: CudaTarget) -> bool:
        if precision == TF32:
            return part.has_tf32
        storage = PRECISIONS[precision]
        return part.storage(storage) is storage

    @override
    def requirements(self, kernels: Sequence[KernelSpec]) -> tuple[str, ...]:
        called = {(k.family, k["version"]) for k in kernels if k.family in LIBRARIES}
        return tuple(_library_requirement(library, version) for library, version in sorted(called))

    @override
    def timer(self, tuning: TuningRequest) -> Timer:
        effort = tuning.effort
        if effort is None or self.index is None:
            return CostModelTimer(
                copy_launch_seconds=_COPY_SECONDS, bytes_per_second=_COPY_BYTES_PER_SECOND
            )
        device = cuda_device(self.index)
        return BenchmarkTimer(
            CudaBench(self._kernels, self.target, device, sizes=tuning.sizes),
            tuning.timings,
            max_timed=effort.candidates * _CANDIDATES_RATIO,
            max_timed_slow=effort.candidates * _SLOW_CANDIDATES_RATIO,
            repeats=effort.repeats,
            seconds=(tuning.deadline - time.perf_counter()) * _ISOLATED_TUNING_TIME_SHARE,
        )

    @override
    def tune_in_network(self, draft: TunedGraph, spent_s: float) -> TunedGraph:
        """Tune a draft in whole plans, or choose by estimates if nothing can be timed."""
        tuning = draft.tuning
        if tuning.effort is None or self.index is None:
            return self._with_estimated_pairs(draft)
        if not tuning.fits(Limit.MAX_GPU_TRIAL_BYTES):
            return draft
        trial = self._trial(draft, cuda_device(self.index), spent_s)
        trial.run()
        tuned = self._with_fused_pairs(trial, draft)
        self._try_reversed_tile_order(trial, tuned)
        return tuned

    @staticmethod
    def _with_fused_pairs(trial: InNetworkTuner, draft: TunedGraph) -> TunedGraph:
        """Return the draft, or a version with the fused pairs that make the whole plan faster.

        Each kind of pair is first tried alone, then those that gained are tried together.
        """
        alternatives = draft.alternatives
        kinds = [] if alternatives is None else alternatives.chains.faster(_MAX_PAIR_TIME_RATIO)
        if alternatives is None or not kinds or time.perf_counter() > draft.tuning.deadline:
            return draft
        single_kinds = [alternatives.draft([kind]) for kind in kinds]
        draft_seconds, timed_kinds = _compare(trial, draft, single_kinds)
        pairs = zip(kinds, timed_kinds, strict=True)
        faster_kinds = [kind for kind, (seconds, _) in pairs if seconds < draft_seconds]
        if not faster_kinds:
            return draft
        fused_drafts = [alternatives.draft(faster_kinds)]
        draft_seconds, [(fused_seconds, fused_draft)] = _compare(trial, draft, fused_drafts)
        return fused_draft if fused_seconds < draft_seconds * (1 - _MIN_MEASURED_GAIN) else draft

    def _try_reversed_tile_order(self, trial: InNetworkTuner, draft: TunedGraph) -> None:
        """Reverse the tile order of every other large launch if that makes the plan faster."""
        tuning, choice = draft.tuning, draft.choice
        alternating = self._kernels.alternate_tile_order(
            tuning.graph.nodes, choice.tactics, tuning.sizes, self.target
        )
        if alternating == choice.tactics or time.perf_counter() > tuning.deadline:
            return
        forward_seconds, alternating_seconds = trial.plan_seconds([choice.tactics, alternating])
        if alternating_seconds < forward_seconds * (1 - _MIN_MEASURED_GAIN):
            choice.tactics = alternating

    def _with_estimated_pairs(self, draft: TunedGraph) -> TunedGraph:
        """Return a draft with the fused pairs that are estimated to be faster.

        The draft stays as it is if the cost model is not fitted to the target, or if the compiler
        rejects a pair.
        """
        alternatives = draft.alternatives
        if alternatives is None or not self.target.has_fitted_cost_model:
            return draft
        fused_draft = alternatives.by_estimates(draft)
        return fused_draft if self._compiles_fused_pairs(fused_draft) else draft

    def _compiles_fused_pairs(self, draft: TunedGraph) -> bool:
        """Return whether the fused pairs of a draft compile; other kernels compile in parallel."""
        tuning, backend = draft.tuning, self._kernels
        pairs = [node for node in tuning.graph.nodes if isinstance(node.op, FusedPair)]
        if not pairs:
            return True
        families = {draft.choice.tactics[node].family for node in pairs}
        tactics, symbols = draft.choice.tactics, tuning.symbols
        built = build_plan(tuning.graph, tactics, backend, WeightStore(), symbols=symbols)
        kernels = [launch.kernel for launch in built.plan.launches]
        backend.begin(kernels, self.target)
        try:
            for kernel in kernels:
                if kernel.family in families:
                    backend.records(kernel, self.target)
        except BuildError as error:
            _LOG.warning("no pairs of layers are fused: %s", error)
            return False
        return True

    def _trial(self, draft: TunedGraph, device: CudaDevice, spent_s: float) -> InNetworkTuner:
        """Return the tuner that compares candidates of a draft in whole plans."""
        tuning = draft.tuning
        effort = tuning.effort or EFFORTS["fast"]

        def open_fixture(assignments: Sequence[dict[Node, Tactic]]) -> CudaPlanFixture:
            return CudaPlanFixture(
                trial.graphs,
                assignments,
                self._kernels,
                self.target,
                device,
                symbols=tuning.symbols,
                sizes=tuning.sizes,
            )

        trial = InNetworkTuner(
            tuning.graph,
            draft.choice,
            InNetworkTrial(
                tuning.graph,
                open_fixture,
                sizes=tuning.sizes,
                times_whole_plan=True,
                prepare_seconds=_SECONDS_PER_PLAN,
            ),
            self.backend,
            tuning.timings,
            effort=_gpu_effort(effort.network),
            where=", ".join((f"{self.target.name} on {self.timing_key}", *self.libraries)),
            sizes=tuning.sizes,
            fits_workspace=tuning.fits_workspace,
            deadline=tuning.deadline,
            compile_seconds=spent_s * _RECOMPILE_TIME_SHARE,
            progress=tuning.progress,
        )
        return trial

    @override
    def hint(self, refusals: Iterable[str]) -> str:
        missing = gluon_unavailable_reason()
        # These tactics are only chosen if they are timed.
        if missing is None or not self.can_measure or not any(missing in r for r in refusals):
            return ""
        return (
            f"faster convolution kernels are not available: {missing}; run: pip install "
            "'triton<3.8'"
        )

    @override
    def link(self, kernels: Sequence[KernelSpec], progress: Progress) -> LinkedCode:
        unique = list({kernel.symbol: kernel for kernel in kernels}.values())
        self._kernels.begin(unique, self.target)
        for done, kernel in enumerate(unique):  # takes minutes if no code is cached
            progress(done, len(unique))
            self._kernels.records(kernel, self.target)
        progress(len(unique), len(unique))
        return self.backend.compile(kernels, self.target), CodeImage(b"", ())


def _compare(
    trial: InNetworkTuner, draft: TunedGraph, alternatives: Sequence[TunedGraph]
) -> tuple[float, list[tuple[float, TunedGraph]]]:
    """Return the time of a whole plan, and times of versions that differ in fused pairs.

    Each version is tried with and without an early start of its pairs (PDL), and is returned with
    the faster of the two. Times are in seconds.
    """
    trial.graphs += [other.tuning.graph for other in alternatives]
    variants = [
        _with_pair_pdl(other, uses_pdl=uses_pdl)
        for other in alternatives
        for uses_pdl in (False, True)
    ]
    assignments = [variant.choice.tactics for variant in (draft, *variants)]
    draft_seconds, *seconds = trial.plan_seconds(assignments)
    timed = list(zip(seconds, variants, strict=True))
    pairs = zip(timed[::2], timed[1::2], strict=True)
    return draft_seconds, [min(both, key=lambda pair: pair[0]) for both in pairs]


def _with_pair_pdl(draft: TunedGraph, *, uses_pdl: bool) -> TunedGraph:
    """Return a draft whose fused pairs start early (PDL), or do not."""
    tactics = with_pair_pdl(draft.tuning.graph, draft.choice, uses_pdl=uses_pdl)
    return dataclasses.replace(draft, choice=dataclasses.replace(draft.choice, tactics=tactics))


def _no_gpu_error(error: DeviceError, purpose: Purpose) -> DeviceError:
    """Return the error for an absent GPU or driver, with what can be done without it."""
    if purpose == "build":
        example = Argument("device", "cuda:sm_90")
        return DeviceError(
            f"{error!s}. To build on a machine without a GPU, give the architecture: {example}",
            arguments=[example],
        )
    if purpose == "retune":
        return DeviceError(
            f"{error!s}. Retuning times candidates, so it needs the machine with the GPU; the "
            "engine may also run there without retuning"
        )
    return DeviceError(str(error))


def _installed_libraries(gpu: CudaDevice) -> list[LoadedLibrary]:
    """Return the libraries that are installed and usable.

    Raises:
        MissingExtraError: no library is installed.
        DeviceError: no library can be used with the GPU or its driver.
    """
    usable: list[LoadedLibrary] = []
    errors: list[MissingExtraError | DeviceError] = []
    for library in LIBRARIES.values():
        try:
            usable.append(library.open(gpu, None))
        except (MissingExtraError, DeviceError) as error:
            errors.append(error)
    if not usable:
        raise errors[0]
    for reason in errors:
        _LOG.warning("libraries=True (`--libraries`): a library is not used: %s", reason)
    return usable


def _library_requirement(library: str, version: object) -> str:
    """Return the fingerprint feature that requires a version of a library."""
    return f"{library}={version}"


def _features(target: CudaTarget) -> tuple[str, ...]:
    """Return the properties of a target, other than its architecture, that decide its tactics."""
    size = f"{_SIZE_FEATURE_PREFIX}{target.multiprocessors}"
    options = [(HALF2, target.uses_half2), (TF32, target.allows_tf32)]
    return (*(name for name, is_enabled in options if is_enabled), size)


def _with_precisions(target: CudaTarget, precisions: Collection[str]) -> CudaTarget:
    """Return the target with the tactics that the precisions enable."""
    return dataclasses.replace(
        target, allows_tf32=TF32 in precisions, uses_half2=HALF2 in precisions
    )


def _required_libraries(features: Sequence[str]) -> dict[str, int]:
    """Return the libraries that the features of an engine require, with their versions."""
    versions: dict[str, int] = {}
    for feature in features:
        name, _, version = feature.partition("=")
        if name not in LIBRARIES:
            continue
        title = LIBRARIES[name].title
        if not re.fullmatch(r"[1-9][0-9]{0,9}", version):
            raise EngineFormatError(
                f"the engine requires {title} {version[:40]!r}, which is not a version number; the "
                "file is damaged: build it again"
            )
        if name in versions:
            raise EngineFormatError(
                f"the engine requires {title} twice; the file is damaged: build it again"
            )
        versions[name] = int(version)
    return versions

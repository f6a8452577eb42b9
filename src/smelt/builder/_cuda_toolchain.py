"""Building for NVIDIA GPUs, with one or without: Triton."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from typing import TYPE_CHECKING, Final

from smelt.backends import CodeCache, CodeImage, WeightStore, build_plan
from smelt.backends.cuda import (
    CudaBackend,
    alternate_tile_order,
    generator_version,
    require_triton,
    target_named,
    why_no_gluon,
)
from smelt.builder._options import EFFORTS, HALF2, PRECISIONS, TF32
from smelt.builder._toolchain import Toolchain
from smelt.devices.cuda import ABI_VERSION, LIBRARIES, SIZE_FEATURE, cuda_device, selected_device
from smelt.engine import VERSION, Fingerprint, Launch
from smelt.errors import (
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
    from collections.abc import Callable, Collection, Iterable, Sequence

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaTarget
    from smelt.builder._toolchain import FusedPairAlternatives, TunedGraph, TuningRequest
    from smelt.devices.cuda import CudaDevice, LoadedLibrary
    from smelt.engine import KernelSpec
    from smelt.ir import Node
    from smelt.tuner import InNetworkEffort, Timer
    from smelt.types import DeviceName

_LOG = logging.getLogger(__name__)
_SIZE: Final = f"{SIZE_FEATURE}="
_COPY_SECONDS: Final = 2.0e-6
"""What a copy between formats takes that moves next to nothing, launch included."""
_COPY_BYTES_PER_SECOND: Final = 2.5e12
_CANDIDATES: Final = 3
"""Candidates that are tried for each one that would be on a processor: there are more of them, and
they are compiled on all processors while the GPU times."""
_CANDIDATES_LONG: Final = 2
"""The same of launches that take long, of which estimates have the best among fewer."""
_ISOLATED_TUNING_TIME_SHARE: Final = 0.7
"""The share of the tuning's time after which candidates are no longer timed alone."""
_SHORT_PLAN_SECONDS: Final = 3e-4
"""Plans that take less alone are gone through several times."""
_CHANGE_SUBSETS: Final = 5
"""Of what a pass over whole plans changes."""
_SECONDS_PER_PLAN: Final = 0.03
"""What it takes to assemble a plan, to record its graphs, and to see that its results stay."""
_MAX_PAIR_TIME_RATIO: Final = 1.05
"""How much longer than its parts a chain may take by itself, and still be tried in the network."""
_MIN_MEASURED_GAIN: Final = 0.002
"""Share of a network's time that chains, or another order of tiles, must save."""
_RECOMPILE_TIME_SHARE: Final = 0.2
"""How much of the time that they took alone it may take to compile candidates for their places in
the network: most are the same there."""


def _gpu_effort(effort: InNetworkEffort) -> InNetworkEffort:
    """What of an effort is made on GPUs, where there are more candidates and plans are briefer."""
    extra_candidates = 2 * effort.extra_candidates
    return dataclasses.replace(
        effort,
        min_plan_seconds=0.0,
        short_plan_seconds=_SHORT_PLAN_SECONDS,
        extra_candidates=extra_candidates,
        change_subsets=_CHANGE_SUBSETS,
    )


class CudaToolchain(Toolchain):
    """Triton; the GPU's clock where there is a GPU."""

    workers = 0
    supports_mixed_precision = True

    def __init__(
        self,
        target: CudaTarget,
        index: int | None = None,
        libraries: Sequence[LoadedLibrary] = (),
    ) -> None:
        """Make code for ``target``, which is the GPU ``index``, if that is given.

        What ``libraries`` propose is among the candidates.

        Raises:
            MissingExtraError: Triton is not installed.
        """
        require_triton()
        self._target = target
        self.index = index
        self.device = None if index is None else f"cuda:{index}"
        self.backend = self._kernels = CudaBackend(
            CodeCache.open(generator_version()), libraries=libraries
        )
        self.libraries = tuple(_library_requirement(x.provider, x.version) for x in libraries)

    @property
    @override
    def target(self) -> CudaTarget:
        return self._target

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
    def place(self) -> str:
        if self.index is None:
            raise InternalError(
                f"{self.name} cannot be timed here, so it has no timing environment"
            )
        return cuda_device(self.index).timing_key

    @override
    def parts(self) -> dict[str, CudaTarget]:
        return {f"cuda:{part.architecture}": part for part in self._target.parts}

    @override
    def supports_precision(self, precision: str, part: CudaTarget) -> bool:
        if precision == TF32:
            return part.has_tf32
        wanted = PRECISIONS[precision]
        return part.storage(wanted) is wanted

    @override
    def requirements(self, kernels: Sequence[KernelSpec]) -> tuple[str, ...]:
        called = {(k.family, k["version"]) for k in kernels if k.family in LIBRARIES}
        return tuple(_library_requirement(library, version) for library, version in sorted(called))

    @override
    def timer(self, tuning: TuningRequest) -> Timer:
        effort = tuning.effort
        if effort is None or self.index is None:
            return CostModelTimer(
                step_seconds=_COPY_SECONDS, bytes_per_second=_COPY_BYTES_PER_SECOND
            )
        device = cuda_device(self.index)
        return BenchmarkTimer(
            CudaBench(self._kernels, self.target, device, sizes=tuning.sizes),
            tuning.timings,
            max_timed=effort.candidates * _CANDIDATES,
            max_timed_long=effort.candidates * _CANDIDATES_LONG,
            repeats=effort.repeats,
            seconds=(tuning.deadline - time.perf_counter()) * _ISOLATED_TUNING_TIME_SHARE,
        )

    @override
    def tune_in_network(
        self, draft: TunedGraph, others: FusedPairAlternatives | None, spent_s: float
    ) -> TunedGraph:
        tuning = draft.tuning
        if tuning.effort is None or self.index is None:
            return self._by_estimates(draft, others)
        if not tuning.fits(Limit.MAX_GPU_TRIAL_BYTES):
            return draft
        trial = self._trial(draft, cuda_device(self.index), spent_s)
        trial.run()
        best = self._with_chains(trial, draft, others)
        self._try_reversed_tile_order(trial, best)
        return best

    @staticmethod
    def _with_chains(
        trial: InNetworkTuner, draft: TunedGraph, others: FusedPairAlternatives | None
    ) -> TunedGraph:
        """A draft, or one with the chains that make the whole plan faster."""
        kinds = [] if others is None else others.chains.faster(_MAX_PAIR_TIME_RATIO)
        if others is None or not kinds or time.perf_counter() > draft.tuning.deadline:
            return draft
        apart, alone = _compare(trial, draft, [others.draft([kind]) for kind in kinds])
        better = [kind for kind, (own, _) in zip(kinds, alone, strict=True) if own < apart]
        if not better:
            return draft
        apart, [(together, chained)] = _compare(trial, draft, [others.draft(better)])
        return chained if together < apart * (1 - _MIN_MEASURED_GAIN) else draft

    def _try_reversed_tile_order(self, trial: InNetworkTuner, draft: TunedGraph) -> None:
        """Let every other large launch of a draft go backwards, if that makes the plan faster."""
        tuning, choice = draft.tuning, draft.choice
        turned = alternate_tile_order(tuning.graph.nodes, choice.tactics, tuning.sizes, self.target)
        if turned == choice.tactics or time.perf_counter() > tuning.deadline:
            return
        forwards, by_turns = trial.plan_seconds([choice.tactics, turned])
        if by_turns < forwards * (1 - _MIN_MEASURED_GAIN):
            choice.tactics = turned

    def _by_estimates(self, draft: TunedGraph, others: FusedPairAlternatives | None) -> TunedGraph:
        """A draft with chains where the estimates are of such GPUs, and the compiler takes them."""
        if others is None or not self.target.has_fitted_cost_model:
            return draft
        chained = others.by_estimates(draft)
        return chained if self._compiles_chains(chained) else draft

    def _compiles_chains(self, draft: TunedGraph) -> bool:
        """Whether the compiler takes a draft's chains; all else is compiled beside them."""
        tuning, backend = draft.tuning, self._kernels
        chains = [node for node in tuning.graph.nodes if isinstance(node.op, FusedPair)]
        if not chains:
            return True
        families = {draft.choice.tactics[node].family for node in chains}
        plan = build_plan(
            tuning.graph, draft.choice.tactics, backend, WeightStore(), symbols=tuning.symbols
        ).plan
        kernels = [step.kernel for step in plan.steps if isinstance(step, Launch)]
        backend.begin(kernels, self.target)
        try:
            for kernel in kernels:
                if kernel.family in families:
                    backend.records(kernel, self.target)
        except BuildError as error:
            _LOG.warning("programmatic dependent launch is not used: %s", error)
            return False
        return True

    def _trial(self, draft: TunedGraph, device: CudaDevice, spent_s: float) -> InNetworkTuner:
        """What compares a draft's candidates in whole plans."""
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
                seconds_per_trial=_SECONDS_PER_PLAN,
            ),
            self.backend,
            tuning.timings,
            effort=_gpu_effort(effort.network),
            where=", ".join((f"{self.target.name} on {self.place}", *self.libraries)),
            sizes=tuning.sizes,
            fits_workspace=tuning.fits_workspace,
            deadline=tuning.deadline,
            compile_seconds=spent_s * _RECOMPILE_TIME_SHARE,
            progress=tuning.progress,
        )
        return trial

    @override
    def hint(self, refusals: Iterable[str]) -> str:
        lack = why_no_gluon()
        # Without a clock none of these tactics would win.
        if lack is None or not self.can_measure or not any(lack in reason for reason in refusals):
            return ""
        return f"faster convolution kernels are not available: {lack}: pip install 'triton<3.8'"

    @override
    def link(
        self, kernels: Sequence[KernelSpec], progress: Callable[[int, int], None]
    ) -> tuple[CodeImage, CodeImage]:
        unique = list({kernel.symbol: kernel for kernel in kernels}.values())
        self._kernels.begin(unique, self.target)
        for done, kernel in enumerate(unique):  # where nothing is known yet, that takes minutes
            progress(done, len(unique))
            self._kernels.records(kernel, self.target)
        progress(len(unique), len(unique))
        return self.backend.compile(kernels, self.target), CodeImage(b"", ())


def _compare(
    trial: InNetworkTuner, draft: TunedGraph, others: Sequence[TunedGraph]
) -> tuple[float, list[tuple[float, TunedGraph]]]:
    """Seconds of a whole plan of a draft, and of others that differ in their chains alone.

    Of the two ways to launch its chains each of the others comes with the better one.
    """
    trial.graphs += [other.tuning.graph for other in others]
    ways = [_with_pair_pdl(other, early=early) for other in others for early in (False, True)]
    apart, *seconds = trial.plan_seconds([one.choice.tactics for one in (draft, *ways)])
    timed = list(zip(seconds, ways, strict=True))
    pairs = zip(timed[::2], timed[1::2], strict=True)
    return apart, [min(both, key=lambda pair: pair[0]) for both in pairs]


def _with_pair_pdl(draft: TunedGraph, *, early: bool) -> TunedGraph:
    """A draft whose chains start early, or not."""
    tactics = with_pair_pdl(draft.tuning.graph, draft.choice, early=early)
    return dataclasses.replace(draft, choice=dataclasses.replace(draft.choice, tactics=tactics))


def open_toolchain(
    device: DeviceName, precision: str, *, libraries: bool, advice: str
) -> CudaToolchain:
    """The toolchain for architectures by name, or for a GPU of this machine.

    Without a number that is the GPU which the calling thread has selected. With ``libraries``,
    those that are installed compete there.

    Raises:
        UnsupportedError: there is no such architecture.
        DeviceError: there is no such GPU, or no driver; says what else can be done.
        MissingExtraError: a package is not installed.
    """
    if device.target:
        return CudaToolchain(_with_precisions(target_named(device.target), {precision}))
    try:
        gpu = selected_device() if device.index is None else cuda_device(device.index)
    except MissingExtraError as error:
        require_triton()  # building needs the compiler, too, and one extra brings both
        raise MissingExtraError(error.package, "cuda-build") from error
    except DeviceError as error:
        raise DeviceError(". ".join(filter(None, (str(error), advice)))) from error
    target = dataclasses.replace(
        target_named(gpu.properties.architecture),
        multiprocessors=gpu.properties.multiprocessors,
    )
    installed = _installed(gpu) if libraries else ()
    return CudaToolchain(_with_precisions(target, {precision}), gpu.index, installed)


def _installed(gpu: CudaDevice) -> list[LoadedLibrary]:
    """The libraries that are here and can be used.

    Raises MissingExtraError or DeviceError: there is none.
    """
    found: list[LoadedLibrary] = []
    missing: list[MissingExtraError | DeviceError] = []
    for library in LIBRARIES.values():
        try:
            found.append(library.open(gpu, None))
        except (MissingExtraError, DeviceError) as error:
            missing.append(error)
    if not found:
        raise missing[0]
    for reason in missing:
        _LOG.warning("libraries=True: a library is not used: %s", reason)
    return found


def _library_requirement(library: str, version: object) -> str:
    """How a fingerprint says which version of a library an engine calls."""
    return f"{library}={version}"


def _features(target: CudaTarget) -> tuple[str, ...]:
    """What decides which tactics a target has, beside its architecture."""
    size = f"{_SIZE}{target.multiprocessors}"
    asked = [(HALF2, target.uses_half2), (TF32, target.allows_tf32)]
    return (*(name for name, is_asked in asked if is_asked), size)


def _with_precisions(target: CudaTarget, asked: Collection[str]) -> CudaTarget:
    """The target with the tactics that some precisions ask for."""
    return dataclasses.replace(target, allows_tf32=TF32 in asked, uses_half2=HALF2 in asked)


def toolchain_of(fingerprint: Fingerprint, device: str | None = None) -> CudaToolchain:
    """The toolchain that made an engine.

    Libraries that the engine calls are asked on ``device``, or on the thread's own GPU.

    Raises:
        EngineFormatError: the fingerprint is none that a build writes.
        EngineMismatchError: the engine calls another version of a library than there is here.
        MissingExtraError: it calls a library that is not here.
        DeviceError: it calls a library, and there is no GPU, or its driver is too old.
    """
    target = target_named(fingerprint.architecture)
    sizes = [f.removeprefix(_SIZE) for f in fingerprint.features if f.startswith(_SIZE)]
    if len(sizes) != 1 or not re.fullmatch(r"[1-9][0-9]{0,4}", sizes[0]):
        raise EngineFormatError(
            "the engine does not record the size of the GPU that it was tuned for"
        )
    target = dataclasses.replace(target, multiprocessors=int(sizes[0]))
    called = _called(fingerprint.features)
    libraries = [LIBRARIES[name].open(gpu_named(device), called[name]) for name in called]
    return CudaToolchain(_with_precisions(target, fingerprint.features), libraries=libraries)


def _called(features: Sequence[str]) -> dict[str, int]:
    """The libraries that an engine says it calls, with their versions."""
    called: dict[str, int] = {}
    for feature in features:
        name, _, version = feature.partition("=")
        if name not in LIBRARIES:
            continue
        title = LIBRARIES[name].title
        if not re.fullmatch(r"[1-9][0-9]{0,9}", version):
            raise EngineFormatError(
                f"the engine requires {title} {version[:40]!r}, which is not a version number"
            )
        if name in called:
            raise EngineFormatError(
                f"the engine requires {title} twice; a build does not write that"
            )
        called[name] = int(version)
    return called

"""``Toolchain``: what a build needs for one kind of device, and the choice of a device.

Toolchains are imported on first use, so that a GPU build does not need LLVM, and a CPU build does
not need Triton.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from smelt.builder._options import HALF2, PRECISIONS, TF32
from smelt.devices import DEVICE_GRAMMAR, DeviceName, device_kind
from smelt.errors import (
    DeviceError,
    EngineMismatchError,
    MissingExtraError,
    UnsupportedError,
    arguments_of,
)
from smelt.passes import pipeline
from smelt.runtime import check_device
from smelt.tuner import tensor_bytes
from smelt.types import items_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from smelt.backends import Backend, CodeImage, Tactic
    from smelt.builder._options import TuningEffort
    from smelt.builder._plan_recipe import Symbols
    from smelt.engine import Fingerprint, KernelSpec
    from smelt.errors import Argument
    from smelt.ir import Graph, Node
    from smelt.passes import Pass, PassPipelineReport
    from smelt.tuner import EquivalentPairs, FusedPairTimings, TacticChoice, Timer, TimingCache
    from smelt.types import DType, Limit

    Progress = Callable[[int, int], None]
    """Function that is called with the number of parts that are done, and their total."""
    LinkedCode = tuple[CodeImage, CodeImage]
    """The code of an engine's kernels, and its runtime code."""

Purpose = Literal["build", "retune", "run"]
"""What a toolchain is opened for."""

_LOG = logging.getLogger(__name__)
_MIN_ESTIMATED_GAIN: Final = 0.1
"""Share of its parts' time that a fused pair must save by estimate, where nothing is timed."""


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """The graph to tune, and limits of the tuning."""

    graph: Graph
    symbols: Symbols
    """Every symbol with its smallest and largest value."""
    sizes: Mapping[str, int]
    """The symbol values to tune for."""
    effort: TuningEffort | None
    """How candidates are timed; None if they are not."""
    deadline: float
    """Time of ``time.perf_counter`` in seconds at which tuning must end."""
    timings: TimingCache
    fits_workspace: Callable[[Node, Tactic], bool]
    """Return whether a tactic of a node stays within the workspace limit."""
    progress: Progress
    """Called with the number of trials in the network that are done, and their total."""

    def fits(self, limit: Limit) -> bool:
        """Return whether the tensors of every node stay within a limit of trials."""
        return all(tensor_bytes(node, self.sizes) <= limit.most for node in self.graph.nodes)


@dataclass(frozen=True, slots=True)
class TunedGraph:
    """A graph with chosen tactics."""

    tuning: TuningRequest
    choice: TacticChoice
    report: PassPipelineReport | None = None
    """Changes to the graph of the plan, for the build report."""
    alternatives: FusedPairAlternatives | None = None
    """Variants with fused pairs, if there are any."""


@dataclass(frozen=True, slots=True)
class FusedPairAlternatives:
    """Variants of a graph with fused pairs."""

    chains: FusedPairTimings
    draft: Callable[[Sequence[EquivalentPairs]], TunedGraph]
    """Return the graph with some kinds of pairs fused."""

    def by_estimates(self, draft: TunedGraph) -> TunedGraph:
        """Return the draft, or a variant whose fused pairs are estimated to be faster."""
        kinds = self.chains.faster(1 - _MIN_ESTIMATED_GAIN)
        return self.draft(kinds) if kinds else draft


class Toolchain(ABC):
    """A target of a build: its backend, and how its code is compiled and timed."""

    backend: Backend[Any]
    target: Any
    """The target of code generation."""
    workers: int
    """Number of threads with scratch memory of their own."""
    device: str | None = None
    """Device on which the engine will run, if the machine may have several of the kind."""
    libraries: tuple[str, ...] = ()
    """Libraries that compete with generated kernels, with their versions."""

    @classmethod
    @abstractmethod
    def open(
        cls, device: DeviceName, precision: str, *, use_libraries: bool, purpose: Purpose
    ) -> Toolchain:
        """Return the toolchain for a device, as `open_toolchains` documents it."""

    @classmethod
    @abstractmethod
    def from_fingerprint(cls, fingerprint: Fingerprint, device: str | None) -> Toolchain:
        """Return the toolchain that built an engine, to run it on ``device``.

        Raises:
            EngineFormatError: the fingerprint is invalid.
            EngineMismatchError: the engine requires something else than this machine has.
            MissingExtraError: a package that the engine requires is not installed.
            DeviceError: the engine requires a GPU, and there is none or its driver is too old.
        """

    @property
    def name(self) -> str:
        """The target's name, for messages."""
        return str(self.target.name)

    @property
    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the target, which an engine records."""

    @property
    @abstractmethod
    def can_measure(self) -> bool:
        """Whether this machine can time the code."""

    @property
    @abstractmethod
    def timing_key(self) -> str:
        """A description of the machine on which times are measured; errors if there is none."""

    @abstractmethod
    def timer(self, tuning: TuningRequest) -> Timer:
        """Return the timer that ranks candidates."""

    @abstractmethod
    def tune_in_network(self, draft: TunedGraph, spent_s: float) -> TunedGraph:
        """Compare the best candidates in the whole plan, and return the best graph.

        Args:
            draft: the choice by isolated times.
            spent_s: time in seconds that the choice of the draft took.
        """

    @abstractmethod
    def link(self, kernels: Sequence[KernelSpec], progress: Progress) -> LinkedCode:
        """Return the code of the kernels, and the runtime code that every engine contains.

        ``progress`` is called with the number of compiled kernels and their total.
        """

    def storage(self, wanted: DType) -> DType:
        """Return the storage type of float32 tensors if ``wanted`` is requested."""
        storage: DType = self.target.storage(wanted)
        return storage

    def parts(self) -> Mapping[str, Any]:
        """Return the targets that share the plan, by their names for messages."""
        return {self.name: self.target}

    def supports_precision(self, precision: str, part: Any) -> bool:
        """Return whether one of the parts computes in a precision."""
        storage = PRECISIONS[precision]
        return precision not in (TF32, HALF2) and part.storage(storage) is storage

    def targets_without_precision(self, precision: str) -> tuple[str, ...]:
        """Return the names of the parts that do not compute in a precision.

        All parts share one plan, so the other parts then do not use the precision either.
        """
        return tuple(
            name
            for name, part in self.parts().items()
            if not self.supports_precision(precision, part)
        )

    def requirements(self, kernels: Sequence[KernelSpec]) -> tuple[str, ...]:
        """Return the features that an engine of these kernels needs in addition to the target's."""
        del kernels
        return ()

    def hint(self, refusals: Iterable[str]) -> str:
        """Return advice that enables faster kernels, given the refusals of families, or ""."""
        del refusals
        return ""

    def passes(self, storage: DType) -> tuple[Pass, ...]:
        """Return the passes for this backend, with float32 tensors stored as ``storage``."""
        backend = self.backend
        return pipeline(
            non_fusable_ops=backend.non_fusable_ops,
            supported_composite_ops=backend.supported_composite_ops,
            storage_dtype=storage,
        )


_T = TypeVar("_T")


def open_toolchains(
    device: str | Sequence[str], precision: str, *, use_libraries: bool, purpose: Purpose
) -> list[Toolchain]:
    """Return the toolchain of the first device of each kind that can be built for, in order.

    Kinds of which no device can be built for are left out, with a warning, unless there is no
    other.

    Args:
        device: as for `build`.
        precision: as for `build`; it may add tactics to the target.
        use_libraries: as ``libraries`` for `build`.
        purpose: what the toolchain is for; an error about an absent GPU advises accordingly.

    Raises:
        UnsupportedError: no device of several can be built for; the message lists the reasons.
        SmeltError: the only device cannot be built for.
    """
    attempt = partial(_open, precision=precision, use_libraries=use_libraries, purpose=purpose)
    return _available(device, attempt)


def devices_to_run(
    device: str | Sequence[str], precision: str = "float32", *, use_libraries: bool = False
) -> list[str]:
    """Return the first device of each kind that can be built for and can run the engine here.

    A build may take minutes, so a caller that will run the engine checks this first.

    Raises:
        UnsupportedError: no device of several is usable; the message lists the reasons.
        SmeltError: the only device is not usable.
    """

    def check_one(name: str) -> str:
        tools = _open(name, precision, use_libraries=use_libraries, purpose="run")
        try:
            check_device(tools.fingerprint, tools.device)
        except (DeviceError, EngineMismatchError) as error:
            raise DeviceError(
                f"engines for {name!r} do not run on this machine: {error}"
            ) from error
        return name

    return _available(device, check_one)


def _available(device: object, attempt: Callable[[str], _T]) -> list[_T]:
    """Return the results for the first device of each kind for which ``attempt`` succeeds."""
    names = _names_of(device)
    reasons: list[str] = []
    arguments: list[Argument] = []
    found: dict[str, _T] = {}
    for name in names:
        if (kind := name.partition(":")[0]) in found:
            continue
        try:
            found[kind] = attempt(name)
        except (UnsupportedError, DeviceError, MissingExtraError) as error:
            if len(names) == 1:
                raise
            _LOG.warning("device %s is skipped: %s", name, error)
            reasons.append(f"{name}: {error}")
            arguments += arguments_of(error)
    if found:
        return list(found.values())
    raise UnsupportedError(
        f"none of the devices {', '.join(names)} is available", reasons=reasons, arguments=arguments
    )


def _names_of(device: object) -> list[str]:
    """Return the option ``device`` of `build` as a list of names."""
    detail = shown(device)
    items = (device,) if isinstance(device, str) else items_of(device)
    names = [name for name in items if isinstance(name, str)]
    if not names or len(names) < len(items):
        raise UnsupportedError(
            f"device {detail} must be a name or a list of names; devices are: {DEVICE_GRAMMAR}"
        )
    return names


def _open(name: str, precision: str, *, use_libraries: bool, purpose: Purpose) -> Toolchain:
    device = DeviceName.from_text(name)
    toolchain: type[Toolchain] = device.kind.load_part(device.kind.toolchain)
    return toolchain.open(device, precision, use_libraries=use_libraries, purpose=purpose)


def toolchain_of(fingerprint: Fingerprint, device: str | None = None) -> Toolchain:
    """Return the toolchain that can regenerate an engine, to run it on ``device``."""
    kind = device_kind(fingerprint.device)
    toolchain: type[Toolchain] = kind.load_part(kind.toolchain)
    return toolchain.from_fingerprint(fingerprint, device)

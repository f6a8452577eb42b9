"""What a build asks of the kind of device that it builds for; which kind that is.

A toolchain is loaded when its device is asked for: building for a GPU needs no LLVM, and building
for a processor no Triton.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from smelt.builder._options import HALF2, PRECISIONS, TF32
from smelt.errors import (
    DeviceError,
    EngineMismatchError,
    MissingExtraError,
    UnsupportedError,
)
from smelt.passes import pipeline
from smelt.runtime import check_device
from smelt.tuner import tensor_bytes
from smelt.types import DEVICE_GRAMMAR, DeviceName, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from smelt.backends import Backend, CodeImage, Tactic, Target
    from smelt.builder._options import TuningEffort
    from smelt.builder._plan_recipe import Symbols
    from smelt.engine import Fingerprint, KernelSpec
    from smelt.ir import Graph, Node
    from smelt.passes import Pass, PassReport
    from smelt.tuner import Choice, EquivalentPairs, FusedPairTimings, Timer, TimingCache
    from smelt.types import DType, Limit

_LOG = logging.getLogger(__name__)
_MIN_ESTIMATED_GAIN: Final = 0.1
"""Share of its parts' time that a chain must save where nobody has a clock."""


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """What there is to tune, and how thoroughly."""

    graph: Graph
    symbols: Symbols
    """Every symbol with its smallest and largest value."""
    sizes: Mapping[str, int]
    """The symbol values to tune for."""
    effort: TuningEffort | None
    """None: nothing is timed."""
    deadline: float
    """When tuning must be done, in the time of ``time.perf_counter``."""
    timings: TimingCache
    fits_workspace: Callable[[Node, Tactic], bool]
    """Whether a tactic keeps within the workspace that it may have."""
    progress: Callable[[int, int], None]
    """Told how much of the in-network trial is done, and of how much."""

    def fits(self, limit: Limit) -> bool:
        """Whether no node has larger tensors than a trial may have."""
        return all(tensor_bytes(node, self.sizes) <= limit.most for node in self.graph.nodes)


@dataclass(frozen=True, slots=True)
class TunedGraph:
    """A graph, and a choice for it."""

    tuning: TuningRequest
    choice: Choice
    report: PassReport | None = None
    """What was done to the plan's own graph."""


@dataclass(frozen=True, slots=True)
class FusedPairAlternatives:
    """Graphs in which nodes are chained."""

    chains: FusedPairTimings
    draft: Callable[[Sequence[EquivalentPairs]], TunedGraph]
    """The choice where chains of some kinds are formed."""

    def by_estimates(self, draft: TunedGraph) -> TunedGraph:
        """What is best by estimates: a draft without chains, or one with some."""
        kinds = self.chains.faster(1 - _MIN_ESTIMATED_GAIN)
        return self.draft(kinds) if kinds else draft


class Toolchain(ABC):
    """A kind of device to build for, with the target and how its code is made and timed."""

    backend: Backend[Any]
    workers: int
    """How many have scratch memory of their own."""
    device: str | None = None
    """Where what is built shall run, if that is one of several devices of its kind."""
    libraries: tuple[str, ...] = ()
    """Libraries that compete with our kernels, with their versions."""
    supports_mixed_precision: bool = False
    """Whether layers can stay in float32 where the others are stored in 16 bits."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """What code is made for."""

    @property
    def name(self) -> str:
        """The target's name, for messages."""
        return self.target.name

    @property
    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """What the engine says it was made for."""

    @property
    @abstractmethod
    def can_measure(self) -> bool:
        """Whether what is built can be timed here."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What times depend on beside the code, where this has a clock."""

    @abstractmethod
    def timer(self, tuning: TuningRequest) -> Timer:
        """What tells candidates apart."""

    @abstractmethod
    def tune_in_network(
        self, draft: TunedGraph, others: FusedPairAlternatives | None, spent_s: float
    ) -> TunedGraph:
        """Let the best candidates show what they are worth in the whole plan.

        Args:
            draft: the choice by the times of nodes.
            others: chains that compete with their parts, if there are any.
            spent_s: what it took to choose.
        """

    @abstractmethod
    def link(
        self, kernels: Sequence[KernelSpec], progress: Callable[[int, int], None]
    ) -> tuple[CodeImage, CodeImage]:
        """The kernels' code, and what every engine carries to run it.

        ``progress`` is told how much of it there is, and of how much.
        """

    def storage(self, wanted: DType) -> DType:
        """How float32 tensors are stored where ``wanted`` is asked for."""
        return self.target.storage(wanted)

    def parts(self) -> Mapping[str, Any]:
        """The targets for which one plan must do, by their names for messages."""
        return {self.name: self.target}

    def supports_precision(self, precision: str, part: Any) -> bool:
        """Whether one of the parts computes as a precision says."""
        wanted = PRECISIONS[precision]
        return precision not in (TF32, HALF2) and part.storage(wanted) is wanted

    def targets_without_precision(self, precision: str) -> tuple[str, ...]:
        """The parts that do not compute as a precision says; all others then do as these do."""
        return tuple(
            name for name, it in self.parts().items() if not self.supports_precision(precision, it)
        )

    def requirements(self, kernels: Sequence[KernelSpec]) -> tuple[str, ...]:
        """What an engine of these kernels needs beside its device, as features to be marked."""
        del kernels
        return ()

    def hint(self, refusals: Iterable[str]) -> str:
        """What would allow faster code, by why families refused layers; empty where nothing."""
        del refusals
        return ""

    def passes(self, storage: DType) -> tuple[Pass, ...]:
        """What makes a network this backend's, where float32 is stored as ``storage``."""
        backend = self.backend
        return pipeline(
            non_fusable_ops=backend.non_fusable_ops,
            composite_ops=backend.composite_ops,
            storage=storage,
        )


_HOMES: Final = {"cpu": "_cpu_toolchain", "null": "_cpu_toolchain", "cuda": "_cuda_toolchain"}
"""The file of each kind of device."""
_T = TypeVar("_T")


def open_toolchain(
    device: str | Sequence[str],
    precision: str = "float32",
    *,
    libraries: bool = False,
    advice: str = "",
) -> Toolchain:
    """The toolchain of the first device of an order of preference that can be built for.

    Args:
        device: what ``build`` says of it.
        precision: what ``build`` says of it; a target may offer other tactics for it.
        libraries: what ``build`` says of it.
        advice: what else can be done where a GPU is asked for that is not here.

    Raises:
        UnsupportedError: no device of several can be; says why each one cannot.
        SmeltError: why the only one cannot be.
    """

    def opened(name: str) -> Toolchain:
        return _opened(name, precision, libraries=libraries, advice=advice)

    return _first(device, opened)


def device_to_run(
    device: str | Sequence[str], precision: str = "float32", *, libraries: bool = False
) -> str:
    """The first device of an order of preference that can be built for, and that is here.

    Whoever will run what he builds asks first: a build may take minutes.

    Raises:
        UnsupportedError: no device of several will do; says why each one will not.
        SmeltError: why the only one will not do.
    """

    def checked(name: str) -> str:
        tools = _opened(name, precision, libraries=libraries, advice="")
        try:
            check_device(tools.fingerprint, tools.device)
        except (DeviceError, EngineMismatchError) as error:
            raise DeviceError(
                f"engines for {name!r} do not run on this machine: {error}"
            ) from error
        return name

    return _first(device, checked)


def _first(device: object, attempt: Callable[[str], _T]) -> _T:
    """What the first device for which an attempt succeeds gives."""
    names = _names_of(device)
    reasons: list[str] = []
    for name in names:
        try:
            return attempt(name)
        except (UnsupportedError, DeviceError, MissingExtraError) as error:
            if len(names) == 1:
                raise
            _LOG.warning("not built for %s: %s", name, error)
            reasons.append(f"{name}: {error}")
    raise UnsupportedError(f"engines can be built for none of the devices {names}", reasons=reasons)


def _names_of(device: object) -> list[str]:
    """What ``build`` says of the device, as a list of names."""
    detail = shown(device)
    given: Sequence[object] = ()
    if isinstance(device, str):
        given = (device,)
    elif isinstance(device, list | tuple):
        given = cast("Sequence[object]", device)
    names = [name for name in given if isinstance(name, str)]
    if not names or len(names) < len(given):
        raise UnsupportedError(
            f"device {detail} is neither a name nor a list of names; devices are: {DEVICE_GRAMMAR}"
        )
    return names


def _opened(name: str, precision: str, *, libraries: bool, advice: str) -> Toolchain:
    device = DeviceName.from_text(name)
    made: Toolchain = _home(device.kind).open_toolchain(
        device, precision, libraries=libraries, advice=advice
    )
    return made


def toolchain_of(fingerprint: Fingerprint, device: str | None = None) -> Toolchain:
    """The toolchain with which an engine of this fingerprint is made anew, to run on ``device``."""
    made: Toolchain = _home(fingerprint.device).toolchain_of(fingerprint, device)
    return made


def _home(kind: str) -> Any:
    return import_module(f"smelt.builder.{_HOMES[kind]}")

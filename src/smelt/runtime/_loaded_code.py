"""Loaded code and weights of an engine, and the run half of each kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.devices import DEVICE_KINDS, DeviceName
from smelt.engine import VERSION, Host, check_compatibility
from smelt.errors import EngineMismatchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker, DeviceKind
    from smelt.engine import EngineFile, EngineHeader, Fingerprint
    from smelt.runtime._engine import Engine
    from smelt.runtime._plan_executor import PlanExecutor
    from smelt.runtime._streams import NativeEvent, NativeStream


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights of an engine on a device; a refit replaces the whole object."""

    bytes: NDArray[np.uint8]
    """The weights on the host, read-only."""
    address: int
    """Address of the weights on the device."""
    keep_alive: object = None
    """Object that owns the device memory."""
    partitions: tuple[LoadedWeights, ...] = ()
    """Weights of the engine's partitions, so that a refit replaces all of them at once."""


class LoadedCode(ABC):
    """Code and weights on a device, kept alive by the engine and its contexts."""

    header: EngineHeader
    weights: LoadedWeights
    """Current weights; contexts compare the object's identity to detect a refit."""

    @abstractmethod
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        """Copy weights to the device if necessary."""

    @abstractmethod
    def create_executor(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> PlanExecutor:
        """Create the executor of a context on the device."""


class DeviceRuntime(ABC):
    """Run half of a kind of device: what engines, contexts and streams need of it."""

    abi_version: ClassVar[int]
    """Version of the calling convention between engines and this runtime."""

    def __init__(self, kind: DeviceKind) -> None:
        self.kind = kind

    def host(self, built_for: Fingerprint) -> Host:
        """Return the machine with which an engine's fingerprint is compared.

        By default it has everything that the engine requires: the processor does not matter.
        """
        return Host(built_for.architecture, built_for.features, built_for.system)

    def check_device(self, built_for: Fingerprint, device: str | None) -> None:
        """Check that a device exists and can run what is built for a fingerprint.

        Every machine has the devices in the memory of the process.

        Raises:
            EngineMismatchError: the device cannot run it.
            DeviceError: the device does not exist.
            MissingExtraError: a package that the device needs is not installed.
        """
        del built_for, device

    @abstractmethod
    def load(
        self, file: EngineFile, device: str | None, *, requires_device: bool
    ) -> LoadedCode | None:
        """Load an engine's code and weights; arguments and errors are those of `load_code`."""

    @abstractmethod
    def create_stream(self, device: str) -> NativeStream:
        """Create a stream. Raises DeviceError: the device does not exist."""

    @abstractmethod
    def create_event(self, device: str) -> NativeEvent:
        """Create an event. Raises DeviceError: the device does not exist."""


def runtime_of(kind: DeviceKind) -> DeviceRuntime:
    """Return the run half of a kind of device, imported on first use."""
    runtime: DeviceRuntime = kind.load_part(kind.runtime)(kind)
    return runtime


def check_device(built_for: Fingerprint, device: str | None) -> None:
    """Check that this machine can run what is built for a fingerprint.

    Raises:
        EngineMismatchError: the CPU or GPU cannot run it.
        DeviceError: the GPU does not exist.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    check_machine(built_for).check_device(built_for, device)


def check_machine(built_for: Fingerprint) -> DeviceRuntime:
    """Check that this machine and this smelt version can run an engine; return its run half.

    For a GPU engine, neither the CPU nor the presence of a GPU is checked.

    Raises:
        EngineMismatchError: the machine or the version does not fit.
    """
    kind = DEVICE_KINDS.get(built_for.device)
    if kind is None:
        raise EngineMismatchError(
            f"this engine is for the device {built_for.device!r}; this version of smelt supports "
            f"{', '.join(DEVICE_KINDS)}"
        )
    runtime = runtime_of(kind)
    check_compatibility(
        built_for,
        runtime_abi=runtime.abi_version,
        runtime_version=VERSION,
        host=runtime.host(built_for),
    )
    return runtime


def load_code(
    file: EngineFile, device: str | None, *, requires_device: bool = True
) -> LoadedCode | None:
    """Load an engine's code and weights onto a device.

    Args:
        file: the engine file.
        device: device name, e.g. "cuda:1"; None for the device that the engine was built for.
        requires_device: whether the absence of any GPU is an error; if not, None is returned.

    Raises:
        UnsupportedError: the device name is unknown.
        EngineMismatchError: the engine is for another device or another GPU.
        DeviceError: the GPU does not exist, or GPU memory is insufficient.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    built_for = file.header.fingerprint.device
    kind = DeviceName.from_text(built_for if device is None else device).kind
    if kind.name != built_for:
        raise EngineMismatchError(
            f"{file.source} was built for {built_for!r}, not {device!r}; build it again for that "
            "device"
        )
    return runtime_of(kind).load(file, device, requires_device=requires_device)

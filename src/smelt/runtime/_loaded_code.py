"""Loaded code and weights of an engine, shared by its contexts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.devices.cpu import CpuMemory, MappedCode, abi, native_runtime
from smelt.devices.cuda import ABI_VERSION as CUDA_ABI_VERSION
from smelt.devices.cuda import CudaError
from smelt.engine import VERSION, Host, check_fingerprint, detect_host
from smelt.errors import DeviceError, EngineMismatchError, MissingExtraError, SmeltError
from smelt.types import DeviceName, override

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cpu import NativeRuntime
    from smelt.engine import EngineFile, EngineHeader, Fingerprint
    from smelt.runtime._context import ExecutionContext
    from smelt.runtime._engine import Engine

_CUDA: Final = "cuda"
_DEVICES: Final = frozenset({"cpu", _CUDA, "null"})


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights of an engine on a device; a refit replaces the whole object."""

    bytes: NDArray[np.uint8]
    """The weights on the host, read-only."""
    address: int
    """Address of the weights on the device."""
    keep_alive: object = None
    """Object that owns the device memory."""


class LoadedCode(ABC):
    """Code and weights on a device, kept alive by the engine and its contexts."""

    header: EngineHeader
    weights: LoadedWeights
    """Current weights; contexts compare the object's identity to detect a refit."""

    @abstractmethod
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        """Copy weights to the device if necessary."""

    @abstractmethod
    def create_context(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> ExecutionContext:
        """Create a context for the device."""


class HostCode(LoadedCode):
    """Code for the CPU, or none for the null device."""

    def __init__(self, file: EngineFile) -> None:
        header = self.header = file.header
        self.runtime: NativeRuntime | None = None
        self.functions: dict[str, int] = {}
        if header.fingerprint.device != "null":
            self.runtime = native_runtime(file.runtime_code, dict(header.runtime_symbols))
            self._code = MappedCode(file.code)
            base = self._code.address
            self.functions = {name: base + offset for name, offset in header.symbols}
        self.weights = self.upload_weights(file.weights)

    @override
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        aligned = _aligned(weights)
        return LoadedWeights(aligned, int(aligned.ctypes.data))

    @override
    def create_context(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> ExecutionContext:
        from smelt.runtime._host_context import HostContext

        return HostContext(engine, self, threads, tracker)


def _aligned(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return weights at an aligned address; copy them if necessary, as bytes objects often need."""
    if weights.ctypes.data % abi.ALIGNMENT_BYTES == 0:
        return weights
    copy = CpuMemory().allocate(weights.size, "weights").bytes
    copy[:] = weights
    copy.flags.writeable = False
    return copy


def check_device(built_for: Fingerprint, device: str | None) -> None:
    """Check that this machine can run what is built for a fingerprint.

    Raises:
        EngineMismatchError: the CPU or GPU cannot run it.
        DeviceError: the GPU does not exist.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    check_machine(built_for)
    if built_for.device == _CUDA:
        from smelt.runtime._cuda_code import find_gpu  # imported only for GPU engines

        find_gpu(built_for, device)


def check_machine(built_for: Fingerprint) -> None:
    """Check that this machine and this smelt version can run an engine with a fingerprint.

    For a GPU engine, neither the CPU nor the presence of a GPU is checked.

    Raises:
        EngineMismatchError: the machine or the version does not fit.
    """
    if built_for.device not in _DEVICES:
        raise EngineMismatchError(
            f"this engine is for the device {built_for.device!r}; this version of smelt supports "
            f"{', '.join(sorted(_DEVICES))}"
        )
    host = Host(built_for.architecture, built_for.features, built_for.system)
    if built_for.device == "cpu":
        host = detect_host()
    version = CUDA_ABI_VERSION if built_for.device == _CUDA else abi.ABI_VERSION
    check_fingerprint(built_for, abi=version, version=VERSION, host=host)


def load_code(file: EngineFile, device: str | None, *, is_needed: bool = True) -> LoadedCode | None:
    """Load an engine's code and weights onto a device.

    Args:
        file: the engine file.
        device: device name, e.g. "cuda:1"; None for the device that the engine was built for.
        is_needed: whether the absence of any GPU is an error; if not, None is returned.

    Raises:
        UnsupportedError: the device name is unknown.
        EngineMismatchError: the engine is for another device or another GPU.
        DeviceError: the GPU does not exist, or GPU memory is insufficient.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    built_for = file.header.fingerprint
    name = DeviceName.from_text(built_for.device if device is None else device)
    if name.kind != built_for.device:
        raise EngineMismatchError(
            f"{file.source} was built for {built_for.device!r}, not {device!r}; build it again for "
            "that device"
        )
    if name.kind != _CUDA:
        return HostCode(file)
    from smelt.runtime._cuda_code import CudaCode, find_gpu  # imported only for GPU engines

    try:
        gpu = find_gpu(built_for, device)
    except (DeviceError, MissingExtraError) as error:
        if not is_needed and name.index is None:
            return None
        if name.index is not None or isinstance(error, CudaError):
            raise
        raise _no_gpu_error(error, file) from error
    return CudaCode(file, *gpu)


def _no_gpu_error(error: DeviceError | MissingExtraError, file: EngineFile) -> SmeltError:
    """Return the error for running a GPU engine without a GPU, with advice on alternatives."""
    lead = f"{file.source} is for NVIDIA GPUs ({file.header.fingerprint.architecture}): "
    alternative = "build it again from its model, device='cpu' (`smelt build MODEL --device cpu`)"
    if file.header.network:
        alternative = "retune it, device='cpu' (`smelt retune ENGINE --device cpu -o NEW.engine`)"
    advice = f". It runs where such a GPU is; for this machine's processor {alternative}"
    if isinstance(error, DeviceError):
        return DeviceError(f"{lead}{error}{advice}")
    return MissingExtraError(error.package, error.extra, lead=lead, advice=error.advice + advice)

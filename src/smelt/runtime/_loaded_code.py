"""What an engine and its contexts share: code and weights, where the device reads them."""

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
    """An engine's weights on a device; replaced as a whole by a refit."""

    bytes: NDArray[np.uint8]
    """On the host. Read-only."""
    address: int
    """Where the device reads them."""
    keep_alive: object = None
    """What must live as long."""


class LoadedCode(ABC):
    """Code and weights on a device, shared by an engine and its contexts; alive while one is."""

    header: EngineHeader
    weights: LoadedWeights
    """Contexts notice when it is another."""

    @abstractmethod
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        """Bring weights to where the device reads them."""

    @abstractmethod
    def create_context(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> ExecutionContext:
        """Create a context of the device's kind."""


class HostCode(LoadedCode):
    """Code that the processor runs, or nobody."""

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
        placed = _aligned(weights)
        return LoadedWeights(placed, int(placed.ctypes.data))

    @override
    def create_context(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> ExecutionContext:
        from smelt.runtime._host_context import HostContext

        return HostContext(engine, self, threads, tracker)


def _aligned(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The weights where kernels may read them: mapped files are aligned, bytes often are not."""
    if weights.ctypes.data % abi.ALIGNMENT_BYTES == 0:
        return weights
    copy = CpuMemory().allocate(weights.size, "weights").bytes
    copy[:] = weights
    copy.flags.writeable = False
    return copy


def check_device(built_for: Fingerprint, device: str | None) -> None:
    """Check that this machine can run what is built for a fingerprint.

    Raises:
        EngineMismatchError: its processor or GPU cannot.
        DeviceError: there is no such GPU here.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    check_machine(built_for)
    if built_for.device == _CUDA:
        from smelt.runtime._cuda_code import find_gpu  # few have a GPU

        find_gpu(built_for, device)


def check_machine(built_for: Fingerprint) -> None:
    """Check that this machine and this smelt can run an engine of a fingerprint.

    One for GPUs is not held to this machine's processor, and a machine without a GPU may hold it.

    Raises:
        EngineMismatchError: they cannot.
    """
    if built_for.device not in _DEVICES:
        raise EngineMismatchError(
            f"this engine is for the device {built_for.device!r}, "
            f"and this smelt runs {', '.join(sorted(_DEVICES))}"
        )
    host = Host(built_for.architecture, built_for.features, built_for.system)
    if built_for.device == "cpu":
        host = detect_host()
    version = CUDA_ABI_VERSION if built_for.device == _CUDA else abi.ABI_VERSION
    check_fingerprint(built_for, abi=version, version=VERSION, host=host)


def load_code(file: EngineFile, device: str | None, *, is_needed: bool = True) -> LoadedCode | None:
    """Load an engine's code and weights onto a device.

    Args:
        file: the engine.
        device: the device's name, "cuda:1"; None for any that fits.
        is_needed: whether it is an error that there is no GPU at all; else the result is None.

    Raises:
        UnsupportedError: no device is called so.
        EngineMismatchError: the engine is for another device, or another GPU.
        DeviceError: there is no such GPU, or it has too little memory.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    built_for = file.header.fingerprint
    name = DeviceName.from_text(built_for.device if device is None else device)
    if name.kind != built_for.device:
        raise EngineMismatchError(
            f"{file.source} was built for {built_for.device!r}, not {device!r}; build it again for "
            "that"
        )
    if name.kind != _CUDA:
        return HostCode(file)
    from smelt.runtime._cuda_code import CudaCode, find_gpu  # few have a GPU

    try:
        found = find_gpu(built_for, device)
    except (DeviceError, MissingExtraError) as error:
        if not is_needed and name.index is None:
            return None
        if name.index is not None or isinstance(error, CudaError):
            raise
        raise _without_gpu(error, file) from error
    return CudaCode(file, *found)


def _without_gpu(error: DeviceError | MissingExtraError, file: EngineFile) -> SmeltError:
    """The error of one who runs an engine for GPUs where there is none: what else can be done."""
    lead = f"{file.source} is for NVIDIA GPUs ({file.header.fingerprint.architecture}): "
    again = "build it again from its model, device='cpu' (`smelt build MODEL --device cpu`)"
    if file.header.network:
        again = "retune it, device='cpu' (`smelt retune ENGINE --device cpu -o NEW.engine`)"
    advice = f". It runs where such a GPU is; for this machine's processor {again}"
    if isinstance(error, DeviceError):
        return DeviceError(f"{lead}{error}{advice}")
    return MissingExtraError(error.package, error.extra, lead=lead, advice=error.advice + advice)

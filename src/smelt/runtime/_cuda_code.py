"""Run half of NVIDIA GPUs: kernels and weights of an engine on one GPU, streams and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smelt.devices import DeviceName
from smelt.devices.cuda import (
    ABI_VERSION,
    CudaError,
    CudaEvent,
    CudaMemory,
    CudaStream,
    KernelLoader,
    copy_memory,
    matching_architecture,
)
from smelt.errors import (
    Argument,
    DeviceError,
    EngineFormatError,
    EngineMismatchError,
    MissingExtraError,
    SmeltError,
)
from smelt.runtime._cuda_executor import CudaExecutor
from smelt.runtime._loaded_code import DeviceRuntime, LoadedCode, LoadedWeights
from smelt.runtime._streams import gpu_named
from smelt.types import override

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cuda import CudaDevice, LoadedCall, LoadedKernel
    from smelt.engine import EngineFile, Fingerprint
    from smelt.runtime._engine import Engine

_LOG = logging.getLogger(__name__)


def find_gpu(fingerprint: Fingerprint, name: str | None) -> tuple[CudaDevice, int]:
    """Return a GPU and the index of the engine's architecture that the GPU runs.

    Args:
        fingerprint: the engine's fingerprint.
        name: device name, e.g. "cuda:1"; None for the GPU that the calling thread has selected.

    Raises:
        EngineMismatchError: the engine has no code for the GPU's architecture.
        DeviceError: the GPU does not exist.
    """
    device = gpu_named(name)
    properties, built_for = device.properties, fingerprint.architecture
    architecture_index = matching_architecture(built_for.split(","), properties.capability)
    if architecture_index is None:
        both = Argument("device", f"cuda:{built_for},{properties.architecture}")
        raise EngineMismatchError(
            f"this engine was built for {built_for}, but {device!r} needs code for "
            f"{properties.architecture}; build it again for that architecture, or for both: {both}",
            arguments=[both],
        )
    return device, architecture_index


class CudaCode(LoadedCode):
    """The kernels and weights of an engine on one GPU."""

    def __init__(self, file: EngineFile, device: CudaDevice, architecture_index: int) -> None:
        """Load kernels and weights.

        Args:
            file: the engine file.
            device: the GPU.
            architecture_index: index of the GPU's architecture among the engine's.

        Raises:
            EngineFormatError: a kernel record is malformed.
            EngineMismatchError: the driver, the GPU or a library cannot run the code.
            MissingExtraError: a library that the engine calls is not installed.
            DeviceError: GPU memory is insufficient.
        """
        self.header = file.header
        self.device = device
        tuned_on = self.header.fingerprint.tuned_on
        if tuned_on not in ("", device.timing_key):
            _LOG.info(
                "%s was tuned on %s and runs on %s: results are correct, but other tactics may be "
                "faster; %s on this machine finds them",
                file.source,
                tuned_on,
                device.timing_key,
                "`smelt retune`" if self.header.network else "a build",
            )
        self.kernels = _load_kernels(file, device, architecture_index)
        self.weights = self.upload_weights(file.weights)

    @override
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        memory = CudaMemory(self.device).allocate(weights.size, "weights")
        with CudaStream(self.device) as stream:
            copy_memory(self.device, memory.address, int(weights.ctypes.data), weights.size, stream)
            stream.synchronize()
        return LoadedWeights(weights, memory.address, memory)

    @override
    def create_executor(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> CudaExecutor:
        return CudaExecutor(engine, self, tracker)


class CudaDeviceRuntime(DeviceRuntime):
    """Runs engines on NVIDIA GPUs."""

    abi_version = ABI_VERSION

    @override
    def check_device(self, built_for: Fingerprint, device: str | None) -> None:
        find_gpu(built_for, device)

    @override
    def load(
        self, file: EngineFile, device: str | None, *, requires_device: bool
    ) -> CudaCode | None:
        index = None if device is None else DeviceName.from_text(device).index
        try:
            gpu = find_gpu(file.header.fingerprint, device)
        except (DeviceError, MissingExtraError) as error:
            if not requires_device and index is None:
                return None
            if index is not None or isinstance(error, CudaError):
                raise
            raise _no_gpu_error(error, file) from error
        return CudaCode(file, *gpu)

    @override
    def create_stream(self, device: str) -> CudaStream:
        return CudaStream(gpu_named(device))

    @override
    def create_event(self, device: str) -> CudaEvent:
        return CudaEvent(gpu_named(device))


def _no_gpu_error(error: DeviceError | MissingExtraError, file: EngineFile) -> SmeltError:
    """Return the error for running a GPU engine without a GPU, with advice on alternatives."""
    lead = f"{file.source} is for NVIDIA GPUs ({file.header.fingerprint.architecture}): "
    alternative = (
        "build it again from its model with device='cpu' (`smelt build MODEL --device cpu`)"
    )
    if file.header.network:
        alternative = (
            "retune it with device='cpu' (`smelt retune ENGINE --device cpu -o NEW.engine`)"
        )
    advice = f". It runs on a machine with such a GPU; for this machine's processor, {alternative}"
    if isinstance(error, DeviceError):
        return DeviceError(f"{lead}{error}{advice}")
    return MissingExtraError(error.package, error.extra, lead=lead, advice=error.advice + advice)


def _load_kernels(
    file: EngineFile, device: CudaDevice, architecture_index: int
) -> dict[str, LoadedKernel | LoadedCall]:
    """Load the kernels that the plans launch, by symbol."""
    used = {launch.kernel.symbol for plan in file.header.plans for launch in plan.launches}
    loader = KernelLoader(device)
    kernels = {
        symbol: loader.load(file.code, offset, architecture_index)
        for symbol, offset in file.header.symbols
        if symbol in used
    }
    if missing := sorted(used - kernels.keys()):
        raise EngineFormatError(
            f"the engine has no code for kernels that it launches: {', '.join(missing)}; the file "
            "is damaged: copy or build it again"
        )
    return kernels

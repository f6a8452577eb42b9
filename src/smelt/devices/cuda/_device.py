"""GPU devices: properties, and the primary context that all libraries of the process share.

Source: CUDA Driver API reference, "Device Management" and "Primary Context Management".
"""

from __future__ import annotations

import atexit
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cuda._driver import cuda_driver, dotted_cuda
from smelt.errors import DeviceError
from smelt.types import ForkLock

if TYPE_CHECKING:
    from smelt.devices.cuda._driver import Driver

_LOG = logging.getLogger(__name__)
_NAME_BYTES: Final = 256
_ATTRIBUTES: Final = {
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "shared_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "l2_bytes": "L2_CACHE_SIZE",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "has_virtual_memory": "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
}


@dataclass(frozen=True, slots=True)
class CudaProperties:
    """Properties of a GPU that determine which code it runs and how fast."""

    name: str
    capability: tuple[int, int]
    """Compute capability, e.g. (9, 0) for Hopper."""
    multiprocessors: int
    shared_bytes: int
    """Maximum shared memory per block in bytes (opt-in limit)."""
    l2_bytes: int
    memory_bytes: int
    has_virtual_memory: bool
    """Whether virtual memory management (reserve and map) is supported."""

    @property
    def architecture(self) -> str:
        """Name of the target architecture, e.g. "sm_90"."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


class _Selection:
    """Context manager of `CudaDevice.selected`.

    It is no generator: one that an interrupt suspends would restore the context when it is freed,
    in whatever thread that happens.
    """

    __slots__ = ("_device", "_previous")

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._previous = self._device.select()

    def __exit__(self, *_: object) -> None:
        self._device.restore(self._previous)


class CudaDevice:
    """One GPU. There is one object per GPU; get it from `cuda_device`."""

    def __init__(self, driver: Driver, index: int) -> None:
        count = driver.call("cuDeviceGetCount")
        if not 0 <= index < count:
            last = f" to cuda:{count - 1}" if count > 1 else ""
            seen = f"cuda:0{last}" if count else "no NVIDIA GPU"
            raise DeviceError(
                f"cuda:{index} does not exist: this process sees {seen}; nvidia-smi -L lists the "
                "GPUs of the machine, which CUDA_VISIBLE_DEVICES may hide"
            )
        self.driver = driver
        self.index = index
        self._handle = driver.call("cuDeviceGet", index)
        self._context: Any = driver.call(
            "cuDevicePrimaryCtxRetain", self._handle, what=f"cuda:{index} cannot be opened"
        )
        self._context_handle = int(self._context)
        self.properties = self._read_properties()

    def _read_properties(self) -> CudaProperties:
        kinds = self.driver.api.CUdevice_attribute

        def read(name: str) -> int:
            attribute = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.driver.call("cuDeviceGetAttribute", attribute, self._handle))

        attributes = {field: read(name) for field, name in _ATTRIBUTES.items()}
        name: bytes = self.driver.call("cuDeviceGetName", _NAME_BYTES, self._handle)
        return CudaProperties(
            name=name.split(b"\0", 1)[0].decode(errors="replace"),
            capability=(attributes.pop("major"), attributes.pop("minor")),
            has_virtual_memory=bool(attributes.pop("has_virtual_memory")),
            memory_bytes=int(self.driver.call("cuDeviceTotalMem", self._handle)),
            **attributes,
        )

    def __repr__(self) -> str:
        return f"<cuda:{self.index} {self.properties.name}, {self.properties.architecture}>"

    @property
    def timing_key(self) -> str:
        """Key of what times depend on besides the code: GPU and CUDA version of the driver."""
        return f"{self.properties.name}, driver for CUDA {dotted_cuda(self.driver.version)}"

    def select(self) -> Any:
        """Make this GPU's context current in the calling thread; return the argument of `restore`.

        Other libraries may change the current context at any time and rely on their own.

        Raises:
            DeviceError: the device was released, at the interpreter's end.
        """
        if self._context is None:
            raise DeviceError(f"the device cuda:{self.index} was closed")
        current = self.driver.call("cuCtxGetCurrent")
        if int(current) == self._context_handle:
            return None
        self.driver.call("cuCtxSetCurrent", self._context)
        return current

    def restore(self, previous: Any) -> None:
        """Restore the context that was current before `select`."""
        if previous is not None:
            self.driver.call("cuCtxSetCurrent", previous)

    def selected(self) -> _Selection:
        """Make this GPU's context current in the calling thread while the block runs."""
        return _Selection(self)

    def call(self, name: str, *arguments: Any, what: str | None = None) -> Any:
        """Call the driver with this GPU's context current. Raises what `Driver.call` raises."""
        previous = self.select()
        if previous is None:
            return self.driver.call(name, *arguments, what=what)
        try:
            return self.driver.call(name, *arguments, what=what)
        finally:
            self.restore(previous)

    def is_done(self, name: str, handle: Any) -> bool:
        """Return whether a query reports completion. Raises CudaError: the work failed."""
        with self.selected():
            return self.driver.is_done(name, handle)

    def give_back(self, name: str, *arguments: Any) -> None:
        """Call a release function of the driver; log errors, since the GPU may be unusable."""
        try:
            self.call(name, *arguments)
        except DeviceError as error:
            _LOG.debug("%s of cuda:%d: %s", name, self.index, error)

    @property
    def free_bytes(self) -> int:
        """Free GPU memory in bytes."""
        free, _ = self.call("cuMemGetInfo")
        return int(free)

    def synchronize(self) -> None:
        """Wait until all work of this GPU is complete.

        Raises:
            CudaError: some of the work failed.
        """
        self.call("cuCtxSynchronize")

    def release(self) -> None:
        """Release the primary context; nothing may use the device any more."""
        if self._context is not None:
            self._context = None
            self.driver.call("cuDevicePrimaryCtxRelease", self._handle)


_lock = ForkLock()
_devices: dict[tuple[int, int], CudaDevice] = {}


def cuda_device(index: int = 0) -> CudaDevice:
    """Return the GPU with an index.

    Raises:
        MissingExtraError: ``cuda.bindings`` is not installed.
        DeviceError: there is no driver, or no such GPU.
    """
    driver = cuda_driver()
    with _lock:
        key = (id(driver), index)
        if key not in _devices:
            _devices[key] = CudaDevice(driver, index)
        return _devices[key]


def selected_device() -> CudaDevice:
    """Return the current GPU of the calling thread, or the first GPU if there is none.

    Raises what `cuda_device` raises.
    """
    return cuda_device(selected_index(cuda_driver()) or 0)


def selected_index(driver: Driver) -> int | None:
    """Return the index of the calling thread's current GPU; None if it has none."""
    if not int(driver.call("cuCtxGetCurrent")):
        return None
    return int(driver.call("cuCtxGetDevice"))


@atexit.register
def release_devices() -> None:
    """Release all primary contexts."""
    with _lock:
        for device in _devices.values():
            device.release()
        _devices.clear()

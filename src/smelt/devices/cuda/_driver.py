"""The CUDA driver through ``cuda.bindings``: checked calls, and the meaning of errors.

Sources: CUDA Driver API reference, "Error Handling" (names and numbers of the results) and
"Version Management".
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import sys
from typing import Any, Final

from smelt.errors import DeviceError, EngineMismatchError, MissingExtraError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import ForkLock

_LOG = logging.getLogger(__name__)
OLDEST_VERSION: Final = 12000
"""Oldest driver interface that runs the kernels (CUDA 12.0, which introduced library loading)."""

_NO_DRIVER: Final = (
    "the NVIDIA driver is not found on this machine; install it, and check it with nvidia-smi"
)
_NOT_READY: Final = 600
_ADVICE: Final = {
    2: "use a smaller batch, fewer contexts, or another GPU",
    3: "the driver was shut down or never started in this process",
    35: "the NVIDIA driver is older than cuda-bindings; update the driver",
    100: "no NVIDIA GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES",
    101: "there is no GPU of this number; nvidia-smi -L lists them",
    201: "the thread has no context of this GPU",
    304: "the system denies the call; another process may use the GPU exclusively",
    400: "a stream, event or module was used after it was closed, or on another GPU",
    700: "a kernel read or wrote outside of its memory; the process can no longer use this GPU",
    701: "a kernel needs more registers or shared memory than the GPU has",
    702: "a kernel exceeded the time limit of a GPU that drives a display",
    716: "a kernel read from a misaligned address; the process can no longer use this GPU",
    719: "a kernel failed; the process can no longer use this GPU",
    900: "the call is not allowed while a graph is being captured",
    901: "an earlier call failed during the graph capture, for example one of another thread",
}
_WRONG_CODE: Final = {
    200: "the code is damaged",
    209: "the code is for GPUs of another architecture",
    222: "the code is newer than the driver",
}


class CudaError(DeviceError):
    """The driver refused a call. ``status`` is the number of the error, ``name`` its name."""

    def __init__(self, what: str, status: int, name: str, meaning: str) -> None:
        advice = _ADVICE.get(status)
        super().__init__(f"{what}: {name} ({meaning})" + (f"; {advice}" if advice else ""))
        self.status = status
        self.name = name


class Driver:
    """The driver of this process; the status of every call is checked."""

    __slots__ = ("_process", "api", "version")

    def __init__(self, api: Any) -> None:
        """Start the driver; ``api`` is a module with the names of ``cuda.bindings.driver``.

        Raises:
            DeviceError: there is no driver, it is too old, or it finds no GPU.
        """
        self.api = api
        self._process = os.getpid()
        try:
            self.call("cuInit", 0)
            self.version: int = self.call("cuDriverGetVersion")
        except (RuntimeError, OSError, ImportError) as error:
            pass_on_handler_error(error)
            _LOG.debug("%s", error)
            if type(error).__name__ == "DynamicLibNotFoundError":
                raise DeviceError(_NO_DRIVER) from error
            raise DeviceError(f"the NVIDIA driver cannot be loaded{_reason(error)}") from error
        if self.version < OLDEST_VERSION:
            raise DeviceError(
                f"the NVIDIA driver supports CUDA {dotted_cuda(self.version)}, but CUDA "
                f"{dotted_cuda(OLDEST_VERSION)} or newer is required; update the driver"
            )

    def call(self, name: str, *arguments: Any, what: str | None = None) -> Any:
        """Call a function of the driver; return its results without the status.

        Args:
            name: name in the driver's documentation.
            arguments: arguments in the form that ``cuda.bindings`` accepts.
            what: purpose of the call for the error message; None uses the function's name.

        Raises:
            CudaError: the driver reports a failure.
            EngineMismatchError: this GPU or driver cannot run code that was loaded.
            DeviceError: the process was forked after the driver was started.
        """
        if self._process != os.getpid():
            raise DeviceError(
                "CUDA cannot be used in a forked process once the parent has used it; "
                "start processes with multiprocessing's 'spawn' method"
            )
        status, *results = getattr(self.api, name)(*arguments)
        if int(status):
            raise self._error(what or name, status)
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def is_done(self, name: str, handle: Any) -> bool:
        """Return whether work is complete, by a query (``cuStreamQuery``, ``cuEventQuery``).

        Raises:
            CudaError: the work failed.
        """
        status, *_ = getattr(self.api, name)(handle)
        if int(status) == _NOT_READY:
            return False
        if int(status):
            raise self._error(name, status)
        return True

    def _error(self, what: str, status: Any) -> CudaError | EngineMismatchError:
        number = int(status)
        name, meaning = (self._text(f, status) for f in ("cuGetErrorName", "cuGetErrorString"))
        if number in _WRONG_CODE:
            return EngineMismatchError(
                f"{what}: {name} ({meaning}): {_WRONG_CODE[number]}; build the engine again on "
                "this machine, or name the architecture of its GPU among the targets"
            )
        return CudaError(what, number, name, meaning)

    def _text(self, function: str, status: Any) -> str:
        found, text = getattr(self.api, function)(status)
        if int(found) or not text:
            return f"error {int(status)}"
        return text.decode() if isinstance(text, bytes) else str(text)


def dotted_cuda(version: int) -> str:
    """Return the driver's CUDA version number as major.minor."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _has_driver() -> bool:
    """Return whether the driver's library is on this machine."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        pass_on_handler_error(error)
        return False
    return True


def _reason(error: BaseException) -> str:
    """Return the first line of the reason; the other lines are advice of cuda-bindings."""
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return f" ({first})"


_lock = ForkLock()
_drivers: dict[int, Driver] = {}


def cuda_driver() -> Driver:
    """Return the driver of this process; the first call starts it.

    Raises:
        MissingExtraError: ``cuda.bindings`` is not installed.
        DeviceError: there is no driver, it is too old, or it finds no GPU.
    """
    with _lock:
        if 0 not in _drivers:
            try:
                api = importlib.import_module("cuda.bindings.driver")
            except ModuleNotFoundError as error:
                if not _has_driver():  # which no package contains
                    raise DeviceError(_NO_DRIVER) from error
                raise MissingExtraError("cuda-bindings", "cuda") from error
            _drivers[0] = Driver(api)
        return _drivers[0]

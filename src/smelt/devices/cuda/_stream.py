"""CUDA streams and events: owned ones and those of other libraries.

Source: CUDA Driver API reference, "Stream Management" and "Event Management"; the protocol
``__cuda_stream__`` of cuda.core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from smelt.devices._allocations import Resource
from smelt.errors import DeviceError
from smelt.types import BackgroundThread, Closeable, override

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.devices.cuda._device import CudaDevice

_NON_BLOCKING: Final = 1
_DISABLE_TIMING: Final = 2
_EXTERNAL: Final = 1
_HANDLE_NAMES: Final = ("cuda_stream", "ptr", "handle")
"""Attributes that hold a stream's handle in PyTorch, CuPy and Numba."""


class CudaStream(Resource, Closeable):
    """A CUDA stream: work that a GPU executes in order, asynchronously to the host."""

    __slots__ = ("_followers", "_keeps", "device", "handle")

    def __init__(
        self, device: CudaDevice, foreign: object = None, *, follows_default: bool = False
    ) -> None:
        """Create a stream, or wrap a stream of another library.

        Args:
            device: the GPU.
            foreign: a stream of PyTorch, CuPy, Numba or cuda.core, any object with
                ``__cuda_stream__``, or a handle as an integer (0 is the default stream). It is
                kept alive and never destroyed.
            follows_default: whether a new stream synchronises with the legacy default stream;
                otherwise it is a non-blocking stream.

        Raises:
            DeviceError: ``foreign`` is not a stream.
        """
        self.device = device
        self._keeps = foreign
        self._followers: list[PendingWork] = []
        if foreign is not None:
            self.handle: Any = device.driver.api.CUstream(handle_of(foreign))
            return
        self.handle = device.call("cuStreamCreate", 0 if follows_default else _NON_BLOCKING)
        self.release_by(device.give_back, "cuStreamDestroy", self.handle)

    def query(self) -> bool:
        """Return whether all enqueued work is complete. Raises CudaError: some of it failed."""
        return self.device.is_done("cuStreamQuery", self.handle)

    def synchronize(self) -> None:
        """Wait until all enqueued work is complete.

        Raises:
            CudaError: some of the work failed.
            The error of a follower; if several failed, the next calls raise the others.
        """
        self.device.call("cuStreamSynchronize", self.handle)
        followers, self._followers = self._followers, []
        try:
            while followers:
                followers.pop(0).wait()
        finally:
            self._followers += followers

    def follow(self, follower: PendingWork) -> None:
        """Make `synchronize` also wait for host work that follows the stream's work."""
        self._followers = [f for f in self._followers if f.is_awaited and f is not follower]
        self._followers.append(follower)

    def wait(self, event: CudaEvent) -> None:
        """Make later work wait for the last recording of ``event``."""
        self.device.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def wait_for(self, other: CudaStream) -> None:
        """Make later work wait for all work that is queued on another stream so far."""
        if int(self.handle) != int(other.handle):
            event = CudaEvent(self.device, times=False)
            event.record(other)
            self.wait(event)

    @override
    def close(self) -> None:
        """Complete enqueued work and destroy the stream, unless it is foreign. Idempotent."""
        if hasattr(self, "_finalizer") and self._finalizer.alive:
            self.device.give_back("cuStreamSynchronize", self.handle)
        super().close()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol and the handle."""
        return 0, int(self.handle)


class PendingWork(Protocol):
    """Host work that a stream's `synchronize` also waits for."""

    @property
    def is_awaited(self) -> bool:
        """Whether the work is not complete, or its error was not raised yet."""
        ...

    def wait(self) -> None:
        """Wait until the work is complete; raise its error once."""
        ...


class HostTask:
    """A task on its own host thread, which waits for GPU work and then processes it."""

    __slots__ = ("_error", "_task", "_thread")

    def __init__(self, task: Callable[[], object]) -> None:
        """Start the thread; the task itself waits for the GPU."""
        self._task = task
        self._error: BaseException | None = None
        self._thread = BackgroundThread(self._work)

    def _work(self) -> None:
        try:
            self._task()
        except BaseException as error:  # noqa: BLE001  (raised again by wait)
            self._error = error

    @property
    def is_awaited(self) -> bool:
        """Whether the work is not complete, or its error was not raised yet."""
        return self._thread.is_alive or self._error is not None

    def wait(self) -> None:
        """Wait until the task is complete; raise its error once."""
        if not self._thread.is_current:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


def handle_of(stream: object) -> int:
    """Return the handle of a stream of any library.

    Raises:
        DeviceError: ``stream`` is not a stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise DeviceError(f"{stream} is not a stream handle: handles are not negative")
        return stream
    protocol: tuple[int, int] | Callable[[], tuple[int, int]] | None = getattr(
        stream, "__cuda_stream__", None
    )
    if protocol is not None:
        reported = protocol() if callable(protocol) else protocol
        if reported[0] != 0:
            raise DeviceError(
                f"the stream implements version {reported[0]} of __cuda_stream__; only version "
                "0 is supported"
            )
        return int(reported[1])
    for name in _HANDLE_NAMES:
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise DeviceError(
        f"{type(stream).__name__} is not a CUDA stream; give a stream of torch, cupy, numba or "
        "cuda.core, or a handle"
    )


class CudaEvent(Resource):
    """A CUDA event. Before it is first recorded it counts as complete."""

    __slots__ = ("_is_recorded", "device", "handle", "times")

    def __init__(self, device: CudaDevice, *, times: bool = True) -> None:
        """Create an event; without ``times`` it is cheaper but does not support `elapsed`."""
        self.device = device
        self.times = times
        self._is_recorded = False
        self.handle: Any = device.call("cuEventCreate", 0 if times else _DISABLE_TIMING)
        self.release_by(device.give_back, "cuEventDestroy", self.handle)

    def record(self, stream: CudaStream) -> None:
        """Record the event behind all work that is enqueued on ``stream`` now."""
        self.device.call("cuEventRecord", self.handle, stream.handle)
        self._is_recorded = True

    def record_in_graph(self, stream: CudaStream) -> None:
        """Add a record node to the graph being captured; each of its launches records the event."""
        self.device.call("cuEventRecordWithFlags", self.handle, stream.handle, _EXTERNAL)
        self._is_recorded = True

    def wait(self, stream: CudaStream) -> None:
        """Make later work of ``stream`` wait for the event."""
        stream.wait(self)

    def query(self) -> bool:
        """Return whether the event is complete. Raises CudaError: work before it failed."""
        return self.device.is_done("cuEventQuery", self.handle)

    def synchronize(self) -> None:
        """Wait until the event is complete. Raises CudaError: work before it failed."""
        self.device.call("cuEventSynchronize", self.handle)

    def elapsed(self, end: CudaEvent) -> float:
        """Return the milliseconds from this event to ``end``.

        Raises:
            DeviceError: an event was created without timing, or is not recorded or not complete.
        """
        if not (self.times and end.times):
            raise DeviceError("one of the two events was created without timing")
        for event in (self, end):
            if not event._is_recorded or not event.query():
                raise DeviceError("both events must be recorded and complete; synchronize first")
        return float(self.device.call("cuEventElapsedTime", self.handle, end.handle))

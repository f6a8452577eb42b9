"""Streams and events of a GPU, our own or another library's.

Source: CUDA Driver API reference, "Stream Management" and "Event Management"; the protocol
``__cuda_stream__`` of cuda.core.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from smelt.errors import DeviceError
from smelt.types import Closeable, override, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.devices.cuda._device import CudaDevice

_NON_BLOCKING: Final = 1
_DISABLE_TIMING: Final = 2
_EXTERNAL: Final = 1
_HANDLE_NAMES: Final = ("cuda_stream", "ptr", "handle")
"""What torch, cupy and numba call a stream's handle."""


class CudaStream(Closeable):
    """Work that a GPU does in order, beside other streams and beside the host."""

    __slots__ = ("__weakref__", "_finalizer", "_followers", "_keeps", "device", "handle")

    def __init__(
        self, device: CudaDevice, foreign: object = None, *, follows_default: bool = False
    ) -> None:
        """Make a stream, or use another library's.

        Args:
            device: the GPU.
            foreign: a stream of torch, cupy, numba or cuda.core, anything with
                ``__cuda_stream__``, or a handle as an integer (0 is the default stream). It is
                kept alive and never destroyed.
            follows_default: whether a new stream takes turns with the default stream, which other
                streams of ours do not wait for.

        Raises:
            DeviceError: it is not a stream.
        """
        self.device = device
        self._keeps = foreign
        self._followers: list[PendingWork] = []
        self._finalizer: weakref.finalize[..., CudaStream] | None = None
        if foreign is not None:
            self.handle: Any = device.driver.api.CUstream(handle_of(foreign))
            return
        self.handle = device.call("cuStreamCreate", 0 if follows_default else _NON_BLOCKING)
        self._finalizer = weakref.finalize(self, device.give_back, "cuStreamDestroy", self.handle)
        self._finalizer.atexit = False

    def query(self) -> bool:
        """Whether everything that was queued is done. Raises CudaError: some of it failed."""
        return self.device.is_done("cuStreamQuery", self.handle)

    def synchronize(self) -> None:
        """Wait until everything that was queued is done.

        Raises:
            CudaError: some of it failed.
            What a follower raises; of several the next calls raise the others.
        """
        self.device.call("cuStreamSynchronize", self.handle)
        followers, self._followers = self._followers, []
        try:
            while followers:
                followers.pop(0).wait()
        finally:
            self._followers += followers

    def follow(self, follower: PendingWork) -> None:
        """Let `synchronize` wait for what is done on the host about the stream's work, too."""
        self._followers = [f for f in self._followers if f.is_awaited and f is not follower]
        self._followers.append(follower)

    def wait(self, event: CudaEvent) -> None:
        """Let later work wait until ``event``, as it is now, has come."""
        self.device.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    @override
    def close(self) -> None:
        """Finish what was queued and let the stream go; a foreign one stays. Again is harmless."""
        if self._finalizer is not None and self._finalizer.alive:
            self.device.give_back("cuStreamSynchronize", self.handle)
            self._finalizer()

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, int(self.handle)


class PendingWork(Protocol):
    """What a stream's `synchronize` waits for beside the stream's work."""

    @property
    def is_awaited(self) -> bool:
        """Whether there is something to wait for, or to hear."""
        ...

    def wait(self) -> None:
        """Wait until it is done. Raises what went wrong; once."""
        ...


class HostTask:
    """Something that the host does once work of a GPU is complete, on a thread of its own."""

    __slots__ = ("_error", "_task", "_thread")

    def __init__(self, task: Callable[[], object]) -> None:
        """Begin; the task itself waits for the GPU."""
        self._task = task
        self._error: BaseException | None = None
        self._thread = start_thread(self._work, name="smelt-follower")

    def _work(self) -> None:
        try:
            self._task()
        except BaseException as error:  # noqa: BLE001  (raised again by wait)
            self._error = error

    @property
    def is_awaited(self) -> bool:
        """Whether there is something to wait for, or to hear."""
        return self._thread.is_alive() or self._error is not None

    def wait(self) -> None:
        """Wait until it is done. Raises what the task raised; once."""
        if self._thread is not threading.current_thread():
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


def handle_of(stream: object) -> int:
    """Return the handle of any library's stream.

    Raises:
        DeviceError: it is not a stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise DeviceError(f"{stream} is not a stream handle")
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = cast("Any", stream).__cuda_stream__
        said = cast("tuple[int, int]", protocol() if callable(protocol) else protocol)
        if said[0] != 0:
            raise DeviceError(
                f"the stream implements version {said[0]} of __cuda_stream__; version 0 is "
                "supported"
            )
        return int(said[1])
    for name in _HANDLE_NAMES:
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    raise DeviceError(
        f"{type(stream).__name__} is not a CUDA stream; give a stream of torch, cupy, numba or "
        "cuda.core, or a handle"
    )


class CudaEvent:
    """A mark in a stream. Before it is first recorded it counts as reached."""

    __slots__ = ("__weakref__", "_finalizer", "_is_recorded", "device", "handle", "times")

    def __init__(self, device: CudaDevice, *, times: bool = True) -> None:
        """Make an event; without ``times`` it is cheaper, and knows no `elapsed`."""
        self.device = device
        self.times = times
        self._is_recorded = False
        self.handle: Any = device.call("cuEventCreate", 0 if times else _DISABLE_TIMING)
        self._finalizer = weakref.finalize(self, device.give_back, "cuEventDestroy", self.handle)
        self._finalizer.atexit = False

    def record(self, stream: CudaStream) -> None:
        """Mark the place in ``stream`` behind everything that is queued now."""
        self.device.call("cuEventRecord", self.handle, stream.handle)
        self._is_recorded = True

    def record_in_graph(self, stream: CudaStream) -> None:
        """Mark a place in the graph that is being recorded; each run of the graph comes by it."""
        self.device.call("cuEventRecordWithFlags", self.handle, stream.handle, _EXTERNAL)
        self._is_recorded = True

    def wait(self, stream: CudaStream) -> None:
        """Let later work of ``stream`` wait for the mark."""
        stream.wait(self)

    def query(self) -> bool:
        """Whether the mark is reached. Raises CudaError: work before it failed."""
        return self.device.is_done("cuEventQuery", self.handle)

    def synchronize(self) -> None:
        """Wait until the mark is reached. Raises CudaError: work before it failed."""
        self.device.call("cuEventSynchronize", self.handle)

    def elapsed(self, end: CudaEvent) -> float:
        """Return the milliseconds from this mark to ``end``.

        Raises:
            DeviceError: one of the two does not keep times, or is not recorded or not reached.
        """
        if not (self.times and end.times):
            raise DeviceError("the event was created without timing")
        for event in (self, end):
            if not event._is_recorded or not event.query():
                raise DeviceError("both events must be recorded and complete; synchronize first")
        return float(self.device.call("cuEventElapsedTime", self.handle, end.handle))

    def close(self) -> None:
        """Let the event go; again is harmless."""
        self._finalizer()

"""Streams and events by the device's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cpu import CpuEvent, CpuStream
from smelt.errors import DeviceError
from smelt.types import Closeable, DeviceName, override

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.devices.cuda import CudaDevice, CudaEvent, CudaStream

_CUDA: Final = "cuda"
_CUDA_STREAM_PROTOCOL: Final = "__cuda_stream__"


class Stream(Closeable):
    """Work that is done in order, beside the thread that queues it."""

    def __init__(self, device: str = "cpu") -> None:
        """Make a stream of ``device``.

        Raises:
            UnsupportedError: no device is called so.
            DeviceError: there is no such GPU.
        """
        self.device = device
        self.native: CpuStream | CudaStream
        """The device's own."""
        if DeviceName.from_text(device).kind == _CUDA:
            from smelt.devices.cuda import CudaStream  # few have a GPU

            self.native = CudaStream(gpu_named(device))
        else:
            self.native = CpuStream()

    def submit(self, task: Callable[[], object]) -> None:
        """Queue a task of Python's; on a processor only.

        If it raises, `synchronize` raises that, and what was queued behind it until then is
        dropped, runs of contexts too: it may need what the task has not done.

        Raises:
            DeviceError: the stream is closed, or a GPU's.
        """
        if not isinstance(self.native, CpuStream):
            raise DeviceError(f"a stream of {self.device} accepts no Python tasks")
        self.native.submit(task)

    def query(self) -> bool:
        """Whether everything that was queued is done."""
        return self.native.query()

    def synchronize(self) -> None:
        """Wait until everything that was queued is done.

        Raises:
            What a task raised, or a run failed with and nobody has heard of; once.
        """
        self.native.synchronize()

    def wait(self, event: Event) -> None:
        """Let later work wait until ``event``, as it is now, has come."""
        native: Any = self.native
        native.wait(_same_kind(self, event))

    @override
    def close(self) -> None:
        """Finish what was queued and let the stream go. Again is harmless.

        It raises nothing of what was queued; the next call of a context whose run failed does.
        """
        self.native.close()

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """The protocol by which other libraries take a GPU's stream."""
        found: Callable[[], tuple[int, int]] = getattr(self.native, _CUDA_STREAM_PROTOCOL)
        return found


class Event:
    """A mark in a stream. Before it is first recorded it counts as reached."""

    __slots__ = ("device", "native")

    def __init__(self, device: str = "cpu") -> None:
        """Make an event of ``device``.

        Raises:
            UnsupportedError: no device is called so.
            DeviceError: there is no such GPU.
        """
        self.device = device
        self.native: CpuEvent | CudaEvent
        """The device's own."""
        if DeviceName.from_text(device).kind == _CUDA:
            from smelt.devices.cuda import CudaEvent  # few have a GPU

            self.native = CudaEvent(gpu_named(device))
        else:
            self.native = CpuEvent()

    def record(self, stream: Stream) -> None:
        """Mark the place in ``stream`` behind everything that is queued now."""
        native: Any = self.native
        native.record(_same_kind(self, stream))

    def wait(self, stream: Stream) -> None:
        """Let later work of ``stream`` wait for the mark."""
        _same_kind(self, stream)
        stream.wait(self)

    def query(self) -> bool:
        """Whether the mark is reached."""
        return self.native.query()

    def synchronize(self) -> None:
        """Wait until the mark is reached, also where work before it has failed on a processor."""
        self.native.synchronize()

    def elapsed(self, end: Event) -> float:
        """Return the milliseconds from this mark to ``end``.

        Raises:
            DeviceError: one of the two is not recorded or not reached.
        """
        native: Any = self.native
        return float(native.elapsed(_same_kind(self, end)))


def native_stream(stream: object) -> object:
    """Return the device's own stream behind one of ours; others as they are."""
    return stream.native if isinstance(stream, Stream) else stream


def native_event(event: object) -> object:
    """Return the device's own event behind one of ours; others as they are."""
    return event.native if isinstance(event, Event) else event


def gpu_named(device: str | None) -> CudaDevice:
    """Return the GPU that a device's name means: the thread's own where no number is given.

    Raises:
        UnsupportedError: no device is called so.
        DeviceError: there is no driver, or no such GPU.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    from smelt.devices.cuda import cuda_device, selected_device

    index = None if device is None else DeviceName.from_text(device).index
    return selected_device() if index is None else cuda_device(index)


def _same_kind(mine: Stream | Event, other: object) -> object:
    if not isinstance(other, Stream | Event):
        kind = type(other).__name__
        raise DeviceError(
            f"a {type(mine).__name__} of {mine.device} cannot be combined with {kind}"
        )
    if isinstance(mine.native, CpuEvent | CpuStream) != isinstance(
        other.native, CpuEvent | CpuStream
    ):
        raise DeviceError(
            f"an object of {mine.device} cannot be combined with an object of {other.device}"
        )
    return other.native

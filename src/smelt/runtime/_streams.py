"""Public streams and events, by device name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smelt.devices import DeviceName
from smelt.devices.cpu import CpuEvent, CpuStream
from smelt.errors import DeviceError
from smelt.runtime._loaded_code import runtime_of
from smelt.types import Closeable, override, require_callable

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.devices.cuda import CudaDevice, CudaEvent, CudaStream
    from smelt.runtime._loaded_code import DeviceRuntime

    NativeStream = CpuStream | CudaStream
    NativeEvent = CpuEvent | CudaEvent

_CUDA_STREAM_PROTOCOL: Final = "__cuda_stream__"


class Stream(Closeable):
    """A queue of work that is executed in order, asynchronously to the submitting thread."""

    def __init__(self, device: str = "cpu") -> None:
        """Create a stream on ``device``.

        Raises:
            UnsupportedError: the device name is unknown.
            DeviceError: the GPU does not exist.
        """
        self.device = device
        self.native: NativeStream = _runtime_named(device).create_stream(device)
        """The native object of the device."""

    def submit(self, task: Callable[[], object]) -> None:
        """Enqueue a Python task; on CPU streams only.

        If the task raises, `synchronize` raises its exception. Work that was enqueued behind the
        task until then is dropped, including runs of contexts: it may depend on the task.

        Raises:
            DeviceError: the stream is closed or is a GPU stream, or the task cannot be called.
        """
        if not isinstance(self.native, CpuStream):
            raise DeviceError(
                f"a stream of {self.device} does not accept Python tasks; use a stream of the CPU"
            )
        self.native.submit(require_callable(task, "the task of a stream", DeviceError))

    def query(self) -> bool:
        """Return whether all enqueued work is complete."""
        return self.native.query()

    def synchronize(self) -> None:
        """Wait until all enqueued work is complete.

        Raises:
            The error of a failed task or run, unless it was raised before.
        """
        self.native.synchronize()

    def wait(self, event: Event) -> None:
        """Make later work wait for the last recording of ``event``."""
        native: Any = self.native
        native.wait(_same_kind(self, event))

    @override
    def close(self) -> None:
        """Complete enqueued work and release the stream. Idempotent.

        Errors of enqueued work are not raised; the next call of a failed run's context raises its
        error.
        """
        self.native.close()

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """The protocol by which other libraries accept a GPU stream."""
        protocol: Callable[[], tuple[int, int]] = getattr(self.native, _CUDA_STREAM_PROTOCOL)
        return protocol


class Event:
    """A point in a stream's work. Before it is first recorded it counts as complete."""

    __slots__ = ("device", "native")

    def __init__(self, device: str = "cpu") -> None:
        """Create an event on ``device``.

        Raises:
            UnsupportedError: the device name is unknown.
            DeviceError: the GPU does not exist.
        """
        self.device = device
        self.native: NativeEvent = _runtime_named(device).create_event(device)
        """The native object of the device."""

    def record(self, stream: Stream) -> None:
        """Record the event behind all work that is enqueued on ``stream`` now."""
        native: Any = self.native
        native.record(_same_kind(self, stream))

    def wait(self, stream: Stream) -> None:
        """Make later work of ``stream`` wait for the event."""
        _same_kind(self, stream)
        stream.wait(self)

    def query(self) -> bool:
        """Return whether the event is complete."""
        return self.native.query()

    def synchronize(self) -> None:
        """Wait until the event is complete; on the CPU, failed work before it raises nothing."""
        self.native.synchronize()

    def elapsed(self, end: Event) -> float:
        """Return the milliseconds from this event to ``end``.

        Raises:
            DeviceError: one of the two is not recorded or not complete.
        """
        native: Any = self.native
        return float(native.elapsed(_same_kind(self, end)))


def _runtime_named(device: str) -> DeviceRuntime:
    return runtime_of(DeviceName.from_text(device).kind)


def native_stream(stream: object) -> object:
    """Return the native stream of a `Stream`; other objects unchanged."""
    return stream.native if isinstance(stream, Stream) else stream


def native_event(event: object) -> object:
    """Return the native event of an `Event`; other objects unchanged."""
    return event.native if isinstance(event, Event) else event


def gpu_named(device: str | None) -> CudaDevice:
    """Return the GPU with a device name; the thread's current GPU if the name has no index.

    Raises:
        UnsupportedError: the device name is unknown.
        DeviceError: there is no driver, or the GPU does not exist.
        MissingExtraError: ``cuda.bindings`` is not installed.
    """
    from smelt.devices.cuda import cuda_device, selected_device

    index = None if device is None else DeviceName.from_text(device).index
    return selected_device() if index is None else cuda_device(index)


def _same_kind(own: Stream | Event, other: object) -> object:
    if not isinstance(other, Stream | Event):
        kind = type(other).__name__
        raise DeviceError(
            f"{_describe(own)} cannot be combined with {kind}; pass a smelt.Stream or smelt.Event"
        )
    are_on_cpu = {isinstance(thing.native, CpuEvent | CpuStream) for thing in (own, other)}
    if len(are_on_cpu) > 1:
        raise DeviceError(
            f"{_describe(own)} cannot be combined with {_describe(other)}: one is on the CPU, the "
            "other on a GPU; call synchronize instead"
        )
    return other.native


def _describe(thing: Stream | Event) -> str:
    """Return the class and the device as a message names them."""
    return f"{'an Event' if isinstance(thing, Event) else 'a Stream'} of {thing.device}"

"""What becomes of an index out of range in a context: the same on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.devices.cuda import CudaArray, CudaMemory, CudaStream, copy_memory, cuda_device
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]
_ROWS = 4


def picking_network() -> smelt.NetworkDefinition:
    """Rows of x that i names, and rows of these that k names."""
    net = smelt.NetworkDefinition("picking")
    x = net.add_input("x", "float32", (_ROWS, 3), batch="explicit")
    i = net.add_input("i", "int64", (5,), batch="explicit")
    k = net.add_input("k", "int32", (2,), batch="explicit")
    rows: Any = net.add(ops.Gather(), x, i, name="pick")
    again: Any = net.add(ops.Gather(), rows, k, name="pick again")
    net.mark_output(net.add_activation(again, "relu", name="y"))
    return net


class Picking:
    """The network's engine on a device, with inputs that are in range and others."""

    def __init__(self, engine: smelt.Engine) -> None:
        """Take the engine, which the caller closes."""
        self.engine = engine
        x = np.arange(3 * _ROWS, dtype=np.float32).reshape(_ROWS, 3)
        i = np.array([0, 3, -4, -1, 2])
        k = np.array([4, -3], np.int32)
        self.good: dict[str, Array] = {"x": x, "i": i, "k": k}
        self.bad = self.good | {"i": np.array([0, 1, 2, 3, 10**9])}
        self.bad_twice = self.bad | {"k": np.array([5, 0], np.int32)}
        self.bad_later = self.good | {"k": np.array([-6, 0], np.int32)}
        self.right = np.maximum(x[i][k], 0)

    def bindings(self, inputs: dict[str, Array]) -> tuple[list[Array], Array]:
        """Arrays by index, and the one that takes the output."""
        made = np.zeros_like(self.right)
        return [inputs[b.name] if b.is_input else made for b in self.engine.bindings], made

    def check_run(self, context: smelt.ExecutionContext) -> None:
        """Run in range, which must be right whatever was before."""
        (made,) = context.run(self.good).values()
        assert np.array_equal(made, self.right)


def check_synchronous(picking: Picking) -> None:
    """``run`` and ``execute`` raise, once, and name the first layer; the next run is right."""
    message = r"gather 'pick': index 1000000000 is out of range for an axis of 4 elements"
    with picking.engine.create_context() as context:
        for _ in range(2):
            picking.check_run(context)
            for bad in (picking.bad, picking.bad_twice):
                with pytest.raises(smelt.IndexRangeError, match=message):
                    context.run(bad)
            with pytest.raises(IndexError, match=r"'pick again.*': index -6 is out of range .* 5"):
                context.run(picking.bad_later)
            picking.check_run(context)
            with pytest.raises(smelt.IndexRangeError, match=message):
                context.execute(1, picking.bindings(picking.bad)[0])
            arrays, made = picking.bindings(picking.good)
            context.execute(1, arrays)
            assert np.array_equal(made, picking.right)
            context.profiler = _Silent()


class _Silent:
    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Hear, and say nothing."""


def check_arrays_there(picking: Picking) -> None:
    """On a GPU's own arrays ``run`` raises, too."""
    device = cuda_device()
    stream = CudaStream(device)

    def there(array: Array) -> CudaArray:
        memory = CudaMemory(device).allocate(array.nbytes, "test")
        copy_memory(device, memory.address, int(array.ctypes.data), array.nbytes, stream)
        stream.synchronize()
        return CudaArray(memory, DType.from_numpy(array.dtype), array.shape)

    good, bad = (
        {name: there(array) for name, array in inputs.items()}
        for inputs in (picking.good, picking.bad)
    )
    with stream, picking.engine.create_context() as context:
        for _ in range(2):
            with pytest.raises(smelt.IndexRangeError, match="'pick'"):
                context.run(bad)
            (made,) = context.run(good).values()
            back = np.zeros_like(picking.right)
            address = made.allocation.address
            copy_memory(device, int(back.ctypes.data), address, back.nbytes, stream)
            stream.synchronize()
            assert np.array_equal(back, picking.right)


def check_queued(picking: Picking, device: str) -> None:
    """After ``enqueue`` the stream's ``synchronize`` raises, once, also for a closed context."""
    with picking.engine.create_context() as context, smelt.Stream(device) as stream:
        context.enqueue(1, picking.bindings(picking.bad)[0], stream)
        with pytest.raises(smelt.IndexRangeError, match="'pick'"):
            stream.synchronize()
        stream.synchronize()
        arrays, made = picking.bindings(picking.good)
        context.enqueue(1, arrays, stream)
        stream.synchronize()
        assert np.array_equal(made, picking.right)
        context.enqueue(1, picking.bindings(picking.bad)[0], stream)
        context.close()
        with pytest.raises(smelt.IndexRangeError, match="'pick'"):
            stream.synchronize()


def check_next_call(picking: Picking, device: str) -> None:
    """The context's next call raises what nobody has heard of yet, once."""
    with picking.engine.create_context() as context, smelt.Stream(device) as stream:
        calls: list[Callable[[], object]] = [
            lambda: context.run(picking.good),
            lambda: context.execute(1, picking.bindings(picking.good)[0]),
            lambda: context.enqueue(1, picking.bindings(picking.good)[0], stream),
        ]
        for call in calls:
            context.enqueue(1, picking.bindings(picking.bad)[0], stream)
            _wait(stream)
            with pytest.raises(smelt.IndexRangeError, match="'pick'"):
                call()
            picking.check_run(context)
            call()
            stream.synchronize()
        with smelt.Stream(device) as closed:
            context.enqueue(1, picking.bindings(picking.bad)[0], closed)
        with pytest.raises(smelt.IndexRangeError, match="'pick'"):
            context.run(picking.good)
        picking.check_run(context)


def check_shared_stream(picking: Picking, device: str) -> None:
    """What is queued behind a run that failed is done, and each context's error is its own."""
    engine = picking.engine
    with (
        engine.create_context() as one,
        engine.create_context() as other,
        smelt.Stream(device) as stream,
    ):
        one.enqueue(1, picking.bindings(picking.bad)[0], stream)
        arrays, made = picking.bindings(picking.good)
        other.enqueue(1, arrays, stream)
        _wait(stream)
        assert np.array_equal(made, picking.right)
        picking.check_run(other)
        with pytest.raises(smelt.IndexRangeError, match="'pick'"):
            stream.synchronize()
        stream.synchronize()
        picking.check_run(one)
        for context in (one, other):
            context.enqueue(1, picking.bindings(picking.bad)[0], stream)
        for _ in (one, other):
            with pytest.raises(smelt.IndexRangeError, match="'pick'"):
                stream.synchronize()
        stream.synchronize()
        picking.check_run(one)
        picking.check_run(other)


def _wait(stream: smelt.Stream) -> None:
    """Wait until what is queued is done, without hearing of it."""
    done = smelt.Event(stream.device)
    done.record(stream)
    done.synchronize()

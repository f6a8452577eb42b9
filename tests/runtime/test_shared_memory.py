"""What an application binds: shared memory, arrays that say what they are not, no memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError

if TYPE_CHECKING:
    from collections.abc import Callable


def _context(*, size: int = 4) -> smelt.ExecutionContext:
    net = smelt.NetworkDefinition("n")
    x = net.add_input("x", "float32", (size, size), batch="explicit")
    one: Any = net.add(ops.Transpose((1, 0)), x, name="y")
    other: Any = net.add(ops.Relu(), x, name="z")
    net.mark_output(one)
    net.mark_output(other)
    return smelt.build(net, tune="none").create_context()


def _arrays(size: int) -> list[np.ndarray[Any, np.dtype[Any]]]:
    return [np.full((size, size), 7, np.float32) for _ in range(3)]


@pytest.mark.parametrize("size", [4, 128])
def test_an_output_on_the_memory_of_another_array_is_refused(size: int) -> None:
    context, (x, y, z) = _context(size=size), _arrays(size)
    rows = np.zeros((size + 1, size), np.float32)
    for arrays in (
        [x, x, z],
        [x, y, x],
        [x, y, y],
        [rows[:-1], rows[1:], z],
        [x, rows[1:], rows[:-1]],
    ):
        with pytest.raises(BindingError, match=r"and [xyz] share memory"):
            context.execute(1, arrays)
        with pytest.raises(BindingError, match=r"and [xyz] share memory"), smelt.Stream() as stream:
            context.enqueue(1, arrays, stream)
    addresses: list[Any] = [int(a.ctypes.data) for a in (x, y, x)]
    with pytest.raises(BindingError, match="share memory"):
        context.execute(1, addresses)
    context.execute(1, [x, y, z])
    context.execute(1, [x[::-1], y, z])
    assert (y == 7).all()


def test_inputs_may_share_memory() -> None:
    net = smelt.NetworkDefinition("n")
    a, b = (net.add_input(name, "float32", (200, 200), batch="explicit") for name in "ab")
    total: Any = net.add(ops.Add(), a, b)
    net.mark_output(total)
    x, y = np.ones((200, 200), np.float32), np.empty((200, 200), np.float32)
    smelt.build(net, tune="none").create_context().execute(1, [x, x, y])
    assert (y == 2).all()


_LIES = {
    "shape": property(lambda _: (128, 128)),
    "__array_interface__": property(
        lambda _: {"data": (0, False), "shape": (128, 128), "typestr": "<f4", "version": 3}
    ),
}
"""It says that it is larger than it is."""


def test_an_array_is_what_numpy_has_recorded_whatever_its_class_says() -> None:
    context, (_, y, z) = _context(size=128), _arrays(128)
    liar: Any = np.ones(6, np.float32).view(type("Liar", (np.ndarray,), _LIES))
    with pytest.raises(BindingError, match=r"\[6\]"):
        context.run({"x": liar})
    for arrays in ([liar, y, z], [y, liar, z]):
        with pytest.raises(BindingError):
            context.execute(1, arrays)
    honest = np.ma.masked_array(np.full((128, 128), 3, np.float32), mask=True, hard_mask=True)
    context.execute(1, [y, honest, z])
    assert (honest.data == 7).all()


def test_an_output_without_memory_of_its_own_is_refused() -> None:
    context, (x, y, _) = _context(size=4), _arrays(4)

    class Made:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.zeros((4, 4), np.float32)

    for output in ([[0.0] * 4] * 4, Made(), 1.5, None, bytes(64)):
        with pytest.raises(BindingError):
            context.execute(1, [x, y, output])
    memory = bytearray(64)
    context.execute(1, [x, y, memoryview(memory).cast("f", (4, 4))])
    assert (np.frombuffer(memory, np.float32) == 7).all()


def _answer(value: object) -> Callable[..., object]:
    def method(*_arguments: object, **_options: object) -> object:
        if isinstance(value, Exception):
            raise value
        return value

    return method


@pytest.mark.parametrize(
    "methods",
    [
        {"__dlpack_device__": _answer(None)},
        {"__dlpack_device__": _answer(("x", "y"))},
        {"__dlpack_device__": _answer((1, 0)), "__dlpack__": _answer(None)},
        {"__dlpack_device__": _answer((1, 0))},
        {"__array_interface__": {"data": "x", "shape": (4, 4), "typestr": "<f4", "version": 3}},
        {"__array__": _answer(OverflowError("boom"))},
    ],
    ids=["no device", "text", "no capsule", "no method", "interface", "raises"],
)
def test_an_array_that_cannot_be_read_is_refused_by_name(methods: dict[str, Any]) -> None:
    context, (x, y, _) = _context(), _arrays(4)
    broken: Any = type("Broken", (), methods)()
    with pytest.raises(BindingError, match="x: "):
        context.run({"x": broken})
    with pytest.raises(BindingError):
        context.execute(1, [broken, x, y])
    with pytest.raises(BindingError):
        context.execute(1, [x, y, broken])


def test_an_array_may_get_another_flag_while_it_is_queued() -> None:
    context, (x, y, z) = _context(), _arrays(4)
    may_run = threading.Event()
    with smelt.Stream() as stream:
        stream.submit(lambda: may_run.wait(30))
        context.enqueue(1, [x, y, z], stream)
        y.setflags(write=False)
        may_run.set()
        stream.synchronize()
    assert (y == 7).all()

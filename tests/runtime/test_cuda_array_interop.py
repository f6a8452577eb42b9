"""Arrays of libraries that have a current stream, through stand-ins for them."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import CudaMemory, CudaStream, PinnedAllocation, copy_memory, cuda_device
from smelt.engine import Space
from smelt.errors import BindingError
from smelt.runtime import _cuda_array_interop as arrays
from tests.support.cuda_engines import affine_gpu_engine, floats_at
from tests.support.engines import COLUMNS, affine, affine_header, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.runtime import Engine
    from tests.support.cuda_driver_stub import StubDriver

Array = np.ndarray[Any, Any]


class _Tensor:
    """As much of a torch or cupy array as is asked for."""

    def __init__(self, shape: tuple[int, ...], index: int = 0, *, gaps: bool = False) -> None:
        self.memory = CudaMemory(cuda_device(index)).allocate(4 * prod(shape), "theirs")
        self.shape, self.index, self.gaps = tuple(shape), index, gaps
        self.dtype: Any = "float32"
        self.is_cuda = True
        self.device = SimpleNamespace(id=index)
        self.data = SimpleNamespace(ptr=self.memory.address)
        self.flags = SimpleNamespace(c_contiguous=not gaps)

    def get_device(self) -> int:
        """Its GPU."""
        return self.index

    def data_ptr(self) -> int:
        """Its address."""
        return self.memory.address

    def is_contiguous(self) -> bool:
        """Whether it has no gaps."""
        return not self.gaps

    def contiguous(self) -> _Tensor:
        """The same without gaps."""
        made = type(self)(self.shape, self.index)
        ctypes.memmove(made.memory.address, self.memory.address, self.memory.size_bytes)
        made.dtype = self.dtype
        return made

    def content(self) -> Array:
        """What is there now."""
        return floats_at(self.memory.address, prod(self.shape)).reshape(self.shape).copy()

    def fill(self, content: Array) -> _Tensor:
        """Write it, now."""
        ctypes.memmove(self.memory.address, content.ctypes.data, content.nbytes)
        return self


@dataclass
class _Library:
    """A module, and the stream on which it works."""

    tensor: type[_Tensor]
    stream: CudaStream


class _Anything:
    """A device's name, or a choice of one, of which nothing is asked."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


@pytest.fixture
def engine(stub: StubDriver) -> Iterator[Engine]:
    with affine_gpu_engine(stub) as found:
        yield found


@pytest.fixture(params=["torch", "cupy"])
def library(
    stub: StubDriver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Library]:
    """One of the two, as a module of that name."""
    del stub
    monkeypatch.setattr(arrays, "_libraries", {})
    found = _library(str(request.param), monkeypatch)
    yield found
    found.stream.close()


def _library(name: str, monkeypatch: pytest.MonkeyPatch) -> _Library:
    tensor: type[_Tensor] = type("Tensor", (_Tensor,), {"__module__": name})
    stream = CudaStream(cuda_device())
    handle = int(stream.handle)

    def empty(shape: tuple[int, ...], dtype: object, **_options: object) -> _Tensor:
        made = tensor(shape)
        made.dtype = dtype
        return made

    def stream_of(_index: int) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=handle, ptr=handle)

    module = SimpleNamespace(
        from_dlpack=None,
        float32="float32",
        float16="float16",
        empty=empty,
        device=_Anything,
        ascontiguousarray=tensor.contiguous,
        cuda=SimpleNamespace(
            current_stream=stream_of,
            get_current_stream=stream_of,
            Device=_Anything,
        ),
    )
    monkeypatch.setitem(sys.modules, name, module)
    return _Library(tensor, stream)


def test_results_are_the_librarys_in_the_order_of_its_stream(
    engine: Engine, library: _Library
) -> None:
    x = batch_of(3)
    given = library.tensor(x.shape).fill(x)
    with engine.create_context() as context:
        y = context.run({"x": given})["y"]
        assert isinstance(y, library.tensor)
        assert not np.array_equal(y.content(), affine(x))
        library.stream.synchronize()
        assert np.array_equal(y.content(), affine(x))


def test_arrays_with_gaps_are_copied_by_their_library(engine: Engine, library: _Library) -> None:
    x = batch_of(2)
    given = library.tensor(x.shape, gaps=True).fill(x)
    with engine.create_context() as context:
        y = context.run({"x": given})["y"]
        library.stream.synchronize()
        assert np.array_equal(y.content(), affine(x))
        with pytest.raises(BindingError, match="y: a GPU array must be contiguous"):
            context.execute(2, [given, given])


def test_execute_waits_for_the_librarys_stream(engine: Engine, library: _Library) -> None:
    x = batch_of(2)
    given, y = library.tensor(x.shape), library.tensor((2, COLUMNS))
    pinned = PinnedAllocation(cuda_device(), x.nbytes, "theirs")
    pinned.bytes[:] = x.reshape(-1).view(np.uint8)
    with engine.create_context() as context:
        copy_memory(cuda_device(), given.memory.address, pinned.address, x.nbytes, library.stream)
        context.execute(2, [given, y])
        assert np.array_equal(y.content(), affine(x))
    pinned.close()


def test_another_library_writes_its_inputs_only_when_they_are_read(
    stub: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_libraries", {})
    first, second = (_library(name, monkeypatch) for name in ("torch", "cupy"))
    x = batch_of(2)
    zeros = PinnedAllocation(cuda_device(), x.nbytes, "zeros")
    zeros.bytes[:] = 0
    with _engine_of_two_inputs(stub) as engine, engine.create_context() as context:
        given, unused = second.tensor(x.shape).fill(x), first.tensor(x.shape)
        y = context.run({"unused": unused, "x": given})["y"]
        copy_memory(cuda_device(), given.memory.address, zeros.address, x.nbytes, second.stream)
        second.stream.synchronize()
        first.stream.synchronize()
        assert not given.content().any()
        assert np.array_equal(y.content(), affine(x))
    for library in (first, second):
        library.stream.close()
    zeros.close()


def _engine_of_two_inputs(stub: StubDriver) -> Engine:
    """The engine ``y = x * a + b`` with an input before x that nobody reads."""
    header = affine_header()
    (plan,), (x, y) = header.plans, header.bindings
    spaces = {Space.INPUT, Space.OUTPUT}
    buffers = tuple(replace(b, start=b.start + (b.space in spaces)) for b in plan.buffers)
    return affine_gpu_engine(
        stub,
        plans=(replace(plan, buffers=buffers),),
        bindings=(replace(x, name="unused"), x, y),
    )


def test_arrays_elsewhere_or_of_another_type_are_refused(engine: Engine, library: _Library) -> None:
    wrong = library.tensor((2, COLUMNS))
    wrong.dtype = "float16"
    with engine.create_context() as context:
        with pytest.raises(
            BindingError, match="x: the array is on cuda:1, but the engine is on cuda:0"
        ):
            context.run({"x": library.tensor((2, COLUMNS), 1)})
        with pytest.raises(BindingError, match="x: the array has dtype float16, expected float32"):
            context.run({"x": wrong})

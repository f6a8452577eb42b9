"""Let the n-th allocation of memory fail, whichever it is, and account for what is given back."""

from __future__ import annotations

import contextlib
import errno
import mmap
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from smelt.devices.cpu import _memory
from smelt.runtime import (
    _cuda_executor,
    _cuda_graph_segments,
    _host_code,
    _host_step_memory,
    _segments,
)
from tests.support.cuda_driver_stub import CUresult

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.support.cuda_driver_stub import StubDriver

_TAKING = (
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuStreamCreate",
    "cuEventCreate",
    "cuLibraryLoadData",
    "cuGraphInstantiate",
)
"""Functions of the driver that hand something out."""


class Countdown:
    """Says which allocation fails: the ``n``-th from now on, and no other."""

    def __init__(self) -> None:
        self.left = 0

    def set(self, number: int) -> None:
        """Let the ``number``-th fail; 0 lets none."""
        self.left = number

    def fails(self) -> bool:
        """Whether this one does."""
        self.left -= 1
        return self.left == 0


class Tracker:
    """Hears of allocations; the sum of what is not given back, by purpose."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        del address
        self.taken[tag] = self.taken.get(tag, 0) + size_bytes

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        del address
        self.taken[tag] -= size_bytes

    @property
    def balance(self) -> dict[str, int]:
        """What is not given back."""
        return {tag: size for tag, size in self.taken.items() if size}


class _Proxy:
    """A module, some of whose functions are others."""

    def __init__(self, module: Any, **functions: Any) -> None:
        self._module = module
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def failing_host_memory(countdown: Countdown) -> Generator[None]:
    """Memory of the process is taken through ``countdown`` meanwhile."""

    def counted(take: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(shape: Any, *arguments: Any, **options: Any) -> Any:
            if np.prod(shape) and countdown.fails():
                raise MemoryError("an allocation that was to fail")
            return take(shape, *arguments, **options)

        return allocate

    def mapped(number: int, size: int, **options: Any) -> mmap.mmap:
        if countdown.fails():
            raise OSError(errno.ENOMEM, "a mapping that was to fail")
        return mmap.mmap(number, size, **options)

    numpy = _Proxy(np, empty=counted(np.empty), zeros=counted(np.zeros))
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(_memory, "mmap", _Proxy(mmap, mmap=mapped)))
        modules = (_memory, _host_code, _segments, _cuda_executor, _cuda_graph_segments)
        for module in (*modules, _host_step_memory):
            patches.enter_context(mock.patch.object(module, "np", numpy))
        yield


def let_driver_fail(stub: StubDriver, countdown: Countdown) -> None:
    """The stub's functions that hand something out do so through ``countdown``."""

    def counted(name: str) -> Callable[..., Any]:
        take = getattr(type(stub), name)

        def call(*arguments: Any) -> Any:
            if countdown.fails():
                return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
            return take(stub, *arguments)

        return call

    for name in _TAKING:
        setattr(stub, name, counted(name))

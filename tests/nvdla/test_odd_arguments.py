"""Arguments of wrong types are refused by the runtime and the port, which go on working."""

from __future__ import annotations

import contextlib
import inspect
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from smelt.nvdla import NvdlaError, Runtime, create_runtime
from smelt.nvdla.port import LocalPort, MachineDriver, NvDlaHeap

if TYPE_CHECKING:
    from collections.abc import Callable

_ODD: Final[list[Any]] = [
    -1,
    1 << 70,
    1.5,
    float("nan"),
    "1",
    b"\0",
    [],
    {},
    object(),
    True,
    np.int32(5000),
    np.uint32((1 << 32) - 1),
    np.float32(3),
    np.zeros(3),
    None,
]
"""Arguments, most of which no parameter has a use for."""


def _methods(kind: type, *, without: set[str]) -> list[str]:
    """Return the names of the public methods with parameters."""
    return [
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and name not in without
        and len(inspect.signature(method).parameters) > 1
    ]


def _call_with_all(method: Callable[..., Any], first: tuple[Any, ...] = ()) -> None:
    """Call a method with every combination of odd arguments after the ``first``."""
    parameters = list(inspect.signature(method).parameters.values())
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY][len(first) :]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for arguments in product(_ODD, repeat=min(len(positional), 2)):
        padded = (*arguments, *[1] * (len(positional) - len(arguments)))
        with contextlib.suppress(NvdlaError):
            method(*first, *padded)
    for name, value in product(named, _ODD):
        with contextlib.suppress(NvdlaError):
            method(*first, *[1] * len(positional), **{name: value})


_RUNTIME: Final = _methods(Runtime, without=set())


@pytest.mark.parametrize("name", _RUNTIME)
def test_the_runtime_refuses_odd_arguments_and_goes_on(name: str) -> None:
    with create_runtime() as runtime:
        _call_with_all(getattr(runtime, name))
        pinned = runtime.allocate_system_memory(64)
        assert pinned.data.nbytes == 64
        runtime.free_system_memory(pinned.mem_handle)


_PORT: Final = _methods(LocalPort, without={"debug_printf"})


@pytest.mark.parametrize("name", _PORT)
def test_a_port_refuses_odd_arguments_and_goes_on(name: str) -> None:
    port = LocalPort(MachineDriver())
    with port:
        session = port.initialize()
        device = port.open(session, 0)
        method = getattr(port, name)
        _call_with_all(method)
        if len(inspect.signature(method).parameters) > 2:
            _call_with_all(method, (session, device))
        pinned = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
        assert pinned.data.nbytes == 64


@pytest.mark.parametrize("size", [np.int32(5000), np.uint16(65535), np.int64(5000)])
def test_a_size_may_be_an_integer_of_numpy(size: Any) -> None:
    with create_runtime() as runtime:
        assert runtime.allocate_system_memory(size).data.nbytes == int(size)


@pytest.mark.parametrize("name", ["configuration", "num_devices"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", b"", [], object(), True, np.zeros(3), None])
def test_a_runtime_of_an_odd_configuration_is_refused(name: str, value: Any) -> None:
    with pytest.raises(NvdlaError):
        create_runtime(**{name: value})

"""What tests on a GPU share: a little kernel, other libraries, memory that must come back."""

from __future__ import annotations

import gc
import importlib.util
import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends.cuda import CudaTarget, compile_kernel
from smelt.devices.cuda import (
    CudaModule,
    KernelArguments,
    LaunchConfig,
    copy_memory,
    fill_memory,
    launch,
)
from smelt.engine import KernelSpec

if TYPE_CHECKING:
    from collections.abc import Generator

    from smelt.devices.cuda import CudaDevice, CudaKernel, CudaStream

Array = np.ndarray[Any, Any]
_ADD = """def kernel(p0, s0):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(p0 + at, tl.load(p0 + at) + s0)
"""
ELEMENTS_OF_A_BLOCK = 128
_SLOW_BYTES = 1 << 30
_SLACK_BYTES = 4 << 20
"""The driver takes and returns memory in pieces."""


def add_kernel(architecture: int = 90) -> CudaKernel:
    """A kernel that adds a number to every element of an array of int32."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels' language is not installed: the extra cuda-build")
    spec = KernelSpec(
        "test",
        (
            ("aligned", (True,)),
            ("dtypes", ("int32",)),
            ("num_stages", 1),
            ("scalars", 1),
            ("num_warps", 4),
        ),
    )
    return compile_kernel(spec, _ADD, CudaTarget(architecture))


class Adder:
    """The kernel on a GPU."""

    def __init__(self, device: CudaDevice) -> None:
        """Compile and load it."""
        major, minor = device.properties.capability
        self.kernel = add_kernel(major * 10 + minor)
        self.module = CudaModule(device, self.kernel.cubin)

    def __call__(
        self, address: int, count: int, number: int, stream: CudaStream, **shape: Any
    ) -> None:
        """Add to ``count`` elements."""
        words = [address, number, *[0] * self.kernel.scratch_words]
        arguments = KernelArguments(words)
        function = self.module.function(self.kernel.entry, self.kernel.dynamic_shared_bytes)
        blocks = count // ELEMENTS_OF_A_BLOCK
        launch(
            function, LaunchConfig((blocks, 1, 1), self.kernel.threads, **shape), arguments, stream
        )


def occupy(device: CudaDevice, address: int, stream: CudaStream) -> None:
    """Queue some 20 milliseconds of work on ``occupied_bytes`` of memory."""
    for _ in range(80):
        fill_memory(device, address, _SLOW_BYTES, stream)


occupied_bytes = _SLOW_BYTES


def download(device: CudaDevice, address: int, array: Array, stream: CudaStream) -> Array:
    """Fill ``array`` from the GPU's memory and return it."""
    copy_memory(device, int(array.ctypes.data), address, array.nbytes, stream)
    stream.synchronize()
    return array


def upload(device: CudaDevice, address: int, array: Array, stream: CudaStream) -> None:
    """Write ``array`` to the GPU's memory."""
    copy_memory(device, address, int(array.ctypes.data), array.nbytes, stream)
    stream.synchronize()


@contextmanager
def nothing_is_lost(device: CudaDevice) -> Generator[None]:
    """Fail when the GPU has less free memory afterwards.

    Of several test processes none can tell: each takes memory while another counts.
    """
    if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
        yield
        return
    gc.collect()
    device.synchronize()
    before = device.free_bytes
    yield
    gc.collect()
    device.synchronize()
    lost = before - device.free_bytes
    assert lost <= _SLACK_BYTES, f"{lost} bytes of the GPU's memory are lost"


def library(name: str) -> Any:
    """Another library that uses the GPU; the test is skipped where it is not installed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)

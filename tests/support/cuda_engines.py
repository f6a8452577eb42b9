"""Small engines for GPUs whose kernels are Python functions: y = (x * a) + b, row by row.

They run on the driver stub, through all of the runtime's own code.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.devices.cuda import ABI_VERSION, CudaArray, CudaKernel, CudaMemory, cuda_device
from smelt.engine import VERSION, Fingerprint
from smelt.runtime import Engine
from smelt.types import DType
from tests.support.cuda_driver_stub import StubDriver, code_for
from tests.support.engines import ADD, COLUMNS, MAX_BATCH, MULTIPLY, affine_data, affine_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pytest

    from smelt.engine import EngineHeader, KernelSpec

Array = np.ndarray[Any, Any]
ARCHITECTURE = "sm_90"


def use_stub(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runtime find this driver, and no device of another."""
    from smelt.devices.cuda import Driver
    from smelt.devices.cuda import _device as devices
    from smelt.devices.cuda import _driver as drivers

    monkeypatch.setattr(drivers, "_drivers", {0: Driver(stub)})
    monkeypatch.setattr(devices, "_devices", {})


def cuda_fingerprint() -> Fingerprint:
    """An engine's for the stub's GPU."""
    return Fingerprint("cuda", ARCHITECTURE, (), "any", ABI_VERSION, VERSION)


def image_of(
    kernels: Iterable[KernelSpec], *, uses_pdl: bool = False
) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    """The records of kernels whose code is their symbol."""
    code = b""
    symbols: list[tuple[str, int]] = []
    for symbol in dict.fromkeys(kernel.symbol for kernel in kernels):
        symbols.append((symbol, len(code)))
        code += CudaKernel(symbol, code_for(ARCHITECTURE, symbol), 128, 0, 2, uses_pdl).to_bytes()
    return code, tuple(symbols)


def rows_of(words: Sequence[int], blocks: int) -> tuple[Array, ...]:
    """The operands of `MULTIPLY` and `ADD`: x, w and out, from a launch's words."""
    x, w, out, columns = words[:4]
    shapes = ((x, blocks * columns), (w, columns), (out, blocks * columns))
    arrays = [floats_at(address, count) for address, count in shapes]
    return arrays[0].reshape(blocks, columns), arrays[1], arrays[2].reshape(blocks, columns)


def floats_at(address: int, count: int) -> Array:
    """So many float32 numbers at an address of the stub's memory."""
    return bytes_at(address, count * 4).view(np.float32)


def bytes_at(address: int, count: int) -> Array:
    """So many bytes at an address of the stub's memory."""
    memory: Any = (ctypes.c_uint8 * count).from_address(address)
    return np.frombuffer(memory, np.uint8)


def _rowwise(operation: Callable[..., Any]) -> Callable[[list[int], int], None]:
    def run(words: list[int], blocks: int) -> None:
        assert words[4:] == [0, 0], "the compiler's scratch pointers"
        x, w, out = rows_of(words, blocks)
        out[:] = operation(x, w)

    return run


def affine_gpu_engine(stub: StubDriver, *, device: str | None = None, **changes: Any) -> Engine:
    """The engine ``y = x * a + b`` on the stub's GPU."""
    for kernel, operation in ((MULTIPLY, np.multiply), (ADD, np.add)):
        stub.kernels[kernel.symbol] = _rowwise(operation)
        stub.words[kernel.symbol] = 6
    code, symbols = image_of((MULTIPLY, ADD))
    header = gpu_header(affine_header(), symbols)
    return engine_of(replace(header, **changes), affine_data(), code, device=device)


def gpu_header(header: EngineHeader, symbols: tuple[tuple[str, int], ...]) -> EngineHeader:
    """The header of the same engine for the stub's GPU."""
    return replace(header, fingerprint=cuda_fingerprint(), symbols=symbols, runtime_symbols=())


def engine_of(
    header: EngineHeader, weights: Any, code: bytes, *, device: str | None = None
) -> Engine:
    """An engine made of parts, bound to a GPU."""
    from smelt.engine import EngineFile

    data = np.frombuffer(weights, np.uint8)
    return Engine(EngineFile(header, data, code, b"", None, "the engine"), device=device)


class StubGpuArray:
    """A float32 array on the GPU, and its content."""

    def __init__(self, content: Array, *, shift: int = 0) -> None:
        """Allocate room for the content, so many bytes further, and write it there."""
        device = cuda_device()
        self.shape, self.size = content.shape, content.nbytes
        self.memory = CudaMemory(device).allocate(self.size + shift, "test")
        self.address = self.memory.address + shift
        self.array = CudaArray(self.memory, DType.FLOAT32, content.shape)
        self.fill(content)

    def fill(self, content: Array) -> None:
        """Write there, now."""
        ctypes.memmove(self.address, content.ctypes.data, self.size)

    def content(self) -> Array:
        """What is there now; nothing is waited for."""
        return read_there(self.address, self.shape)


def read_there(address: int, shape: tuple[int, ...]) -> Array:
    """A copy of the float32 elements at an address."""
    return floats_at(address, prod(shape)).reshape(shape).copy()


def empty_there(rows: int = MAX_BATCH) -> StubGpuArray:
    """Room for a result, which holds no number."""
    return StubGpuArray(np.full((rows, COLUMNS), np.nan, np.float32))

# ruff: noqa: N802  (functions have the driver's own names)
"""Candidates for a GPU that are Python functions, on the driver's stub with a clock.

All compute x + w on three rows of four; they take different times, and some are wrong in one way
or another.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt import ops
from smelt.backends import Family, Tactic
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.backends.cuda.families.vendor_library import library_call
from smelt.devices.cuda import CudaKernel, call_to_bytes
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import BuildError
from smelt.ir import Graph
from smelt.types import DType, Layout, TensorFormat, TensorType, override
from tests.support.cuda_driver_stub import CUresult, StubDriver, code_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.backends import Operands
    from smelt.engine import Step
    from smelt.ir import Node

HOPPER = CudaTarget(90)
_OTHER_MS = 0.5
"""What each launch takes that is not a candidate's."""
Array = np.ndarray[Any, Any]


class ClockedStub(StubDriver):
    """A driver on whose clock each kernel takes its time."""

    def __init__(self) -> None:
        super().__init__(devices=1)
        self.costs_ms: dict[str, float] = {}
        self.times: dict[int, float] = {}
        self.runs: list[str] = []
        self.weights: list[int] = []

    @override
    def _launch(self, function: str, words: list[int], blocks: int) -> None:
        super()._launch(function, words, blocks)
        self.now_ms += self.costs_ms.get(function, _OTHER_MS)
        self.runs.append(function)

    @override
    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:
        def mark() -> None:
            self.times[event] = self.now_ms

        done = super().cuEventRecord(event, stream)
        self._do(stream, mark)
        return done

    @override
    def cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> tuple[CUresult]:
        def mark() -> None:
            self.times[event] = self.now_ms

        self._records[event] = (int(stream), 0)
        return self._do(stream, mark) if flags == 1 else self.cuEventRecord(event, stream)

    @override
    def cuEventElapsedTime(self, start: int, end: int) -> tuple[CUresult, float]:
        return CUresult.CUDA_SUCCESS, self.times[end] - self.times[start]


class Candidates(Family[CudaTarget]):
    """Ways to compute x + w, which behave in many ways."""

    name: ClassVar[str] = "candidates"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        del node, target
        yield from ()

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        del node
        views = [v for v in (*operands.inputs, *operands.outputs) if v is not None]
        launch = Launch(kernel_of(dict(tactic.parameters)["kind"]), tuple(views), (2,), chunks=1)
        return (launch,)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        raise AssertionError((kernel, target))


def kernel_of(kind: Any) -> KernelSpec:
    return KernelSpec("candidates", parameters(kind=kind))


class StubBackend(CudaBackend):
    """Compiles to Python functions."""

    def __init__(self, stub: ClockedStub, dtype: DType) -> None:
        super().__init__(jobs=1)
        self.families = (Candidates(),)
        self.stub, self.dtype = stub, dtype
        self.begun: list[str] = []

    @property
    @override
    def codegen_version(self) -> str:
        return "stub"

    @override
    def begin(self, kernels: Sequence[KernelSpec], target: CudaTarget) -> None:
        self.begun += [str(dict(k.parameters).get("kind", k.family)) for k in kernels]

    @override
    def records(
        self, kernel: KernelSpec, target: CudaTarget, *, wait_s: float | None = None
    ) -> bytes:
        if (call := library_call(kernel)) is not None:
            return call_to_bytes(call)
        what = kernel["what"] if kernel.family == "result_check" else kernel["kind"]
        if what == "broken":
            raise BuildError("kernel broken does not compile")
        if what == "late" and wait_s is not None:
            raise TimeoutError
        symbol = kernel.symbol
        self.stub.words[symbol] = 5 if kernel.family == "candidates" else len(kernel["dtypes"]) + 3
        self.stub.kernels[symbol] = (
            result_check_function(kernel)
            if kernel.family == "result_check"
            else self._function(what)
        )
        if kernel.family == "candidates":
            self.stub.costs_ms[symbol] = COSTS_MS[what]
        shared = 1 << 19 if what == "too large" else 0
        code = code_for("sm_90", symbol)
        return CudaKernel(symbol, code, 128, shared, 2, supports_pdl=True).to_bytes()

    def _function(self, kind: str) -> Callable[[list[int], int], None]:
        runs = [0]
        stub = self.stub

        def run(words: list[int], blocks: int) -> None:
            assert words[3:] == [0, 0], "the compiler's scratch pointers"
            assert blocks == 1
            stub.weights.append(words[1])
            places = zip(words[:3], (12, 4, 12), strict=True)
            x, w, y = (elements(place, count, self.dtype.numpy) for place, count in places)
            total = (x.reshape(3, 4) + w).reshape(-1)
            runs[0] += 1
            if kind == "wrong":
                total = total + np.array(0.1, total.dtype)
            if kind == "moving":
                total = total * np.array(1 + 0.00005 * (runs[0] % 3), total.dtype)
            if kind == "racing" and runs[0] > 6:  # right as long as nothing else runs beside it
                total[5] = 0.25
            y[: 7 if kind == "short" else 12] = total[: 7 if kind == "short" else 12]

        return run


COSTS_MS = {
    "slow": 0.02, "fast": 0.01, "wrong": 0.001, "moving": 0.001, "racing": 0.001,
    "short": 0.001, "broken": 0.001, "late": 0.005, "too large": 0.001,
}  # fmt: skip


def elements(address: int, count: int, dtype: Any) -> Array:
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), dtype)


def result_check_function(kernel: KernelSpec) -> Callable[[list[int], int], None]:
    """What the text of a gauge's kernel does."""
    what, dtypes = kernel["what"], [DType(d).numpy for d in kernel["dtypes"]]

    def run(words: list[int], blocks: int) -> None:
        if what == "flush":
            return
        count = words[3]
        a, b = (elements(words[k], count, dtypes[k]).astype(np.float64) for k in (0, 1))
        if what == "change":
            far = (a != b).astype(np.float64)
        else:
            far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
            far = np.where(np.isnan(far), np.inf, far)
        out = elements(words[2], blocks, np.float32)
        for block in range(blocks):
            out[block] = far[block * 4096 : (block + 1) * 4096].max()

    return run


def node_of(dtype: DType) -> Node:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(dtype, (3, 4)))
    w = graph.add_constant(np.linspace(-1, 1, 4).astype(dtype.numpy), "w")
    return graph.add(ops.Add(), x, w, name="node")


def tactic_of(kind: str, dtype: DType, hint: float = 1e-6) -> Tactic:
    linear = TensorFormat(dtype, Layout.LINEAR)
    return Tactic(
        "candidates", parameters(kind=kind), (linear, linear), (linear,), estimated_seconds=hint
    )

"""cuBLASLt itself on a GPU: every algorithm of products against numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import CublasLt, MatmulCall
from smelt.types import DType
from tests.support.noise import noise
from tests.support.vendor_library_on_gpu import (
    check_twice,
    decoded,
    fault_of,
    library_on,
    runs_of,
    stored,
)

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def library(gpu: CudaDevice) -> CublasLt:
    opened = library_on(gpu, CublasLt.provider)
    assert isinstance(opened, CublasLt)
    return opened


class _Product:
    """A call's operands, and what must come of them."""

    def __init__(self, call: MatmulCall) -> None:
        self.call = call
        m, r, c, d = call.matrices, call.rows, call.columns, call.depth
        first = (m, d, r) if call.transposed[0] else (m, r, d)
        second = (m, c, d) if call.transposed[1] else (m, d, c)
        shapes: list[tuple[tuple[int, ...], DType]]
        shapes = [(first, call.factors), (second, call.factors)]
        shapes += [((m, r, c), call.result)] * call.adds + [((c,), call.result)] * call.bias
        self.arrays = [stored(noise(*s, seed=k), t) for k, (s, t) in enumerate(shapes)]

    def wanted(self) -> Array:
        call = self.call
        x, w, *others = [
            decoded(a, call.factors if k < 2 else call.result) for k, a in enumerate(self.arrays)
        ]
        x = x.swapaxes(1, 2) if call.transposed[0] else x
        w = w.swapaxes(1, 2) if call.transposed[1] else w
        total = call.alpha * (x.astype(np.float64) @ w)
        for array in others:
            total = total + array
        if call.activation == "relu":
            total = np.maximum(total, 0)
        if call.activation == "gelu":
            inner = np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)
            total = 0.5 * total * (1 + np.tanh(inner))
        return total

    def runs(self, gpu: CudaDevice) -> list[Array]:
        call = self.call
        return runs_of(gpu, call, self.arrays, (call.matrices, call.rows, call.columns))


def _calls() -> list[MatmulCall]:
    plain = MatmulCall(
        version=0, matrices=1, rows=96, columns=64, depth=256, transposed=(False, True),
        factors=DType.FLOAT16, result=DType.FLOAT16, input_precision="ieee", alpha=1.0,
        adds=False, bias=True, activation="relu",
    )  # fmt: skip
    return [
        plain,
        replace(plain, adds=True),  # the bias, the residual and ReLU in one call
        replace(plain, activation="gelu"),
        replace(plain, bias=False, activation=""),
        replace(plain, rows=49, columns=2048, depth=512, adds=True),  # few rows: sums in pieces
        replace(plain, factors=DType.BFLOAT16, result=DType.BFLOAT16),
        replace(plain, result=DType.FLOAT32),
        replace(plain, factors=DType.FLOAT32, result=DType.FLOAT32, activation=""),
        replace(plain, transposed=(True, False), alpha=0.5, activation=""),
        replace(plain, matrices=6, transposed=(False, False), bias=False, activation=""),
    ]


@pytest.mark.parametrize("number", range(len(_calls())))
def test_every_algorithm_multiplies_rightly_and_alike_each_time(
    gpu: CudaDevice, library: CublasLt, number: int
) -> None:
    call = replace(_calls()[number], version=library.version)
    proposed = library.algorithms(call, count=8, max_workspace_bytes=32 << 20)
    proposed += library.algorithms(call, count=8, max_workspace_bytes=0)
    assert proposed

    def check() -> None:
        for algorithm, room in dict.fromkeys(proposed):
            product = _Product(replace(call, algorithm=algorithm, workspace_bytes=room))
            fault = fault_of(product.runs(gpu), product.wanted(), call.result)
            assert fault is None, (algorithm, fault)

    check_twice(gpu, check)

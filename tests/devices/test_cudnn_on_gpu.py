"""cuDNN itself on a GPU: every plan of convolutions against the op's reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.devices.cuda import ConvolutionCall, Cudnn, KernelLoader, call_to_bytes
from smelt.errors import EngineMismatchError
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
_COUNT = 12
_TF32_ERROR = 3e-3


@pytest.fixture(scope="module")
def library(gpu: CudaDevice) -> Cudnn:
    opened = library_on(gpu, Cudnn.provider)
    assert isinstance(opened, Cudnn)
    return opened


class _Convolution:
    """A call's operands, and what must come of them."""

    def __init__(self, call: ConvolutionCall) -> None:
        self.call = call
        shapes: list[tuple[tuple[int, ...], DType]]
        shapes = [(call.images, call.factors), (call.filters, call.factors)]
        shapes += [(call.shape, call.result)] * call.adds
        shapes += [((call.filters[0],), call.result)] * call.bias
        self.arrays = [
            _last(stored(noise(*shape, seed=seed), dtype))
            for seed, (shape, dtype) in enumerate(shapes)
        ]

    def wanted(self) -> Array:
        call = self.call
        x, w, *others = [decoded(a, call.factors) for a in self.arrays]
        op = ops.Conv(call.filters[2:], call.strides, call.pads, call.dilations, call.groups)
        (total,) = op.reference(_first(x), _first(w), None)
        total = _last(total.astype(np.float64))
        for array in others:
            total = total + array
        return np.maximum(total, 0) if call.relu else total

    def runs(self, gpu: CudaDevice) -> list[Array]:
        count, columns, *extents = self.call.shape
        return runs_of(gpu, self.call, self.arrays, (count, *extents, columns))


def _last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if array.ndim > 1 else array)


def _first(array: Array) -> Array:
    return np.moveaxis(array, -1, 1)


_PLAIN = ConvolutionCall(
    version=0, images=(4, 64, 14, 14), filters=(96, 64, 3, 3), strides=(1, 1), dilations=(1, 1),
    pads=(1, 1, 1, 1), factors=DType.FLOAT16, result=DType.FLOAT16, input_precision="ieee",
    adds=False, bias=True, relu=True,
)  # fmt: skip
_ONE_TAP: dict[str, Any] = {"filters": (96, 64, 1, 1), "pads": (0, 0, 0, 0)}
_FLOAT32: dict[str, Any] = {"factors": DType.FLOAT32, "result": DType.FLOAT32}
_CALLS = {
    "bias and relu": _PLAIN,
    "residual": replace(_PLAIN, adds=True),
    "nothing behind it": replace(_PLAIN, bias=False, relu=False),
    "residual alone": replace(_PLAIN, adds=True, bias=False, relu=False),
    "relu alone": replace(_PLAIN, bias=False),
    "bias alone": replace(_PLAIN, relu=False),
    "one tap": replace(_PLAIN, **_ONE_TAP, adds=True),
    "strides": replace(_PLAIN, **_ONE_TAP, strides=(2, 2)),
    "stem": replace(
        _PLAIN, images=(2, 3, 64, 64), filters=(64, 3, 7, 7), strides=(2, 2), pads=(3, 3, 3, 3)
    ),
    "groups": replace(_PLAIN, filters=(96, 16, 3, 3)),
    "depthwise": replace(_PLAIN, filters=(64, 1, 3, 3)),
    "dilations": replace(_PLAIN, dilations=(2, 2), pads=(2, 2, 2, 2)),
    "uneven pads": replace(_PLAIN, strides=(2, 2), pads=(0, 0, 1, 1)),
    "three axes": replace(
        _PLAIN, images=(1, 16, 6, 8, 8), filters=(32, 16, 3, 3, 3), strides=(1, 1, 1),
        dilations=(1, 1, 1), pads=(1,) * 6,
    ),
    "bfloat16": replace(_PLAIN, factors=DType.BFLOAT16, result=DType.BFLOAT16, adds=True),
    "float32": replace(_PLAIN, **_FLOAT32, adds=True),
    "tf32": replace(_PLAIN, **_FLOAT32, input_precision="tf32", adds=True),
    "odd channels": replace(_PLAIN, images=(1, 5, 9, 9), filters=(7, 5, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", _CALLS)
def test_every_plan_convolves_rightly_and_alike_each_time(
    gpu: CudaDevice, library: Cudnn, name: str
) -> None:
    call = replace(_CALLS[name], version=library.version)
    proposed = library.engines(call, count=_COUNT)
    assert proposed
    wanted = _Convolution(call).wanted()
    bound = _TF32_ERROR if call.input_precision == "tf32" else None

    def check() -> None:
        for engine in proposed:
            decided = replace(
                call, engine=engine.number, knobs=engine.knobs,
                workspace_bytes=engine.workspace_bytes,
            )  # fmt: skip
            fault = fault_of(_Convolution(decided).runs(gpu), wanted, call.result, bound)
            assert fault is None, (engine, fault)

    check_twice(gpu, check)


def test_engines_and_knobs_that_there_are_not_are_refused(gpu: CudaDevice, library: Cudnn) -> None:
    call = replace(_PLAIN, version=library.version)
    known = library.engines(call, count=1)[0]
    knob = known.knobs[0][0]
    for engine, knobs in (
        (1 << 20, ()),
        (known.number, ((knob, 1 << 20),)),
        (known.number, ((999, 1),)),
    ):
        wrong = replace(call, engine=engine, knobs=knobs, workspace_bytes=1 << 20)
        with pytest.raises(EngineMismatchError, match="build the engine again here"):
            KernelLoader(gpu).load(call_to_bytes(wrong))

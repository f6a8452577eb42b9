"""An engine for GPUs on a machine that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from smelt.devices.cuda import CudaError
from smelt.errors import DeviceError, MissingExtraError
from smelt.runtime import _cuda_code
from tests.support.cuda_engines import affine_gpu_engine

if TYPE_CHECKING:
    from tests.support.cuda_driver_stub import StubDriver


def test_a_gpu_that_fails_is_told_by_the_drivers_own_number(
    stub: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> NoReturn:
        raise CudaError("cuDevicePrimaryCtxRetain", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")

    monkeypatch.setattr(_cuda_code, "find_gpu", fail)
    with pytest.raises(CudaError, match=r"^cuDevicePrimaryCtxRetain") as caught:
        affine_gpu_engine(stub).create_context()
    assert caught.value.status == 2


@pytest.mark.parametrize(
    ("missing", "detail"),
    [
        (DeviceError("the NVIDIA driver cannot be loaded"), "the NVIDIA driver cannot be loaded. "),
        (
            MissingExtraError("cuda-bindings", "cuda"),
            "cuda-bindings is not installed; it is in smelt's extra",
        ),
    ],
)
@pytest.mark.parametrize(
    ("network", "advice"),
    [
        ("", "build it again from its model with device='cpu' (`smelt build MODEL --device cpu`)"),
        ("kept", "retune it with device='cpu' (`smelt retune ENGINE --device cpu -o NEW.engine`)"),
    ],
)
def test_without_a_gpu_an_engine_says_what_it_is_for_and_what_else_can_be_done(
    stub: StubDriver,
    monkeypatch: pytest.MonkeyPatch,
    missing: DeviceError | MissingExtraError,
    detail: str,
    network: str,
    advice: str,
) -> None:
    def find_none(*_arguments: object) -> NoReturn:
        raise missing

    monkeypatch.setattr(_cuda_code, "find_gpu", find_none)
    with pytest.raises(type(missing)) as caught:
        affine_gpu_engine(stub, network=network).create_context()
    assert str(caught.value).startswith(f"the engine is for NVIDIA GPUs (sm_90): {detail}")
    assert str(caught.value).endswith(f"for this machine's processor, {advice}")

"""What tests of libraries' calls run on where there is no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.devices.cuda import cuda_device
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import use_stub

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """A driver that does nothing before it is waited for."""
    made = StubDriver(lazy=True)
    use_stub(made, monkeypatch)
    return made


@pytest.fixture
def device(driver: StubDriver) -> CudaDevice:
    """Its first GPU."""
    del driver
    return cuda_device(0)

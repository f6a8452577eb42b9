"""What tests of execution on GPUs run on."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import use_stub

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDriver]:
    """A lazy driver; what a test takes of it must have been given back at its end."""
    found = StubDriver(lazy=True)
    use_stub(found, monkeypatch)
    yield found
    gc.collect()
    assert set(found.live_kinds()) <= {"context"}

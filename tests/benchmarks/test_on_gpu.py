"""Measurements on GPUs run, on an interpreted one on every machine and on one that is there."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import gpu_scenarios as scenarios
from tests.support.host_gpu import HostGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Scenario = Callable[[], None]
    Where = Callable[[Scenario], None]


@pytest.fixture(scope="module")
def interpreted() -> Iterator[HostGpu]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels' language is not installed: the extra cuda-build")
    made = HostGpu(scenarios.__name__)
    yield made
    made.close()


@pytest.fixture(params=["interpreted", pytest.param("there", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> Where:
    """Runs a scenario on the GPU of the case."""
    if request.param == "there":
        request.getfixturevalue("gpu")
        return lambda scenario: scenario()
    host: HostGpu = request.getfixturevalue("interpreted")
    return lambda scenario: host.run(scenario.__name__)


def test_index_checks_have_rows_of_a_warm_and_a_cold_cache_and_of_calls(where: Where) -> None:
    where(scenarios.index_checks_are_measured)


def test_a_convnext_is_timed_whatever_its_layer_scales(where: Where) -> None:
    where(scenarios.a_convnext_is_timed)

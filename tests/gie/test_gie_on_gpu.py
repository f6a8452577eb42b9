"""GIE's requirements on GPUs: interpreted ones on every machine, and those that are there."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.gie import gpu_scenarios as scenarios
from tests.support.host_gpu import HostGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.devices.cuda import CudaDevice

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


@pytest.fixture(params=["interpreted", pytest.param("there", marks=pytest.mark.gpu)])
def where_two_are(request: pytest.FixtureRequest) -> Where:
    """Runs a scenario on two GPUs."""
    if request.param == "there":
        request.getfixturevalue("gpus")
        return lambda scenario: scenario()
    host: HostGpu = request.getfixturevalue("interpreted")
    return lambda scenario: host.run(scenario.__name__)


@pytest.mark.requirement("G-47", "G-48", "G-52")
def test_buffers_are_addresses_on_the_gpu_in_the_order_of_the_bindings(where: Where) -> None:
    where(scenarios.buffers_are_addresses_in_the_order_of_the_bindings)


@pytest.mark.requirement("G-49", "G-64")
def test_bindings_are_float32_in_nchw_without_gaps_in_either_mode(where: Where) -> None:
    where(scenarios.bindings_are_float32_in_nchw_without_gaps)


@pytest.mark.requirement("G-53")
def test_too_large_a_batch_is_refused_in_either_call(where: Where) -> None:
    where(scenarios.too_large_a_batch_is_refused_in_either_call)


@pytest.mark.requirement("G-50", "G-54")
def test_copies_and_a_run_follow_one_another_on_the_applications_stream(where: Where) -> None:
    where(scenarios.copies_and_an_enqueued_run_follow_one_another_on_the_applications_stream)


@pytest.mark.requirement("G-51")
def test_the_event_says_when_inputs_may_be_refilled(where: Where) -> None:
    where(scenarios.the_event_says_when_inputs_may_be_refilled)


@pytest.mark.requirement("G-55", "G-57", "G-59")
def test_the_profiler_hears_of_every_layer_also_when_asynchronous(where: Where) -> None:
    where(scenarios.the_profiler_hears_of_every_layer_also_when_asynchronous)


@pytest.mark.requirement("G-42")
def test_half2_mode_stores_sixteen_bits_between_layers_and_is_off_by_default(where: Where) -> None:
    where(scenarios.half2_mode_stores_sixteen_bits_between_layers_and_is_off_by_default)


@pytest.mark.requirement("G-60")
def test_sixteen_bit_weights_alone_change_few_digits(where: Where) -> None:
    where(scenarios.sixteen_bit_weights_alone_change_few_digits)


@pytest.mark.requirement("G-63")
def test_half2_takes_sixteen_bit_weights_and_the_mode(where: Where) -> None:
    where(scenarios.half2_takes_sixteen_bit_weights_and_the_mode)


@pytest.mark.requirement("G-64")
def test_odd_batches_run_in_half2(where: Where) -> None:
    where(scenarios.odd_batches_run_in_half2)


@pytest.mark.requirement("G-65")
def test_an_engine_is_bound_to_the_gpu_selected_when_it_was_made(where_two_are: Where) -> None:
    where_two_are(scenarios.an_engine_is_bound_to_the_gpu_that_was_selected_when_it_was_made)


@pytest.mark.requirement("G-66")
def test_a_context_is_bound_to_the_gpu_of_its_engine(where_two_are: Where) -> None:
    where_two_are(scenarios.a_context_is_bound_to_the_gpu_of_its_engine)


@pytest.mark.requirement("G-67")
def test_a_thread_with_another_gpu_selected_is_told(where_two_are: Where) -> None:
    where_two_are(scenarios.a_thread_with_another_gpu_selected_is_told_in_either_call)


@pytest.mark.requirement("G-25")
def test_candidates_run_on_the_gpu_and_the_fastest_is_chosen(gpu: CudaDevice) -> None:
    del gpu
    scenarios.candidates_are_timed_and_the_fastest_is_chosen()


@pytest.mark.requirement("G-62")
def test_half2_is_the_fastest_mode_for_larger_batches(gpu: CudaDevice) -> None:
    del gpu
    scenarios.half2_is_the_fastest_mode_for_larger_batches()

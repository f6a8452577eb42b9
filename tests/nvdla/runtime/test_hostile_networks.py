"""Descriptors that hardware would choke on end in our errors, and the machine runs on."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError, create_runtime
from smelt.nvdla.loadable import CommonOperation, Consumer, Loadable
from smelt.nvdla.port import LocalPort, MachineDriver
from tests.nvdla.runtime.test_goldens import loadable_of, run_to_image

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("CONV_D_L0_0_small", "SDP_X1_L0_0_small", "PDP_L0_0_small", "CDP_L0_0_small")


@functools.cache
def _machine() -> MachineDriver:
    return MachineDriver("nv_small", dram_bytes=1 << 22, timeout_s=0.5)


def _run(loadable: Loadable) -> bytes:
    with create_runtime(LocalPort(_machine())) as runtime:
        return run_to_image(runtime, loadable.to_bytes())


@settings(max_examples=40)
@given(
    st.sampled_from(NAMES),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2**16), st.binary(min_size=1, max_size=4))
    ),
)
def test_changed_descriptors_never_do_more_than_fail(
    shared: Path, name: str, changes: list[tuple[int, int, bytes]]
) -> None:
    good = Loadable.from_bytes(loadable_of(shared, name))
    blobs = list(good.blobs)
    for index, place, patch in changes:
        data = bytearray(blobs[index].data)
        start = place % (len(data) - len(patch))
        data[start : start + len(patch)] = patch
        blobs[index] = replace(blobs[index], data=bytes(data))
    with contextlib.suppress(NvdlaError):
        _run(replace(good, blobs=tuple(blobs)))
    golden = (shared / "nvdla" / "golden").glob(f"{name}_*/dla/o_000000.dimg")
    assert _run(good) == next(golden).read_bytes()


@pytest.mark.requirement("D-7")
def test_an_operation_that_waits_for_itself_is_refused(shared: Path) -> None:
    good = Loadable.from_bytes(loadable_of(shared, "PDP_L0_0_small"))
    graph = CommonOperation.from_bytes(good.blobs[3].data)
    looped = replace(
        graph, dependency_count=1, consumers=(Consumer(0, 1), *graph.consumers[1:])
    ).to_bytes()
    blobs = (*good.blobs[:3], replace(good.blobs[3], data=looped), *good.blobs[4:])
    with pytest.raises(NvdlaError):
        _run(replace(good, blobs=blobs))


@pytest.mark.requirement("D-9", "D-20")
def test_what_the_hardware_lacks_loads_and_is_refused_at_submission(shared: Path) -> None:
    reshape = loadable_of(shared, "RBK_L0_0")
    with create_runtime(LocalPort(_machine())) as runtime:
        runtime.load(reshape)
        assert runtime.get_num_output_tensors() == 1
        with pytest.raises(NvdlaError) as caught:
            run_to_image(runtime, reshape)
    assert caught.value.status is NvError.NOT_SUPPORTED

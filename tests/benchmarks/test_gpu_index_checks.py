"""What index checks cost on a GPU is measured between engines that differ in nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest

import smelt
from benchmarks.support.gpu_index_checks import engine_without_looking, kernels_that_look
from tests.support.index_errors import Picking, picking_network

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice


def test_only_kernels_that_look_at_indices_are_compiled_anew() -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    with smelt.build(picking_network(), device="cuda:sm_90", tune="none") as engine:
        kernels = kernels_that_look(engine)
        assert [kernel.family for kernel in kernels] == ["gather", "gather"]
        with engine_without_looking(engine, kernels) as twin:
            before, after = dict(engine.header.symbols), dict(twin.header.symbols)
            looking = {kernel.symbol for kernel in kernels}
            assert {symbol for symbol in before if before[symbol] != after[symbol]} == looking
            assert twin.code.startswith(engine.code)
            added = twin.code[len(engine.code) :]
            assert added not in engine.code
            assert twin.header.plans == engine.header.plans


def test_kernels_that_look_in_another_way_are_not_taken_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    with smelt.build(picking_network(), device="cuda:sm_90", tune="none") as engine:
        kernels = kernels_that_look(engine)
        backend = "smelt.backends.cuda.CudaBackend"
        monkeypatch.setattr(f"{backend}.generate", Mock(return_value="def kernel(): pass"))
        monkeypatch.setattr(f"{backend}.compile", Mock())
        with pytest.raises(SystemExit, match="in a way that this benchmark does not know"):
            engine_without_looking(engine, kernels)


@pytest.mark.gpu
def test_the_other_engine_tells_of_no_index(gpu: CudaDevice) -> None:
    with smelt.build(picking_network(), device=f"cuda:{gpu.index}", tune="none") as engine:
        picking = Picking(engine)
        with (
            engine_without_looking(engine, kernels_that_look(engine)) as twin,
            engine.create_context() as checked,
            twin.create_context() as unchecked,
        ):
            with pytest.raises(smelt.IndexRangeError):
                checked.run(picking.bad)
            unchecked.run(picking.bad)
            (made,) = unchecked.run(picking.good).values()
            assert np.array_equal(made, picking.right)

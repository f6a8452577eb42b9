"""Generated: kernels that compute addresses from data stay inside their memory whatever the data.

Every buffer lies between guard pages, so that a kernel that leaves it dies on the spot, and what
lies beside a result must stay as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends import Aliasing
from smelt.backends.cpu import CpuBackend, host_target
from smelt.errors import IndexRangeError, ShapeError
from smelt.ir import Graph
from smelt.types import DType, TensorType
from tests.support.conformance import TrialRunner, single_job_backend
from tests.support.cpu_families import make_node, run_tactic
from tests.support.hostile_indices import (
    EXTENT,
    Picking,
    out_of_range,
    pickings,
    with_hostile_weights,
)
from tests.support.trials import sample, trials_of_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Family, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Node

Array = np.ndarray[Any, Any]

_RESIZES = 8
_PICKINGS = [
    pytest.param(picking, dtype, id=f"{picking.name} by {dtype}")
    for dtype in ("int32", "int64")
    for picking in pickings(dtype)
]


def _ways(picking: Picking) -> Iterator[tuple[Family[CpuTarget], Node, Tactic, dict[str, int]]]:
    """Each tactic, for fixed extents and for symbols; and the symbols' values."""
    backend = CpuBackend(jobs=1)
    for symbols in ({}, picking.symbols):
        node = make_node(picking.op, picking.arrays, frozenset(), symbols)
        values = {name: picking.arrays[i].shape[axis] for (i, axis), name in symbols.items()}
        for tactic in backend.candidates(node, host_target())[0]:
            if not tactic.is_host_step and tactic.aliasing is Aliasing.NONE:
                yield backend.family(tactic.family), node, tactic, values


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize(("picking", "dtype"), _PICKINGS)
def test_a_kernel_stays_inside_and_tells_of_what_is_out_of_range(
    picking: Picking, dtype: str, *, at_end: bool
) -> None:
    tried = 0
    for family, node, tactic, values in _ways(picking):
        for index in (EXTENT - 1, -EXTENT):
            arrays = picking.with_index(index)
            made = run_tactic(family, node, tactic, arrays, values=values, at_end=at_end)
            assert np.array_equal(made[0], picking.op.reference(*arrays)[0])
        for index in out_of_range(dtype):
            detail = np.zeros(2, np.int64)
            arrays = picking.with_index(index)
            run_tactic(family, node, tactic, arrays, values=values, at_end=at_end, errors=detail)
            assert detail.tolist() == [index, ~EXTENT]
            with pytest.raises(IndexRangeError, match=f"index {index} is out of range"):
                picking.op.reference(*arrays)
        tried += 1
    assert tried >= 2


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize(("picking", "dtype"), _PICKINGS)
def test_a_kernel_touches_nothing_of_an_axis_without_elements(
    picking: Picking, dtype: str, *, at_end: bool
) -> None:
    del dtype
    arrays = picking.without_elements()
    for family, node, tactic, values in _ways(picking):
        if values:
            detail = np.zeros(2, np.int64)
            known = values | {f"n{EXTENT}": 0}
            run_tactic(family, node, tactic, arrays, values=known, at_end=at_end, errors=detail)
            assert detail[1] == ~0
    with pytest.raises(IndexRangeError, match="an axis of 0 elements"):
        picking.op.reference(*arrays)


@pytest.mark.parametrize(("picking", "dtype"), _PICKINGS)
def test_constant_indices_out_of_range_are_refused_by_inference(
    picking: Picking, dtype: str
) -> None:
    for index in out_of_range(dtype):
        with pytest.raises(ShapeError, match=f"{picking.op.name}.*index {index} is out of range"):
            make_node(picking.op, picking.with_index(index), frozenset({1}))
    make_node(picking.op, picking.arrays, frozenset({1}))


@pytest.mark.parametrize(("op", "count"), [(ops.GatherElements(1), 2), (ops.ScatterElements(1), 3)])
def test_more_indices_than_data_off_the_axis_are_refused(
    op: ops.GatherElements | ops.ScatterElements, count: int
) -> None:
    def node_on(rows: Any, others: Any) -> Graph:
        graph = Graph()
        kinds = [TensorType(DType.FLOAT32, (rows, 4)), TensorType(DType.INT64, (others, 9))]
        kinds.append(TensorType(DType.FLOAT32, (others, 9)))
        values = [graph.add_input(f"x{i}", kind) for i, kind in enumerate(kinds[:count])]
        graph.add(op, *values, name="node")
        return graph

    with pytest.raises(
        ShapeError, match=r"axis 0 of the indices has 3 elements, more than the 2 of data"
    ):
        node_on(2, 3)
    node_on(3, 2)
    arrays: list[Array] = [np.zeros((2, 4)), np.zeros((3, 9), np.int64), np.zeros((3, 9))]
    with pytest.raises(
        IndexRangeError, match="axis 0 of the indices has 3 elements, more than the 2 of the data"
    ):
        op.reference(*arrays[:count])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_one_hot_vectors_of_what_is_out_of_range_are_off(dtype: str) -> None:
    values = np.array([2.0, 3.0], np.float32)
    arrays = (np.array([0, *out_of_range(dtype), -1], dtype), np.array(EXTENT), values)
    node = make_node(ops.OneHot(), arrays, frozenset({1}))
    backend = CpuBackend(jobs=1)
    (tactic,) = (
        t for t in backend.candidates(node, host_target())[0] if t.family == "index_predicate"
    )
    (made,) = run_tactic(backend.family("index_predicate"), node, tactic, arrays)
    assert np.array_equal(made, ops.OneHot().reference(*arrays)[0])
    assert (made[1:-1] == 2).all()


def test_no_table_of_a_resize_leads_out_of_its_input() -> None:
    backend, target = single_job_backend(), host_target()
    every = trials_of_cases(sample(ops.Resize.cases(), _RESIZES), backend, target)
    trials = [trial for trial in every if trial.weights.size_bytes]
    assert trials
    runner = TrialRunner(trials, backend, target)
    for trial in trials:
        for hostile in with_hostile_weights(trial):
            for at_end in (True, False):
                runner.run_guarded(hostile, at_end=at_end)

"""Counts that only a run tells and nothing bounds: memory follows them, up to a limit."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError, ShapeError, UnboundSymbolError
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.types import DType, Limit, SymbolicDim, TensorType

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice
    from smelt.ir import Array
    from smelt.runtime import Engine

INT64 = TensorType(DType.INT64, ())
LIMIT = r"max_workspace_bytes"


def counting_body(*, ends: bool) -> Graph:
    """Stacks the number of the trip; behind the captured trip a condition ends it if ``ends``."""
    body = Graph("body")
    trip = body.add_input("trip", INT64)
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    last = body.add_input("last", INT64)
    goes_on = body.add(ops.Less(), trip, last, name="less").output if ends else condition
    body.outputs = [goes_on, body.add(ops.Identity(), trip, name="kept").output]
    return body


def counting_loop(*, ends: bool = False) -> Graph:
    """The numbers from 0 to ``trips`` - 1, negated; or to ``last``, if that comes first."""
    graph = Graph("counting")
    trips, last = graph.add_input("trips", INT64), graph.add_input("last", INT64)
    op = ops.Loop(counting_body(ends=ends), 0, "count")
    numbers = graph.add(op, trips, None, last, name="loop").output
    graph.outputs = [graph.add(ops.Neg(), numbers, name="negated").output]
    graph.symbol_bounds["count"] = Limit.MAX_LOOP_TRIPS.most
    return graph


def feeds(trips: int, last: int = 0) -> dict[str, Array]:
    return {"trips": np.array(trips), "last": np.array(last)}


def build(graph: Graph, most_bytes: int = 1 << 30) -> Engine:
    return smelt.build(graph, tune="none", max_workspace_bytes=most_bytes)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


@pytest.mark.parametrize("trips", [0, 5_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ends", [False, True])
def test_a_loop_goes_round_as_often_as_only_the_run_tells(trips: int, *, ends: bool) -> None:
    inputs = feeds(1 << 62, trips - 1) if ends and trips else feeds(trips, trips)
    with build(counting_loop(ends=ends)) as engine:
        (found,) = engine.run(inputs).values()
    assert np.array_equal(found, -np.arange(trips))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_memory_follows_the_count_and_not_its_limit() -> None:
    with build(counting_loop()) as engine, engine.create_context() as context:
        context.run(feeds(1))
        before = _resident_bytes()
        kept = [context.run(feeds(2_000)) for _ in range(4)]
        assert _resident_bytes() - before < Limit.MAX_LOOP_TRIPS.most * 8 / 2
    assert len(kept) == 4


def test_a_count_beyond_the_memory_is_refused_before_the_first_trip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stack and what is made of it take 16 bytes a trip."""
    engine = build(counting_loop(), 16 * 100)
    with closing(engine.create_context()) as context:
        assert len(context.run(feeds(100))["negated"]) == 100
        monkeypatch.setattr(ops.Identity, "reference", _fail)
        for trips in (101, 1 << 20):
            with pytest.raises(ShapeError, match=f"loop.*count is {trips}.*maximum 100.*{LIMIT}"):
                context.run(feeds(trips))
        with pytest.raises(ShapeError, match="MAX_LOOP_TRIPS"):
            context.run(feeds(1 << 62))
        monkeypatch.undo()
        assert len(context.run(feeds(99))["negated"]) == 99


def _fail(*_: object) -> None:
    raise AssertionError("a trip has begun")


def test_more_memory_is_room_for_more() -> None:
    with build(counting_loop(), 16 * 101) as engine:
        assert len(engine.run(feeds(101))["negated"]) == 101


def test_a_condition_that_comes_too_late_is_refused_at_its_trip() -> None:
    with build(counting_loop(ends=True), 16 * 100) as engine:
        assert len(engine.run(feeds(1 << 62, 99))["negated"]) == 100
        with pytest.raises(ShapeError, match=f"count is 101.*maximum 100.*{LIMIT}"):
            engine.run(feeds(1 << 62, 1 << 61))


@pytest.mark.parametrize("threads", [1, 2])
def test_more_elements_than_a_network_declares_are_refused_at_the_step_that_finds_them(
    threads: int,
) -> None:
    """The plan has room for 4, and the op itself does not know."""
    graph = Graph("bounded")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (9,)))
    found = graph.add(ops.NonZero("count"), x, name="found").output
    graph.symbol_bounds["count"] = 4
    graph.outputs = [graph.add(ops.Neg(), found, name="negated").output]
    with build(graph) as engine, engine.create_context(threads=threads) as context:
        for count in (5, 4, 9, 4):
            inputs = {"x": np.array([1] * count + [0] * (9 - count), np.float32)}
            if count > 4:
                with pytest.raises(ShapeError, match=f"found.*count is {count}.*maximum 4"):
                    context.run(inputs)
                continue
            assert np.array_equal(context.run(inputs)["negated"], [[0, -1, -2, -3]])


def test_an_engine_and_the_references_refuse_alike() -> None:
    graph = counting_loop(ends=True)
    graph.symbol_bounds["count"] = 100
    for last in (100, 1 << 60):
        said: list[str] = []
        with build(graph) as engine:
            for run in (engine.run, partial(interpret, graph)):
                with pytest.raises(ShapeError) as caught:
                    run(feeds(1 << 62, last))
                said.append(str(caught.value))
        assert said[0] == said[1]


def test_what_follows_from_such_a_count_has_room_as_well() -> None:
    graph = counting_loop()
    graph.symbol_bounds["found"] = SymbolicDim.symbol("count")
    found = graph.add(ops.NonZero("found"), graph.outputs[0], name="found").output
    graph.outputs = [found]
    with build(graph) as engine:
        (places,) = engine.run(feeds(5_000)).values()
    assert np.array_equal(places, [np.arange(1, 5_000)])


def test_a_loop_in_a_branch_stops_at_what_the_branch_has_room_for() -> None:
    branches: list[Graph] = []
    for name in ("then", "else"):
        branch = Graph(name)
        trips, last = branch.add_input("trips", INT64), branch.add_input("last", INT64)
        made = branch.add_constant(np.zeros(2, np.int64), "zeros")
        if name == "then":
            loop = ops.Loop(counting_body(ends=True), 0, "inner")
            made = branch.add(loop, trips, None, last, name="loop").output
        branch.outputs = [branch.add(ops.Neg(), made, name=name).output]
        branches.append(branch)
    graph = Graph("choice")
    flag = graph.add_input("flag", TensorType(DType.BOOL, ()))
    entered = [graph.add_input(name, INT64) for name in ("trips", "last")]
    op = ops.If(branches[0], branches[1], "mine")
    graph.outputs = [graph.add(op, flag, *entered, name="if").output]
    graph.symbol_bounds["inner"] = Limit.MAX_LOOP_TRIPS.most
    graph.symbol_bounds["mine_0_0"] = SymbolicDim.symbol("inner") + 2
    with build(graph, 8 * 100) as engine:
        (made,) = engine.run({"flag": np.array(1 > 0), **feeds(1 << 62, 99)}).values()
        assert len(made) == 100
        with pytest.raises(ShapeError, match=LIMIT):
            engine.run({"flag": np.array(1 > 0), **feeds(1 << 62, 1 << 61)})


def test_an_array_given_to_execute_bounds_the_count_as_well() -> None:
    with build(counting_loop()) as engine, engine.create_context() as context:
        out = np.full(20, 7)
        for trips in (20, 3):
            context.execute(1, [*feeds(trips).values(), out])
            assert np.array_equal(out[:trips], -np.arange(trips))
        with pytest.raises(ShapeError, match=r"count is 21.*maximum 20.*execute"):
            context.execute(1, [*feeds(21).values(), out])
        with pytest.raises(BindingError, match="negated"):
            context.execute(1, [*feeds(3).values(), out.reshape(4, 5)])


def test_a_body_that_no_trip_runs_cannot_fail() -> None:
    """Inference once saw the captured elements, and refused what the first trip would have."""
    body = Graph("body")
    body.add_input("trip", INT64)
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    last = body.add_input("last", INT64)
    op = ops.Loop(counting_body(ends=False), 0, "inner")
    body.outputs = [condition, body.add(op, last, None, last, name="inner").output]
    graph = Graph("nested")
    entered = [graph.add_input(name, INT64) for name in ("trips", "last")]
    op = ops.Loop(body, 0, "count")
    graph.outputs = [graph.add(op, entered[0], None, entered[1], name="outer").output]
    graph.symbol_bounds |= {"count": 10, "inner": 10}
    inputs = feeds(0, 1 << 62)
    with build(graph) as engine:
        for run in (engine.run, partial(interpret, graph)):
            assert run(inputs)["outer"].shape == (0, 0)
            with pytest.raises(ShapeError, match="MAX_LOOP_TRIPS"):
                run(feeds(1, 1 << 62))


def test_a_count_that_the_network_declares_no_bound_of_is_refused_by_name() -> None:
    graph = counting_loop()
    graph.symbol_bounds.clear()
    with pytest.raises(UnboundSymbolError, match=r"count.*symbol_bounds"):
        build(graph)


@pytest.mark.gpu
def test_the_memory_of_a_gpu_follows_the_count_as_well(gpu: CudaDevice) -> None:
    limit, mapped_at_once = 8 << 30, 1 << 30
    engine = smelt.build(
        counting_loop(), f"cuda:{gpu.index}", tune="none", max_workspace_bytes=limit
    )
    before = gpu.free_bytes
    with closing(engine.create_context()) as context:
        for trips in (0, 5_000, 100_000):
            (numbers,) = context.run(feeds(trips)).values()
            np.testing.assert_array_equal(numbers, -np.arange(trips))
        assert before - gpu.free_bytes < mapped_at_once

"""An index out of range is an error when results are delivered, and the context goes on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.engine import Space
from smelt.interp import interpret
from smelt.runtime._index_errors import ErrorWords
from tests.support.index_errors import (
    Picking,
    check_arrays_there,
    check_next_call,
    check_queued,
    check_shared_stream,
    check_synchronous,
    picking_network,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.devices.cuda import CudaDevice


@pytest.fixture(scope="module")
def picking() -> Iterator[Picking]:
    with smelt.build(picking_network(), tune="none") as engine:
        yield Picking(engine)


@pytest.fixture(scope="module")
def picking_there(gpu: CudaDevice) -> Iterator[Picking]:
    del gpu
    with smelt.build(picking_network(), device="cuda", tune="none") as engine:
        yield Picking(engine)


def test_a_run_raises_names_the_layer_and_leaves_the_context_usable(picking: Picking) -> None:
    check_synchronous(picking)


def test_what_is_queued_is_raised_by_the_stream_once(picking: Picking) -> None:
    check_queued(picking, "cpu")


def test_the_next_call_raises_what_nobody_has_heard_of_once(picking: Picking) -> None:
    """Events, the next call and the stream's end once passed in silence."""
    check_next_call(picking, "cpu")


def test_a_stream_does_later_work_after_a_run_that_failed(picking: Picking) -> None:
    """What was queued behind such a run was once dropped in silence, other contexts' runs too."""
    check_shared_stream(picking, "cpu")


def test_each_queued_run_that_failed_is_raised_by_its_stream(picking: Picking) -> None:
    """The second stream was once silent: two runs of one context shared one failure."""
    gate = threading.Event()
    with picking.engine.create_context() as context, smelt.Stream() as one, smelt.Stream() as two:
        one.submit(lambda: gate.wait(60))
        context.enqueue(1, picking.bindings(picking.bad)[0], one)
        context.enqueue(1, picking.bindings(picking.bad_later)[0], two)
        gate.set()
        for stream, message in (
            (two, "'pick again.*': index -6"),
            (one, "'pick': index 1000000000"),
        ):
            with pytest.raises(smelt.IndexRangeError, match=message):
                stream.synchronize()
            stream.synchronize()
        picking.check_run(context)
        for stream in (one, two):
            context.enqueue(1, picking.bindings(picking.bad)[0], one)
            context.enqueue(1, picking.bindings(picking.bad_later)[0], stream)
            while not (one.query() and two.query()):
                time.sleep(1e-3)
            for message in ("'pick': index 1000000000", "'pick again.*': index -6"):
                with pytest.raises(smelt.IndexRangeError, match=message):
                    context.run(picking.good)
            picking.check_run(context)
            one.synchronize()
            two.synchronize()


@pytest.mark.parametrize("way", ["run", "execute", "queued"])
def test_a_run_tells_nothing_of_one_that_was_cut_off(
    picking: Picking, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """An interrupt comes when launches have told of an index, and before anybody has looked."""

    def interrupt(_: ErrorWords) -> None:
        raise KeyboardInterrupt

    with picking.engine.create_context() as context:
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(ErrorWords, "check", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    context.run(picking.bad)
            arrays, made = picking.bindings(picking.good)
            if way == "run":
                picking.check_run(context)
                continue
            if way == "execute":
                context.execute(1, arrays)
            else:
                with smelt.Stream() as stream:
                    context.enqueue(1, arrays, stream)
                    stream.synchronize()
            assert np.array_equal(made, picking.right)
        with pytest.raises(smelt.IndexRangeError):  # its own it does not miss
            context.run(picking.bad_later)


def test_a_gpu_tells_of_an_index_out_of_range(picking_there: Picking) -> None:
    check_synchronous(picking_there)
    check_queued(picking_there, "cuda")
    check_next_call(picking_there, "cuda")
    check_shared_stream(picking_there, "cuda")
    check_arrays_there(picking_there)


def test_contexts_of_one_engine_do_not_hear_of_each_others_indices(picking: Picking) -> None:
    with picking.engine.create_context() as one, picking.engine.create_context() as other:
        with pytest.raises(smelt.IndexRangeError):
            one.run(picking.bad)
        picking.check_run(other)


def test_an_engine_without_indices_has_no_error_words() -> None:
    net = smelt.NetworkDefinition("plain")
    x = net.add_input("x", "float32", (4,))
    net.mark_output(net.add_activation(x, "relu"))
    with smelt.build(net, tune="none") as engine:
        spaces = {b.space for plan in engine.header.plans for b in plan.buffers}
        assert Space.ERRORS not in spaces


def test_each_plan_of_an_engine_names_its_own_layer() -> None:
    net = smelt.NetworkDefinition("sizes")
    x = net.add_input("x", "float32", ("n", 3), batch="explicit")
    i = net.add_input("i", "int64", (2,), batch="explicit")
    picked: Any = net.add(ops.Gather(), x, i, name="pick")
    net.mark_output(picked)
    shapes = {"x": [(2, 3), (7, 3)]}
    with (
        smelt.build(net, tune="none", shapes=shapes) as engine,
        engine.create_context() as context,
    ):
        for rows in (2, 7, 2):
            x0 = np.ones((rows, 3), np.float32)
            with pytest.raises(
                smelt.IndexRangeError, match=f"'pick.*': index 7 .* of {rows} elements"
            ):
                context.run({"x": x0, "i": np.array([0, 7])})
            context.run({"x": x0, "i": np.array([0, 1])})


@pytest.mark.parametrize("where", ["engine", "interpreter"])
def test_a_reference_that_meets_an_index_out_of_range_names_its_layer(where: str) -> None:
    net = smelt.NetworkDefinition("by reference")
    x = net.add_input("x", "uint8", (4,), batch="explicit")
    i = net.add_input("i", "int64", (2,), batch="explicit")
    u = net.add_input("u", "uint8", (2,), batch="explicit")
    # No kernel adds bytes: Python does.
    put: Any = net.add(ops.ScatterElements(0, "add"), x, i, u, name="put")
    net.mark_output(put)
    good = {"x": np.zeros(4, np.uint8), "i": np.array([3, -4]), "u": np.array([1, 2], np.uint8)}
    bad = good | {"i": np.array([0, -5])}
    message = "scatter_elements.*put.*: index -5 is out of range for an axis of 4 elements"
    if where == "interpreter":
        with pytest.raises(smelt.IndexRangeError, match=message):
            interpret(net.graph, bad)
        return
    with smelt.build(net, tune="none") as engine, engine.create_context() as context:
        with pytest.raises(smelt.IndexRangeError, match=message):
            context.run(bad)
        (made,) = context.run(good).values()
    assert made.tolist() == [2, 0, 0, 1]


def test_a_failed_launch_is_raised_before_a_reference_reads_its_results() -> None:
    net = smelt.NetworkDefinition("both")
    x = net.add_input("x", "int64", (4,), batch="explicit")
    i = net.add_input("i", "int64", (2,), batch="explicit")
    picked: Any = net.add(ops.Gather(), x, i, name="pick")
    total: Any = net.add(ops.CumSum(), picked, np.array(0), name="sum")
    net.mark_output(total)
    with smelt.build(net, tune="none") as engine, engine.create_context() as context:
        with pytest.raises(smelt.IndexRangeError, match="'pick'"):
            context.run({"x": np.arange(4), "i": np.array([0, 4])})
        (made,) = context.run({"x": np.arange(4), "i": np.array([1, 3])}).values()
    assert made.tolist() == [1, 4]


def test_sequences_longer_than_their_moments_are_refused() -> None:
    op = ops.GRU(2)
    x, w = np.zeros((3, 2, 1), np.float32), np.zeros((1, 6, 1), np.float32)
    r = np.zeros((1, 6, 2), np.float32)
    for lengths in ([3, 4], [-1, 0]):
        with pytest.raises(
            smelt.IndexRangeError, match="each length must be from 0 to 3, the number of time steps"
        ):
            op.reference(x, w, r, None, np.array(lengths, np.int32))
    op.reference(x, w, r, None, np.array([0, 3], np.int32))

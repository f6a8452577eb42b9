"""Plans: steps in order, lives in the arena, what waits, and what weights are shared."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt import ops
from smelt.backends import WeightStore
from smelt.engine import Launch, Space
from smelt.ir import Constant, Graph
from tests.support.cpu_families import random
from tests.support.plans import LAST, LINEAR, Planned, pick, tensor

if TYPE_CHECKING:
    from smelt.types import Layout


def padded_network() -> Graph:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 16, 9, 9))
    for number in range(3):
        y = graph.add(ops.Relu(), x, name=f"relu{number}").output
        weights = graph.add_constant(random((16, 16, 3, 3), number))
        x = graph.add(ops.Conv((3, 3), pads=(1, 1, 1, 1)), y, weights, name=f"conv{number}").output
    graph.outputs.append(x)
    return graph


def test_the_arena_is_no_smaller_than_its_bound_and_every_life_fits() -> None:
    planned = Planned(padded_network(), pick(default=LAST))
    planned.check(random((1, 16, 9, 9)))
    made = planned.assembled
    assert made.lower_bound_bytes <= made.plan.arena_bytes
    for _, offset, size, first, last in made.live_ranges:
        assert offset + size <= made.plan.arena_bytes
        assert 0 <= first <= last < len(made.plan.steps)


def test_living_tensors_never_share_bytes() -> None:
    made = Planned(padded_network(), pick(default=LAST)).assembled
    for i, (_, start, size, first, last) in enumerate(made.live_ranges):
        for _, other, length, begin, end in made.live_ranges[:i]:
            together = first <= end and begin <= last
            apart = start + size <= other or other + length <= start
            assert apart or not together


def test_only_a_writer_after_its_cleared_halo_need_not_wait() -> None:
    steps = Planned(padded_network(), pick(default=LAST)).plan.steps
    for before, step in pairwise(steps):
        assert isinstance(step, Launch)
        assert isinstance(before, Launch)
        assert step.waits or before.kernel.family == "clear"


def test_each_step_names_its_layer() -> None:
    made = Planned(padded_network()).assembled
    names = [made.layers[step.layer].name for step in made.plan.steps]
    assert [n for n in names if n.startswith(("relu", "conv"))]
    assert len(made.layers) == max(step.layer for step in made.plan.steps) + 1


def test_layers_that_stand_for_one_layer_of_the_model_have_names_of_their_own() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 16, 9, 9))
    for number, op in enumerate([ops.Relu(), ops.Tanh(), ops.Tanh(), ops.Relu()]):
        x = graph.add(op, x, name=f"n{number}", layers=("prob",)).output
    graph.outputs.append(x)
    # Between two layouts, the planner adds layers of its own.
    made = Planned(graph, pick({"n1": LAST, "n3": LAST})).assembled
    names = [layer.name for layer in made.layers]
    assert "reformat" in {layer.kind for layer in made.layers}
    assert len(set(names)) == len(names)
    assert [n for n in names if n.startswith("prob")] == [
        "prob", "prob (tanh)", "prob (tanh 2)", "prob (relu)",
    ]  # fmt: skip


def test_weights_begin_where_a_line_of_the_cache_does() -> None:
    weights = WeightStore()
    sizes = (3, 16, 1, 48)
    arrays = [np.full(size, size, np.float32) for size in sizes]
    offsets = [weights.place(Constant(f"w{array.size}", array)) for array in arrays]
    assert [offset % 128 for offset in offsets] == [0] * len(sizes)


def test_plans_of_one_engine_share_weights() -> None:
    store = WeightStore()
    constant = Constant("w", random((64, 64)))
    derived = [Constant.derive("w transposed", ops.Transpose((1, 0)), constant) for _ in "ab"]
    assert store.place(derived[0]) == store.place(derived[1])
    assert store.place(constant) != store.place(derived[0])
    assert len(store.entries) == 2
    data = np.frombuffer(bytes(store.data()), np.float32)
    assert np.array_equal(data[: 64 * 64].reshape(64, 64), constant.array.T)


def test_small_constants_of_one_name_and_equal_elements_are_one_unless_declared() -> None:
    store = WeightStore()
    first, second, declared, other = (Constant(name, np.zeros(4, np.float32)) for name in "aaab")
    store.declare_distinct(declared)
    assert store.place(first) == store.place(second)
    assert store.place(declared) != store.place(first)
    assert store.place(other) != store.place(first)  # may be refitted to something else


@given(st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_graphs_of_windows_compute_what_the_references_compute(data: st.DataObject) -> None:
    draw = data.draw
    graph = Graph()
    values = [graph.add_input("x", tensor(2, 8, 6, 6))]
    layouts: dict[str, Layout] = {}
    for number in range(draw(st.integers(1, 7))):
        name = f"n{number}"
        a, b = (draw(st.sampled_from(values)) for _ in "ab")
        kind = draw(st.sampled_from(["unary", "add", "concat", "split", "conv", "units"]))
        layouts[name] = draw(st.sampled_from([LINEAR, LAST]))
        if kind == "unary":
            values.append(graph.add(ops.Tanh(), a, name=name).output)
        elif kind == "add":
            values.append(graph.add(ops.Add(), a, b, name=name).output)
        elif kind == "conv":
            weights = graph.add_constant(random((8, 8, 3, 3), number) / 9)
            op = ops.Conv((3, 3), pads=(1, 1, 1, 1))
            values.append(graph.add(op, a, weights, name=name).output)
        elif kind == "units":
            axes = graph.add_constant(np.array([2]))
            wide = graph.add(ops.Unsqueeze(), a, axes, name=name).output
            values.append(graph.add(ops.Squeeze(), wide, axes, name=f"{name}s").output)
        else:  # both channels of two tensors, and half of the whole
            whole = graph.add(ops.Concat(1), a, b, name=name).output
            halves = graph.add(ops.Split(1, num_outputs=2), whole, name=f"{name}h").outputs
            layouts[f"{name}h"] = layouts[name]
            values += halves if kind == "split" else halves[1:]
    chosen = draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=3))
    graph.outputs += [values[i] for i in sorted(chosen)]
    graph.remove_unused()
    planned = Planned(graph, pick(layouts))
    planned.check(random((2, 8, 6, 6)))
    assert all(b.space is not Space.ARENA or b.start >= 0 for b in planned.plan.buffers)


def test_packing_weights_leaves_only_what_they_are_made_of() -> None:
    source = Constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    turned = Constant.derive("turned", ops.Transpose((1, 0)), source)
    twice = Constant.derive("twice", ops.Transpose((1, 0)), turned)
    store = WeightStore()
    store.place(twice)
    steps = [turned.array, twice.array]
    assert store.data()[:24].tobytes() == source.array.tobytes()
    for step, constant in zip(steps, (turned, twice), strict=True):
        assert constant.array is not step
        np.testing.assert_array_equal(constant.array, step)

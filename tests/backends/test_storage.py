"""Where tensors lie: windows, concatenations in place, halos, and the copies that remain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.backends import Aliasing, _view_family
from smelt.ir import Graph
from smelt.types import Layout
from tests.support.cpu_families import random
from tests.support.plans import LAST, LINEAR, Planned, pick, tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends import Tactic
    from smelt.engine import View
    from smelt.ir import Node, Value

STRIDED = Layout.STRIDED
COPY = "copy"


def integers(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def relu(graph: Graph, x: Value, name: str) -> Value:
    return graph.add(ops.Relu(), x, name=name).output


def sliced(graph: Graph, x: Value, axis: int, begin: int, end: int, name: str) -> Value:
    bounds = [graph.add_constant(integers(v), "bound") for v in (begin, end, axis)]
    return graph.add(ops.Slice(), x, *bounds, name=name).output


def squeezed(graph: Graph, x: Value, axis: int, name: str) -> Value:
    return graph.add(ops.Squeeze(), x, graph.add_constant(integers(axis)), name=name).output


# ---- concatenation


@pytest.mark.requirement("G-24")
@pytest.mark.parametrize("layout", [LINEAR, LAST])
def test_parts_of_a_concatenation_are_written_in_place(layout: object) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 3, 5, 5))
    parts = [relu(graph, x, "a"), graph.add(ops.Sigmoid(), x, name="b").output]
    whole = graph.add(ops.Concat(1), *parts, name="whole").output
    graph.outputs.append(graph.add(ops.Tanh(), whole, name="y").output)
    planned = Planned(graph, pick({"a": layout, "b": layout, "whole": layout, "y": layout}))  # type: ignore[dict-item]
    planned.check(random((2, 3, 5, 5)))
    if layout is LINEAR:
        assert COPY not in planned.kinds()
    notes = " ".join(planned.assembled.notes)
    assert "a is written in place" in notes
    assert "b is written in place" in notes


def test_concatenations_nest_in_place() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 4, 6, 6))
    a, b, c = (relu(graph, x, name) for name in "abc")
    inner = graph.add(ops.Concat(1), a, b, name="inner").output
    outer = graph.add(ops.Concat(1), inner, c, name="outer").output
    graph.outputs += [relu(graph, outer, "y"), relu(graph, inner, "z")]
    planned = Planned(graph)
    planned.check(random((1, 4, 6, 6)))
    assert COPY not in planned.kinds()


def test_what_is_concatenated_twice_is_copied_once() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 4, 6, 6))
    a = relu(graph, x, "a")
    whole = graph.add(ops.Concat(1), a, a, name="whole").output
    graph.outputs.append(relu(graph, whole, "y"))
    planned = Planned(graph)
    planned.check(random((1, 4, 6, 6)))
    assert planned.kinds().count(COPY) == 1


def test_inputs_and_constants_are_copied_into_a_concatenation() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 2, 3, 3))
    constant = graph.add_constant(random((1, 4, 3, 3), 1))
    graph.outputs.append(graph.add(ops.Concat(1), x, constant, x, name="y").output)
    planned = Planned(graph)
    planned.check(random((1, 2, 3, 3)))
    assert planned.kinds() == [COPY] * 3


def test_a_part_that_is_an_output_keeps_its_own_memory() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 2, 3, 3))
    a, b = relu(graph, x, "a"), graph.add(ops.Neg(), x, name="b").output
    whole = graph.add(ops.Concat(1), a, b, name="whole").output
    graph.outputs += [a, relu(graph, whole, "y")]
    planned = Planned(graph)
    planned.check(random((1, 2, 3, 3)))
    assert planned.kinds().count(COPY) == 1


# ---- windows


def test_slices_and_splits_cost_nothing() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 6, 4, 4))
    y = relu(graph, x, "r")
    halves = graph.add(ops.Split(1, num_outputs=2), y, name="split").outputs
    last = sliced(graph, halves[1], 2, 1, 3, "slice")
    graph.outputs += [relu(graph, last, "a"), relu(graph, halves[0], "b")]
    planned = Planned(graph)
    planned.check(random((2, 6, 4, 4)))
    assert COPY not in planned.kinds()


def test_a_slice_squeezed_stays_a_window() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 6, 4, 5))
    y = relu(graph, x, "r")
    one = squeezed(graph, sliced(graph, y, 1, 3, 4, "slice"), 1, "squeeze")
    graph.outputs.append(relu(graph, one, "z"))
    planned = Planned(graph)
    planned.check(random((2, 6, 4, 5)))
    assert COPY not in planned.kinds()


def test_one_place_of_an_axis_is_a_window() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 6, 4, 5))
    y = relu(graph, x, "r")
    for axis, index in ((1, 2), (0, -1), (2, 0)):
        number = graph.add_constant(np.array(index))
        name = f"pick{axis}"
        one = graph.add(ops.Gather(axis), y, number, name=name).output
        graph.outputs.append(relu(graph, one, f"z{axis}"))
    planned = Planned(graph)
    planned.check(random((2, 6, 4, 5)))
    assert COPY not in planned.kinds()
    assert "gather" not in planned.kinds()


def test_the_innermost_place_is_gathered_so_that_lines_run_on() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 6, 4, 5))
    one = graph.add(ops.Gather(3), x, graph.add_constant(np.array(2)), name="pick").output
    graph.outputs.append(relu(graph, one, "z"))
    planned = Planned(graph)
    planned.check(random((2, 6, 4, 5)))
    assert "gather" in planned.kinds()


def test_reshaping_a_slice_needs_a_copy_and_reshaping_a_tensor_does_not() -> None:
    for begin, copies in ((0, 0), (1, 1)):
        graph = Graph()
        x = graph.add_input("x", tensor(3, 4, 4))
        y = relu(graph, x, "r")
        if begin:
            y = sliced(graph, y, 1, begin, 4, "slice")
        count = 12 * (4 - begin)
        flat = graph.add(ops.Reshape(), y, graph.add_constant(integers(count)), name="flat").output
        graph.outputs.append(relu(graph, flat, "z"))
        planned = Planned(graph)
        planned.check(random((3, 4, 4)))
        assert planned.kinds().count(COPY) == copies


def test_what_is_reshaped_after_a_squeeze_lies_contiguously_for_good() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 8, 6, 6))
    y = relu(graph, x, "r")
    flat = squeezed(graph, y, 0, "squeeze")
    line = graph.add(ops.Reshape(), flat, graph.add_constant(integers(-1)), name="line").output
    weights = graph.add_constant(random((4, 8, 3, 3), 1))
    padded = graph.add(ops.Conv((3, 3), pads=(1, 1, 1, 1)), y, weights, name="conv").output
    graph.outputs += [relu(graph, line, "a"), relu(graph, padded, "b")]
    for layout in (LINEAR, LAST):
        Planned(graph, pick({"conv": LAST, "r": layout})).check(random((1, 8, 6, 6)))


# ---- halos


def test_zeros_around_a_tensor_are_shared_by_all_that_read_it() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 16, 7, 7))
    y = relu(graph, x, "r")
    for size in (3, 5):
        weights = graph.add_constant(random((8, 16, size, size), size))
        pads = (size // 2,) * 4
        conv = graph.add(ops.Conv((size, size), pads=pads), y, weights, name=f"conv{size}").output
        graph.outputs.append(relu(graph, conv, f"y{size}"))
    part = sliced(graph, y, 2, 1, 4, "part")
    graph.outputs.append(relu(graph, part, "z"))
    planned = Planned(graph, pick(default=LAST))
    planned.check(random((2, 16, 7, 7)))


def test_a_padded_reader_of_one_part_pads_the_whole_concatenation() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 8, 6, 6))
    a, b = relu(graph, x, "a"), graph.add(ops.Neg(), x, name="b").output
    weights = graph.add_constant(random((8, 8, 3, 3), 1))
    conv = graph.add(ops.Conv((3, 3), pads=(1, 1, 1, 1)), a, weights, name="conv").output
    whole = graph.add(ops.Concat(1), a, b, name="whole").output
    graph.outputs += [relu(graph, conv, "y"), relu(graph, whole, "z")]
    Planned(graph, pick(default=LAST)).check(random((1, 8, 6, 6)))


# ---- outputs


def test_an_output_that_is_also_read_is_written_once() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(3, 5))
    y = relu(graph, x, "y")
    graph.outputs += [y, graph.add(ops.Exp(), y, name="z").output]
    planned = Planned(graph)
    planned.check(random((3, 5)))
    assert planned.kinds() == ["elementwise"] * 2


def test_what_is_reshaped_into_an_output_is_written_there() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 8, 3, 3))
    y = relu(graph, x, "y")
    flat = graph.add(ops.Flatten(), y, name="flat").output
    graph.outputs += [flat, relu(graph, y, "z")]
    planned = Planned(graph)
    planned.check(random((1, 8, 3, 3)))
    assert COPY not in planned.kinds()
    assert planned.plan.arena_bytes == 0


def test_a_padded_concatenation_is_copied_into_an_output() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 8, 5, 5))
    a, b = relu(graph, x, "a"), graph.add(ops.Neg(), x, name="b").output
    weights = graph.add_constant(random((4, 8, 3, 3)))
    conv = graph.add(ops.Conv((3, 3), pads=(1, 1, 1, 1)), a, weights, name="conv").output
    whole = graph.add(ops.Concat(1), a, b, name="whole").output
    units = graph.add_constant(integers(0))
    wide = graph.add(ops.Unsqueeze(), whole, units, name="wide").output
    graph.outputs += [conv, wide]
    Planned(graph, pick(default=LINEAR)).check(random((1, 8, 5, 5)))
    Planned(graph, pick({"a": LAST, "b": LAST, "whole": LAST})).check(random((1, 8, 5, 5)))


def test_points_are_written_into_an_output_in_any_layout() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 8, 1, 1))
    graph.outputs.append(relu(graph, x, "y"))
    planned = Planned(graph, pick(default=LAST))
    planned.check(random((2, 8, 1, 1)))
    assert planned.kinds() == ["elementwise"]


def test_an_input_a_constant_and_a_window_may_be_outputs() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(3, 5))
    y = relu(graph, x, "y")
    constant = graph.add_constant(random((2, 2), 3))
    graph.outputs += [x, constant, sliced(graph, y, 0, 1, 2, "part")]
    planned = Planned(graph)
    made = planned.run([random((3, 5))], {})
    assert np.array_equal(made[0], random((3, 5)))
    assert np.array_equal(made[1], random((2, 2), 3))
    assert np.array_equal(made[2], np.maximum(random((3, 5)), 0)[1:2])


def test_the_same_value_may_be_two_outputs() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(3, 5))
    y = relu(graph, x, "y")
    graph.outputs += [y, y]
    made = Planned(graph).run([random((3, 5))], {})
    assert np.array_equal(made[0], made[1])


def test_a_tensor_with_one_channel_needs_no_copy_between_layouts() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 1, 6, 6))
    y = relu(graph, x, "a")
    graph.outputs.append(graph.add(ops.Exp(), y, name="b").output)
    planned = Planned(graph, pick({"a": LINEAR, "b": LAST}))
    planned.check(random((2, 1, 6, 6)))
    assert planned.kinds().count(COPY) <= 1  # the output's own, which nobody may write askew


@pytest.mark.parametrize("rows", [1, 3])
def test_windows_follow_symbolic_extents(rows: int) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("batch", 4, 6))
    a, b = relu(graph, x, "a"), graph.add(ops.Neg(), x, name="b").output
    whole = graph.add(ops.Concat(1), a, b, name="whole").output
    part = squeezed(graph, sliced(graph, whole, 1, 5, 6, "slice"), 1, "squeeze")
    graph.outputs += [relu(graph, part, "y"), relu(graph, whole, "z")]
    planned = Planned(graph, symbols=(("batch", 1, 3),))
    planned.check(random((rows, 4, 6)), batch=rows)


def test_constants_that_follow_alike_are_stored_once() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 8, 6, 6))
    weights = graph.add_constant(random((8, 8, 3, 3), 1))
    first = graph.add(ops.Conv((3, 3)), x, weights, name="first").output
    graph.outputs += [first, graph.add(ops.Conv((3, 3)), x, weights, name="second").output]
    planned = Planned(graph, pick(default=LAST))
    offsets = [offset for _, offset in planned.weights.entries]
    assert len(set(offsets)) == len(offsets) == 1


@pytest.mark.parametrize(("layout", "copies"), [(LINEAR, 4), (LAST, 3)])
def test_what_is_stored_in_another_layout_is_copied_once(layout: Layout, copies: int) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 8, 6, 6))
    a = relu(graph, x, "a")
    other = LAST if layout is LINEAR else LINEAR
    whole = graph.add(ops.Concat(1), a, x, name="whole").output
    graph.outputs += [relu(graph, whole, "y"), graph.add(ops.Exp(), x, name="z").output]
    planned = Planned(graph, pick({"a": other, "z": other}, layout))
    planned.check(random((2, 8, 6, 6)))
    assert planned.kinds().count(COPY) == copies


# ---- products through any strides


def strided_where_possible(node: Node, tactics: Sequence[Tactic]) -> Tactic:
    """Windows for transposes, and products that read and write through them."""
    real = [t for t in tactics if not t.is_host_step]

    def effort(tactic: Tactic) -> tuple[bool, int, int]:
        forms = [f for f in (*tactic.input_formats, *tactic.output_formats) if f is not None]
        last = sum(f.layout is LAST for f in forms)
        strided = sum(f.layout is STRIDED for f in forms)
        joins = tactic.aliasing is Aliasing.CONCAT
        return tactic.aliasing is Aliasing.NONE, last, -10 * joins - strided

    return min(real, key=effort)


def attention(graph: Graph, x: Value, tokens: int = 6) -> Value:
    """Two heads of twelve channels: split, multiplied, merged."""
    heads = graph.add_constant(integers(-1, tokens, 2, 12), "heads")
    whole = graph.add_constant(integers(-1, tokens, 24), "whole")
    parts: list[Value] = []
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        weights = graph.add_constant(random((16, 24), len(parts)) / 4)
        made = graph.add(ops.MatMul(), x, weights, name=name).output
        split = graph.add(ops.Reshape(), made, heads, name=f"{name}_heads").output
        parts.append(graph.add(ops.Transpose(order), split, name=f"{name}_turned").output)
    scores = graph.add(ops.MatMul(), parts[0], parts[1], name="scores").output
    mixed = graph.add(ops.MatMul(), scores, parts[2], name="mixed").output
    back = graph.add(ops.Transpose((0, 2, 1, 3)), mixed, name="back").output
    return graph.add(ops.Reshape(), back, whole, name="merged").output


@pytest.mark.parametrize(("batch", "tokens"), [(1, 6), (3, 6), (2, 64)])
def test_heads_are_split_and_merged_without_a_copy(batch: int, tokens: int) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(batch, tokens, 16))
    graph.outputs.append(relu(graph, attention(graph, x, tokens), "y"))
    planned = Planned(graph, strided_where_possible)
    planned.check(random((batch, tokens, 16)))
    assert set(planned.kinds()) == {"gemm", "elementwise"}


def test_heads_of_a_batch_known_at_run_time_are_windows_too() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 6, 16))
    graph.outputs.append(relu(graph, attention(graph, x), "y"))
    planned = Planned(graph, strided_where_possible, symbols=(("n", 1, 4),))
    planned.check(random((3, 6, 16)), n=3)
    assert set(planned.kinds()) == {"gemm", "elementwise"}


def test_a_product_written_in_place_may_be_read_by_others_and_be_an_output() -> None:
    graph = Graph()
    a, b = graph.add_input("a", tensor(2, 3, 5, 4)), graph.add_input("b", tensor(2, 3, 4, 8))
    product = graph.add(ops.MatMul(), a, b, name="product").output
    turned = graph.add(ops.Transpose((0, 2, 1, 3)), product, name="turned").output
    graph.outputs += [turned, relu(graph, turned, "y")]
    planned = Planned(graph, strided_where_possible)
    planned.check(random((2, 3, 5, 4)), random((2, 3, 4, 8), 1))
    assert COPY not in planned.kinds()


def test_who_wants_linear_order_gets_a_copy_of_a_strided_window() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(2, 5, 3, 8))
    turned = graph.add(ops.Transpose((0, 2, 1, 3)), x, name="turned").output
    weights = graph.add_constant(random((8, 16), 2))
    graph.outputs.append(graph.add(ops.MatMul(), turned, weights, name="product").output)
    graph.outputs += [relu(graph, turned, "y"), turned]
    planned = Planned(graph, strided_where_possible)
    planned.check(random((2, 5, 3, 8)))
    assert planned.kinds().count(COPY) == 2


@pytest.mark.parametrize("wanted", [(2, 3, 2), (2, 1, 6), (1, 2, 2, 1, 3)])
def test_splitting_axes_of_a_slice_costs_nothing(wanted: tuple[int, ...]) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(4, 6))
    part = sliced(graph, relu(graph, x, "a"), 0, 1, 3, "part")
    to = graph.add_constant(np.array(wanted, np.int64))
    graph.outputs.append(relu(graph, graph.add(ops.Reshape(), part, to, name="r").output, "y"))
    planned = Planned(graph)
    planned.check(random((4, 6)))
    assert COPY not in planned.kinds()


def test_the_parts_of_a_concatenation_are_looked_up_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    views: Callable[[Node, int, View], tuple[View, ...]] = vars(_view_family)["_parts"]

    def counted(node: Node, axis: int, view: View) -> tuple[View, ...]:
        asked.append(node.name)
        return views(node, axis, view)

    monkeypatch.setattr(_view_family, "_parts", counted)
    graph = Graph()
    x = graph.add_input("x", tensor(1, 4))
    parts = [relu(graph, x, f"part{i}") for i in range(50)]
    graph.outputs.append(graph.add(ops.Concat(0), *parts, name="whole").output)
    Planned(graph, pick(default=LINEAR)).check(random((1, 4)))
    assert asked.count("whole") < 5

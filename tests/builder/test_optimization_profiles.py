"""What the user says of shapes: fixed, one plan each, or a range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.builder import build
from smelt.builder._optimization_profiles import SymbolRange, optimization_profiles_of
from smelt.errors import BuildError, ShapeError, SmeltError, UnboundSymbolError
from smelt.ir import Graph
from smelt.network import NetworkDefinition
from tests.support.plans import tensor
from tests.support.small_networks import small_network


def network(**inputs: tuple[int | str, ...]) -> Graph:
    graph = Graph()
    for name, shape in inputs.items():
        graph.add_input(name, tensor(*shape))
    return graph


def exactly(value: int) -> SymbolRange:
    return SymbolRange(value, value, value)


IMAGE = network(x=("n", 3, "h", "w"))
BATCHED = network(x=("batch", 4))


def test_a_network_without_symbols_is_one_empty_box() -> None:
    assert optimization_profiles_of(network(x=(1, 2)), None, 1) == [{}]


def test_an_implicit_batch_ranges_up_to_the_maximum() -> None:
    assert optimization_profiles_of(BATCHED, None, 8) == [{"batch": SymbolRange(1, 8, 8)}]


def test_a_shape_without_the_batch_leaves_it_open() -> None:
    assert optimization_profiles_of(BATCHED, {"x": (4,)}, 8) == [{"batch": SymbolRange(1, 8, 8)}]
    assert optimization_profiles_of(BATCHED, {"x": (2, 4)}, 8) == [{"batch": exactly(2)}]


def test_a_shape_fixes_every_symbol() -> None:
    made = optimization_profiles_of(IMAGE, {"x": (1, 3, 224, 200)}, 1)
    assert made == [{"n": exactly(1), "h": exactly(224), "w": exactly(200)}]


def test_a_list_of_shapes_gives_one_plan_each() -> None:
    shapes = [(1, 3, 8, 8), (4, 3, 16, 8)]
    made = optimization_profiles_of(IMAGE, {"x": shapes}, 1)
    assert [box["h"] for box in made] == [exactly(8), exactly(16)]
    assert [box["n"] for box in made] == [exactly(1), exactly(4)]


def test_too_many_shapes_are_refused_before_any_plan_is_made() -> None:
    with pytest.raises(BuildError, match="1,025 plans; the limit MAX_PLANS"):
        optimization_profiles_of(IMAGE, {"x": [(1, 3, 8, 8)] * 1025}, 1)


def test_a_tuple_of_three_shapes_is_a_range() -> None:
    made = optimization_profiles_of(IMAGE, {"x": ((1, 3, 8, 8), (2, 3, 16, 8), (4, 3, 32, 8))}, 1)
    assert made == [{"n": SymbolRange(1, 2, 4), "h": SymbolRange(8, 16, 32), "w": exactly(8)}]


def test_one_shape_goes_with_every_plan_of_another_input() -> None:
    graph = network(x=("a", 2), y=("b", 2))
    made = optimization_profiles_of(graph, {"x": [(1, 2), (5, 2)], "y": (3, 2)}, 1)
    assert made == [{"a": exactly(1), "b": exactly(3)}, {"a": exactly(5), "b": exactly(3)}]


def test_inputs_that_share_a_symbol_must_agree() -> None:
    graph = network(x=("a", 2), y=("a", 3))
    assert optimization_profiles_of(graph, {"x": (4, 2), "y": (4, 3)}, 1) == [{"a": exactly(4)}]
    assert optimization_profiles_of(graph, {"x": (4, 2)}, 1) == [{"a": exactly(4)}]
    with pytest.raises(ShapeError, match="extent a two different values or ranges"):
        optimization_profiles_of(graph, {"x": (4, 2), "y": (5, 3)}, 1)


@pytest.mark.parametrize(
    ("shapes", "error", "words"),
    [
        ({"z": (1, 3, 8, 8)}, BuildError, "the inputs are: x"),
        ({"x": (1, 3, 8)}, ShapeError, "3 extents"),
        ({"x": (1, 4, 8, 8)}, ShapeError, "gives 4 for axis 1, where the network has 3"),
        ({"x": (1, 3, -8, 8)}, ShapeError, "the extent -8 is negative"),
        ({"x": (1, 3, 1 << 63, 8)}, ShapeError, "extent of 9,.* MAX_EXTENT is 1,099,511,627,776"),
        ({"x": [(1, 3, (1 << 40) + 1, 8)]}, ShapeError, "x: .* MAX_EXTENT"),
        ({"x": ((1, 3, 8, 8),) * 2 + ((1, 3, np.uint64(1 << 63), 8),)}, ShapeError, "MAX_EXTENT"),
        ({"x": [(1, 3, 8, 8), (1, 3, 8)]}, BuildError, "differ in rank"),
        ({"x": ((1, 3, 8, 8), (1, 3, 9, 9))}, BuildError, "smallest, best, largest"),
        ({"x": ((1, 3, 9, 9), (1, 3, 8, 8), (1, 3, 9, 9))}, BuildError, "smallest <= best"),
        (None, UnboundSymbolError, "without a value: h, n, w"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_what_is_wrong(
    shapes: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        optimization_profiles_of(IMAGE, shapes, 1)


def test_inputs_with_differing_numbers_of_plans_are_refused() -> None:
    graph = network(x=("a", 2), y=("b", 2))
    shapes: Any = {"x": [(1, 2), (5, 2)], "y": [(3, 2), (4, 2), (5, 2)]}
    with pytest.raises(BuildError, match="gives 2 and 3 shapes"):
        optimization_profiles_of(graph, shapes, 1)


def test_a_batch_below_one_is_refused() -> None:
    with pytest.raises(BuildError, match="integer of at least 1"):
        optimization_profiles_of(BATCHED, None, 0)


def test_an_extent_that_is_no_single_symbol_cannot_be_bound() -> None:
    graph = Graph()
    kind = tensor("a", 2)
    doubled = kind.shape[0] * 2
    graph.add_input("x", type(kind)(kind.dtype, (doubled, 2)))
    with pytest.raises(ShapeError, match="is a formula and cannot be set"):
        optimization_profiles_of(graph, {"x": (4, 2)}, 1)


def test_what_is_no_network_is_refused_with_what_to_give() -> None:
    path: Any = "m.onnx"
    with pytest.raises(BuildError, match=r"smelt\.network_from_onnx"):
        build(path)
    pair: Any = (network(x=(1,)), "blobs")
    with pytest.raises(BuildError, match="pass the network"):
        build(pair)


def test_sizes_that_are_no_numbers_or_beyond_every_machine_are_refused() -> None:
    text: Any = "4"
    graph = small_network().graph
    with pytest.raises(BuildError, match="max_batch_size is '4'; it must be an integer"):
        build(graph, max_batch_size=text)
    with pytest.raises(
        SmeltError,
        match="does not fit into memory: 4,800,000,000,000,000 bytes; the limit MAX_TENSOR_BYTES",
    ):
        build(graph, max_batch_size=10**12, tune="none")


def test_shapes_may_be_of_numpys_integers_and_what_are_none_are_refused() -> None:
    for extents in (np.array([2, 3]), tuple(np.array([2, 3])), [np.array([2, 3])]):
        given: Any = extents
        assert optimization_profiles_of(network(x=("n", 3)), {"x": given}, 1) == [{"n": exactly(2)}]
    for given in (None, 3, "2x3", ("n", 3), (2.0, 3)):
        with pytest.raises(BuildError, match="expected a shape such as"):
            optimization_profiles_of(network(x=("n", 3)), {"x": given}, 1)
    effort: Any = None
    with pytest.raises(BuildError, match='tune is None; it must be "none", "fast"'):
        build(small_network().graph, tune=effort)
    batch: Any = np.int64(2)
    assert build(small_network().graph, max_batch_size=batch, tune="none").max_batch_size == 2


def test_an_empty_batch_may_be_all_that_an_engine_takes() -> None:
    net = NetworkDefinition("wide", batch="explicit")
    x = net.add_input("x", "float32", ("n", 64))
    weights = np.ones((1024, 64), np.float32)
    net.mark_output(net.add_fully_connected(x, 1024, weights, name="y"))
    engine = build(net, shapes={"x": (0, 64)}, tune="none")
    with engine.create_context() as context:
        assert context.run({"x": np.zeros((0, 64), np.float32)})["y"].shape == (0, 1024)


def test_shapes_that_disagree_are_told_as_they_are_written() -> None:
    graph = network(x=("a", 2), y=("a", 3))
    detail = r"extent a two different values or ranges, 1\.\.4\.\.8 and 2\.\.9; give one"
    with pytest.raises(ShapeError, match=detail):
        optimization_profiles_of(
            graph, {"x": ((1, 2), (4, 2), (8, 2)), "y": ((2, 3), (9, 3), (9, 3))}, 1
        )


def test_an_input_that_no_machine_can_hold_is_named() -> None:
    graph = network(small=("a",), large=tuple(f"n{axis}" for axis in range(26)))
    shapes: dict[str, Any] = {"small": (1,), "large": ((1,) * 26, (1,) * 26, (5,) * 26)}
    with pytest.raises(
        ShapeError, match=r"large.*does not fit into memory.*build for smaller shapes"
    ):
        optimization_profiles_of(graph, shapes, 1)

"""An engine that nobody vouches for is what its own program gives, and nothing else counts."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.builder._cpu_toolchain import CpuToolchain
from smelt.engine import Binding, EngineHeader, LayerInfo, Weight, read_engine
from smelt.errors import EngineFormatError, EngineMismatchError, IndexRangeError, SmeltError
from smelt.ir import Graph
from smelt.types import DType, Limit, TensorType
from tests.support.small_networks import pictures, small_network
from tests.support.unsigned import (
    BATCH,
    build,
    multiplied_graph,
    picked_graph,
    picture_graph,
    program_changed,
    ranked_graph,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt import Engine

pytestmark = pytest.mark.filterwarnings("ignore")


@functools.cache
def picture_engine() -> Engine:
    return build(picture_graph(), max_batch_size=3)


@functools.cache
def ranked_engine() -> Engine:
    return build(ranked_graph(), shapes={"x": ((1, 8), (2, 8), (5, 8))})


@functools.cache
def picked_engine() -> Engine:
    return build(picked_graph(), shapes={"x": (2, 8)})


def _answers(engine: Engine, x: Any) -> dict[str, Any]:
    with engine.create_context(threads=1) as context:
        return context.run({"x": x})


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (picture_engine, (2, 2, 6, 6)),
        (ranked_engine, (3, 8)),
        (picked_engine, (2, 8)),
        (lambda: build(ranked_graph(), shapes={"x": [(1, 8), (4, 8)]}), (4, 8)),
        (
            lambda: build(ranked_graph(), shapes={"x": (1, 8)}, precision="bfloat16"),
            (1, 8),
        ),
    ],
)
def test_it_answers_as_the_signed_one(make: Callable[[], Engine], shape: tuple[int, ...]) -> None:
    engine = make()
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted, made = _answers(engine, x), _answers(smelt.load(unsigned(engine)), x)
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name], array)


def test_what_is_refitted_still_loads() -> None:
    engine = smelt.load(picture_engine().serialize())
    engine.refit({"w": np.ones((4, 2, 3, 3), np.float32)})
    x = np.ones((1, 2, 6, 6), np.float32)
    made = _answers(smelt.load(unsigned(engine)), x)
    np.testing.assert_array_equal(made["pool"], _answers(engine, x)["pool"])


def _binding(header: EngineHeader, number: int, **changes: Any) -> dict[str, Any]:
    bindings = list(header.bindings)
    bindings[number] = replace(bindings[number], **changes)
    return {"bindings": tuple(bindings)}


def _first_plan(header: EngineHeader, **changes: Any) -> dict[str, Any]:
    return {"plans": (replace(header.plans[0], **changes), *header.plans[1:])}


_FORGED: dict[str, Callable[[EngineHeader], dict[str, Any]]] = {
    "name": lambda h: {"name": h.name + "x"},
    "an input's name": lambda h: _binding(h, 0, name="y"),
    "an output's name": lambda h: _binding(h, 1, name="z"),
    "an input's shape": lambda h: _binding(h, 0, shape=(BATCH, 2, 6, 3)),
    "an output's shape": lambda h: _binding(h, 1, shape=(BATCH, 4, 6, 7)),
    "an output's symbol": lambda h: _binding(h, 1, shape=(BATCH + 1, 4, 6, 6)),
    "an output's dtype": lambda h: _binding(h, 1, dtype=DType.FLOAT64),
    "an output as input": lambda h: _binding(h, 1, is_input=True),
    "one binding more": lambda h: {
        "bindings": (*h.bindings, Binding("more", is_input=False, dtype=DType.INT8, shape=(9,)))
    },
    "one binding less": lambda h: {"bindings": h.bindings[:1]},
    "a larger batch": lambda h: {"max_batch_size": 4},
    "any batch": lambda h: {"max_batch_size": None},
    "a plan's symbols": lambda h: _first_plan(h, symbols=(("batch", 1, 9),)),
    "a plan's arena": lambda h: _first_plan(h, arena_bytes=h.plans[0].arena_bytes + 64),
    "a plan less": lambda h: {"plans": ()},
    "a plan more": lambda h: {"plans": h.plans * 2},
    "a step less": lambda h: _first_plan(h, steps=h.plans[0].steps[:-1]),
    "a layer more": lambda h: {"layers": (*h.layers, LayerInfo("more", "relu", "none"))},
    "a layer's name": lambda h: {"layers": (replace(h.layers[0], name="x"), *h.layers[1:])},
    "a layer's kind": lambda h: {"layers": (replace(h.layers[0], kind="x"), *h.layers[1:])},
    "a weight's place": lambda h: {
        "weights": (replace(h.weights[0], offset=64), *h.weights[1:])
    },
    "a weight's shape": lambda h: {
        "weights": (replace(h.weights[0], shape=(1,)), *h.weights[1:])
    },
    "a weight more": lambda h: {"weights": (*h.weights, Weight("x", DType.INT8, (1,), 0))},
    "a weight less": lambda h: {"weights": h.weights[:-1]},
}  # fmt: skip


@pytest.mark.parametrize("forged", _FORGED)
def test_a_header_that_says_something_else_is_refused(forged: str) -> None:
    engine = picture_engine()
    changes = _FORGED[forged](engine.header)
    assert any(getattr(engine.header, name) != value for name, value in changes.items())
    with pytest.raises(EngineFormatError, match=r"the file was changed|not valid"):
        smelt.load(unsigned(engine, **changes))


@pytest.mark.parametrize("what", ["outputs", "plans"])
def test_thousands_of_the_same_are_refused_before_they_are_assembled(what: str) -> None:
    """A program that listed one output 20,000 times was assembled for minutes."""
    engine = picture_engine()
    program = json.loads(engine.header.program)
    if what == "plans":
        program["plans"] *= 5_000
    else:
        program["plans"][0]["outputs"] *= 50_000
    with pytest.raises(EngineFormatError, match=f"{what} are not those"):
        smelt.load(unsigned(engine, program=json.dumps(program)))


@pytest.mark.parametrize("limit", [Limit.MAX_PLANS, Limit.MAX_BINDINGS, Limit.MAX_HEADER_ROWS])
def test_lists_of_a_header_are_bounded(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = picture_engine()
    header = engine.header
    counts = {
        Limit.MAX_PLANS: len(header.plans),
        Limit.MAX_BINDINGS: len(header.bindings),
        Limit.MAX_HEADER_ROWS: max(len(header.layers), len(header.plans[0].steps)),
    }
    file = unsigned(engine)
    monkeypatch.setattr(limit, "most", counts[limit] - 1)
    with pytest.raises(EngineFormatError, match=limit.name):
        smelt.load(file)


def test_what_is_text_alone_is_passed_on_and_changes_nothing() -> None:
    engine = picture_engine()
    text = {
        "report": "[1",
        "metadata": (("\u202e", "\ud800"),),
        "network": "{",
        "network_arrays": (),
    }
    fingerprint = replace(engine.header.fingerprint, tuned_on="\n\x1b[2J")
    symbols = (("main", 5),)
    changed = unsigned(engine, **text, fingerprint=fingerprint, symbols=symbols)
    loaded = smelt.load(changed)
    x = np.ones((1, 2, 6, 6), np.float32)
    np.testing.assert_array_equal(_answers(loaded, x)["pool"], _answers(engine, x)["pool"])
    assert loaded.header.symbols == engine.header.symbols


def test_each_field_of_a_header_is_in_the_table_of_what_is_believed(
    request: pytest.FixtureRequest,
) -> None:
    text = (request.config.rootpath / "docs" / "security.md").read_text(encoding="utf-8")
    for kind in (EngineHeader, Binding, LayerInfo, Weight):
        for field in fields(kind):
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"


def _with_number(engine: Engine, weight: Weight, value: int) -> bytes:
    data = np.array(engine.file.weights)
    size = weight.dtype.size_bytes
    data[weight.offset : weight.offset + size].view(weight.dtype.numpy)[0] = value
    return unsigned(engine, weights_data=data)


def test_a_table_with_places_beyond_the_input_is_refused() -> None:
    engine = picture_engine()
    tables = [w for w in engine.header.weights if "indices" in w.name]
    assert tables
    for table in tables:
        with pytest.raises(EngineFormatError, match="tables"):
            smelt.load(_with_number(engine, table, 1 << 30))


def test_a_table_is_not_replaced_by_a_refit() -> None:
    engine = picture_engine()
    recipe = next(w.recipe for w in engine.header.weights if w.name.startswith("w"))
    weights = tuple(replace(w, recipe=recipe) for w in engine.header.weights)
    loaded = smelt.load(unsigned(engine, weights=weights))
    assert all(w.recipe is None for w in loaded.header.weights if "indices" in w.name)


def test_elements_by_which_plans_decide_are_not_replaced_by_a_refit() -> None:
    """The axis of the sum is part of the code; the addition reads it as a weight, too."""
    graph = Graph("decided")
    axis = graph.add_constant(np.array([1]), "axis")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
    numbers = graph.add_input("numbers", TensorType(DType.INT64, (4,)))
    graph.outputs += [graph.add(ops.ReduceSum(), x, axis, name="sum").output]
    graph.outputs += [graph.add(ops.Add(), numbers, axis, name="add").output]
    engine = build(graph)
    weights = tuple(
        replace(w, recipe=("recipe", (("source", "evil"),))) for w in engine.header.weights
    )
    loaded = smelt.load(unsigned(engine, weights=weights))
    assert [(w.name, w.recipe) for w in loaded.header.weights] == [("axis", None)]


def test_indices_that_are_not_those_of_the_program_are_checked_by_kernels() -> None:
    """A refit may have replaced them."""
    engine = picked_engine()
    (indices,) = [w for w in engine.header.weights if w.dtype is DType.INT64]
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    for value in (1 << 40, 8, -9, -(1 << 63)):
        with (
            smelt.load(_with_number(engine, indices, value)) as loaded,
            pytest.raises(IndexRangeError),
        ):
            loaded.run({"x": x})
    with smelt.load(_with_number(engine, indices, -1)) as loaded:
        (picked,) = _answers(loaded, x).values()
    np.testing.assert_array_equal(picked, x[:, [[-1, -1], [0, 5]]])


def test_a_guard_that_a_program_leaves_out_is_there_all_the_same() -> None:
    shapes = {"a": ((4, 1), (4, 8), (4, 64)), "b": ((1, 4), (8, 4), (64, 4))}
    engine = build(multiplied_graph(), shapes=shapes)
    (plan,) = engine.header.plans
    assert plan.guards
    document = json.loads(engine.header.program)
    document["plans"][0] |= {"guards": [], "assumed": []}
    program = json.dumps(document)
    with pytest.raises(EngineFormatError, match="the file was changed"):
        smelt.load(unsigned(engine, program=program, plans=(replace(plan, guards=()),)))
    loaded = smelt.load(unsigned(engine, program=program))
    with pytest.raises(SmeltError), loaded.create_context(threads=1) as context:
        context.run({"a": np.ones((4, 64), np.float32), "b": np.ones((1, 4), np.float32)})


def test_weights_that_end_too_early_are_refused() -> None:
    engine = picture_engine()
    for size in (0, 64, engine.file.weights.size - 64):
        with pytest.raises(EngineFormatError):
            smelt.load(unsigned(engine, weights_data=engine.file.weights[:size]))


@pytest.mark.parametrize("kind", [float, bool])
def test_numbers_of_another_kind_reach_no_generator(kind: type) -> None:
    """In Python 1 == 1.0 == True, and a generator that counts to 1.0 fails."""
    engine = smelt.build(small_network(), tune="none")
    document = json.loads(engine.header.program)
    changed = 0
    for node in document["plans"][0]["nodes"]:
        for pair in node["tactic"][1]:
            if type(pair[1]) is int and kind(pair[1]) == pair[1]:
                pair[1] = kind(pair[1])
                changed += 1
    if not changed:
        pytest.skip("no number is both")
    loaded = smelt.load(unsigned(engine, program=json.dumps(document)))
    assert loaded.header.plans == engine.header.plans
    assert repr(loaded.header.plans) == repr(engine.header.plans)
    with loaded.create_context(threads=1) as context:
        assert np.isfinite(context.run({"data": pictures(1)})["prob"]).all()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        (5, "0", "expected a 64-bit integer, not '0'"),
        (6, 0, "expected a string, not 0"),
        (7, "other", "'other' is not one of none, view"),
        (8, 0, "expected true or false, not 0"),
    ],
)
def test_a_field_of_a_tactic_must_have_the_type_that_is_written(
    field: int, value: object, problem: str
) -> None:
    engine = picture_engine()
    program = program_changed(engine.file, "plans", 0, "nodes", 0, "tactic", field, value=value)
    with pytest.raises(EngineFormatError, match=f"malformed at a tactic: {problem}"):
        smelt.load(unsigned(engine, program=program))


def test_constants_that_no_weights_hold_are_refused_before_they_are_made() -> None:
    engine = picture_engine()
    for row in (
        ["w", "float32", [1 << 20, 1 << 10], None],
        ["w", "int64", [1 << 30], None],
        ["w", "float32", [4, 2, 3, 3], None],
    ):
        program = program_changed(engine.file, "constants", 0, value=row)
        with pytest.raises(
            EngineFormatError, match=r"more than 8 times the|has no list|too large for a list"
        ):
            smelt.load(unsigned(engine, program=program))


def test_what_no_generator_is_made_for_is_the_engines_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(CpuToolchain, "link", fail)
    with pytest.raises(EngineFormatError, match="its program is not valid"):
        smelt.load(unsigned(picture_engine()))


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "\x00"},
        {"device": "dla"},
        {"architecture": "\ud800"},
        {"features": ("\n",)},
        {"abi": -1},
        {"system": ""},
    ],
)
def test_another_fingerprint_is_another_machine(changes: dict[str, Any]) -> None:
    engine = picture_engine()
    other = replace(engine.header.fingerprint, **changes)
    with pytest.raises(EngineMismatchError):
        smelt.load(unsigned(engine, fingerprint=other))


def test_what_is_loaded_unsigned_is_our_own_when_it_is_saved() -> None:
    loaded = smelt.load(unsigned(picture_engine()))
    again = read_engine(loaded.serialize())
    assert again.signature is not None
    with pytest.raises(SmeltError):
        smelt.load(unsigned(loaded, max_batch_size=7))


def test_one_that_computes_nothing_is_loaded_only_when_it_is_asked_for() -> None:
    engine = picture_engine()
    nothing = unsigned(engine, fingerprint=replace(engine.header.fingerprint, device="null"))
    with pytest.raises(EngineMismatchError, match="computes nothing"):
        smelt.load(nothing)
    assert smelt.load(nothing, device="null").device == "null"


def _shifted(amount: float) -> Graph:
    """A branch with a constant called w."""
    graph = Graph("shifted")
    x = graph.add_input("v", TensorType(DType.FLOAT32, (3,)))
    w = graph.add_constant(np.full(3, amount, np.float32), "w")
    graph.outputs = [graph.add(ops.Add(), x, w, name="sum").output]
    return graph


def test_taken_branch_may_have_a_constant_of_the_same_name() -> None:
    graph = Graph("branches")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3,)))
    condition = graph.add_constant(np.ones((), np.bool_), "condition")
    w = graph.add_constant(np.full(3, 7, np.float32), "w")
    product = graph.add(ops.Mul(), x, w, name="product").output
    branches = ops.If(then_branch=_shifted(1), else_branch=_shifted(2))
    y = graph.add(branches, condition, product, name="y").output
    graph.outputs = [graph.add(ops.Neg(), y, name="negative").output]
    loaded = smelt.load(unsigned(build(graph)))
    given = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(_answers(loaded, given)["negative"], -(7 * given + 1))


@pytest.mark.parametrize("op", [ops.LRN(3, alpha=math.nan), ops.LRN(3, bias=math.nan)])
def test_an_attribute_that_is_not_a_number_is_the_same_in_the_file(op: ops.LRN) -> None:
    graph = Graph("nan")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 4, 2, 2)))
    graph.outputs = [graph.add(op, x, name="y").output]
    loaded = smelt.load(unsigned(build(graph)))
    assert np.isnan(_answers(loaded, np.ones((1, 4, 2, 2), np.float32))["y"]).all()

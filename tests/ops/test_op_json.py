"""Ops, regions and recipes survive JSON, and hostile JSON is refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.errors import EngineFormatError, EngineMismatchError
from smelt.ir import Case, Constant, Op, Operand
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType

CASES = [
    pytest.param(case, id=f"{cls.name}: {case.name}") for cls in ops.ALL_OPS for case in cls.cases()
]


def through_text(op: Op) -> Op:
    return ops.op_from_json(json.loads(json.dumps(ops.op_to_json(op), allow_nan=False)))


@pytest.mark.parametrize("case", CASES)
def test_every_op_is_the_same_after_json(case: Case) -> None:
    written = ops.op_to_json(case.op)
    assert isinstance(hash(written), int)
    read = through_text(case.op)
    assert ops.op_to_json(read) == written
    if not case.op.regions:
        assert read == case.op


@pytest.mark.parametrize("cls", [ops.If, ops.Loop])
def test_a_region_computes_the_same_after_json(cls: type[Op]) -> None:
    for case in cls.cases():
        for before, after in zip(
            case.op.reference(*case.inputs),
            through_text(case.op).reference(*case.inputs),
            strict=True,
        ):
            np.testing.assert_array_equal(before, after)


@dataclass(frozen=True)
class Odd(Op):
    """Has a field of every kind."""

    name: ClassVar[str] = "tests.odd"

    class Way(Enum):
        """A closed set."""

        UP = "up"

    number: float = 0.0
    pair: tuple[int, str] = (0, "")
    many: tuple[tuple[float, ...], ...] = ()
    maybe: DType | None = None
    flag: bool = False
    thing: Any = None

    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return tuple(o.type for o in inputs if o is not None)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(a for a in inputs if a is not None)

    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("none", cls(), ())


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.ops._registry._registered", {})
    ops.register_op(Odd)


@pytest.mark.usefixtures("_own_registry")
def test_infinite_numbers_nested_tuples_and_types_are_exact() -> None:
    op = Odd(float("-inf"), (3, "x"), ((1.5, 2.0), ()), DType.BFLOAT16, flag=True, thing="y")
    assert through_text(op) == op
    assert np.isnan(cast("Odd", through_text(Odd(float("nan")))).number)


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", "1"),
        ("pair", ["tuple", 1]),
        ("pair", ["tuple", "x", 1]),
        ("many", ["tuple", ["tuple", "x"]]),
        ("maybe", ["dtype", "float31"]),
        ("flag", 1),
        ("unknown", 1),
        ("thing", ["code", "x"]),
        ("thing", {"a": 1}),
        ("thing", 1 << 70),
        ("thing", ["float", "1.0"]),
    ],
)
def test_a_wrong_field_is_refused(field: str, value: object) -> None:
    identity = list(ops.op_identity(Odd))
    with pytest.raises(EngineFormatError):
        ops.op_from_json(["op", "tests.odd", [[field, value]], identity])


@pytest.mark.usefixtures("_own_registry")
def test_a_users_op_is_only_read_where_the_same_source_is_installed() -> None:
    tag, name, fields, identity = cast("tuple[Any, ...]", ops.op_to_json(Odd()))
    other = (*identity[:3], "0" * 64)
    with pytest.raises(EngineMismatchError, match=r"source SHA-256 0{64} in the engine"):
        ops.op_from_json((tag, name, fields, other))
    with pytest.raises(EngineMismatchError, match="without package and source in the engine"):
        ops.op_from_json((tag, name, fields, None))


def test_an_op_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(EngineFormatError, match="there is no op 'secret'"):
        ops.op_from_json(("op", "secret", (), None))


def test_ops_too_deep_inside_each_other_are_refused() -> None:
    op: ops.Op = ops.Identity()
    for _ in range(140):
        op = ops.Fused(op, 1, ())
    data = ops.op_to_json(op)
    with pytest.raises(EngineFormatError, match="more than 128 nested levels"):
        ops.op_from_json(data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["op", "tuple", "graph", "dtype", "float32", "loop", "n // 0", "enum"]),
    lambda children: st.lists(children, max_size=7),
    max_leaves=20,
)


@given(json_values)
def test_any_json_gives_an_op_or_a_clear_error(data: object) -> None:
    with contextlib.suppress(EngineFormatError):
        ops.op_from_json(data)


def _places(data: object, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield path
    if isinstance(data, list):
        for index, part in enumerate(cast("list[object]", data)):
            yield from _places(part, (*path, index))


WHOLE = [
    json.loads(json.dumps(ops.op_to_json(next(iter(cls.cases())).op)))
    for cls in (ops.If, ops.Loop, ops.Fused, ops.Transpose, ops.Resize, ops.ConstantOfShape)
]


@given(st.data())
def test_a_sound_op_with_one_changed_part_gives_an_op_or_a_clear_error(data: st.DataObject) -> None:
    whole = json.loads(json.dumps(data.draw(st.sampled_from(WHOLE))))
    *path, last = data.draw(st.sampled_from([p for p in _places(whole) if p]))
    part = whole
    for index in path:
        part = part[index]
    part[last] = data.draw(json_values)
    with contextlib.suppress(EngineFormatError):
        ops.op_from_json(whole)


def test_a_recipe_is_recomputed_from_new_weights_and_stores_shared_parts_once() -> None:
    weights = Constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    two = Constant("two", np.array(2, np.float32))
    doubled = Constant.derive("doubled", ops.Mul(), weights, two)
    turned = Constant.derive("turned", ops.Transpose(), doubled)
    product = Constant.derive("product", ops.Concat(0), doubled, doubled)
    total = Constant.derive("total", ops.Concat(1), product, product)
    assert turned.array.shape == (3, 2)

    def intern(constant: Constant) -> str | None:
        return None if constant is two else constant.name

    written = cast("Any", ops.recipe_to_json(total, intern))
    names = [entry[1] for entry in written[1]]
    assert sorted(names) == ["doubled", "product", "total", "two", "w"]
    fresh = Constant("w", np.ones((2, 3), np.float32))
    read = ops.recipe_from_json(json.loads(json.dumps(written)), {"w": fresh}.__getitem__)
    np.testing.assert_array_equal(read.array, np.full((4, 6), 2, np.float32))
    assert [c.name for c in read.sources() if c is fresh] == ["w"]


def test_a_recipe_of_many_doublings_stays_small() -> None:
    part = Constant("w", np.ones(1, np.float32))
    for step in range(300):
        part = Constant.derive(f"s{step}", ops.Add(), part, part)
    written = cast("Any", ops.recipe_to_json(part, lambda c: c.name))
    assert len(written[1]) == 301


MALFORMED_RECIPES: list[object] = [
    None,
    ["recipe", []],
    ["recipe", [["derived", "x", ["op", "add", [], None], [0, 0], 0]]],
    ["recipe", [["inline", "x", ["array", "float32", [2], "AAAA"]]]],
    ["recipe", [["inline", "x", ["array", "float32", [1 << 39, 1 << 39], ""]]]],
    ["recipe", [["inline", "x", ["array", "float32", [1], "!!!!"]]]],
    ["recipe", [["derived", "x", ["op", "add", [], None], [], -1]]],
    ["recipe", [["other"]]],
]


@pytest.mark.parametrize("data", MALFORMED_RECIPES)
def test_a_malformed_recipe_is_refused(data: object) -> None:
    with pytest.raises(EngineFormatError):
        ops.recipe_from_json(data, Constant)


@pytest.mark.parametrize(
    "dim", ["*".join(["(a+b+c+d+e+f)"] * 40), "-" * 1900 + "n", "n // 0", "n // m", "__import__"]
)
def test_a_hostile_dimension_in_a_region_is_refused_at_once(dim: str) -> None:
    whole = json.loads(json.dumps(ops.op_to_json(next(iter(ops.If.cases())).op)))
    region = whole[2][0][1]
    assert region[0] == "graph"
    region[2][0][1] = ["tensor", "float32", [dim, 3]]
    if dim == "__import__":
        assert ops.op_from_json(whole).regions  # a name like any other: it is never evaluated
        return
    with pytest.raises(EngineFormatError):
        ops.op_from_json(whole)

"""Recipes may be deeper than calls can go, and share parts at every level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.backends import WeightStore
from smelt.ir import Constant, sources_first
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    import pytest

DEPTH = 3000


def _source() -> Constant:
    return Constant("source", np.ones(2, np.float32))


def _chain(depth: int) -> Constant:
    made = _source()
    for index in range(depth):
        made = Constant.derive(f"c{index}", ops.Neg(), made)
    return made


def _doubled(depth: int) -> Constant:
    """Twice the same constant at every level: 2 ** depth ways lead to the source."""
    made = _source()
    for index in range(depth):
        made = Constant.derive(f"c{index}", ops.Add(), made, made)
    return made


def test_a_deep_recipe_has_a_type_and_elements_and_forgets_them() -> None:
    made = _chain(DEPTH)
    assert made.type == TensorType(DType.FLOAT32, (2,))
    assert made.array.tolist() == [1, 1]
    made.forget()
    assert made.array.tolist() == [1, 1]
    assert len(list(sources_first(made))) == DEPTH + 1


def test_shared_parts_are_inferred_and_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    infer, reference = ops.Add.infer, ops.Add.reference

    def counted_infer(*given: object) -> object:
        calls.append("infer")
        return infer(*given)  # type: ignore[arg-type]

    def counted_reference(*given: object) -> object:
        calls.append("reference")
        return reference(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(ops.Add, "infer", counted_infer)
    monkeypatch.setattr(ops.Add, "reference", counted_reference)
    made = _doubled(100)
    assert made.type == TensorType(DType.FLOAT32, (2,))
    assert made.array[0] == np.float32(2.0**100)
    assert (calls.count("infer"), calls.count("reference")) == (100, 100)


def test_weights_are_told_apart_by_recipes_of_any_depth() -> None:
    store, source = WeightStore(), _source()
    derived = [Constant.derive(name, ops.Neg(), source) for name in ("a", "b")]
    assert store.key(derived[0]) == store.key(derived[1]) != store.key(source)
    for made in (_chain(DEPTH), _doubled(100)):
        assert store.key(made) != store.key(source)
    assert store.key(_chain(7)) == store.key(_chain(7)) != store.key(_chain(8))

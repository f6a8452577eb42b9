"""Users' own ops are known by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pytest

from smelt import ops
from smelt.errors import GraphError, UnsupportedError
from smelt.ir import Case, Op, Operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Doubled(Op):
    """Twice the input."""

    name: ClassVar[str] = "tests.doubled"

    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return tuple(o.type for o in inputs if o is not None)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(2 * a for a in inputs if a is not None)

    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("numbers", cls(), (np.arange(3),))


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.ops._registry._registered", {})


def test_a_registered_op_is_found_by_its_name_and_may_be_registered_again() -> None:
    assert ops.register_op(Doubled) is Doubled
    assert ops.register_op(Doubled) is Doubled
    assert ops.lookup_op("tests.doubled") is Doubled


def test_smelts_own_ops_are_found_by_name() -> None:
    assert ops.lookup_op("conv") is ops.Conv


def test_a_name_that_is_taken_is_refused() -> None:
    ops.register_op(Doubled)
    for name in ("tests.doubled", "conv"):
        other = type("Other", (Doubled,), {"name": name, "__module__": __name__})
        with pytest.raises(GraphError, match="is already used by"):
            ops.register_op(dataclass(frozen=True)(other))


def test_a_class_that_derives_from_a_built_in_op_has_its_name() -> None:
    own: Any = type("OwnRelu", (ops.Relu,), {"__module__": __name__})
    assert own.name == "relu"
    with pytest.raises(GraphError, match="is already used by"):
        ops.register_op(dataclass(frozen=True)(own))


def test_what_is_no_complete_op_is_refused() -> None:
    half = type("Half", (Op,), {"name": "tests.half"})
    with pytest.raises(GraphError, match="does not define cases, infer, reference"):
        ops.register_op(half)
    with pytest.raises(GraphError, match=r"not a subclass of smelt\.ops\.Op"):
        ops.register_op(cast("Any", int))
    with pytest.raises(GraphError, match="decorated with @dataclass"):
        ops.register_op(type("Plain", (Doubled,), {"name": "tests.plain"}))
    with pytest.raises(GraphError, match="class variable 'name'"):
        ops.register_op(dataclass(frozen=True)(type("Bad", (Doubled,), {"name": "a b"})))


def test_an_unknown_name_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match="register_op, or install the package"):
        ops.lookup_op("tests.nothing")


def test_an_op_that_an_installed_package_offers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("offered_ops")
    module.__dict__["Doubled"] = Doubled
    monkeypatch.setitem(sys.modules, "offered_ops", module)
    entry = metadata.EntryPoint("tests.doubled", "offered_ops:Doubled", "smelt.ops")

    def entry_points(*, group: str) -> tuple[metadata.EntryPoint, ...]:
        return (entry,) if group == "smelt.ops" else ()

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert ops.lookup_op("tests.doubled") is Doubled


def test_an_ops_identity_names_its_package_version_and_source() -> None:
    package, name, _, digest = ops.op_identity(Doubled)
    assert (package, name) == (__name__.partition(".")[0], "tests.doubled")
    assert len(digest) == 64
    assert ops.op_identity(ops.Conv)[3] != digest
    assert ops.op_identity(Doubled) == ops.op_identity(Doubled)

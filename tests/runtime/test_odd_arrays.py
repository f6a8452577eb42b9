"""Arrays whose own methods fail, and arrays of other axes than their binding."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.errors import BindingError, ContextError, SmeltError
from tests.support.engines import COLUMNS, affine, affine_engine, batch_of

if TYPE_CHECKING:
    from smelt.runtime import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return affine_engine()


class _Lazy:
    """An array of a library whose methods do something, and fail."""

    def __init__(self, kind: type[Exception], where: str) -> None:
        self._kind, self._where = kind, where

    def __getattr__(self, name: str) -> Any:
        if name == self._where:
            return self._fail
        if self._where == "__dlpack__" and name == "__dlpack_device__":
            return lambda: (1, 0)
        raise AttributeError(name)

    def _fail(self, *_: object, **__: object) -> object:
        raise self._kind("the disk is gone")


class _LazyAttribute:
    """One that fails before it is called."""

    @property
    def __dlpack_device__(self) -> object:
        raise OSError("the disk is gone")


class _LazyArray:
    """One that knows numpy's protocol alone."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise OSError("the disk is gone")


KINDS = (OSError, ZeroDivisionError, AssertionError, StopIteration)
LAZY: list[Any] = [
    *(_Lazy(kind, where) for kind in KINDS for where in ("__dlpack__", "__dlpack_device__")),
    _LazyAttribute(),
]
TOLD = "x: the array cannot be read: the disk is gone"


@pytest.mark.parametrize("value", [*LAZY, _LazyArray()])
def test_whatever_an_arrays_own_method_raises_is_told_with_its_name(
    engine: Engine, value: Any
) -> None:
    with engine.create_context() as context:
        with pytest.raises(BindingError, match=TOLD):
            context.run({"x": value})
        with pytest.raises(BindingError, match=TOLD):
            context.execute(1, [value, batch_of(1)])
        np.testing.assert_array_equal(context.run({"x": batch_of(1)})["y"], affine(batch_of(1)))


@pytest.mark.parametrize("value", LAZY)
def test_whatever_an_outputs_own_method_raises_is_told_with_its_name(
    engine: Engine, value: Any
) -> None:
    with (
        engine.create_context() as context,
        pytest.raises(BindingError, match="y: the array cannot be read: the disk is gone"),
    ):
        context.execute(1, [batch_of(1), value])


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("shape", [(COLUMNS, 2), (COLUMNS, 2, 1), (1, 2 * COLUMNS), (2, 4, 6)])
def test_an_array_of_other_axes_is_refused_however_many_elements_it_has(
    engine: Engine, index: int, shape: tuple[int, ...]
) -> None:
    arrays: list[Any] = [batch_of(2), batch_of(2)]
    arrays[index] = arrays[index].reshape(shape)
    with engine.create_context() as context, pytest.raises(BindingError, match=r"x: |y: "):
        context.execute(2, arrays)


class _Odd(_LazyArray):
    """An array of a library whose conversions fail, or whose class is odd."""

    def __array__(self, *_: object, **__: object) -> Any:
        return batch_of(1)

    def __dlpack__(self, **options: Any) -> object:
        return batch_of(1).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class _RaisesItsClass:
    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError

    @__class__.setter
    def __class__(self, value: object) -> None: ...


class _RaisesItsText:
    def __repr__(self) -> str:
        raise ZeroDivisionError

    __hash__ = object.__hash__


class _OddIndex:
    def __index__(self) -> int:
        return 1 // 0


class _OddPath:
    def __fspath__(self) -> Any:
        return 3


class _OddProfiler:
    @property
    def report_layer_time(self) -> int:
        return 1 // 0


def test_a_library_that_cannot_take_the_outputs_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("odd_library")

    def fail(_: object) -> object:
        raise RuntimeError("no such dtype")

    library.from_dlpack = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd_library", library)
    value = type("Array", (_Odd,), {"__module__": "odd_library.core"})()
    with pytest.raises(BindingError, match="odd_library cannot import the outputs: no such dtype"):
        engine.run({"x": value})
    nameless = type("Array", (_Odd,), {})
    nameless.__module__ = None  # type: ignore[assignment]
    np.testing.assert_array_equal(engine.run({"x": nameless()})["y"], affine(batch_of(1)))


def test_objects_that_raise_when_they_are_looked_at_are_refused(engine: Engine) -> None:
    x: Any = batch_of(1)
    odd: Any = _RaisesItsClass()
    with pytest.raises(BindingError, match="cannot be read"):
        engine.run({"x": odd})
    names: Any = {_RaisesItsText(): x}
    with pytest.raises(BindingError, match="unknown: <_RaisesItsText instance"):
        engine.run(names)
    with pytest.raises(BindingError, match="must be a list"):
        engine.run({"x": x}, (str(1 // 0) for _ in "y"))
    index: Any = _OddIndex()
    with pytest.raises(ContextError, match="threads is"):
        engine.create_context(threads=index)
    profiler: Any = _OddProfiler()
    with (
        engine.create_context() as context,
        pytest.raises(ContextError, match=r"profiler .* cannot be used: .*division"),
    ):
        context.profiler = profiler
    path: Any = _OddPath()
    with pytest.raises(SmeltError, match="cannot be read: expected _OddPath"):
        engine.save(path)

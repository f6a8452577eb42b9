"""Arrays whose own methods fail, and arrays of other axes than their binding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.errors import BindingError
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

"""What owns memory has one owner: a copy that is closed would end the memory of the original."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from smelt.runtime import Stream
from tests.support.engines import affine_engine

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_owns_memory_is_neither_copied_nor_pickled(
    double: Callable[[object], object],
) -> None:
    engine = affine_engine()
    with engine.create_context() as context, Stream("cpu") as stream:
        for owner in (engine, context, stream):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                double(owner)

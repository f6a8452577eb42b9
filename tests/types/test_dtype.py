"""Element types, and what numpy makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.types import DType


@pytest.mark.parametrize("dtype", DType)
def test_numpy_takes_an_element_type_for_its_own(dtype: Any) -> None:
    assert np.dtype(dtype) == dtype.numpy
    assert np.zeros(2, dtype).dtype == dtype.numpy
    assert np.ones(3, np.float32).astype(dtype).dtype == dtype.numpy


@pytest.mark.parametrize("attribute", ["dtype", "__numpy_dtype__"])
def test_numpys_of_all_ages_ask_in_their_own_way(attribute: str) -> None:
    assert getattr(DType.FLOAT16, attribute) == np.float16
    assert len(DType) == 13  # neither is an element type

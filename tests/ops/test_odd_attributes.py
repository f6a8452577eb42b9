"""An attribute that is an odd number gives a result or an error of smelt, for every op."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.interp import interpret
from smelt.ops import ALL_OPS
from tests.support.trials import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Case, Op

_ODD: Final = (math.inf, -math.inf, math.nan, 0.0, -0.0, -1.0, 1e-320, 5e-324, 1e308, -1e308)
_CASES: Final = 6
"""How many cases of an op are tried."""


def _with_odd_numbers(case: Case) -> Iterator[Op]:
    """Yield the op with each of its attributes of floats changed."""
    op: Any = case.op
    for attribute in fields(op):
        old = getattr(op, attribute.name)
        is_float = "float" in str(attribute.type)
        for number in _ODD if is_float else ():
            if isinstance(old, tuple):
                yield from (replace(op, **{attribute.name: (number, *old[i:])}) for i in (0, 1))
            else:
                yield replace(op, **{attribute.name: number})


@pytest.mark.parametrize("op", ALL_OPS)
def test_an_odd_number_gives_a_result_or_an_error_of_ours(op: type[Op]) -> None:
    for case in islice(op.cases(), _CASES):
        given = {
            f"x{i}": array
            for i, array in enumerate(case.inputs)
            if array is not None and i not in case.constants
        }
        for changed in _with_odd_numbers(case):
            try:
                with np.errstate(all="ignore"):
                    interpret(graph_of(replace(case, op=changed)), given)
            except SmeltError:
                continue

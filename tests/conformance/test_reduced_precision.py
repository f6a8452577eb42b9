"""Generated: tactics on float32 tensors that are stored as bfloat16 or float16."""

from __future__ import annotations

import pytest

from smelt.ops import ALL_OPS, Op
from smelt.types import DType
from tests.support.conformance import check_reduced_precision

_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


@_every_op
def test_tactics_are_right_on_bfloat16(op: type[Op], *, every_trial: bool) -> None:
    check_reduced_precision(op.cases(), DType.BFLOAT16, every_trial=every_trial)

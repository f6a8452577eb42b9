"""Every op on single elements, on infinities, no numbers, zeros of both signs and extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import Op
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array

FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def special_values(dtype: DType) -> Array:
    """Of both signs; what the type cannot hold comes to be an infinity or zero."""
    limits = np.finfo(np.float32)
    some = [np.inf, np.nan, 0, limits.max, 65504, 3.38e38, limits.tiny, 2.0**-149, 6e-5, 6e-8]
    large = [2.0**k for k in range(0, 128, 5)] + [10.0**k for k in range(-10, 39, 3)]
    edges = [0.5, 1 - 2.0**-24, 1 + 2.0**-23, 1.5, 2.5, 3.5, 20, 88, 89, 104, 709, 1000, 30000]
    x = np.array([*some, *large, *edges], np.float32)
    with np.errstate(all="ignore"):
        return np.concatenate([x, -x]).astype(dtype.numpy)


def ops_on_elements() -> Iterator[tuple[Op, DType]]:
    """Each op that maps floats one by one, with the attributes of its cases and each type."""
    seen: set[Op] = set()
    for name in ops.__all__:
        kind = getattr(ops, name)
        if not (isinstance(kind, type) and issubclass(kind, Op)) or kind in (Op, ops.Cast):
            continue  # what a cast makes of a NaN is nowhere said
        for case in kind.cases():
            op, first = case.op, case.inputs[0] if len(case.inputs) == 1 else None
            if first is None or first.dtype != np.float32 or not op.elementwise or op in seen:
                continue
            seen.add(op)
            allowed = getattr(op, "allowed", FLOATS)
            yield from ((op, dtype) for dtype in FLOATS if dtype in allowed)


@pytest.mark.parametrize(("op", "dtype"), list(ops_on_elements()), ids=str)
def test_an_engine_does_with_special_values_what_the_reference_does(op: Op, dtype: DType) -> None:
    x = special_values(dtype)
    graph = Graph()
    value = graph.add_input("x", TensorType(dtype, x.shape))
    graph.outputs.append(graph.add(op, value, name="op").output)
    (wanted,) = interpret(graph, {"x": x}).values()
    with smelt.build(graph) as engine:
        found = np.asarray(next(iter(engine.run({"x": x}).values())))
    if wanted.dtype.kind in "bui":
        assert np.array_equal(found, wanted)
        return
    mine, right = found.astype(np.float64), wanted.astype(np.float64)
    # A reference loses digits to cancellation, and what is denormal; no infinity and no NaN.
    relative, absolute = (1e-4, 1e-36) if dtype is DType.FLOAT32 else (2.0**-7, 1e-7)
    with np.errstate(all="ignore"):
        near = np.abs(mine - right) <= relative * np.abs(right) + absolute
    same = (mine == right) | (np.isnan(mine) & np.isnan(right)) | near
    assert same.all(), list(zip(x[~same], mine[~same], right[~same], strict=True))

"""Every case of an op that ONNX has, run by ONNX Runtime too.

What ONNX Runtime cannot run is asked of ONNX's own reference; what that gets wrong is tested by
hand beside.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from smelt.errors import ShapeError
from smelt.ops import ALL_OPS, Array, Case, ConvSum, Fused, FusedPair, Operand, Resize
from smelt.types import DType, is_float_dtype

onnxruntime = pytest.importorskip("onnxruntime")

import onnx  # noqa: E402  (absent where ONNX Runtime is)
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.support import guards_of_moves, guards_of_products  # noqa: E402
from tests.support.one_node_models import model_of  # noqa: E402
from tests.support.trials import sample  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark.structures import ParameterSet
    from onnx import ModelProto

    from smelt.ops import Op
    from smelt.types import TensorType

_STATE = onnxruntime.capi.onnxruntime_pybind11_state

_BEYOND_ONNX_RUNTIME = {
    ("attention", "masked_keys"),  # it wants a row of the mask for each query
    ("gru", "batch_first"),
    ("lstm", "batch_first"),
    ("rnn", "batch_first"),
}
_BY_HAND = {
    # ONNX Runtime wants odd sizes and four axes, ONNX's reference confuses channels with the batch.
    ("lrn", "across_even"),
    ("lrn", "across_series"),
    # Neither runs a depth that is a list, with these types.
    ("one_hot", "depth in a list"),
    # Neither takes as many zero points of weights as there are filters, or of rows.
    ("conv_integer", "weights_with_zero_points"),
    ("mat_mul_integer", "zero_points_apart"),
    # ONNX wants a scale.
    ("quantize_linear", "in_steps"),
    # ONNX has no such region.
    ("lrn", "within"),
    ("lrn", "within_larger_than_image"),
}
_UNDEFINED = re.compile(
    # ONNX Runtime refuses to divide integers by zero, and traps; ONNX leaves the rest open.
    # Of what is no number ONNX Runtime asks for no range.
    r"dynamic_quantize_linear-not a number|(div|mod)-(corners|by zero)|"
    r"pow-corners of u?int|cast-float\d+ beyond"
)
"""Names of cases about which others say nothing: `test_by_hand` does."""


def _cases() -> list[ParameterSet]:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return [
        pytest.param(case, id=f"{cls.name}-{case.name}")
        for cls in ALL_OPS
        if cls.__name__ in known
        for case in cls.cases()
        if not case.op.regions and (cls.name, case.name) not in _BY_HAND
        if not _beyond_onnx(case) and not _UNDEFINED.match(f"{cls.name}-{case.name}")
    ]


def _beyond_onnx(case: Case) -> bool:
    """Whether the case is of what we allow and ONNX does not: biases and means of integers."""
    integral = case.inputs[0] is not None and case.inputs[0].dtype.kind in "iu"
    if case.op.name in {"conv_integer", "mat_mul_integer"}:
        return len(case.inputs) > 4 and case.inputs[4] is not None
    return integral and case.op.name in {
        "average_pool",
        "global_average_pool",
        "global_max_pool",
    }


def _run(case: Case, results: tuple[Array, ...]) -> list[Array]:
    model = model_of(case, results)
    given = {v.name: case.inputs[int(v.name[1:])] for v in model.graph.input}
    if (case.op.name, case.name) not in _BEYOND_ONNX_RUNTIME:
        with contextlib.suppress(_STATE.NotImplemented, _STATE.InvalidGraph):
            return _run_onnx_runtime(model, given)
    evaluator: Any = ReferenceEvaluator(model)
    return cast("list[Array]", evaluator.run(None, given))


def _run_onnx_runtime(model: ModelProto, given: dict[str, Array | None]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return cast("list[Array]", session.run(None, given))


def assert_agree(ours: Array, theirs: Array, tolerance: float) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs)
        return
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    scale = float(np.abs(theirs[finite]).max(initial=0))
    error = np.abs(ours[finite].astype(np.float64) - theirs[finite].astype(np.float64))
    assert float(error.max(initial=0)) <= tolerance * scale


def _guarded() -> list[ParameterSet]:
    cases = (*guards_of_products.CASES, *guards_of_moves.CASES)
    return [pytest.param(c.case(), id=f"{c.op.name}-where-{c.label}") for c in cases if c.peers]


@pytest.mark.parametrize("case", [*_cases(), *_guarded()])
def test_reference_agrees_with_onnx_runtime(case: Case) -> None:
    ours = case.op.reference(*case.inputs)
    theirs = _run(case, ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert_agree(mine, other, case.tolerance)


_IN_16_BITS = 3
"""Cases of each op that are tried in 16 bits too."""
_COMPOSED = (FusedPair, ConvSum, Fused)
"""Each of their stages rounds its result."""


def _narrowed(op: type[Op], dtype: DType) -> Iterator[Case]:
    """Cases of float32 in a narrower type, where the op takes that."""
    for case in op.cases():
        # Scales and regions of a Resize are float32 always.
        inputs = tuple(
            array.astype(dtype.numpy)
            if array is not None and array.dtype == np.float32 and (op is not Resize or not index)
            else array
            for index, array in enumerate(case.inputs)
        )
        if case.op.regions or not any(a is not None and a.dtype == dtype.numpy for a in inputs):
            continue
        with contextlib.suppress(ShapeError):
            case.op.infer([None if a is None else Operand.constant(a) for a in inputs])
            yield replace(case, inputs=inputs)


@cache
def _asked_of_others() -> frozenset[tuple[str, str]]:
    cases = (cast("Case", parameters.values[0]) for parameters in _cases())
    return frozenset((case.op.name, case.name) for case in cases)


def _in_float32(case: Case) -> list[Array] | tuple[Array, ...]:
    """What others make of a case's numbers in float32; the reference where nobody else does."""
    arrays = (
        array.astype(np.float32) if array is not None and is_float_dtype(array.dtype) else array
        for array in case.inputs
    )
    wide = replace(case, inputs=tuple(arrays))
    ours = case.op.reference(*wide.inputs)
    return _run(wide, ours) if (case.op.name, case.name) in _asked_of_others() else ours


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16], ids=lambda d: d.value)
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_in_16_bits_a_reference_gives_what_others_give_in_float32_rounded(
    op: type[Op], dtype: DType
) -> None:
    step = {DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10}[dtype]
    stages = 4 if op in _COMPOSED else 1
    with np.errstate(all="ignore"):
        for case in sample(_narrowed(op, dtype), _IN_16_BITS):
            ours, theirs = case.op.reference(*case.inputs), _in_float32(case)
            kinds = case.op.infer([None if a is None else Operand.constant(a) for a in case.inputs])
            for mine, other, kind in zip(ours, theirs, kinds, strict=True):
                assert mine.dtype == cast("TensorType", kind).dtype.numpy
                rounded = other.astype(mine.dtype)
                if is_float_dtype(mine.dtype):
                    mine, rounded = mine.astype(np.float32), rounded.astype(np.float32)
                assert_agree(mine, rounded, max(case.tolerance, stages * step))

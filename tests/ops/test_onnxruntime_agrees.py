"""Every case of an op that ONNX has, run by ONNX Runtime too.

What ONNX Runtime cannot run is asked of ONNX's own reference; what that gets wrong is tested by
hand beside.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from smelt.ops import ALL_OPS, Array, Case

onnxruntime = pytest.importorskip("onnxruntime")

import onnx  # noqa: E402  (absent where ONNX Runtime is)
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.support.one_node_models import model_of  # noqa: E402

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet
    from onnx import ModelProto

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
    # ONNX Runtime refuses to divide integers by zero.
    ("div", "by zero and minus one"),
    ("mod", "by zero and minus one"),
    # ONNX has no such region.
    ("lrn", "within"),
    ("lrn", "within_larger_than_image"),
}


def _cases() -> list[ParameterSet]:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return [
        pytest.param(case, id=f"{cls.name}-{case.name}")
        for cls in ALL_OPS
        if cls.__name__ in known
        for case in cls.cases()
        if not case.op.regions and (cls.name, case.name) not in _BY_HAND and not _beyond_onnx(case)
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


@pytest.mark.parametrize("case", _cases())
def test_reference_agrees_with_onnx_runtime(case: Case) -> None:
    ours = case.op.reference(*case.inputs)
    theirs = _run(case, ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert_agree(mine, other, case.tolerance)

"""An axis that is named twice counts once, or is refused: as ONNX Runtime has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.errors import ShapeError
from smelt.importers.onnx import import_onnx
from tests.importers.onnx.one_node import compare, node_model, run_onnxruntime

if TYPE_CHECKING:
    from smelt.ir import Array

X = np.arange(1, 13, dtype=np.float32).reshape(2, 1, 2, 3)
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@pytest.mark.parametrize("op", ["Squeeze", *(f"Reduce{name}" for name in REDUCTIONS)])
@pytest.mark.parametrize("axes", [[1, 1], [1, -3]])
def test_an_axis_named_twice_counts_once(op: str, axes: list[int]) -> None:
    compare(node_model(op, 18, [X, np.array(axes)], weights=[1]), {"x0": X})


@pytest.mark.parametrize(
    ("op", "weights", "attributes"),
    [
        ("Unsqueeze", [np.array([0, 0])], {}),
        ("Unsqueeze", [np.array([0, -6])], {}),
        ("Transpose", [], {"perm": [0, 0, 2, 3]}),
        ("Slice", [np.array([0, 1]), np.array([2, 3]), np.array([3, 3])], {}),
        ("Slice", [np.array([0, 1]), np.array([2, 3]), np.array([3, -1])], {}),
        ("Pad", [np.ones(4, np.int64), np.array(0, np.float32), np.array([2, -2])], {}),
        ("Resize", [None, np.full(2, 2, np.float32)], {"axes": [2, 2]}),
        ("Resize", [None, None, np.array([4, 4])], {"axes": [2, -2]}),
    ],
)
def test_an_axis_that_would_have_two_meanings_is_refused(
    op: str,
    weights: list[Array | None],
    attributes: dict[str, Any],
) -> None:
    places = range(1, len(weights) + 1)
    model = node_model(op, 18, [X, *weights], weights=places, **attributes)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_onnxruntime(model, {"x0": X})
    with pytest.raises(ShapeError, match="the node"):
        import_onnx(model)

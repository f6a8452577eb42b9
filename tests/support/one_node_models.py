"""ONNX models of one node, made from the fields of an op, to ask others about a case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ops import Array, Case, Op

OPSET = 24
"""The newest operator set of which ONNX Runtime has nearly all kernels."""
_RENAMED = {"trans_a": "transA", "trans_b": "transB"}
_OURS_ALONE = frozenset({"count_symbol"})


def onnx_dtype(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


def attributes_of(op: Op) -> dict[str, Any]:
    """The op's fields as ONNX attributes: what is absent or empty is left out."""
    if op.name == "constant_of_shape":
        fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
        array = np.array([fields["value"]], fields["dtype"].numpy)
        return {"value": numpy_helper.from_array(array)}
    made: dict[str, Any] = {}
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if field.name in _OURS_ALONE or value is None or value == ():
            continue
        if op.name == "lrn" and field.name == "region":
            continue
        if isinstance(value, DType):
            value = onnx_dtype(value)
        elif isinstance(value, bool):
            value = int(value)
        elif isinstance(value, tuple):
            value = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        made[_RENAMED.get(field.name, field.name)] = value
    if heads := made.pop("heads", 0):
        made |= {"q_num_heads": heads, "kv_num_heads": heads}
    return made


def model_of(case: Case, results: tuple[Array, ...]) -> onnx.ModelProto:
    """The model of the case's node alone; its inputs and initialisers are x0, x1, ..."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(case.inputs)]
    while names and not names[-1]:
        names.pop()
    outputs = [f"y{index}" for index in range(len(results))]
    attributes = attributes_of(case.op)
    if case.op.name == "split":
        del attributes["even"]  # which ONNX says by its opset
        if len(names) > 1:
            del attributes["num_outputs"]  # ONNX wants sizes or their number, not both
    node = helper.make_node(type(case.op).__name__, names, outputs, **attributes)
    given: list[onnx.ValueInfoProto] = []
    fixed: list[TensorProto] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            continue
        if index in case.constants:
            fixed.append(numpy_helper.from_array(array, f"x{index}"))
        else:
            given.append(_info(f"x{index}", array, list(array.shape)))
    made = [_info(name, array, None) for name, array in zip(outputs, results, strict=True)]
    graph = helper.make_graph([node], "case", given, made, fixed)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _info(name: str, array: Array, shape: list[int] | None) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    assert kind != TensorProto.UNDEFINED
    return helper.make_tensor_value_info(name, kind, shape)

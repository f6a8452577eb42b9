"""Table of converters: by ONNX op and by the opset version from which they apply.

An op without an entry, but with a class of its name in ``smelt.ops``, has the same meaning in all
supported versions and is converted directly. An op without a class, or with one that implements
only a part of it, is expanded if ONNX defines it by other ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from smelt.errors import UnsupportedError
from smelt.importers.onnx import _rules_control as control
from smelt.importers.onnx import _rules_conv_pool as windows
from smelt.importers.onnx import _rules_norm_quant as values
from smelt.importers.onnx import _rules_shapes as shapes
from smelt.importers.onnx._node_context import NodeContext, make_op, op_classes
from smelt.ir import Op, Value
from smelt.ops import ALL_OPS, lookup_op

Converter = Callable[[NodeContext], list[Value]]


def direct(context: NodeContext) -> list[Value]:
    """Convert a node to the op of the same name, with the same inputs and attributes."""
    return context.emit_all(context.op_type, *context.inputs, **context.attributes)


_AXES: Final = shapes.operands_of_attributes("axes")
_REDUCTIONS: Final = {
    name: {1: _AXES, 13 if name == "ReduceSum" else 18: direct}
    for name in op_classes()
    if name.startswith("Reduce")
}

RULES: Final[Mapping[str, Mapping[int, Converter]]] = {
    **_REDUCTIONS,
    "AveragePool": {1: windows.pooling},
    "BatchNormalization": {1: values.batch_normalization},
    "Cast": {1: shapes.cast_to},
    "CastLike": {1: shapes.cast_like},
    "Clip": {1: shapes.operands_of_attributes("min", "max"), 11: direct},
    "Compress": {1: values.counted},
    "Constant": {1: shapes.constant},
    "ConstantOfShape": {1: shapes.constant_of_shape},
    "Conv": {1: windows.convolution},
    "ConvInteger": {1: windows.convolution},
    "ConvTranspose": {1: windows.transposed_convolution},
    "DequantizeLinear": {1: values.quantize},
    "Dropout": {1: shapes.dropout},
    "GRU": {1: values.recurrent},
    "Hardmax": {1: shapes.flattened_softmax, 13: direct},
    "If": {1: control.conditional},
    "LSTM": {1: values.recurrent},
    "LayerNormalization": {1: values.layer_normalization},
    "LogSoftmax": {1: shapes.flattened_softmax, 13: direct},
    "Loop": {1: control.loop},
    "LpPool": {1: windows.pooling},
    "MaxPool": {1: windows.pooling},
    "NonMaxSuppression": {1: values.counted},
    "NonZero": {1: values.counted},
    "Pad": {1: shapes.pad_of_attributes, 11: direct},
    "QLinearConv": {1: values.quantized_convolution},
    "QLinearMatMul": {1: values.quantized_matmul},
    "QuantizeLinear": {1: values.quantize},
    "RNN": {1: values.recurrent},
    "Resize": {1: shapes.resize_of_scales, 11: shapes.resize},
    "Scan": {1: control.scan},
    "Scatter": {1: shapes.scatter},
    "Slice": {1: shapes.operands_of_attributes("starts", "ends", "axes"), 10: direct},
    "Softmax": {1: shapes.flattened_softmax, 13: direct},
    "Split": {1: shapes.split},
    "Squeeze": {1: _AXES, 13: direct},
    "TopK": {1: shapes.operands_of_attributes("k"), 10: direct},
    "Unsqueeze": {1: _AXES, 13: direct},
    "Upsample": {1: shapes.upsample},
}

_EXPANDED: Final = frozenset({"Attention"})
"""ONNX ops whose class of the same name implements only a part of them."""


def custom_rule(domain: str, op_type: str) -> Converter | None:
    """Return the converter of a registered op, ``domain.OpType`` or ``OpType``, or None."""
    for name in (f"{domain}.{op_type}", op_type):
        try:
            cls = lookup_op(name)
        except UnsupportedError:
            continue
        if cls not in ALL_OPS:
            return partial(_registered, cls)
    return None


def _registered(cls: type[Op], context: NodeContext) -> list[Value]:
    return context.apply(
        make_op(cls, context.op_type, context.attributes, context.where), *context.inputs
    )


def rule_for(op_type: str, version: int) -> Converter | None:
    """Return the converter of an op in an opset, or None if there is neither rule nor class."""
    versions = RULES.get(op_type)
    if versions is not None:
        return versions[max(since for since in versions if since <= version)]
    return direct if op_type in op_classes() and op_type not in _EXPANDED else None

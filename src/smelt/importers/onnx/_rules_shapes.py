"""Converters of shape and data movement ops, and of ops whose attributes became inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.types import DType, counted, fixed_shape, is_array, items_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value


def operands_of_attributes(*names: str) -> Callable[[NodeContext], list[Value]]:
    """Return the converter of an op of old opsets, some attributes of which became inputs."""

    def convert(context: NodeContext) -> list[Value]:
        return context.emit_all(
            context.op_type,
            context.input(0),
            *(_operand_of_attribute(context, name) for name in names),
            **context.without(*names),
        )

    return convert


def _operand_of_attribute(context: NodeContext, name: str) -> Value | None:
    """Return an attribute as a constant, or None if it is absent.

    Integers become a vector, and a number becomes a scalar of the type of input 0.
    """
    value = context.attributes.get(name)
    if isinstance(value, float):
        return context.constant(value, context.input(0).tensor.dtype.numpy)
    integers = (value,) if isinstance(value, int) else context.integers(name)
    return None if integers is None else context.integers_value(integers)


def split(context: NodeContext) -> list[Value]:
    """Convert Split; its lengths are an attribute before opset 13.

    Without lengths it splits into equal parts, of which only from opset 18 on the last may be
    shorter.
    """
    is_old = context.version < 13
    lengths = _operand_of_attribute(context, "split") if is_old else context.optional(1)
    count = context.integer("num_outputs", len(context.outputs))
    if count != len(context.outputs) and lengths is None:
        raise ModelFormatError(
            f"{context.where}: num_outputs is {count}, but the node has "
            f"{counted(len(context.outputs), 'output')}"
        )
    parts = {"num_outputs": count, "even": context.version < 18} if lengths is None else {}
    return context.emit_all(
        "Split", context.input(0), lengths, axis=context.integer("axis", 0), **parts
    )


def pad_of_attributes(context: NodeContext) -> list[Value]:
    """Convert Pad with widths and value as attributes."""
    x = context.input(0)
    is_filled = context.number("value", 0.0) != 0
    fill = _operand_of_attribute(context, "value") if is_filled else None
    widths = _operand_of_attribute(context, "pads")
    return context.emit_all("Pad", x, widths, fill, mode=context.text("mode", "constant"))


def dropout(context: NodeContext) -> list[Value]:
    """Convert Dropout, which has no effect in inference; its mask is all ones."""
    training = context.elements(2)
    if context.optional(2) is not None and (training is None or bool(training.any())):
        raise UnsupportedError("training mode is not supported; export the model for inference")
    x = context.input(0)
    results = [context.emit("Identity", x)]
    if context.is_output_used(1):
        dtype = DType.BOOL if context.version >= 10 else x.tensor.dtype
        shape = context.emit("Shape", x)
        results.append(context.emit("ConstantOfShape", shape, dtype=dtype, value=1))
    return results


def flattened_softmax(context: NodeContext) -> list[Value]:
    """Convert Softmax, LogSoftmax and Hardmax of opset 12 and older.

    They apply to all axes from ``axis`` on together.
    """
    x = context.input(0)
    rank = x.tensor.rank
    axis = context.integer("axis", 1)
    if not -rank <= axis <= rank:
        raise context.shape_error(f"axis {axis} is out of range for a tensor of rank {rank}")
    axis %= max(rank, 1)
    if axis == rank - 1:
        return context.emit_all(context.op_type, x, axis=-1)
    flat = context.emit("Flatten", x, axis=axis)
    normalised = context.emit(context.op_type, flat, axis=-1)
    return context.emit_all("Reshape", normalised, shape_of(context, x), allowzero=1)


def shape_of(context: NodeContext, x: Value) -> Value:
    """Return the shape of a value; a constant if it is static."""
    if x.tensor.is_static:
        return context.integers_value(fixed_shape(x.tensor.shape))
    return context.emit("Shape", x)


def upsample(context: NodeContext) -> list[Value]:
    """Convert Upsample, which is a Resize that selects the pixel at the upper left.

    Before opset 9 the scales are an attribute.
    """
    if context.version >= 9:
        return _upsample(context, context.input(1))
    scales = np.array(items_of(context.attributes.get("scales")), np.float32)
    return _upsample(context, context.constant(scales))


def _upsample(
    context: NodeContext, scales: Value, x: Value | None = None, nearest_mode: str = "floor"
) -> list[Value]:
    """Emit the Resize that is equivalent to an Upsample."""
    return context.emit_all(
        "Resize",
        x or context.input(0),
        None,
        scales,
        mode=context.text("mode", "nearest"),
        coordinate_transformation_mode="asymmetric",
        nearest_mode=nearest_mode,
    )


def resize_of_scales(context: NodeContext) -> list[Value]:
    """Convert Resize of opset 10, which rounds positions down on axes that grow, else up.

    If some axes grow and others shrink, the result is that of two Resizes.
    """
    scales, numbers = context.input(1), context.elements(1)
    if numbers is None or not (numbers < 1).any():
        return _upsample(context, scales)
    if not (numbers > 1).any() or context.text("mode", "nearest") != "nearest":
        return _upsample(context, scales, nearest_mode="ceil")
    down = context.constant(np.minimum(numbers, 1), numbers.dtype)
    up = context.constant(np.maximum(numbers, 1), numbers.dtype)
    (smaller,) = _upsample(context, down, nearest_mode="ceil")
    return _upsample(context, up, smaller)


def resize(context: NodeContext) -> list[Value]:
    """Convert Resize of opset 11 and newer; empty vectors are treated as absent."""
    roi, scales, sizes = (_unless_empty(context, index) for index in (1, 2, 3))
    attributes = context.without()
    if attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        roi = None
    return context.emit_all("Resize", context.input(0), roi, scales, sizes, **attributes)


def _unless_empty(context: NodeContext, index: int) -> Value | None:
    value = context.optional(index)
    return None if value is None or value.tensor.shape == (0,) else value


def cast_to(context: NodeContext) -> list[Value]:
    """Convert Cast; its attributes for rounding and saturation only affect unsupported types."""
    return context.emit_all("Cast", context.input(0), to=context.integer("to", 0))


def cast_like(context: NodeContext) -> list[Value]:
    """Convert CastLike to a Cast to the type of the second input."""
    return context.emit_all("Cast", context.input(0), to=context.input(1).tensor.dtype)


def constant(context: NodeContext) -> list[Value]:
    """Convert Constant, in any form of its value."""
    if len(context.attributes) != 1:
        raise ModelFormatError(
            f"{context.where} has {len(context.attributes)} values; it must have exactly one"
        )
    ((form, value),) = context.attributes.items()
    if is_array(value):
        return [context.graph.add_constant(value, context.outputs[0])]
    if form in {"value_float", "value_floats"}:
        return [context.constant(np.array(value, np.float32))]
    if form in {"value_int", "value_ints"}:
        return [context.constant(np.array(value, np.int64))]
    raise UnsupportedError("string constants are not supported")


def constant_of_shape(context: NodeContext) -> list[Value]:
    """Convert ConstantOfShape; its tensor of one element becomes a type and a number."""
    value = context.attributes.get("value")
    array = value if is_array(value) else np.zeros(1, np.float32)
    if array.size != 1:
        raise ModelFormatError(
            f"{context.where}: value has {array.size} elements; it must have one"
        )
    return context.emit_all(
        "ConstantOfShape", context.input(0), dtype=DType.from_numpy(array.dtype), value=array.item()
    )


def scatter(context: NodeContext) -> list[Value]:
    """Convert Scatter, which ScatterElements replaced."""
    return context.emit_all("ScatterElements", *context.inputs, **context.attributes)

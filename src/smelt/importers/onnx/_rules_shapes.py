"""Converters of shape and data movement ops, and of ops whose attributes became inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ModelFormatError, ShapeError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.types import DType, fixed_shape, is_array, items_of

if TYPE_CHECKING:
    from smelt.importers.onnx._attributes import Attribute
    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value


def reduction_of_attribute(node_context: NodeContext) -> list[Value]:
    """Convert Reduce* with axes as an attribute."""
    return node_context.emit_all(
        node_context.op_type,
        node_context.input(0),
        _axes(node_context, "axes"),
        keepdims=node_context.integer("keepdims", 1),
    )


def axes_of_attribute(node_context: NodeContext) -> list[Value]:
    """Convert Squeeze and Unsqueeze with axes as an attribute."""
    return node_context.emit_all(
        node_context.op_type, node_context.input(0), _axes(node_context, "axes")
    )


def slice_of_attributes(node_context: NodeContext) -> list[Value]:
    """Convert Slice with bounds as attributes."""
    starts, ends = node_context.integers("starts") or (), node_context.integers("ends") or ()
    return node_context.emit_all(
        "Slice",
        node_context.input(0),
        node_context.integers_value(starts),
        node_context.integers_value(ends),
        _axes(node_context, "axes"),
    )


def split_of_attribute(node_context: NodeContext) -> list[Value]:
    """Convert Split with lengths as an attribute."""
    return _split_evenly(node_context, _axes(node_context, "split"))


def split_equally(node_context: NodeContext) -> list[Value]:
    """Convert Split with lengths as an input, and without num_outputs."""
    return _split_evenly(node_context, node_context.optional(1))


def split(node_context: NodeContext) -> list[Value]:
    """Convert Split with num_outputs."""
    lengths = node_context.optional(1)
    count = node_context.integer("num_outputs", len(node_context.outputs))
    if count != len(node_context.outputs) and lengths is None:
        raise ModelFormatError(
            f"{node_context.where}: num_outputs is {count}, and the node has "
            f"{len(node_context.outputs)} outputs"
        )
    return _split(node_context, lengths, {"num_outputs": count} if lengths is None else {})


def _split_evenly(node_context: NodeContext, lengths: Value | None) -> list[Value]:
    """Split into equal parts if there are no lengths: before opset 18 the last is not shorter."""
    equal: dict[str, Attribute] = {"num_outputs": len(node_context.outputs), "even": True}
    return _split(node_context, lengths, equal if lengths is None else {})


def _split(
    node_context: NodeContext, lengths: Value | None, attributes: dict[str, Attribute]
) -> list[Value]:
    """Emit Split."""
    return node_context.emit_all(
        "Split", node_context.input(0), lengths, axis=node_context.integer("axis", 0), **attributes
    )


def pad_of_attributes(node_context: NodeContext) -> list[Value]:
    """Convert Pad with widths and value as attributes."""
    x = node_context.input(0)
    value = node_context.number("value", 0.0)
    fill = node_context.constant(np.array(value, x.tensor.dtype.numpy)) if value else None
    widths = node_context.integers_value(node_context.integers("pads") or ())
    return node_context.emit_all("Pad", x, widths, fill, mode=node_context.text("mode", "constant"))


def clip_of_attributes(node_context: NodeContext) -> list[Value]:
    """Convert Clip with bounds as attributes."""
    x = node_context.input(0)
    bounds = [
        node_context.constant(np.array(node_context.number(name, 0.0), x.tensor.dtype.numpy))
        if name in node_context.attributes
        else None
        for name in ("min", "max")
    ]
    return node_context.emit_all("Clip", x, *bounds)


def top_k_of_attribute(node_context: NodeContext) -> list[Value]:
    """Convert TopK with k as an attribute."""
    k = node_context.integers_value([node_context.integer("k", 0)])
    return node_context.emit_all(
        "TopK", node_context.input(0), k, axis=node_context.integer("axis", -1)
    )


def dropout(node_context: NodeContext) -> list[Value]:
    """Convert Dropout, which has no effect in inference; its mask is all ones."""
    training = node_context.elements(2)
    if node_context.optional(2) is not None and (training is None or bool(training.any())):
        raise UnsupportedError("training mode is not supported; export the model for inference")
    x = node_context.input(0)
    results = [node_context.emit("Identity", x)]
    if node_context.is_output_used(1):
        dtype = DType.BOOL if node_context.version >= 10 else x.tensor.dtype
        shape = node_context.emit("Shape", x)
        results.append(node_context.emit("ConstantOfShape", shape, dtype=dtype, value=1))
    return results


def flattened_softmax(node_context: NodeContext) -> list[Value]:
    """Convert Softmax, LogSoftmax and Hardmax of opset 12 and older.

    They apply to all axes from ``axis`` on together.
    """
    x = node_context.input(0)
    rank = x.tensor.rank
    axis = node_context.integer("axis", 1)
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}", node=node_context.where)
    axis %= max(rank, 1)
    if axis == rank - 1:
        return node_context.emit_all(node_context.op_type, x, axis=-1)
    flat = node_context.emit("Flatten", x, axis=axis)
    normalised = node_context.emit(node_context.op_type, flat, axis=-1)
    return node_context.emit_all("Reshape", normalised, shape_of(node_context, x), allowzero=1)


def _axes(node_context: NodeContext, name: str) -> Value | None:
    """Return an attribute with integers as a constant vector, or None if it is absent."""
    integers = node_context.integers(name)
    return None if integers is None else node_context.integers_value(integers)


def shape_of(node_context: NodeContext, x: Value) -> Value:
    """Return the shape of a value; a constant if it is static."""
    if x.tensor.is_static:
        return node_context.integers_value(fixed_shape(x.tensor.shape))
    return node_context.emit("Shape", x)


def upsample_of_attribute(node_context: NodeContext) -> list[Value]:
    """Convert Upsample with scales as an attribute."""
    scales = items_of(node_context.attributes.get("scales"))
    return _upsample(node_context, node_context.constant(np.array(scales, np.float32)))


def upsample(node_context: NodeContext) -> list[Value]:
    """Convert Upsample, which is a Resize that selects the pixel at the upper left."""
    return _upsample(node_context, node_context.input(1))


def _upsample(
    node_context: NodeContext, scales: Value, x: Value | None = None, nearest_mode: str = "floor"
) -> list[Value]:
    """Emit the Resize that is equivalent to an Upsample."""
    return node_context.emit_all(
        "Resize",
        x or node_context.input(0),
        None,
        scales,
        mode=node_context.text("mode", "nearest"),
        coordinate_transformation_mode="asymmetric",
        nearest_mode=nearest_mode,
    )


def resize_of_scales(node_context: NodeContext) -> list[Value]:
    """Convert Resize of opset 10, which rounds positions down on axes that grow, else up.

    If some axes grow and others shrink, the result is that of two Resizes.
    """
    scales, numbers = node_context.input(1), node_context.elements(1)
    if numbers is None or not (numbers < 1).any():
        return _upsample(node_context, scales)
    if not (numbers > 1).any() or node_context.text("mode", "nearest") != "nearest":
        return _upsample(node_context, scales, nearest_mode="ceil")
    down = node_context.constant(np.minimum(numbers, 1), numbers.dtype)
    up = node_context.constant(np.maximum(numbers, 1), numbers.dtype)
    (smaller,) = _upsample(node_context, down, nearest_mode="ceil")
    return _upsample(node_context, up, smaller)


def resize(node_context: NodeContext) -> list[Value]:
    """Convert Resize of opset 11 and newer; empty vectors are treated as absent."""
    roi, scales, sizes = (_unless_empty(node_context, index) for index in (1, 2, 3))
    attributes = node_context.without()
    if attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        roi = None
    return node_context.emit_all("Resize", node_context.input(0), roi, scales, sizes, **attributes)


def _unless_empty(node_context: NodeContext, index: int) -> Value | None:
    value = node_context.optional(index)
    return None if value is None or value.tensor.shape == (0,) else value


def cast_to(node_context: NodeContext) -> list[Value]:
    """Convert Cast; its attributes for rounding and saturation only affect unsupported types."""
    to = dtype_from_onnx(node_context.integer("to", 0), node_context.where)
    return node_context.emit_all("Cast", node_context.input(0), to=to)


def cast_like(node_context: NodeContext) -> list[Value]:
    """Convert CastLike to a Cast to the type of the second input."""
    return node_context.emit_all(
        "Cast", node_context.input(0), to=node_context.input(1).tensor.dtype
    )


def constant(node_context: NodeContext) -> list[Value]:
    """Convert Constant, in any form of its value."""
    if len(node_context.attributes) != 1:
        raise ModelFormatError(
            f"{node_context.where} has {len(node_context.attributes)} values; it must have "
            "exactly one"
        )
    ((form, value),) = node_context.attributes.items()
    if is_array(value):
        return [node_context.graph.add_constant(value, node_context.outputs[0])]
    if form in {"value_float", "value_floats"}:
        return [node_context.constant(np.array(value, np.float32))]
    if form in {"value_int", "value_ints"}:
        return [node_context.constant(np.array(value, np.int64))]
    raise UnsupportedError("a constant of strings is not supported")


def constant_of_shape(node_context: NodeContext) -> list[Value]:
    """Convert ConstantOfShape; its tensor of one element becomes a type and a number."""
    value = node_context.attributes.get("value")
    array = value if is_array(value) else np.zeros(1, np.float32)
    if array.size != 1:
        raise ModelFormatError(
            f"{node_context.where}: value has {array.size} elements; it must have one"
        )
    return node_context.emit_all(
        "ConstantOfShape",
        node_context.input(0),
        dtype=DType.from_numpy(array.dtype),
        value=array.item(),
    )


def scatter(node_context: NodeContext) -> list[Value]:
    """Convert Scatter, which ScatterElements replaced."""
    return node_context.emit_all("ScatterElements", *node_context.inputs, **node_context.attributes)

"""Ops whose older versions hold in attributes what is an input now, or move elements about."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from smelt.errors import ModelFormatError, ShapeError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._attributes import Attribute
    from smelt.importers.onnx._call import Call
    from smelt.ir import Array, Value


def reduction_of_attribute(call: Call) -> list[Value]:
    """Reduce* before its axes became an input."""
    return call.emit_all(
        call.op_type, call.input(0), _axes(call, "axes"), keepdims=call.integer("keepdims", 1)
    )


def axes_of_attribute(call: Call) -> list[Value]:
    """Squeeze and Unsqueeze before their axes became an input."""
    return call.emit_all(call.op_type, call.input(0), _axes(call, "axes"))


def slice_of_attributes(call: Call) -> list[Value]:
    """Slice before its bounds became inputs."""
    starts, ends = call.integers("starts") or (), call.integers("ends") or ()
    return call.emit_all(
        "Slice",
        call.input(0),
        call.integers_value(starts),
        call.integers_value(ends),
        _axes(call, "axes"),
    )


def split_of_attribute(call: Call) -> list[Value]:
    """Split before its lengths became an input."""
    return _split_evenly(call, _axes(call, "split"))


def split_equally(call: Call) -> list[Value]:
    """Split whose parts are counted by its outputs."""
    return _split_evenly(call, call.optional(1))


def split(call: Call) -> list[Value]:
    """Split; the number of parts is an attribute."""
    lengths = call.optional(1)
    count = call.integer("num_outputs", len(call.outputs))
    if count != len(call.outputs) and lengths is None:
        raise ModelFormatError(f"{call.where}: num_outputs {count} for {len(call.outputs)} outputs")
    return _split(call, lengths, {"num_outputs": count} if lengths is None else {})


def _split_evenly(call: Call, lengths: Value | None) -> list[Value]:
    """Before opset 18 parts without lengths are equal: ONNX has no shorter last one."""
    equal: dict[str, Attribute] = {"num_outputs": len(call.outputs), "even": True}
    return _split(call, lengths, equal if lengths is None else {})


def _split(call: Call, lengths: Value | None, attributes: dict[str, Attribute]) -> list[Value]:
    return call.emit_all(
        "Split", call.input(0), lengths, axis=call.integer("axis", 0), **attributes
    )


def pad_of_attributes(call: Call) -> list[Value]:
    """Pad before its widths and value became inputs."""
    x = call.input(0)
    value = call.number("value", 0.0)
    fill = call.constant(np.array(value, x.tensor.dtype.numpy)) if value else None
    widths = call.integers_value(call.integers("pads") or ())
    return call.emit_all("Pad", x, widths, fill, mode=call.text("mode", "constant"))


def clip_of_attributes(call: Call) -> list[Value]:
    """Clip before its bounds became inputs."""
    x = call.input(0)
    bounds = [
        call.constant(np.array(call.number(name, 0.0), x.tensor.dtype.numpy))
        if name in call.attributes
        else None
        for name in ("min", "max")
    ]
    return call.emit_all("Clip", x, *bounds)


def top_k_of_attribute(call: Call) -> list[Value]:
    """TopK before k became an input."""
    k = call.integers_value([call.integer("k", 0)])
    return call.emit_all("TopK", call.input(0), k, axis=call.integer("axis", -1))


def dropout(call: Call) -> list[Value]:
    """Dropout does nothing in inference; its mask is all ones."""
    training = call.elements(2)
    if call.optional(2) is not None and (training is None or bool(training.any())):
        raise UnsupportedError("it may run in training mode; export the model for inference")
    x = call.input(0)
    results = [call.emit("Identity", x)]
    if call.wants(1):
        dtype = DType.BOOL if call.version >= 10 else x.tensor.dtype
        shape = call.emit("Shape", x)
        results.append(call.emit("ConstantOfShape", shape, dtype=dtype, value=1))
    return results


def flattened_softmax(call: Call) -> list[Value]:
    """Softmax and its kin before opset 13: over all axes from ``axis`` on at once."""
    x = call.input(0)
    rank = x.tensor.rank
    axis = call.integer("axis", 1)
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}", node=call.where)
    axis %= max(rank, 1)
    if axis == rank - 1:
        return call.emit_all(call.op_type, x, axis=-1)
    flat = call.emit("Flatten", x, axis=axis)
    made = call.emit(call.op_type, flat, axis=-1)
    return call.emit_all("Reshape", made, shape_of(call, x))


def _axes(call: Call, name: str) -> Value | None:
    """A list of integers as an input; None when it is absent."""
    given = call.integers(name)
    return None if given is None else call.integers_value(given)


def shape_of(call: Call, x: Value) -> Value:
    """The shape of a value, as a constant where it is fixed."""
    if x.tensor.is_static:
        return call.integers_value(cast("Sequence[int]", x.tensor.shape))
    return call.emit("Shape", x)


def upsample_of_attribute(call: Call) -> list[Value]:
    """Upsample before its scales became an input."""
    scales = cast("tuple[float, ...]", call.attributes.get("scales", ()))
    return _upsample(call, call.constant(np.array(scales, np.float32)))


def upsample(call: Call) -> list[Value]:
    """Upsample: Resize that takes the pixel to the upper left."""
    return _upsample(call, call.input(1))


def _upsample(call: Call, scales: Value) -> list[Value]:
    return call.emit_all(
        "Resize",
        call.input(0),
        None,
        scales,
        mode=call.text("mode", "nearest"),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def resize(call: Call) -> list[Value]:
    """Resize from opset 11 on; an empty vector is as good as an absent one."""
    roi, scales, sizes = (_unless_empty(call, index) for index in (1, 2, 3))
    attributes = call.without()
    if attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        roi = None
    return call.emit_all("Resize", call.input(0), roi, scales, sizes, **attributes)


def _unless_empty(call: Call, index: int) -> Value | None:
    value = call.optional(index)
    return None if value is None or value.tensor.shape == (0,) else value


def cast_to(call: Call) -> list[Value]:
    """Cast: rounding and saturation concern only types that are not here."""
    to = dtype_from_onnx(call.integer("to", 0), call.where)
    return call.emit_all("Cast", call.input(0), to=to)


def cast_like(call: Call) -> list[Value]:
    """CastLike: a Cast to the type of the second input."""
    return call.emit_all("Cast", call.input(0), to=call.input(1).tensor.dtype)


def constant(call: Call) -> list[Value]:
    """Constant, in each of the forms that its value may have."""
    if len(call.attributes) != 1:
        raise ModelFormatError(
            f"{call.where} has {len(call.attributes)} values; exactly one must be given"
        )
    ((form, value),) = call.attributes.items()
    if form in {"value", "sparse_value"}:
        return [call.graph.add_constant(cast("Array", value), call.outputs[0])]
    if form in {"value_float", "value_floats"}:
        return [call.constant(np.array(value, np.float32))]
    if form in {"value_int", "value_ints"}:
        return [call.constant(np.array(value, np.int64))]
    raise UnsupportedError("a constant of strings is not supported")


def constant_of_shape(call: Call) -> list[Value]:
    """ConstantOfShape: its one-element tensor becomes a type and a number."""
    array = cast("Array", call.attributes.get("value", np.zeros(1, np.float32)))
    if array.size != 1:
        raise ModelFormatError(f"{call.where}: value has {array.size} elements; it must have one")
    return call.emit_all(
        "ConstantOfShape", call.input(0), dtype=DType.from_numpy(array.dtype), value=array.item()
    )


def scatter(call: Call) -> list[Value]:
    """Scatter, which ScatterElements replaced."""
    return call.emit_all("ScatterElements", *call.inputs, **call.attributes)

"""Formats, packed constants and strides of the operands of dense kernels and their epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smelt.backends import NodeRefusedError, Operands, Tactic, root_of, with_storage_dtype
from smelt.backends._node_operands import required_input
from smelt.backends._storage import linear_format, packed_strides
from smelt.backends.cpu._epilogue import plan_epilogue
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, DotProduct, dot_product_for
from smelt.engine import Halo, Parameters, View, parameters
from smelt.errors import InternalError
from smelt.ir import Constant, Node, Value
from smelt.ops import Cast, Concat, Fused, Pad, Reshape, Slice, Transpose
from smelt.types import Dim, DType, Layout, Shape, TensorFormat

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget

LINEAR = TensorFormat(DType.FLOAT32, Layout.LINEAR)
"""float32 in the axis order of the model."""
CHANNELS_LAST = TensorFormat(DType.FLOAT32, Layout.CHANNELS_LAST)
"""float32 with the channels innermost."""


def epilogue_formats(node: Node, channel_axis: int) -> tuple[TensorFormat | None, ...]:
    """Return the formats of an epilogue's operands.

    A packed constant or an absent input has no format. ``channel_axis`` is the axis of the result
    along which the kernel's vectors run.

    Raises:
        NodeRefusedError: the epilogue is not supported.
    """
    plan_epilogue(node)
    shape = result_shape(node)
    layout = Layout.LINEAR if channel_axis == len(shape) - 1 else Layout.CHANNELS_LAST
    formats: list[TensorFormat | None] = []
    for value in epilogue_inputs(node):
        if value is None:
            formats.append(None)
            continue
        _check_operand(value, shape, channel_axis)
        plain = value.tensor.rank < len(shape) or _varies_only_along(value, shape, channel_axis)
        stored = TensorFormat(value.tensor.dtype, Layout.LINEAR if plain else layout)
        formats.append(None if value.constant is not None else stored)
    return tuple(formats)


def packed_tactic(
    family: str,
    node: Node,
    options: Parameters,
    seconds: float,
    *,
    channel_axis: int = 1,
    halo: Halo = (),
) -> Tactic:
    """Return the tactic of a kernel that packs the root's constants.

    Input 0, which has the halo, and the result are linear if the channels are the last axis, else
    channels-last.

    Raises:
        NodeRefusedError: the epilogue is not supported.
    """
    others = node.inputs[1 : root_of(node)[1]]
    layout = Layout.LINEAR if channel_axis == node.output.tensor.rank - 1 else Layout.CHANNELS_LAST
    return Tactic(
        family,
        options,
        (
            TensorFormat(required_input(node, 0).tensor.dtype, layout),
            *(None if v is None or v.constant is not None else linear_format(v) for v in others),
            *epilogue_formats(node, channel_axis),
        ),
        (TensorFormat(node.output.tensor.dtype, layout),),
        (halo, *[()] * (len(node.inputs) - 1)) if halo else (),
        estimated_seconds=seconds,
    )


def constant_of(value: Value | None) -> Constant:
    """Return the constant behind an input.

    Raises:
        InternalError: the input is missing or not constant.
    """
    if value is None or value.constant is None:
        raise InternalError(f"{value.name if value else 'a missing input'} is not constant")
    return value.constant


def epilogue_inputs(node: Node) -> list[Value | None]:
    """Return the inputs that the epilogue reads, absent ones included."""
    return node.inputs[root_of(node)[1] :] if isinstance(node.op, Fused) else []


def result_shape(node: Node) -> Shape:
    """Return the shape of the root's result, which no stage of the epilogue changes."""
    return node.output.tensor.shape


def _check_operand(value: Value, shape: Shape, channel_axis: int) -> None:
    """Check that the epilogue can read an operand."""
    extents = value.tensor.shape
    aligned = (1,) * (len(shape) - len(extents)) + extents
    name = f"the epilogue's operand {value.name!r} ({value.tensor})"
    for extent, result_extent in zip(aligned, shape, strict=True):
        if extent not in (1, result_extent):
            raise NodeRefusedError(f"{name} does not broadcast to the result")
    outer = [e for axis, e in enumerate(aligned) if axis != channel_axis and e != 1]
    if outer and len(extents) < len(shape) and aligned[channel_axis] != 1 and channel_axis == 1:
        raise NodeRefusedError(f"{name} varies along both channels and pixels")


def _varies_only_along(value: Value, shape: Shape, axis: int) -> bool:
    """Return whether every extent of the value is 1 except along ``axis`` of the result."""
    return all(e == 1 for a, e in enumerate(value.tensor.shape) if a != axis % len(shape))


def pack_epilogue_constants(node: Node, channel_axis: int) -> tuple[Constant, ...]:
    """Return the constant extra operands in order, with the channels innermost."""
    rank = len(result_shape(node))
    values = [value for value in epilogue_inputs(node) if value is not None]
    constants = [value.constant for value in values if value.constant is not None]
    return tuple(_channels_last(constant, channel_axis, rank) for constant in constants)


def _channels_last(constant: Constant, channel_axis: int, rank: int) -> Constant:
    """Return the constant with its channel axis last if its rank is that of the result."""
    layout = _packed_layout(constant.type.shape, channel_axis, rank)
    if layout is Layout.LINEAR:
        return constant
    order = layout.axis_order(rank)
    return Constant.derive(f"{constant.name}.channels_last", Transpose(order), constant)


def _packed_layout(shape: Shape, channel_axis: int, rank: int) -> Layout:
    """Return the layout of a packed constant of the epilogue."""
    is_linear = channel_axis == rank - 1 or len(shape) < 3 or len(shape) < rank
    return Layout.LINEAR if is_linear else Layout.CHANNELS_LAST


def epilogue_operand_strides(
    node: Node, operands: Operands, packed: Sequence[View], channel_axis: int
) -> list[tuple[View, tuple[Dim, ...]]]:
    """Return each extra operand's view and its strides along the result's axes.

    A stride of 0 broadcasts the operand along that axis. ``packed`` holds the constants of
    `pack_epilogue_constants`.
    """
    shape = result_shape(node)
    first = root_of(node)[1]
    constants = iter(packed)
    result: list[tuple[View, tuple[Dim, ...]]] = []
    for number, value in enumerate(epilogue_inputs(node)):
        if value is None:
            continue
        view = operands.inputs[first + number]
        extents = value.tensor.shape
        if view is None:
            view = next(constants)
            layout = _packed_layout(extents, channel_axis, len(shape))
            strides, _ = packed_strides(extents, layout)
        else:
            strides = view.strides
        padding = len(shape) - len(extents)
        aligned = tuple(0 if e == 1 else s for e, s in zip(extents, strides, strict=True))
        result.append((view, (0,) * padding + aligned))
    return result


# ---- arithmetic


def dot_product_of(tactic: Tactic) -> DotProduct:
    """Return the dot product that a tactic's kernel uses."""
    return DOT_PRODUCTS[str(tactic.options.get("dot_product", "float32"))]


def reduced_precision_products(
    node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
) -> tuple[Tactic, ...]:
    """Return the tactic with tensors stored as ``dtype``.

    If the target has a dot product for that type, the kernel multiplies the narrow elements
    directly; else it converts them to float32.
    """
    narrow = with_storage_dtype(dtype, node, tactic)
    first = narrow.input_formats[0]
    dot_product = dot_product_for(dtype, target)
    if dot_product.group == 1 or first is None or first.dtype is not dot_product.factor:
        return (narrow,)
    options = {**dict(narrow.parameters), "dot_product": dot_product.name}
    cost = narrow.estimated_seconds / dot_product.group
    return (replace(narrow, parameters=parameters(**options), estimated_seconds=cost),)


# ---- recorded transforms


def int_vector(*values: int) -> Constant:
    """Return a constant int64 vector, as the recorded transforms take extents and axes."""
    return Constant("", np.array(values, np.int64))


def reshape(source: Constant, *shape: int) -> Constant:
    """Return the constant in another shape."""
    return Constant.derive(source.name, Reshape(), source, int_vector(*shape))


def transpose(source: Constant, *order: int) -> Constant:
    """Return the constant with its axes in another order."""
    return Constant.derive(source.name, Transpose(order), source)


def cut(source: Constant, axis: int, first: int, last: int) -> Constant:
    """Return the elements from ``first`` up to, but without, ``last`` along an axis."""
    bounds = (int_vector(first), int_vector(last), int_vector(axis))
    return Constant.derive(source.name, Slice(), source, *bounds)


def pad_after(source: Constant, axis: int, count: int, rank: int) -> Constant:
    """Return the constant with ``count`` zeros after the last element of an axis."""
    if count == 0:
        return source
    pads = [0] * (2 * rank)
    pads[rank + axis] = count
    return Constant.derive(source.name, Pad(), source, int_vector(*pads))


def join(axis: int, *sources: Constant) -> Constant:
    """Return the constants concatenated along an axis."""
    return Constant.derive(sources[0].name, Concat(axis), *sources)


def named(name: str, source: Constant) -> Constant:
    """Rename a derived constant in place to the name that reports show, and return it."""
    source.name = name
    return source


def pack_panels(
    weights: Constant,
    groups: int,
    lanes: int,
    vectors: int,
    dot_product: DotProduct = DOT_PRODUCTS["float32"],
) -> tuple[Constant, ...]:
    """Pack weights ``[groups * filters, run, *taps]`` into full panels and a last, narrower panel.

    The panels have the layout ``[group][panel][*taps][word of the run][channel][element of the
    word]``. A tile reads them as one contiguous stream, one vector of channels per word. The result
    omits the full panels or the last panel if there are none.
    """
    total, run, *taps = (int(e) for e in weights.type.shape if isinstance(e, int))
    filters, width = total // groups, lanes * vectors
    full_filters = filters // width * width
    source = reshape(weights, groups, filters, run, *taps)
    rank = 3 + len(taps)
    packed: list[Constant] = []
    if full_filters:
        part = cut(source, 1, 0, full_filters) if full_filters < filters else source
        part = reshape(part, groups, full_filters // width, width, run, *taps)
        order = (0, 1, *range(4, 4 + len(taps)), 3, 2)
        panels = _words(
            transpose(part, *order), dot_product, (groups, full_filters // width, *taps, run)
        )
        packed.append(named(f"{weights.name}.panels", panels))
    if full_filters < filters:
        part = cut(source, 1, full_filters, filters) if full_filters else source
        tail_width = -(-(filters - full_filters) // lanes) * lanes
        part = pad_after(part, 1, tail_width - (filters - full_filters), rank)
        order = (0, *range(3, 3 + len(taps)), 2, 1)
        panel = _words(transpose(part, *order), dot_product, (groups, *taps, run))
        packed.append(named(f"{weights.name}.last_panel", panel))
    return tuple(packed)


def panel_count(filters: int, width: int) -> int:
    """Return the number of constants into which `pack_panels` packs the filters of a group."""
    return int(filters >= width) + int(filters % width > 0)


def _words(panels: Constant, dot_product: DotProduct, outer: tuple[int, ...]) -> Constant:
    """Return panels with the elements of each word innermost.

    ``panels`` is ``[*outer][channel]``, and the last axis of ``outer`` is the run. The run is
    padded with zeros to whole words.
    """
    group, rank = dot_product.group, len(outer) + 1
    if group > 1:
        padded = pad_after(panels, rank - 2, -outer[-1] % group, rank)
        parted = reshape(padded, *outer[:-1], -(-outer[-1] // group), group, -1)
        panels = transpose(parted, *range(rank - 1), rank, rank - 1)
    if dot_product.factor is DType.BFLOAT16:
        panels = Constant.derive(panels.name, Cast(DType.BFLOAT16), panels)
    return panels


def pack_bias(bias: Constant, groups: int, lanes: int) -> Constant:
    """Return the bias with each group padded to whole vectors: ``groups * filters`` channels."""
    filters = bias.array.size // groups
    shaped = reshape(bias, groups, filters)
    padded = pad_after(shaped, 1, -filters % lanes, 2)
    return named(f"{bias.name}.padded", padded)

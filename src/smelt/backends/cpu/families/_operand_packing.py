"""What the families with an epilogue share: formats, packing and strides of what a node reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smelt.backends import with_storage_dtype
from smelt.backends._fused_programs import root_of
from smelt.backends.cpu._epilogue import Epilogue, plan_epilogue
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, dot_product_for
from smelt.engine import parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Fused
from smelt.ops.cast import Cast
from smelt.ops.concat import Concat
from smelt.ops.pad import Pad
from smelt.ops.reshape import Reshape
from smelt.ops.slice import Slice
from smelt.ops.transpose import Transpose
from smelt.types import DType, Layout, TensorFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Operands, Tactic
    from smelt.backends.cpu._target import CpuTarget
    from smelt.backends.cpu.families._dot_product import DotProduct
    from smelt.engine import View
    from smelt.ir import Node, Value
    from smelt.types import Dim, Shape

LINEAR = TensorFormat(DType.FLOAT32, Layout.LINEAR)
CHANNELS_LAST = TensorFormat(DType.FLOAT32, Layout.CHANNELS_LAST)


@dataclass(frozen=True, slots=True)
class EpilogueOperands:
    """The epilogue of a node and how its operands are to be stored."""

    epilogue: Epilogue
    formats: tuple[TensorFormat | None, ...]
    """For each extra operand; None for one that is packed or absent."""


def plan_epilogue_operands(node: Node, channel_axis: int) -> EpilogueOperands | str:
    """The epilogue of a node whose vectors run along ``channel_axis``, or why it has none."""
    epilogue = plan_epilogue(node)
    if isinstance(epilogue, str):
        return epilogue
    shape = result_shape(node)
    layout = Layout.LINEAR if channel_axis == len(shape) - 1 else Layout.CHANNELS_LAST
    formats: list[TensorFormat | None] = []
    for value in epilogue_inputs(node):
        if value is None:
            formats.append(None)
            continue
        reason = _why_not_read(value, shape, channel_axis)
        if reason:
            return reason
        plain = value.tensor.rank < len(shape) or _varies_only_along(value, shape, channel_axis)
        stored = TensorFormat(value.tensor.dtype, Layout.LINEAR if plain else layout)
        formats.append(None if value.constant is not None else stored)
    return EpilogueOperands(epilogue, tuple(formats))


def epilogue_of(node: Node, channel_axis: int) -> Epilogue:
    """The epilogue of a node that has tactics."""
    extras = plan_epilogue_operands(node, channel_axis)
    if isinstance(extras, str):
        raise InternalError(f"{node} has tactics, but {extras}")
    return extras.epilogue


def constant_of(value: Value | None) -> Constant:
    """The constant that an input was found to be."""
    if value is None or value.constant is None:
        raise InternalError(f"{value.name if value else 'a missing input'} is not constant")
    return value.constant


def epilogue_inputs(node: Node) -> list[Value | None]:
    """The inputs that the epilogue reads."""
    return node.inputs[root_of(node)[1] :] if isinstance(node.op, Fused) else []


def result_shape(node: Node) -> Shape:
    """Shape of the root's result, which every stage keeps."""
    return node.output.tensor.shape


def _why_not_read(value: Value, shape: Shape, channel_axis: int) -> str | None:
    found = value.tensor.shape
    aligned = (1,) * (len(shape) - len(found)) + found
    for extent, whole in zip(aligned, shape, strict=True):
        if extent not in (1, whole):
            return (
                f"the epilogue's operand {value.name} of {value.tensor} does not broadcast to the "
                "result"
            )
    outer = [e for axis, e in enumerate(aligned) if axis != channel_axis and e != 1]
    if outer and len(found) < len(shape) and aligned[channel_axis] != 1 and channel_axis == 1:
        return (
            f"the epilogue's operand {value.name} of {value.tensor} varies along both channels "
            "and pixels"
        )
    return None


def _varies_only_along(value: Value, shape: Shape, axis: int) -> bool:
    return all(e == 1 for a, e in enumerate(value.tensor.shape) if a != axis % len(shape))


def pack_epilogue_constants(node: Node, channel_axis: int) -> tuple[Constant, ...]:
    """The constant extra operands, channels innermost; in the order of the operands."""
    rank = len(result_shape(node))
    values = [value for value in epilogue_inputs(node) if value is not None]
    constants = [value.constant for value in values if value.constant is not None]
    return tuple(_channels_last(constant, channel_axis, rank) for constant in constants)


def _channels_last(constant: Constant, channel_axis: int, rank: int) -> Constant:
    shape = constant.type.shape
    if channel_axis == rank - 1 or len(shape) < 3 or len(shape) < rank:
        return constant
    order = (0, *range(2, rank), 1)
    return Constant.derive(f"{constant.name}.channels_last", Transpose(order), constant)


def epilogue_operand_strides(
    node: Node, operands: Operands, packed: Sequence[View], channel_axis: int
) -> list[tuple[View, tuple[Dim, ...]]]:
    """Each extra operand's memory and its strides along the result's axes; 0 where it repeats."""
    shape = result_shape(node)
    first = root_of(node)[1]
    constants = iter(packed)
    found: list[tuple[View, tuple[Dim, ...]]] = []
    for number, value in enumerate(epilogue_inputs(node)):
        if value is None:
            continue
        view = operands.inputs[first + number]
        extents = value.tensor.shape
        if view is None:
            view = next(constants)
            strides = _packed_strides(extents, channel_axis, len(shape))
        else:
            strides = view.strides
        padding = len(shape) - len(extents)
        aligned = tuple(0 if e == 1 else s for e, s in zip(extents, strides, strict=True))
        found.append((view, (0,) * padding + aligned))
    return found


def _packed_strides(extents: Shape, channel_axis: int, rank: int) -> tuple[Dim, ...]:
    moved = not (channel_axis == rank - 1 or len(extents) < 3 or len(extents) < rank)
    order = (0, *range(2, rank), 1) if moved else tuple(range(len(extents)))
    strides: list[Dim] = [0] * len(extents)
    step: Dim = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * extents[axis]
    return tuple(strides)


# ---- arithmetic


def dot_product_of(tactic: Tactic) -> DotProduct:
    """What a tactic's kernel multiplies with."""
    return DOT_PRODUCTS[str(tactic.options.get("dot_product", "float32"))]


def reduced_precision_products(
    node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
) -> tuple[Tactic, ...]:
    """The tactic of a product on narrow tensors, multiplied as the target does that best."""
    narrow = with_storage_dtype(dtype, node, tactic)
    first = narrow.inputs[0]
    dot_product = dot_product_for(dtype, target)
    if dot_product.group == 1 or first is None or first.dtype is not dot_product.factor:
        return (narrow,)
    options = {**dict(narrow.parameters), "dot_product": dot_product.name}
    cost = narrow.cost_hint / dot_product.group
    return (replace(narrow, parameters=parameters(**options), cost_hint=cost),)


# ---- recorded transforms


def int_vector(*values: int) -> Constant:
    """A constant vector of integers, for the transforms' own operands."""
    return Constant("", np.array(values, np.int64))


def reshape(source: Constant, *shape: int) -> Constant:
    """The elements in another shape."""
    return Constant.derive(source.name, Reshape(), source, int_vector(*shape))


def transpose(source: Constant, *order: int) -> Constant:
    """The axes in another order."""
    return Constant.derive(source.name, Transpose(order), source)


def cut(source: Constant, axis: int, first: int, last: int) -> Constant:
    """Elements ``first`` to ``last`` along an axis."""
    bounds = (int_vector(first), int_vector(last), int_vector(axis))
    return Constant.derive(source.name, Slice(), source, *bounds)


def pad_after(source: Constant, axis: int, count: int, rank: int) -> Constant:
    """Zeros after the last element of an axis."""
    if count == 0:
        return source
    pads = [0] * (2 * rank)
    pads[rank + axis] = count
    return Constant.derive(source.name, Pad(), source, int_vector(*pads))


def join(axis: int, *sources: Constant) -> Constant:
    """Constants one after the other."""
    return Constant.derive(sources[0].name, Concat(axis), *sources)


def named(name: str, source: Constant) -> Constant:
    """The same derived constant under the name that reports show."""
    source.name = name
    return source


def pack_panels(
    weights: Constant,
    groups: int,
    lanes: int,
    vectors: int,
    dot_product: DotProduct = DOT_PRODUCTS["float32"],
) -> tuple[Constant, ...]:
    """Weights ``[groups * filters, run, *taps]`` as full panels and the last, narrower panel.

    Panels are ``[group][panel][*taps][word of the run][channel][element of the word]``; a kind
    that is empty is left out.
    """
    total, run, *taps = (int(e) for e in weights.type.shape if isinstance(e, int))
    filters, width = total // groups, lanes * vectors
    whole = filters // width * width
    source = reshape(weights, groups, filters, run, *taps)
    rank = 3 + len(taps)
    made: list[Constant] = []
    if whole:
        part = cut(source, 1, 0, whole) if whole < filters else source
        part = reshape(part, groups, whole // width, width, run, *taps)
        order = (0, 1, *range(4, 4 + len(taps)), 3, 2)
        panels = _words(transpose(part, *order), dot_product, (groups, whole // width, *taps, run))
        made.append(named(f"{weights.name}.panels", panels))
    if whole < filters:
        part = cut(source, 1, whole, filters) if whole else source
        narrow = -(-(filters - whole) // lanes) * lanes
        part = pad_after(part, 1, narrow - (filters - whole), rank)
        order = (0, *range(3, 3 + len(taps)), 2, 1)
        panel = _words(transpose(part, *order), dot_product, (groups, *taps, run))
        made.append(named(f"{weights.name}.last_panel", panel))
    return tuple(made)


def _words(panels: Constant, dot_product: DotProduct, outer: tuple[int, ...]) -> Constant:
    """``[*outer][channel]``, whose last outer axis is the run, with each word's elements last."""
    group, rank = dot_product.group, len(outer) + 1
    if group > 1:
        padded = pad_after(panels, rank - 2, -outer[-1] % group, rank)
        parted = reshape(padded, *outer[:-1], -(-outer[-1] // group), group, -1)
        panels = transpose(parted, *range(rank - 1), rank, rank - 1)
    if dot_product.factor is DType.BFLOAT16:
        panels = Constant.derive(panels.name, Cast(DType.BFLOAT16), panels)
    return panels


def pack_bias(bias: Constant, groups: int, lanes: int) -> Constant:
    """A vector of ``groups * filters`` channels, each group padded to whole vectors."""
    filters = bias.array.size // groups
    shaped = reshape(bias, groups, filters)
    padded = pad_after(shaped, 1, -filters % lanes, 2)
    return named(f"{bias.name}.padded", padded)

"""Checks, broadcasting and window extents for the type inference of ops.

Two extents that are known to differ are refused. If it depends on symbols whether they are equal,
they are assumed to be equal, and the assumption becomes a guard of the node that is checked when
the symbols have values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types import (
    DType,
    TensorType,
    assume_at_least,
    assume_divides,
    assume_equal,
    counted,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.ir import Op, Operand
    from smelt.types import Dim, Shape

FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
SIGNED = FLOATS | {DType.INT8, DType.INT16, DType.INT32, DType.INT64}
NUMBERS = frozenset(DType) - {DType.BOOL}
SHORT_INTEGERS = frozenset({DType.INT8, DType.UINT8})
INDICES = frozenset({DType.INT32, DType.INT64})


def known(a: Dim, b: Dim) -> Dim:
    """Return one of two extents that must be equal, preferably the one that is an int."""
    return b if isinstance(b, int) else a


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape to which all shapes broadcast, by numpy's rule.

    A symbol and an extent other than one are assumed to be equal, which is recorded as a guard.
    Raises ShapeError when the shapes do not broadcast.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        extent: Dim = 1
        for shape in shapes:
            if len(shape) >= -axis:
                extent = _broadcast_dims(extent, shape[axis], shapes, axis)
        result.append(extent)
    return tuple(result)


def _broadcast_dims(a: Dim, b: Dim, shapes: Sequence[Shape], axis: int) -> Dim:
    """Return the extent to which two extents broadcast. Raises ShapeError."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    texts = " and ".join(shape_text(s) for s in shapes)
    if isinstance(a, int) or isinstance(b, int):
        if not assume_equal(a, b, f"axis {axis} of the broadcast shapes {texts}"):
            raise ShapeError(
                f"shapes {texts} do not broadcast: on axis {axis} the extents {a} and {b} differ, "
                "and neither is 1"
            )
        return known(a, b)
    raise ShapeError(
        f"the result of broadcasting shapes {texts} depends on whether {a} equals {b}: fix the "
        "value of one of them in the model"
    )


def shape_text(shape: Shape) -> str:
    """Return the shape as messages show it."""
    return f"[{', '.join(str(d) for d in shape)}]"


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return the axis as a non-negative number. Raises ShapeError when it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is out of range for a tensor of rank {rank}")
    return axis % rank


def require_inputs(
    op: Op, inputs: Sequence[Operand | None], minimum: int, maximum: int | None = None
) -> None:
    """Check the number of inputs; ``maximum`` is ``minimum`` by default. Raises ShapeError."""
    limit = minimum if maximum is None else maximum
    if not minimum <= len(inputs) <= limit:
        wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
        raise ShapeError(f"{op.name} has {counted(len(inputs), 'input')}; expected {wanted}")


def input_types(
    op: Op,
    inputs: Sequence[Operand | None],
    minimum: int,
    maximum: int | None = None,
    dtypes: Collection[DType] | None = None,
) -> list[TensorType]:
    """Return the types of the first ``minimum`` inputs, which are required tensors.

    With ``dtypes``, all inputs have the same element type, which is one of these.

    Raises ShapeError when the number of inputs is below ``minimum`` or above ``maximum``, by
    default ``minimum``, a required input is absent or not a tensor, or an element type is wrong.
    """
    require_inputs(op, inputs, minimum, maximum)
    kinds = [input_type(op, inputs, index) for index in range(minimum)]
    if dtypes is not None:
        require_dtype(kinds[0], dtypes, f"the input of {op.name}")
        others = range(minimum, len(inputs))
        require_same_dtype(*kinds, *(optional_type(op, inputs, index) for index in others))
    return kinds


def all_input_types(
    op: Op, inputs: Sequence[Operand | None], maximum: int, dtypes: Collection[DType]
) -> list[TensorType]:
    """Return the types of all inputs, from 1 to ``maximum``, as `input_types` does."""
    require_inputs(op, inputs, 1, maximum)
    return input_types(op, inputs, len(inputs), dtypes=dtypes)


def input_type(op: Op, inputs: Sequence[Operand | None], index: int) -> TensorType:
    """Return the type of a required tensor input. Raises ShapeError when it is absent."""
    kind = optional_type(op, inputs, index)
    if kind is None:
        raise ShapeError(f"input {index} of {op.name} is required")
    return kind


def result_shape(op: Op, inputs: Sequence[Operand | None]) -> Shape:
    """Return the shape of an op's only result, which must be a tensor. Raises ShapeError."""
    (result,) = op.infer(inputs)
    if not isinstance(result, TensorType):
        raise ShapeError(f"the result of {op.name} must be a tensor, not {result}")
    return result.shape


def optional_type(op: Op, inputs: Sequence[Operand | None], index: int) -> TensorType | None:
    """Return the type of a tensor input, or None if absent. Raises ShapeError: not a tensor."""
    operand = inputs[index] if index < len(inputs) else None
    if operand is None:
        return None
    if not isinstance(operand.type, TensorType):
        raise ShapeError(f"input {index} of {op.name} must be a tensor, not {operand.type}")
    return operand.type


def require_dtype(kind: TensorType, allowed: Collection[DType], what: str) -> None:
    """Check that the element type is one of ``allowed``. Raises ShapeError."""
    if kind.dtype not in allowed:
        names = ", ".join(d.value for d in DType if d in allowed)
        wanted = names if len(allowed) == 1 else f"one of {names}"
        raise ShapeError(f"{what} has element type {kind.dtype.value}; it must be {wanted}")


def require_same_dtype(first: TensorType, *others: TensorType | None) -> None:
    """Check that all present tensors have the same element type. Raises ShapeError."""
    for other in others:
        if other is not None and other.dtype is not first.dtype:
            raise ShapeError(
                f"element types differ: {first.dtype.value} and {other.dtype.value}; cast one"
            )


def require_rank(kind: TensorType, what: str, minimum: int, maximum: int | None = None) -> None:
    """Check the rank; ``maximum`` is ``minimum`` by default. Raises ShapeError."""
    limit = minimum if maximum is None else maximum
    if not minimum <= kind.rank <= limit:
        wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
        shape = shape_text(kind.shape)
        raise ShapeError(f"{what} must have rank {wanted}, but the shape is {shape}")


def require_shape(kind: TensorType | None, shape: Shape, what: str) -> None:
    """Check that a tensor, if present, has a shape. Raises ShapeError.

    If symbols decide it, guards are recorded.
    """
    if kind is None:
        return
    pairs = enumerate(zip(kind.shape, shape, strict=False))
    if kind.rank != len(shape) or not all(
        assume_equal(a, b, f"axis {axis} of {what}") for axis, (a, b) in pairs
    ):
        raise ShapeError(
            f"the shape of {what} is {shape_text(kind.shape)}; it must be {shape_text(shape)}"
        )


def require_broadcast(kind: TensorType | None, shape: Shape, what: str) -> None:
    """Check that a tensor, if present, broadcasts to a shape. Raises ShapeError.

    If symbols decide it, guards are recorded.
    """
    if kind is None:
        return
    missing_axes = len(shape) - kind.rank
    if missing_axes < 0 or not all(
        extent == 1 or assume_equal(extent, shape[missing_axes + axis], f"axis {axis} of {what}")
        for axis, extent in enumerate(kind.shape)
    ):
        raise ShapeError(
            f"the shape {shape_text(kind.shape)} of {what} does not broadcast to "
            f"{shape_text(shape)}"
        )


def is_same_for_rows(kind: TensorType, x: TensorType, axis: int) -> bool:
    """Return whether a tensor that broadcasts to ``x`` is the same for all rows of ``x``.

    Args:
        kind: type of the broadcast tensor, such as a scale.
        x: type of the normalised tensor.
        axis: first axis of a row; negative axes count from the end.
    """
    outside = axis % x.rank - (x.rank - kind.rank)
    return all(extent == 1 for extent in kind.shape[: max(0, outside)])


def require_scalar(kind: TensorType | None, what: str) -> None:
    """Check that a tensor, if present, has rank 0 or 1 and one element. Raises ShapeError."""
    if kind is not None:
        require_rank(kind, what, 0, 1)
        require_shape(kind, (1,) * kind.rank, what)


def require_choice(value: str, choices: Sequence[str], what: str) -> None:
    """Check that a string is one of the choices. Raises ShapeError."""
    if value not in choices:
        wanted = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ShapeError(f"{what} is {value!r}; it must be {wanted}")


def require_groups(groups: int, count: Dim, what: str, axis: str) -> None:
    """Check that ``count`` channels or filters are divisible into groups. Raises ShapeError.

    If symbols decide it, a guard is recorded.
    """
    if groups < 1:
        raise ShapeError(f"the number of groups is {groups}; it must be positive")
    if not assume_divides(groups, count, axis):
        raise ShapeError(
            f"the number of {what} is {count}; it must be a multiple of the number of groups, "
            f"{groups}"
        )


def require_static(extents: Shape, what: str) -> tuple[int, ...]:
    """Return the extents as ints. Raises ShapeError, which names an extent that is symbolic."""
    for extent in extents:
        if not isinstance(extent, int):
            raise ShapeError(
                f"{what} must be static, but {extent} is symbolic: fix the value of "
                f"{', '.join(sorted(symbols_of(extent)))} in the model"
            )
    return tuple(e for e in extents if isinstance(e, int))


def window_extent(
    extent: Dim,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    *,
    ceil_mode: bool = False,
    what: str = "the axis",
) -> Dim:
    """Return the number of windows along an axis of ``extent`` elements padded by ``pads``.

    With ``ceil_mode`` the last window may extend beyond the padding at the end, but it must start
    inside the elements or the padding at the start. For a symbolic extent the number is a formula,
    and a guard requires that a window fits. ``what`` names the axis in the guard. Raises ShapeError
    when no window fits.
    """
    if kernel < 1 or stride < 1 or dilation < 1:
        raise ShapeError(
            f"kernel {kernel}, stride {stride} and dilation {dilation} must be positive"
        )
    reach = (kernel - 1) * dilation + 1
    padded = extent + pads[0] + pads[1]
    last = padded - reach
    guarded = f"the padded extent of {what} and the window extent"
    if not assume_at_least(padded, reach, guarded):
        dilated = "" if dilation == 1 else f" (kernel {kernel} with dilation {dilation})"
        raise ShapeError(
            f"{what} has {counted(extent, 'element')}, padded by {pads[0]} and {pads[1]}; a "
            f"window of {reach}{dilated} does not fit"
        )
    if not ceil_mode:
        return last // stride + 1
    # The start of the last window is the minimum of two formulas; constants decide which one.
    limit = last + (stride - 1) if pads[1] + stride <= reach else extent + (pads[0] - 1)
    return limit // stride + 1

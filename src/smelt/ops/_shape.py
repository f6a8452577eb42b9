"""Checks, broadcasting and window extents for the type inference of ops.

Two extents that are known to differ are refused. If it depends on symbols whether they are equal,
they are assumed to be equal, and the assumption becomes a guard of the node that is checked when
the symbols have values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types import DType, TensorType, assume_at_least, assume_equal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
        if not assume_equal(a, b, f"axis {axis} of {texts}, which broadcast"):
            raise ShapeError(f"shapes {texts} do not broadcast: {a} is not {b}")
        return known(a, b)
    raise ShapeError(
        f"how shapes {texts} broadcast depends on whether {a} equals {b}: fix one of them"
    )


def shape_text(shape: Shape) -> str:
    """Return the shape as messages show it."""
    return f"[{', '.join(str(d) for d in shape)}]"


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return the axis as a non-negative number. Raises ShapeError when it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside a tensor of rank {rank}")
    return axis % rank


def require_inputs(
    op: Op, inputs: Sequence[Operand | None], minimum: int, maximum: int | None = None
) -> None:
    """Check the number of inputs, and that the first ``minimum`` are present. Raises ShapeError."""
    limit = minimum if maximum is None else maximum
    if not minimum <= len(inputs) <= limit:
        wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
        raise ShapeError(f"{op.name} takes {wanted} inputs, not {len(inputs)}")
    for index in range(minimum):
        if inputs[index] is None:
            raise ShapeError(f"input {index} of {op.name} is required")


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
        raise ShapeError(f"{what} has element type {kind.dtype.value}; it must be {names}")


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
        raise ShapeError(f"{what} {shape_text(kind.shape)} must have rank {wanted}")


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
        raise ShapeError(f"{what} is {shape_text(kind.shape)} and must be {shape_text(shape)}")


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
            f"{what} {shape_text(kind.shape)} does not broadcast to {shape_text(shape)}"
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


def require_static(extents: Shape, what: str) -> tuple[int, ...]:
    """Return the extents as ints. Raises ShapeError, which names an extent that is symbolic."""
    for extent in extents:
        if not isinstance(extent, int):
            raise ShapeError(
                f"{what} must be known, but {extent} depends on a symbol: fix its value"
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
    if not assume_at_least(padded, reach, f"{what}, padded, and the reach of a window"):
        raise ShapeError(
            f"a window of {reach} does not fit into an extent of {extent} padded by {pads[0]} and "
            f"{pads[1]}"
        )
    if not ceil_mode:
        return last // stride + 1
    # The start of the last window is the minimum of two formulas; constants decide which one.
    limit = last + (stride - 1) if pads[1] + stride <= reach else extent + (pads[0] - 1)
    return limit // stride + 1

"""What the inference of many ops shares: checks, broadcasting, window extents.

Two extents are refused when they are known to differ. Where that depends on symbols they are taken
to be equal, and the assumption is a guard of the node, checked once the symbols are bound.
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
    """Of two extents that must be equal, the one that is an int, if any."""
    return b if isinstance(b, int) else a


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape onto which all broadcast, by numpy's rule.

    A symbol beside another extent than one is taken to equal it, which is a guard. Raises
    ShapeError.
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
    """The shape as messages show it."""
    return f"[{', '.join(str(d) for d in shape)}]"


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front. Raises ShapeError when the rank has no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside a tensor of rank {rank}")
    return axis % rank


def require_inputs(
    op: Op, inputs: Sequence[Operand | None], minimum: int, maximum: int | None = None
) -> None:
    """Check the number of inputs, and that the first ``minimum`` are there. Raises ShapeError."""
    limit = minimum if maximum is None else maximum
    if not minimum <= len(inputs) <= limit:
        wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
        raise ShapeError(f"{op.name} takes {wanted} inputs, not {len(inputs)}")
    for index in range(minimum):
        if inputs[index] is None:
            raise ShapeError(f"input {index} of {op.name} is required")


def input_type(op: Op, inputs: Sequence[Operand | None], index: int) -> TensorType:
    """Type of a tensor input that must be there. Raises ShapeError."""
    kind = optional_type(op, inputs, index)
    if kind is None:
        raise ShapeError(f"input {index} of {op.name} is required")
    return kind


def result_shape(op: Op, inputs: Sequence[Operand | None]) -> Shape:
    """Shape of an op's only result, a tensor. Raises ShapeError."""
    (result,) = op.infer(inputs)
    if not isinstance(result, TensorType):
        raise ShapeError(f"the result of {op.name} must be a tensor, not {result}")
    return result.shape


def optional_type(op: Op, inputs: Sequence[Operand | None], index: int) -> TensorType | None:
    """Type of a tensor input, None when it is absent. Raises ShapeError when it is not a tensor."""
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
    """Check that all present types have one element type. Raises ShapeError."""
    for other in others:
        if other is not None and other.dtype is not first.dtype:
            raise ShapeError(
                f"element types differ: {first.dtype.value} and {other.dtype.value}; cast one"
            )


def require_rank(kind: TensorType, what: str, minimum: int, maximum: int | None = None) -> None:
    """Check the rank (``maximum``: as ``minimum``). Raises ShapeError."""
    limit = minimum if maximum is None else maximum
    if not minimum <= kind.rank <= limit:
        wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
        raise ShapeError(f"{what} {shape_text(kind.shape)} must have rank {wanted}")


def require_shape(kind: TensorType | None, shape: Shape, what: str) -> None:
    """Check that a tensor, if present, has a shape; what is open is a guard. Raises ShapeError."""
    if kind is None:
        return
    pairs = enumerate(zip(kind.shape, shape, strict=False))
    if kind.rank != len(shape) or not all(
        assume_equal(a, b, f"axis {axis} of {what}") for axis, (a, b) in pairs
    ):
        raise ShapeError(f"{what} is {shape_text(kind.shape)} and must be {shape_text(shape)}")


def require_broadcast(kind: TensorType | None, shape: Shape, what: str) -> None:
    """Check that a tensor, if present, broadcasts onto a shape; what is open is a guard.

    Raises ShapeError.
    """
    if kind is None:
        return
    skipped = len(shape) - kind.rank
    if skipped < 0 or not all(
        extent == 1 or assume_equal(extent, shape[skipped + axis], f"axis {axis} of {what}")
        for axis, extent in enumerate(kind.shape)
    ):
        raise ShapeError(
            f"{what} {shape_text(kind.shape)} does not broadcast to {shape_text(shape)}"
        )


def is_same_for_rows(kind: TensorType, x: TensorType, axis: int) -> bool:
    """Whether every row of ``x``, which runs from ``axis`` on, meets the same elements of a tensor.

    Args:
        kind: of the tensor, which broadcasts onto ``x``.
        x: what is normalised.
        axis: the first axis of a row, from the front or the back.
    """
    outside = axis % x.rank - (x.rank - kind.rank)
    return all(extent == 1 for extent in kind.shape[: max(0, outside)])


def require_scalar(kind: TensorType | None, what: str) -> None:
    """Check that a tensor, if present, is one number, of rank 0 or 1. Raises ShapeError."""
    if kind is not None:
        require_rank(kind, what, 0, 1)
        require_shape(kind, (1,) * kind.rank, what)


def require_static(extents: Shape, what: str) -> tuple[int, ...]:
    """The extents as ints. Raises ShapeError naming one that is a symbol."""
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
    """Number of windows along an axis of ``extent`` elements padded by ``pads``.

    With ``ceil_mode`` a last window may reach beyond the padding, but none starts beyond the
    elements and the padding before them. Both forms stay closed when the extent is a symbol; that a
    window fits is a guard then. ``what`` names the axis. Raises ShapeError when no window fits.
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
    # The last start is the smaller of two; which one it is depends on constants alone.
    limit = last + (stride - 1) if pads[1] + stride <= reach else extent + (pads[0] - 1)
    return limit // stride + 1

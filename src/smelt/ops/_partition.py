"""``Partition``: a part of a network that runs on another device than the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from smelt.errors import GraphError, ShapeError
from smelt.ops._base import BuiltinOp
from smelt.types import DType, TensorType, ValueType, counted, dim_from_text, override

if TYPE_CHECKING:
    from smelt.ir import Array, Case, Operand


class Partition(BuiltinOp):
    """A part of a network that is built as an engine of its own, for another device.

    Only placement creates it, so no network contains it and it is not in ``ALL_OPS``. The graph of
    the part is in its own engine; the op has the types of the results only.

    Shapes: any inputs -> ``shapes``.

    Dtypes: any inputs -> ``dtypes``.

    Raises ShapeError: when the fields differ in length, or an extent is not a dimension.

    Source: design, "Placement and devices".
    """

    index: int
    """Position of the engine among the partitions of the engine that contains it."""
    device: str
    """Kind of the device."""
    dtypes: tuple[DType, ...]
    """Element type of each result."""
    shapes: tuple[tuple[str, ...], ...]
    """Shape of each result; every extent is a dimension as text."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        del inputs
        if len(self.dtypes) != len(self.shapes):
            raise ShapeError(
                f"the partition has {counted(len(self.dtypes), 'dtype')} and "
                f"{counted(len(self.shapes), 'shape')}; the numbers must be equal"
            )
        try:
            shapes = [tuple(dim_from_text(extent) for extent in shape) for shape in self.shapes]
        except ValueError as error:
            raise ShapeError(str(error)) from error
        return tuple(map(TensorType, self.dtypes, shapes))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Raise GraphError: the graph of a partition is in its own engine."""
        raise GraphError(f"the partition on {self.device} can only run within an engine")

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        """Yield nothing: a partition runs only within an engine."""
        yield from ()

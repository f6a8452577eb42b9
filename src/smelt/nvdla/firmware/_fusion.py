"""Two operations of which one streams into the other must agree on what streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla.loadable import ConvOperation, MemoryType, PdpOperation, SdpOperation

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import DataCube, Operation

Stream = tuple["Operation", "DataCube"]
"""An operation, and its end of the stream."""


def check_stream(context: OperationContext, parent: int, source: Stream, target: Stream) -> None:
    """Refuse an operation that expects other data than its fused parent makes.

    Hardware would wait for the rest for ever.
    """
    (made, made_cube), (taken, taken_cube) = source, target
    ends = [cube.type == MemoryType.ON_THE_FLY for cube in (made_cube, taken_cube)]
    if not any(ends):
        return
    where = f"operation {parent}, its fused parent,"
    context.require(ends[0], f"it reads data on the fly, but {where} writes to memory")
    context.require(ends[1], f"it reads from memory, but {where} passes data on the fly")
    extents = [(cube.width, cube.height, cube.channel) for cube in (made_cube, taken_cube)]
    context.require(
        extents[0] == extents[1],
        f"it takes {extents[1]} (width, height, channels); {where} makes {extents[0]}",
    )
    for what, values in _common_properties(made, taken).items():
        context.require(
            values[0] == values[1], f"its {what} is {values[1]}; {where} has {values[0]}"
        )


def _common_properties(made: Operation, taken: Operation) -> dict[str, tuple[int, int]]:
    if isinstance(made, ConvOperation) and isinstance(taken, SdpOperation):
        return {
            "source's precision": (made.out_precision, taken.src_precision),
            "convolution mode": (made.conv_mode, taken.conv_mode),
            "batch number": (made.batch, taken.batch_num),
        }
    if isinstance(made, SdpOperation) and isinstance(taken, PdpOperation):
        return {"precision": (made.dst_precision, taken.precision)}
    return {}

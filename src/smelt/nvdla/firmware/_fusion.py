"""Checks that an operation and its fused parent agree on the data that streams between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla.loadable import ConvOperation, MemoryType, PdpOperation, SdpOperation

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import DataCube, Operation

Stream = tuple["Operation", "DataCube"]
"""An operation and the cube that it writes to or reads from the stream."""


def check_stream(context: OperationContext, parent: int, source: Stream, target: Stream) -> None:
    """Refuse an operation that expects other data than its fused parent produces.

    The hardware would wait for the missing data for ever.

    Args:
        context: The operation that reads the stream.
        parent: Index of the fused parent.
        source: The fused parent and its destination.
        target: The operation and its source.
    """
    (producer, output), (consumer, input_) = source, target
    ends = [cube.type == MemoryType.ON_THE_FLY for cube in (output, input_)]
    if not any(ends):
        return
    where = f"operation {parent}, the fused parent,"
    context.require(ends[0], f"the source is on the fly, but {where} writes to memory")
    context.require(ends[1], f"the source is in memory, but {where} passes data on the fly")
    extents = [(cube.width, cube.height, cube.channel) for cube in (output, input_)]
    context.require(
        extents[0] == extents[1],
        f"the source is {extents[1]} (width, height, channels), but {where} produces {extents[0]}",
    )
    for what, values in _common_properties(producer, consumer).items():
        context.require(
            values[0] == values[1], f"the {what} is {values[1]}, but {where} has {values[0]}"
        )


def _common_properties(producer: Operation, consumer: Operation) -> dict[str, tuple[int, int]]:
    """Return the properties, by name, that producer and consumer must have in common."""
    if isinstance(producer, ConvOperation) and isinstance(consumer, SdpOperation):
        return {
            "source's precision": (producer.out_precision, consumer.src_precision),
            "convolution mode": (producer.conv_mode, consumer.conv_mode),
            "batch number": (producer.batch, consumer.batch_num),
        }
    if isinstance(producer, SdpOperation) and isinstance(consumer, PdpOperation):
        return {"precision": (producer.dst_precision, consumer.precision)}
    return {}

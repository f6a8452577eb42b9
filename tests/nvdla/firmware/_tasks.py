"""Tasks in memory, made from a list of operations and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from smelt.nvdla import MemorySpace
from smelt.nvdla.loadable import (
    OPERATION_STRIDE_BYTES,
    STATISTICS_STRIDE_BYTES,
    SURFACE_STRIDE_BYTES,
    BdmaOperation,
    BdmaSurface,
    BdmaTransfer,
    CdpOperation,
    CdpSurface,
    CommonOperation,
    Consumer,
    Converter,
    ConvOperation,
    ConvSurface,
    DataCube,
    LutParameters,
    MemoryType,
    NetworkDescriptor,
    Operation,
    OperationEvent,
    OperationType,
    PdpOperation,
    PdpSurface,
    Precision,
    Roi,
    RoiArray,
    RubikOperation,
    RubikSurface,
    SdpOperation,
    SdpStage,
    SdpSurface,
    Surface,
)

if TYPE_CHECKING:
    from tests.nvdla.firmware._hardware import FakeMemory

NETWORK, OPERATIONS, SURFACES, GRAPH, LUTS, ROIS, STATISTICS, DATA = range(8)
"""What the entries of a task's address list are."""
PLACES = (0x1000, 0x2000, 0x20000, 0x10000, 0x8000, 0xF000, 0x1F000, 0x80000)
NUMBER_STEP = 64
NO_EDGE = Consumer(index=-1, event=0)


def cube(offset: int = 0, memory_type: int = MemoryType.DRAM) -> DataCube:
    """A small int8 cube of one atom's width."""
    is_stored = memory_type != MemoryType.ON_THE_FLY
    return DataCube(
        type=memory_type,
        address=DATA if is_stored else -1,
        offset=offset,
        size=32,
        width=1,
        height=1,
        channel=8,
        line_stride=32,
        surf_stride=32,
    )


def number_of(index: int, roi: int) -> int:
    """What tells an operation apart in the registers: an offset in the data."""
    return PLACES[DATA] + NUMBER_STEP * (index + 100 * roi)


@dataclass
class TaskOperation:
    """One operation of a task under construction."""

    op_type: OperationType
    consumers: list[Consumer] = field(default_factory=lambda: [NO_EDGE] * 6)
    fused_parent: Consumer = NO_EDGE
    feeds_on_the_fly: bool = False
    lut_index: int = -1
    is_empty: bool = False

    @property
    def is_fed_on_the_fly(self) -> bool:
        return self.fused_parent.index != -1


@dataclass
class TaskBuilder:
    """Operations in the order of their engines' chains, and how often each repeats."""

    operations: list[TaskOperation] = field(default_factory=list[TaskOperation])
    num_rois: int = 1
    num_luts: int = 4
    has_statistics: bool = False
    contents: dict[int, tuple[Operation, Surface]] = field(
        default_factory=dict[int, "tuple[Operation, Surface]"]
    )
    """Descriptors of operations that shall not have the usual ones."""

    def add(self, op_type: OperationType, **options: int) -> int:
        """Append an operation; it becomes the next of its type."""
        self.operations.append(TaskOperation(op_type, **options))  # type: ignore[arg-type]  # flags
        return len(self.operations) - 1

    def connect(self, source: int, target: int, event: int) -> None:
        """Let the target wait for an event of the source."""
        op_type = self.operations[target].op_type
        self.operations[source].consumers[op_type] = Consumer(index=target, event=event)

    def chain(self, event: int = OperationEvent.PROGRAMMED) -> None:
        """Name each operation's successor of its type where it names none."""
        last: dict[OperationType, int] = {}
        for index, operation in enumerate(self.operations):
            before = last.get(operation.op_type)
            if (
                before is not None
                and self.operations[before].consumers[operation.op_type].index < 0
            ):
                self.connect(before, index, event)
            last[operation.op_type] = index

    def fuse(self, source: int, target: int) -> None:
        """Let the source stream into the target, by the compiler's pattern of edges."""
        self.connect(source, target, OperationEvent.PROGRAMMED)
        self.operations[source].feeds_on_the_fly = True
        self.operations[target].fused_parent = Consumer(index=source, event=OperationEvent.ENABLED)

    def edges(self) -> list[tuple[int, int, int]]:
        """All edges: source, target, event."""
        return [
            (index, edge.index, edge.event)
            for index, operation in enumerate(self.operations)
            for edge in (*operation.consumers, operation.fused_parent)
            if edge.index != -1 and edge.event != OperationEvent.NONE
        ]

    def graph(self) -> list[CommonOperation]:
        """The dependency graph with true counts."""
        counts = [0] * len(self.operations)
        for _, target, _ in self.edges():
            counts[target] += 1
        return [
            CommonOperation(
                index=index,
                op_type=operation.op_type,
                dependency_count=counts[index],
                consumers=tuple(operation.consumers),
                fused_parent=operation.fused_parent,
            )
            for index, operation in enumerate(self.operations)
        ]

    def heads(self) -> tuple[int, ...]:
        """The first operation of each type."""
        types = [operation.op_type for operation in self.operations]
        return tuple(types.index(item) if item in types else -1 for item in OperationType)

    def network(self) -> NetworkDescriptor:
        """The head of the task."""
        return NetworkDescriptor(
            operation_desc_index=OPERATIONS,
            surface_desc_index=SURFACES,
            dependency_graph_index=GRAPH,
            lut_data_index=LUTS,
            roi_array_index=ROIS,
            stat_list_index=STATISTICS if self.has_statistics else -1,
            op_head=self.heads(),
            num_rois=self.num_rois,
            num_operations=len(self.operations),
            num_luts=self.num_luts,
            num_addresses=len(PLACES),
            input_layer=-1,
        )

    def write(
        self,
        memory: FakeMemory,
        *,
        network: NetworkDescriptor | None = None,
        graph: list[CommonOperation] | None = None,
    ) -> list[tuple[MemorySpace, int]]:
        """Put the task into memory; return its address list."""
        dram = MemorySpace.DRAM
        memory.write(dram, PLACES[NETWORK], (network or self.network()).to_bytes())
        nodes = graph or self.graph()
        for roi in range(self.num_rois):
            for index, operation in enumerate(self.operations):
                at = roi * len(self.operations) + index
                node = nodes[index].to_bytes()
                memory.write(dram, PLACES[GRAPH] + at * len(node), node)
                usual = describe(operation, number_of(index, roi))
                body, surface = self.contents.get(index, usual)
                place = PLACES[OPERATIONS] + at * OPERATION_STRIDE_BYTES
                memory.write(dram, place, body.to_bytes())
                memory.write(dram, PLACES[SURFACES] + at * SURFACE_STRIDE_BYTES, surface.to_bytes())
        for index in range(self.num_luts):
            table = LutParameters().to_bytes()
            memory.write(dram, PLACES[LUTS] + index * len(table), table)
        return [(dram, place) for place in PLACES]

    def remaining(self, memory: FakeMemory) -> list[int]:
        """The dependency counts in memory."""
        size = CommonOperation.size_bytes()
        count = len(self.operations) * self.num_rois
        return [
            CommonOperation.from_bytes(memory.data, PLACES[GRAPH] + at * size).dependency_count
            for at in range(count)
        ]

    def write_rois(self, memory: FakeMemory, rois: list[Roi]) -> None:
        """Put regions of interest into memory."""
        data = RoiArray(array_length=len(rois)).to_bytes() + b"".join(r.to_bytes() for r in rois)
        memory.write(MemorySpace.DRAM, PLACES[ROIS], data)

    def statistics_of(self, memory: FakeMemory, at: int) -> bytes:
        """What was written for one operation."""
        place = PLACES[STATISTICS] + at * STATISTICS_STRIDE_BYTES
        return memory.read(MemorySpace.DRAM, place, STATISTICS_STRIDE_BYTES)


def describe(operation: TaskOperation, number: int) -> tuple[Operation, Surface]:
    """A small valid operation whose registers hold a number."""
    offset = number - PLACES[DATA]
    fly = MemoryType.ON_THE_FLY
    source = cube(memory_type=fly if operation.is_fed_on_the_fly else MemoryType.DRAM)
    target = cube(offset, fly if operation.feeds_on_the_fly else MemoryType.DRAM)
    match operation.op_type:
        case OperationType.BDMA:
            return _describe_bdma(operation, offset)
        case OperationType.CONV:
            return CONV, ConvSurface(
                src_data=cube(), dst_data=cube(memory_type=fly), weight_data=_weights(offset)
            )
        case OperationType.SDP:
            body = replace(
                SDP, lut_index=operation.lut_index, out_cvt=Converter(scale=1, offset=number)
            )
            return body, SdpSurface(src_data=source, dst_data=target)
        case OperationType.PDP:
            return PDP, PdpSurface(src_data=source, dst_data=target)
        case OperationType.CDP:
            body_cdp = replace(CDP, lut_index=operation.lut_index)
            return body_cdp, CdpSurface(src_data=source, dst_data=target)
        case OperationType.RUBIK:
            return RubikOperation(stride_x=1, stride_y=1), RubikSurface(
                src_data=source, dst_data=target
            )


CONV = ConvOperation(
    entry_per_slice=1,
    data_format=36,
    fetch_grain=1,
    batch=1,
    data_bank=1,
    weight_bank=1,
    release=1,
    input_width_csc=1,
    input_height_csc=1,
    input_channel_csc=8,
    kernel_width_csc=1,
    kernel_height_csc=1,
    kernel_channel_csc=8,
    input_width_cmac=1,
    input_height_cmac=1,
    bytes_per_kernel=8,
    conv_stride_x=1,
    conv_stride_y=1,
    dilation_x=1,
    dilation_y=1,
    out_cvt=Converter(scale=1),
)
SDP = SdpOperation(batch_num=1, out_cvt=Converter(scale=1), x1_op=SdpStage(enable=1, act=1))
PDP = PdpOperation(split_num=1, pool_mode=1, stride_x=1, stride_y=1)
CDP = CdpOperation(
    in_precision=Precision.INT8, local_size=3, in_cvt=Converter(scale=1), out_cvt=Converter(scale=1)
)


def _weights(offset: int) -> DataCube:
    return replace(cube(offset), size=128)


def _describe_bdma(operation: TaskOperation, offset: int) -> tuple[BdmaOperation, BdmaSurface]:
    # A transfer has no offset of its own: the address list's entry is all that it names.
    number = 0 if operation.is_empty else 1
    transfer = BdmaTransfer(
        source_address=DATA,
        destination_address=DATA,
        line_size=32,
        line_repeat=1,
        source_line=32,
        destination_line=32,
        surface_repeat=1,
        source_surface=32 + offset,
        destination_surface=32 + offset,
    )
    surface = BdmaSurface(num_transfers=number, transfers=(transfer,) * 20)
    return BdmaOperation(num_transfers=number), surface

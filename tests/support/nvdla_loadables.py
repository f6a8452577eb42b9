"""Small loadables, made by hand."""

from __future__ import annotations

from dataclasses import replace

from smelt.nvdla.loadable import (
    Address,
    Blob,
    CommonOperation,
    DataCategory,
    DataFormat,
    DataType,
    DescriptorVersion,
    EmuBuffer,
    EmuBuffers,
    EmuNetworkDescriptor,
    EmuOperation,
    Interface,
    Loadable,
    Memory,
    MemoryDomain,
    MemoryFlags,
    NetworkDescriptor,
    OperationType,
    PdpOperation,
    Relocation,
    RelocationType,
    SubInterface,
    Submit,
    Task,
    TensorDescriptor,
    Version,
)

FIRMWARE = Version(0, 12, 3)
FILLED = MemoryFlags.ALLOC | MemoryFlags.SET
LINE_PLACE, SURFACE_PLACE = 20, 24
"""Where the strides of the first cube of ``surf_list`` are."""


def write_emu_operation(operation: EmuOperation, layout: DescriptorVersion) -> bytes:
    """Return the bytes of an emulated operation; the layout without offsets drops its scales."""
    if layout is DescriptorVersion.WITHOUT_OFFSETS:
        operation = replace(
            operation, reserved=(0, 0, 0), input_scale_factor=0.0, output_scale_factor=0.0
        )
    return operation.to_bytes(layout)


def tensor(number: int, memory: int, size: int = 64) -> TensorDescriptor:
    """A tensor of a byte an element."""
    return TensorDescriptor(
        name=f"tensor-{number}",
        id=number,
        mem_id=memory,
        size=size,
        data_format=DataFormat.NCXHWX,
        data_type=DataType.INT8,
        data_category=DataCategory.FEATURE,
        pixel_format=36,
        n=1,
        c=32,
        h=1,
        w=2,
        stride_0=1,
        stride_1=64,
        stride_2=64,
    )


def filled(number: int, name: str, data: bytes, interface: int, sub: int) -> tuple[Memory, Blob]:
    """A memory and the blob that fills it."""
    memory = Memory(number, 0, FILLED, len(data), 4096, (name,), (0,))
    return memory, Blob(name, len(data), interface, sub, FIRMWARE, data)


def pooling_loadable() -> Loadable:
    """One task with one pooling: input 0 in memory 4, output 0 in memory 5, scratch in SRAM."""
    network = NetworkDescriptor(
        operation_desc_index=2,
        surface_desc_index=3,
        dependency_graph_index=1,
        op_head=(-1, -1, -1, 0, -1, -1),
        num_rois=1,
        num_operations=1,
        num_addresses=7,
    )
    graph = CommonOperation(op_type=OperationType.PDP, roi_index=0)
    parts = [
        filled(0, "task-0-addr0", network.to_bytes(), 1, SubInterface.ADDR0),
        filled(1, "task-0-dep_graph", graph.to_bytes(), 1, SubInterface.DEPS),
        filled(2, "task-0-op_list", PdpOperation().to_bytes().ljust(116, b"\0"), 1, 3),
        filled(3, "task-0-surf_list", bytes(644), 1, SubInterface.SURFS),
    ]
    return Loadable(
        tasks=(Task(0, Interface.DLA1, -1, tuple(range(7))),),
        memories=(
            *(memory for memory, _ in parts),
            Memory(4, 0, MemoryFlags.ALLOC | MemoryFlags.INPUT, 64, tensor_desc_id=0),
            Memory(5, 0, MemoryFlags.ALLOC | MemoryFlags.OUTPUT, 64, tensor_desc_id=1),
            Memory(6, MemoryDomain.SRAM, MemoryFlags.ALLOC, 256),
        ),
        addresses=tuple(Address(number, number) for number in range(7)),
        blobs=tuple(blob for _, blob in parts),
        tensors=(tensor(0, 4), tensor(1, 5)),
        relocations=(
            Relocation(4, 3, LINE_PLACE, 1, SubInterface.SURFS, RelocationType.LINE),
            Relocation(4, 3, SURFACE_PLACE, 1, SubInterface.SURFS, RelocationType.SURFACE),
            Relocation(5, 3, LINE_PLACE + 32, 1, SubInterface.SURFS, RelocationType.LINE),
        ),
        submits=(Submit(0, (0,)),),
    )


def emulated_loadable(
    operation: EmuOperation,
    source: EmuBuffer,
    target: EmuBuffer,
    layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS,
) -> Loadable:
    """One emulated operation from input 0, at address 3, to output 0, at address 4."""
    network = EmuNetworkDescriptor(1, 2, 1)
    sizes = {3: source.size, 4: target.size}
    parts = [
        filled(0, "task-0-addr0", network.to_bytes(), 2, SubInterface.ADDR0),
        filled(1, "task-0-op_list", write_emu_operation(operation, layout), 2, SubInterface.OPS),
        filled(2, "task-0-op_buf_list", EmuBuffers(source, target).to_bytes(layout), 2, 4),
    ]
    return Loadable(
        tasks=(Task(0, Interface.EMU1, -1, tuple(range(5))),),
        memories=(
            *(memory for memory, _ in parts),
            Memory(3, 0, MemoryFlags.ALLOC | MemoryFlags.INPUT, sizes[3], tensor_desc_id=0),
            Memory(4, 0, MemoryFlags.ALLOC | MemoryFlags.OUTPUT, sizes[4], tensor_desc_id=1),
        ),
        addresses=tuple(Address(number, number) for number in range(5)),
        blobs=tuple(blob for _, blob in parts),
        tensors=(tensor(0, 3, sizes[3]), tensor(1, 4, sizes[4])),
        submits=(Submit(0, (0,)),),
    )

"""Output of an interpretation as text, as plain data for JSON, and as a Graphviz graph."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smelt.errors import sanitize_name
from smelt.nvdla._errors import NvdlaError
from smelt.nvdla.loadable._decode import DlaTaskView, EmuTaskView
from smelt.nvdla.loadable._descriptors import BdmaSurface, DataCube, MemoryType, OperationEvent
from smelt.nvdla.loadable._emulator_descriptors import EmuOperationType, find_emu_format
from smelt.nvdla.loadable._model import (
    DataCategory,
    DataFormat,
    DataType,
    Interface,
    MemoryDomain,
    MemoryFlags,
    RelocationType,
    name_of,
)
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla._descriptor_codec import DescriptorVersion
    from smelt.nvdla.loadable._decode import (
        DecodedLoadable,
        EmuOperationView,
        OperationView,
        TaskView,
    )
    from smelt.nvdla.loadable._emulator_descriptors import EmuBuffer
    from smelt.nvdla.loadable._model import Memory, TensorDescriptor


def format_text(view: DecodedLoadable) -> str:
    """Return the interpretation as readable text."""
    return "\n".join(map(sanitize_name, _lines(view)))


def _lines(view: DecodedLoadable) -> Iterator[str]:
    """Yield the lines of the text."""
    loadable = view.loadable
    presence = "with" if loadable.has_identifier else "without"
    yield f"loadable {loadable.version}, {presence} identifier"
    order = ", then ".join(
        "task " + " and ".join(map(str, submit.task_id)) for submit in loadable.submits
    )
    yield f"submits: {order or 'none'}"
    for task in view.tasks:
        yield ""
        yield from _task_lines(task)
    yield ""
    yield f"memory map ({sum(memory.size for memory in loadable.memories):,} bytes)"
    for memory in loadable.memories:
        yield f"  {_format_memory(memory)}"
    yield ""
    yield "tensors"
    for tensor in loadable.tensors:
        yield f"  {_format_tensor(tensor)}"
    for relocation in loadable.relocations:
        yield (
            f"  relocation: the {name_of(RelocationType, relocation.reloc_type).lower()} stride of "
            f"address {relocation.address_id} is at byte {relocation.offset} of memory "
            f"{relocation.write_id}"
        )


def _task_lines(view: TaskView) -> Iterator[str]:
    """Yield the lines of a task."""
    task = view.task
    head = f"task {task.id}: {name_of(Interface, task.interface)}"
    if isinstance(view, DlaTaskView):
        yield f"{head} firmware {view.version}, {counted(len(view.operations), 'operation')}"
        if view.warning is not None:
            yield f"  {view.warning}"
        for operation in view.operations:
            yield from _operation_lines(operation)
        return
    if isinstance(view, EmuTaskView):
        yield f"{head}, {counted(len(view.operations), 'operation')} on the CPU"
        for emulated in view.operations:
            yield from _emulated_lines(emulated, view.layout)
        return
    yield f"{head}: unknown interface"


def _operation_lines(view: OperationView) -> Iterator[str]:
    """Yield the lines of an operation of the accelerator."""
    common = view.common
    count = common.dependency_count
    waits = f"waits for {counted(count, 'event')}" if count else "waits for nothing"
    followers = [
        f"{name_of(OperationEvent, edge.event).lower()} -> {edge.target}"
        + (" (fused parent)" if edge.is_fused else "")
        for edge in view.edges()
    ]
    events = ", ".join(followers) or "no operation waits for this one"
    yield f"  {view.index:3} {view.type.name:5} {waits}; {events}"
    for name, cube in cubes_of(view):
        yield f"        {name:11} {_format_cube(cube)}"
    if isinstance(view.surface, BdmaSurface):
        for transfer in view.surface.transfers[: view.surface.num_transfers]:
            yield (
                f"        copy        {counted(transfer.line_repeat, 'line')} of "
                f"{transfer.line_size} bytes, address index {transfer.source_address} to "
                f"{transfer.destination_address}"
            )


def cubes_of(view: OperationView) -> Iterator[tuple[str, DataCube]]:
    """Yield name and descriptor of the tensors that an operation uses."""
    for name in type(view.surface).__dataclass_fields__:
        cube = getattr(view.surface, name)
        if isinstance(cube, DataCube) and (cube.size or cube.width):
            yield name.removesuffix("_data"), cube


def _format_cube(cube: DataCube) -> str:
    """Return extents, location, size and strides of a cube as text."""
    location = (
        "on the fly"
        if cube.type == MemoryType.ON_THE_FLY
        else f"address index {cube.address}" + (f", offset {cube.offset}" if cube.offset else "")
    )
    return (
        f"{cube.channel}x{cube.height}x{cube.width} (CxHxW), {location}, {cube.size} bytes, "
        f"line/surface stride {cube.line_stride}/{cube.surf_stride} bytes"
    )


def _emulated_lines(view: EmuOperationView, layout: DescriptorVersion) -> Iterator[str]:
    """Yield the lines of an operation of the emulator."""
    fields = view.operation.to_dict()
    kind = name_of(EmuOperationType, fields.pop("op_type"))
    yield f"  {view.index:3} {kind} " + ", ".join(
        f"{name} {value:g}" for name, value in fields.items()
    )
    for name, buffer in (("src", view.buffers.src_data), ("dst", view.buffers.dst_data)):
        yield f"        {name:11} {_format_buffer(buffer, layout)}"


def _format_buffer(buffer: EmuBuffer, layout: DescriptorVersion) -> str:
    return (
        f"{buffer.channel}x{buffer.height}x{buffer.width} (CxHxW), "
        f"{_name_emu_format(buffer, layout)}, "
        f"address index {buffer.address_index}, {buffer.size} bytes, "
        f"line/surface stride {buffer.line_stride}/{buffer.surf_stride} bytes"
    )


def _name_emu_format(buffer: EmuBuffer, layout: DescriptorVersion) -> str:
    try:
        return find_emu_format(buffer.format, layout).name
    except NvdlaError:
        return f"format {buffer.format}"


def _format_memory(memory: Memory) -> str:
    what = ", ".join(name for name in memory.contents if name) if memory.flags & 2 else ""
    if memory.is_bindable:
        direction = "input" if memory.flags & MemoryFlags.INPUT else "output"
        what = f"{direction} {memory.bind_id}"
    domain = name_of(MemoryDomain, memory.domain)
    return f"{memory.id:3} {domain:6} {memory.size:12,} bytes  {what}".rstrip()


def _format_tensor(tensor: TensorDescriptor) -> str:
    return (
        f"{tensor.name}: {tensor.n}x{tensor.c}x{tensor.h}x{tensor.w} "
        f"{name_of(DataFormat, tensor.data_format)} {name_of(DataType, tensor.data_type)} "
        f"{name_of(DataCategory, tensor.data_category)}, memory {tensor.mem_id}, "
        f"{tensor.size} bytes, strides {'/'.join(map(str, tensor.strides[:4]))}"
    )


def to_plain(view: DecodedLoadable) -> dict[str, Any]:
    """Return the interpretation as plain data for JSON, without the bytes of the blobs."""
    loadable = view.loadable
    return {
        "version": str(loadable.version),
        "identifier": loadable.has_identifier,
        "tasks": [_plain_task(task) for task in view.tasks],
        "submits": [asdict(entry) for entry in loadable.submits],
        "memories": [
            {**asdict(entry), "domain": name_of(MemoryDomain, entry.domain)}
            for entry in loadable.memories
        ],
        "addresses": [asdict(entry) for entry in loadable.addresses],
        "tensors": [asdict(entry) for entry in loadable.tensors],
        "relocations": [asdict(entry) for entry in loadable.relocations],
        "events": [asdict(entry) for entry in loadable.events],
        "blobs": [
            {
                "name": blob.name,
                "size": len(blob.data),
                "interface": blob.interface,
                "sub_interface": blob.sub_interface,
                "version": str(blob.version),
            }
            for blob in loadable.blobs
        ],
    }


def _plain_task(view: TaskView) -> dict[str, Any]:
    """Return a task as plain data."""
    plain: dict[str, Any] = {
        **asdict(view.task),
        "interface": name_of(Interface, view.task.interface),
    }
    if isinstance(view, DlaTaskView):
        plain["firmware"] = str(view.version)
        plain["warning"] = view.warning
        plain["network"] = view.network.to_dict()
        plain["operations"] = [_plain_operation(operation) for operation in view.operations]
        plain["edges"] = [
            {**asdict(edge), "event": name_of(OperationEvent, edge.event)} for edge in view.edges()
        ]
        plain["luts"] = [lut.to_dict() for lut in view.luts]
        plain["rois"] = [roi.to_dict() for roi in view.rois]
    elif isinstance(view, EmuTaskView):
        plain["network"] = view.network.to_dict()
        plain["operations"] = [
            {
                "index": item.index,
                "type": name_of(EmuOperationType, item.operation.op_type),
                "operation": item.operation.to_dict(),
                "buffers": item.buffers.to_dict(),
            }
            for item in view.operations
        ]
    return plain


def _plain_operation(view: OperationView) -> dict[str, Any]:
    """Return an operation as plain data, without unused transfers."""
    surface = view.surface.to_dict()
    if isinstance(view.surface, BdmaSurface):
        surface["transfers"] = surface["transfers"][: view.surface.num_transfers]
    return {
        "index": view.index,
        "type": view.type.name,
        "dependencies": view.common.to_dict(),
        "operation": view.operation.to_dict(),
        "surfaces": surface,
    }


def format_dot(view: DecodedLoadable) -> str:
    """Return the dependency graph for Graphviz; dashed edges lead to fused parents."""
    lines = ["digraph loadable {", "  node [shape=box];"]
    for task in view.tasks:
        number = task.task.id
        lines.append(f"  subgraph cluster_{number} {{")
        title = f"task {number}: {name_of(Interface, task.task.interface)}"
        lines.append(f'    label="{title}";')
        if isinstance(task, DlaTaskView):
            lines += [
                f'    t{number}_{item.index} [label="{item.index} {item.type.name}"];'
                for item in task.operations
            ]
            for edge in task.edges():
                event = name_of(OperationEvent, edge.event).lower()
                style = ", style=dashed" if edge.is_fused else ""
                lines.append(
                    f"    t{number}_{edge.source} -> t{number}_{edge.target} "
                    f'[label="{event}"{style}];'
                )
        elif isinstance(task, EmuTaskView):
            lines += [
                f'    t{number}_{item.index} [label="{item.index} '
                f'{name_of(EmuOperationType, item.operation.op_type)}"];'
                for item in task.operations
            ]
        lines.append("  }")
    return "\n".join([*lines, "}"])

"""A loadable's meaning is told, and what contradicts itself is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from smelt.errors import ModelFormatError
from smelt.nvdla.loadable import (
    Address,
    Blob,
    CommonOperation,
    Consumer,
    DescriptorVersion,
    DlaTaskView,
    EmuBuffer,
    EmuSoftmaxOperation,
    EmuTaskView,
    Loadable,
    LutParameters,
    Memory,
    MemoryFlags,
    NetworkDescriptor,
    OpaqueTaskView,
    OperationType,
    Roi,
    RoiArray,
    Task,
    Version,
    format_dot,
    format_text,
    interpret,
    to_plain,
)
from tests.nvdla.loadable.test_shared_loadables import NAMES
from tests.support.nvdla_loadables import emulated_loadable, filled, pooling_loadable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.requirement("D-9", "D-6", "D-7")
@pytest.mark.parametrize("name", NAMES)
def test_every_official_loadable_is_interpreted(name: str, shared: Path) -> None:
    data = (shared / "nvdla" / "flatbufs" / "kmd" / f"{name}_fbuf").read_bytes()
    view = interpret(Loadable.from_bytes(data))
    for task in view.tasks:
        assert isinstance(task, DlaTaskView | EmuTaskView)
        assert task.operations
        if isinstance(task, DlaTaskView):
            assert task.layout is DescriptorVersion.WITHOUT_OFFSETS
            waits = [0] * len(task.operations)
            for edge in task.edges():
                waits[edge.target] += 1
            assert waits == [item.common.dependency_count for item in task.operations]
    assert format_text(view)
    assert format_dot(view).startswith("digraph")
    assert to_plain(view)["tasks"]


def _with(**blobs: bytes) -> Loadable:
    """The pooling with other bytes in some blobs, by the end of their names."""
    loadable = pooling_loadable()
    changed: list[Blob] = []
    sizes: dict[str, int] = {}
    for blob in loadable.blobs:
        key = blob.name.removeprefix("task-0-")
        data = blobs.get(key, blob.data)
        sizes[blob.name] = len(data)
        changed.append(replace(blob, data=data, size=len(data)))
    memories = tuple(
        replace(memory, size=sizes.get(memory.contents[0], memory.size))
        if memory.contents
        else memory
        for memory in loadable.memories
    )
    return replace(loadable, blobs=tuple(changed), memories=memories)


def _network(**fields: Any) -> bytes:
    base = NetworkDescriptor.from_bytes(pooling_loadable().blobs[0].data)
    return replace(base, **fields).to_bytes()


def _graph(**fields: Any) -> bytes:
    return CommonOperation(op_type=OperationType.PDP, **fields).to_bytes()


@pytest.mark.parametrize(
    ("blobs", "text"),
    [
        ({"addr0": bytes(39)}, "the network needs 40 bytes"),
        ({"addr0": _network(num_operations=2)}, "needs 72 bytes"),
        ({"addr0": _network(num_operations=65535)}, "the dependency graph needs"),
        ({"addr0": _network(operation_desc_index=-1)}, "address index of the operation list is -1"),
        ({"addr0": _network(surface_desc_index=7)}, "address index of the surface list is 7"),
        ({"addr0": _network(num_luts=1, lut_data_index=6)}, "lookup tables"),
        ({"addr0": _network(num_rois=2, roi_array_index=9)}, "regions of interest is 9"),
        (
            {"addr0": _network(op_head=(-1, -1, -1, 1, -1, -1))},
            "first PDP operation is number 1, counted from 0, but the task has 1 operation$",
        ),
        ({"dep_graph": CommonOperation(op_type=6).to_bytes()}, "type 6"),
        ({"dep_graph": _graph(consumers=(Consumer(1),) * 6)}, "refers to operation 1,"),
        ({"dep_graph": _graph(fused_parent=Consumer(9))}, "refers to operation 9,"),
    ],
)
def test_a_network_that_contradicts_itself_is_named(blobs: dict[str, bytes], text: str) -> None:
    with pytest.raises(ModelFormatError, match=text):
        interpret(_with(**blobs))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"addresses": ()}, "which is not in the address list"),
        ({"addresses": (Address(0, 9),)}, "memory 9"),
        ({"addresses": (Address(0, 0, 41),)}, "which has 40 bytes"),
        ({"addresses": (Address(0, 0, 0, 41),)}, "which has 40 bytes"),
        ({"addresses": (Address(0, 0, (1 << 64) - 1, 2),)}, "which has 40 bytes"),
        ({"addresses": (Address(0, 0), Address(0, 1))}, "same id"),
        ({"blobs": ()}, "which does not exist"),
        ({"blobs": (Blob("a"), Blob("a"))}, "same name"),
        ({"tasks": (Task(0, 1),)}, "list has length 0"),
    ],
)
def test_a_list_that_leads_nowhere_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelFormatError, match=text):
        interpret(replace(pooling_loadable(), **change))


def test_lookup_tables_and_regions_are_read() -> None:
    lut = LutParameters(linear_exp_start=5)
    rois = RoiArray(2).to_bytes() + Roi(1, 2, 3, 4).to_bytes() + Roi(5, 6, 7, 8).to_bytes()
    loadable = pooling_loadable()
    (task,) = loadable.tasks
    parts = [filled(7, "luts", lut.to_bytes(), 1, 5), filled(8, "rois", rois, 1, 0)]
    network = _network(num_luts=1, lut_data_index=7, num_rois=2, roi_array_index=8)
    base = _with(addr0=network)
    (view,) = interpret(
        replace(
            base,
            tasks=(replace(task, address_list=tuple(range(9))),),
            memories=(*base.memories, *(memory for memory, _ in parts)),
            addresses=(*base.addresses, Address(7, 7), Address(8, 8)),
            blobs=(*base.blobs, *(blob for _, blob in parts)),
        )
    ).tasks
    assert isinstance(view, DlaTaskView)
    assert view.luts == (lut,)
    assert view.rois == (Roi(1, 2, 3, 4), Roi(5, 6, 7, 8))


@pytest.mark.parametrize(
    ("minor", "layout"),
    [
        (10, DescriptorVersion.WITHOUT_OFFSETS),
        (11, DescriptorVersion.WITHOUT_OFFSETS),
        (12, DescriptorVersion.WITH_OFFSETS),
        (13, DescriptorVersion.WITH_OFFSETS),
    ],
)
def test_the_version_of_a_blob_chooses_the_layout(minor: int, layout: DescriptorVersion) -> None:
    loadable = pooling_loadable()
    blobs = tuple(replace(blob, version=Version(0, minor, 0)) for blob in loadable.blobs)
    (view,) = interpret(replace(loadable, blobs=blobs)).tasks
    assert isinstance(view, DlaTaskView)
    assert view.layout is layout


@pytest.mark.parametrize(
    ("version", "shown"),
    [(Version(0, 12, 3), None), (Version(3, 7, 0), "0.12"), (Version(0, 2, 0), "0.11")],
)
def test_firmware_of_an_unknown_version_is_said_to_be_shown_as_another(
    version: Version, shown: str | None
) -> None:
    loadable = pooling_loadable()
    blobs = tuple(replace(blob, version=version) for blob in loadable.blobs)
    view = interpret(replace(loadable, blobs=blobs))
    warning = None
    if shown is not None:
        warning = (
            f"the firmware version {version} is unknown; its descriptors are read with the "
            f"layout of {shown} and may be wrong"
        )
    assert to_plain(view)["tasks"][0]["warning"] == warning
    assert (f"  {warning}" in format_text(view)) is (shown is not None)


@pytest.mark.requirement("D-9")
def test_a_task_of_an_unknown_interface_is_shown_as_such() -> None:
    view = interpret(replace(pooling_loadable(), tasks=(Task(0, 77),)))
    assert isinstance(view.tasks[0], OpaqueTaskView)
    assert "unknown interface" in format_text(view)


@pytest.mark.parametrize("layout", [*DescriptorVersion])
def test_emulated_tasks_of_both_generations_are_shown(layout: DescriptorVersion) -> None:
    number = 2 if layout is DescriptorVersion.WITHOUT_OFFSETS else 3
    buffer = EmuBuffer(3, 0, 32, number, 1, 1, 4, 32, 32)
    view = interpret(emulated_loadable(EmuSoftmaxOperation(axis=1), buffer, buffer, layout))
    (task,) = view.tasks
    assert isinstance(task, EmuTaskView)
    assert task.layout is layout
    assert task.operations[0].buffers.src_data == buffer
    assert "SOFTMAX" in format_text(view)
    assert "FF16" in format_text(view)
    assert "SOFTMAX" in format_dot(view)


def test_blobs_at_offsets_are_found_through_the_address_list() -> None:
    loadable = pooling_loadable()
    names = tuple(blob.name for blob in loadable.blobs)
    offsets = (0, 64, 128, 256)
    pool = Memory(0, 0, MemoryFlags.ALLOC | MemoryFlags.SET, 1024, 0, names, offsets)
    addresses = tuple(Address(number, 0, offsets[number]) for number in range(4))
    rest = tuple(Address(number, number) for number in range(4, 7))
    view = interpret(
        replace(
            loadable,
            memories=(pool, *loadable.memories[4:]),
            addresses=(*addresses, *rest),
        )
    )
    assert view.tasks == interpret(loadable).tasks

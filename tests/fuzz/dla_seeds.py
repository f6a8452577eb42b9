"""NVDLA loadables to start from, what is done with each, and how they are changed."""

from __future__ import annotations

import functools
import struct
import zlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import SmeltError
from smelt.nvdla import create_runtime
from smelt.nvdla.loadable import (
    Address,
    Blob,
    CommonOperation,
    Consumer,
    DescriptorVersion,
    EmuBuffer,
    EmuPowerOperation,
    EmuSoftmaxOperation,
    Event,
    Loadable,
    LutParameters,
    NetworkDescriptor,
    Relocation,
    Roi,
    RoiArray,
    SubInterface,
    Version,
    format_dot,
    format_text,
    interpret,
    to_plain,
)
from smelt.nvdla.port import LocalPort
from smelt.nvdla.runtime import DlaImage, array_from_tensor, image_from_tensor
from tests.fuzz.mutators import mutate_bytes
from tests.support.nvdla_driver import RecordingDriver
from tests.support.nvdla_loadables import emulated_loadable, filled, pooling_loadable

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

_NUMBERS: Final = (0, 1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 65, 255, 256, 6145, 65535, 1 << 31, 1 << 63)
_LISTS: Final = (
    "tasks",
    "memories",
    "addresses",
    *("blobs",) * 6,  # what lies behind the lists
    "tensors",
    "relocations",
    "submits",
    "events",
)
_MAX_BYTES: Final = 1 << 16
NOT_PARSERS: Final = (
    "slot",
    "import_flatbuffers",
    "Loadable.to_bytes",
    "LoadedNetwork.unbind",
    "LoadedNetwork.release",
    "_explain_unbound",
)
"""What declares, writes, or gives memory back."""


def loadable_seeds() -> Iterator[bytes]:
    """One task of each kind, in both layouts, with tables and regions, with and without a mark."""
    pooling = pooling_loadable()
    yield pooling.to_bytes()
    yield replace(pooling, has_identifier=False, events=(Event(1, 0, 2, 3, 1),)).to_bytes()
    yield _with_tables(pooling).to_bytes()
    old = tuple(replace(blob, version=Version(0, 11, 0)) for blob in pooling.blobs)
    yield replace(pooling, blobs=old).to_bytes()
    for kind in range(6):
        yield _with_operation(pooling, kind).to_bytes()
    softmax, power = EmuSoftmaxOperation(axis=1), EmuPowerOperation(power=2.0)
    for layout in DescriptorVersion:
        half = 2 if layout is DescriptorVersion.WITHOUT_OFFSETS else 3
        for operation, number in ((softmax, half), (power, half), (softmax, 0), (power, 0)):
            buffer = EmuBuffer(3, 0, 64, number, 1, 1, 20, 32, 32)
            yield emulated_loadable(
                operation, buffer, replace(buffer, address_index=4), layout
            ).to_bytes()
    for wrong in _wrong_loadables(pooling):
        yield wrong.to_bytes()


def _wrong_loadables(pooling: Loadable) -> Iterator[Loadable]:
    """What chance seldom finds: each is refused for another reason."""
    yield replace(pooling, version=Version(1, 0, 0))
    yield replace(pooling, blobs=(Blob("b", 5, data=b"1234"),))
    target = EmuBuffer(4, 0, 64, 3, 1, 1, 20, 32, 32)
    for source in (
        EmuBuffer(9, 0, 64, 3, 1, 1, 20, 32, 32),
        EmuBuffer(3, 0, 64, 0, 1, 1, 20, 32, 32),
        EmuBuffer(3, 0, 64, 3, 1, 2, 1, 1 << 20, 32),
        EmuBuffer(3, 0, 64, 3, 60000, 60000, 60000, 0, 0),
        EmuBuffer(3, 0, 64, 3, 1, 1, 2, 32, 32),
    ):
        yield emulated_loadable(EmuSoftmaxOperation(), source, target)
    source = EmuBuffer(3, 0, 64, 2, 1, 1, 20, 32, 32)
    emulated = emulated_loadable(EmuSoftmaxOperation(), source, replace(target, format=2))
    yield emulated
    yield replace(emulated, tasks=(replace(emulated.tasks[0], instance=1),))
    empty = replace(source, format=0, channel=0), replace(target, format=0, channel=0)
    yield emulated_loadable(EmuSoftmaxOperation(), *empty)
    (task,) = pooling.tasks
    yield replace(pooling, tasks=(replace(task, address_list=(0,) * 6145),))
    yield replace(pooling, addresses=(*pooling.addresses[:6], Address(6, 6, 200, 57)))
    foreign = tuple(replace(blob, version=Version(1, 0, 0)) for blob in pooling.blobs)
    yield replace(pooling, blobs=foreign)
    for relocation in (
        Relocation(4, 1, 0, 1, SubInterface.DEPS, 1),
        Relocation(4, 3, 0, 1, SubInterface.SURFS, 9),
        Relocation(4, 3, 642, 1, SubInterface.SURFS, 1),
    ):
        yield replace(pooling, relocations=(relocation,))
    names = ("task-0-addr0", "task-0-dep_graph")
    pool = replace(pooling.memories[3], contents=names, offsets=(0, 39))
    yield replace(pooling, memories=(*pooling.memories[:3], pool, *pooling.memories[4:]))


def _with_tables(loadable: Loadable) -> Loadable:
    rois = RoiArray(2).to_bytes() + Roi(1, 2, 3, 4).to_bytes() * 2
    parts = [
        filled(4, "luts", LutParameters().to_bytes(), 1, SubInterface.LUTS),
        filled(5, "rois", rois, 1, 0),
    ]
    network = NetworkDescriptor.from_bytes(loadable.blobs[0].data)
    network = replace(network, num_luts=1, lut_data_index=4, num_rois=2, roi_array_index=5)
    blobs = (replace(loadable.blobs[0], data=network.to_bytes()), *loadable.blobs[1:])
    return replace(
        loadable,
        memories=(*loadable.memories[:4], *(memory for memory, _ in parts), loadable.memories[6]),
        blobs=(*blobs, *(blob for _, blob in parts)),
    )


def _with_operation(loadable: Loadable, kind: int) -> Loadable:
    heads = tuple(0 if index == kind else -1 for index in range(6))
    network = replace(NetworkDescriptor.from_bytes(loadable.blobs[0].data), op_head=heads)
    consumers = (Consumer(0, 2),) * 6
    graph = CommonOperation(op_type=kind, consumers=consumers, fused_parent=Consumer(0, 3))
    surfaces = struct.pack("<BBH", 0, 0, 2) + bytes(range(1, 161)) * 4
    changes = (network.to_bytes(), graph.to_bytes(), bytes(range(116)), surfaces)
    blobs = tuple(
        replace(blob, data=data, size=len(data))
        for blob, data in zip(loadable.blobs, changes, strict=True)
    )
    return replace(loadable, blobs=blobs)


def run_loadable(data: bytes) -> None:
    """Read, write, explain, load, change strides, run, and take the output out of memory."""
    loadable = Loadable.from_bytes(data)
    is_sample = zlib.crc32(data) % 4 == 0  # to write takes longer than all the rest
    if is_sample and Loadable.from_bytes(loadable.to_bytes()) != loadable:
        raise AssertionError("a loadable changes when it is written and read")
    failure: SmeltError | None = None
    try:
        view = interpret(loadable)
        format_text(view)
        format_dot(view)
        to_plain(view)
    except SmeltError as error:
        failure = error
    _run(loadable)
    if failure is not None:
        raise failure


def _run(loadable: Loadable) -> None:
    driver = RecordingDriver(room_bytes=_MAX_BYTES)
    with create_runtime(LocalPort(driver)) as runtime:
        runtime.load(loadable)
        for number in range(runtime.get_num_input_tensors()):
            tensor = runtime.get_input_tensor_desc(number)
            memory = runtime.allocate_system_memory(tensor.buffer_size)
            runtime.bind_input_tensor(number, memory.mem_handle)
            runtime.set_input_tensor_desc(number, tensor)
        outputs: list[tuple[Any, Any]] = []
        for number in range(runtime.get_num_output_tensors()):
            tensor = runtime.get_output_tensor_desc(number)
            memory = runtime.allocate_system_memory(tensor.buffer_size)
            runtime.bind_output_tensor(number, memory.mem_handle)
            outputs.append((tensor, memory.data))
        runtime.submit()
        for tensor, data in outputs:
            array_from_tensor(tensor, data)
            image = image_from_tensor(tensor, data)
            DlaImage.from_bytes(image.to_bytes()).write_to(data)


def mutate_loadable(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change bytes of the file, numbers of its lists, or bytes of its descriptors."""
    if chance.random() < 0.2:
        return mutate_bytes(data, chance, corpus)
    try:
        loadable = _read(data)
        for _ in range(chance.choice((1, 1, 2, 4))):
            loadable = _change(loadable, chance)
        return loadable.to_bytes()
    except SmeltError:
        return mutate_bytes(data, chance, corpus)


@functools.lru_cache(maxsize=256)
def _read(data: bytes) -> Loadable:
    """A parent is changed many times."""
    return Loadable.from_bytes(data)


def _change(loadable: Loadable, chance: random.Random) -> Loadable:
    name = chance.choice(_LISTS)
    entries: list[Any] = list(getattr(loadable, name))
    if not entries:
        return loadable
    index = chance.randrange(len(entries))
    kind = chance.random()
    if kind < 0.1:
        del entries[index]
    elif kind < 0.2:
        entries.insert(chance.randrange(len(entries)), entries[index])
    elif name == "blobs" and kind < 0.9:
        entries[index] = _change_blob(entries[index], chance)
    else:
        entries[index] = _change_field(entries[index], chance)
    changed: dict[str, Any] = {name: tuple(entries)}
    return replace(loadable, **changed)


def _change_blob(blob: Blob, chance: random.Random) -> Blob:
    data = bytearray(blob.data or b"\0")
    width = chance.choice((1, 2, 4))
    place = chance.randrange(len(data)) // width * width
    number = chance.choice((*_NUMBERS, chance.getrandbits(32))) & (1 << 8 * width) - 1
    data[place : place + width] = number.to_bytes(width, "little")
    if chance.random() < 0.03:
        del data[chance.randrange(len(data)) :]
    return replace(blob, data=bytes(data), size=len(data))


def _change_field(entry: Any, chance: random.Random) -> Any:
    name = chance.choice([item.name for item in fields(entry)])
    value = getattr(entry, name)
    if isinstance(value, int):
        return replace(entry, **{name: chance.choice((*_NUMBERS, value + 1, -1))})
    if isinstance(value, tuple) and not isinstance(value, Version):
        return replace(entry, **{name: (*value, *value)[chance.randrange(3) :]})
    return entry

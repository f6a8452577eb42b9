"""A malformed or hostile loadable is refused with what and where; never a crash, hang or bomb."""

from __future__ import annotations

import contextlib
import struct
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.errors import MissingExtraError, ModelFormatError, SmeltError, UnsupportedError
from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.loadable import (
    Address,
    Blob,
    Event,
    Loadable,
    Memory,
    Relocation,
    Submit,
    Task,
    TensorDescriptor,
    Version,
    interpret,
)
from tests.support.nvdla_loadables import pooling_loadable

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
I16, I32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(max_size=8)
IDS = st.lists(U16, max_size=4).map(tuple)
VERSIONS = st.builds(Version, U8, U8, U8)
BLOBS = st.builds(Blob, NAMES, st.just(0), U32, U32, VERSIONS, st.binary(max_size=40))
LOADABLES = st.builds(
    Loadable,
    st.builds(Version, st.just(0), U8, U8),
    st.lists(st.builds(Task, U16, U32, I16, IDS, IDS, IDS), max_size=3).map(tuple),
    st.lists(
        st.builds(
            Memory,
            U16,
            U8,
            U16,
            U64,
            U32,
            st.lists(NAMES, max_size=3).map(tuple),
            st.lists(U64, max_size=3).map(tuple),
            U16,
            U16,
        ),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(Address, U16, U16, U64, U64), max_size=3).map(tuple),
    st.lists(st.builds(Event, U16, U8, U16, U32, U8), max_size=3).map(tuple),
    st.lists(BLOBS, max_size=3).map(tuple),
    st.lists(
        st.builds(
            TensorDescriptor,
            *(NAMES, U16, U16, U64, U64, U8, U8, U8, U8, U8, I32, I32, I32, I32),
            *(U32,) * 8,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Relocation, U16, U16, U64, U32, U32, U8), max_size=3).map(tuple),
    st.lists(st.builds(Submit, U16, IDS), max_size=3).map(tuple),
    st.booleans(),
)


@pytest.mark.requirement("D-8", "DX-11")
@given(LOADABLES)
def test_any_loadable_survives_a_round_trip(loadable: Loadable) -> None:
    assert Loadable.from_bytes(loadable.to_bytes()) == loadable


def _read(data: bytes) -> None:
    """Read and interpret; only our own errors may come out."""
    with contextlib.suppress(SmeltError):
        interpret(Loadable.from_bytes(data))


@given(
    st.lists(st.tuples(st.integers(0, 10_000), U8), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(0, 10_000)),
)
def test_changed_bytes_never_do_more_than_fail(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(pooling_loadable().to_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    _read(bytes(data[: len(data) if cut is None else cut % len(data)]))


@given(st.lists(st.tuples(st.integers(0, 10_000), I32), min_size=1, max_size=4))
def test_changed_offsets_never_do_more_than_fail(changes: list[tuple[int, int]]) -> None:
    data = bytearray(pooling_loadable().to_bytes())
    for place, value in changes:
        struct.pack_into("<i", data, place % (len(data) // 4 - 1) * 4, value)
    _read(bytes(data))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((ModelFormatError, UnsupportedError)):
        Loadable.from_bytes(data)


def test_every_truncation_is_refused() -> None:
    data = pooling_loadable().to_bytes()
    for size in range(0, len(data) - 8, 7):  # the last bytes pad a string
        with pytest.raises(ModelFormatError):
            Loadable.from_bytes(data[:size])


def _table(fields: dict[int, bytes], slots: int) -> tuple[bytes, int]:
    """A table by hand, its field list before it; give the bytes and where the table starts."""
    body, offsets = b"", [0] * slots
    for number, field in fields.items():
        offsets[number] = 4 + len(body)
        body += field
    head = struct.pack(f"<HH{slots}H", 4 + 2 * slots, 4 + len(body), *offsets)
    return head + struct.pack("<i", len(head)) + body, len(head)


def _loadable_with_tasks(tasks: bytes) -> bytes:
    """A root whose task list is what follows it."""
    table, start = _table({0: bytes((0, 7, 0, 0)), 1: struct.pack("<I", 4)}, 2)
    return struct.pack("<I", 4 + start) + table + tasks


def test_a_vector_that_says_it_is_huge_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="4294967295 elements"):
        Loadable.from_bytes(_loadable_with_tasks(struct.pack("<I", 0xFFFFFFFF)))


def test_a_table_that_is_named_twice_is_refused() -> None:
    task, start = _table({0: bytes(4)}, 1)
    entries = struct.pack("<III", 2, 8 + start, 4 + start)
    with pytest.raises(ModelFormatError, match="overlaps"):
        Loadable.from_bytes(_loadable_with_tasks(entries + task))


def test_a_table_that_leads_back_to_the_root_is_refused() -> None:
    data = _loadable_with_tasks(struct.pack("<II", 1, 0) + bytes(64))
    root = struct.unpack_from("<I", data)[0]
    entry = data.index(struct.pack("<II", 1, 0)) + 4
    looped = bytearray(data)
    struct.pack_into("<I", looped, entry, (root - entry) & 0xFFFFFFFF)
    with pytest.raises(ModelFormatError):
        Loadable.from_bytes(bytes(looped))


def test_one_string_in_many_places_is_read_once() -> None:
    """Compilers may share strings; a shared one must not multiply the file's size."""
    name = "x" * 1000
    loadable = replace(
        pooling_loadable(),
        memories=(Memory(0, contents=(name,) * 50, offsets=(0,) * 50),),
        tasks=(),
        addresses=(),
    )
    assert Loadable.from_bytes(loadable.to_bytes()).memories[0].contents == (name,) * 50


def test_a_name_that_is_no_text_is_refused() -> None:
    data = pooling_loadable().to_bytes().replace(b"tensor-0", b"tensor-\xff")
    with pytest.raises(ModelFormatError, match="UTF-8"):
        Loadable.from_bytes(data)


def test_another_major_version_is_not_supported() -> None:
    data = replace(pooling_loadable(), version=Version(1, 0, 0)).to_bytes()
    with pytest.raises(UnsupportedError, match=r"1\.0\.0"):
        Loadable.from_bytes(data)


def test_a_blob_with_a_false_size_is_refused() -> None:
    blob = Blob("b", 5, data=b"1234")
    with pytest.raises(ModelFormatError, match="5 bytes"):
        Loadable.from_bytes(Loadable(blobs=(blob,)).to_bytes())


def test_a_number_that_its_field_cannot_hold_is_refused() -> None:
    with pytest.raises(NvdlaError, match=r"Task\.id has a value") as caught:
        Loadable(tasks=(Task(id=1 << 16),)).to_bytes()
    assert caught.value.status is NvError.BAD_VALUE


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(MissingExtraError, match=r"run pip install \'smelt-engine\[nvdla\]\', or"):
        Loadable.from_bytes(bytes(16))

"""The engine file: the same after reading, refused when anything in it is wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import config
from smelt.engine import (
    Binding,
    Buffer,
    EngineHeader,
    Fingerprint,
    HostCall,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    RefittableArray,
    Signer,
    Submit,
    View,
    Weight,
    _engine_reader,
    _file,
    engine_parts,
    header_from_data,
    header_to_data,
    read_engine,
    serialize_engine,
    write_engine,
)
from smelt.errors import EngineFormatError, SmeltError, TrustError
from smelt.types import Dim, DType, Limit, SymbolicDim
from tests.support.engines import BATCH, affine_data, affine_header, view

_RECORDS = (
    EngineHeader,
    Fingerprint,
    Binding,
    RefittableArray,
    Plan,
    Buffer,
    Launch,
    HostCall,
    Submit,
    View,
    KernelSpec,
    LayerInfo,
    Weight,
)
SIGNER = Signer(bytes(range(32)))
CODE, RUNTIME, NETWORK_ARRAYS = b"code" * 10, b"runtime" * 1000, b"source" * 2


def rich_header() -> EngineHeader:
    """A header that uses every field."""
    header = affine_header(max_batch_size=None, report='{"a": [1, "ü"]}', metadata=(("k", "v"),))
    source = Weight("w", DType.UINT8, (3, 4), 0)
    inner = BATCH * 3 + SymbolicDim.symbol("n") // 2 - 7
    host = HostCall(
        ("op", "flatten", (("axis", 1), ("x", 0.5), ("y", None), ("z", (True, "s")))),
        (None, view(3, BATCH, inner)),
        (replace(view(4, BATCH), halo=((1, 2),), dtype=DType.BFLOAT16),),
        sizes=(("n", 0, 0),),
        layer=1,
    )
    (plan,) = header.plans
    plans = (replace(plan, steps=(*plan.steps, host)),)
    return replace(header, plans=plans, network="{}", network_arrays=(source,))


def data(**parts: Any) -> bytes:
    chosen: dict[str, Any] = {
        "header": rich_header(),
        "weights": affine_data(),
        "code": CODE,
        "runtime_code": RUNTIME,
        "signer": SIGNER,
        "network_arrays": NETWORK_ARRAYS,
        **parts,
    }
    return serialize_engine(**chosen)


def test_an_engine_reads_back_as_it_was_written() -> None:
    engine = read_engine(data())
    assert engine.header == rich_header()
    assert engine.weights.tobytes() == affine_data()
    assert (engine.code, engine.runtime_code) == (CODE, RUNTIME)
    assert engine.network_arrays.tobytes() == NETWORK_ARRAYS
    assert engine.signature is not None
    assert engine.signature.public_key == SIGNER.public_key


def test_an_engine_reads_from_a_path_bytes_views_and_files(tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    write_engine(path, engine_parts(rich_header(), affine_data(), CODE, RUNTIME, None))
    for source in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        assert read_engine(source).header == rich_header()
    with path.open("rb") as file:
        assert read_engine(file).weights.tobytes() == affine_data()
    written = io.BytesIO()
    write_engine(written, engine_parts(rich_header(), affine_data(), CODE, RUNTIME, None))
    assert written.getvalue() == path.read_bytes()


class Endless(io.RawIOBase):
    """Gives what it has in small pieces, and zeros after that for ever."""

    def __init__(self, start: bytes, piece: int) -> None:
        self._rest, self._piece, self.given = start, piece, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        assert size > 0, "all of an endless file was asked for"
        count = min(size, self._piece)
        found, self._rest = self._rest[:count].ljust(count, b"\0"), self._rest[count:]
        self.given += count
        return found


@pytest.mark.parametrize("piece", [1, 1000, 1 << 30])
def test_an_open_file_is_read_as_far_as_an_engine_goes(piece: int) -> None:
    whole = data()
    assert read_engine(io.BufferedReader(io.BytesIO(whole))).header == rich_header()
    nothing = Endless(b"", piece)
    with pytest.raises(EngineFormatError, match="is not a smelt engine"):
        read_engine(nothing)  # type: ignore[arg-type]
    longer = Endless(whole, piece)
    with pytest.raises(EngineFormatError, match=f"declares {len(whole)};"):
        read_engine(longer)  # type: ignore[arg-type]
    assert (nothing.given, longer.given) == (64, len(whole) + 1)


@pytest.mark.skipif(os.name != "posix", reason="files that are open are not replaced")
def test_a_file_that_is_replaced_while_it_is_opened_is_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "m.engine", tmp_path / "other.engine"
    for target in (path, other):
        write_engine(target, engine_parts(rich_header(), affine_data(), CODE, RUNTIME, None))

    def replaced(*_: object, **__: object) -> None:
        other.replace(path)

    monkeypatch.setattr(config, "other_writers", replaced)
    with pytest.raises(TrustError, match="replaced while it was opened"):
        read_engine(path, mapped=True)


class _Path:
    def __fspath__(self) -> str:
        raise RuntimeError("no path")


class _Object:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class _Full:
    def write(self, part: Any) -> int:
        raise LookupError("no space")


def test_whatever_an_object_of_the_application_raises_is_an_error_of_ours() -> None:
    with pytest.raises(EngineFormatError, match="the path of an engine cannot be read: no path"):
        read_engine(_Path())
    with pytest.raises(EngineFormatError, match="from a source of type _Object: no read"):
        read_engine(cast("Any", _Object()))
    arguments = (rich_header(), affine_data(), CODE, RUNTIME, None)
    with pytest.raises(SmeltError, match="cannot be written to the file: no space"):
        write_engine(_Full(), engine_parts(*arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("full", [None, 0, 1000])
def test_a_file_that_takes_a_part_gets_the_rest_or_is_refused(full: int | None) -> None:
    class Raw(io.RawIOBase):
        """Takes a few bytes at a time, and no more than ``room``."""

        def __init__(self, room: int) -> None:
            super().__init__()
            self.room, self.data = room, b""

        def write(self, part: Any) -> int | None:
            taken = bytes(part)[: min(self.room, 100)]
            self.room, self.data = self.room - len(taken), self.data + taken
            return len(taken) or full

    arguments = (rich_header(), affine_data(), CODE, RUNTIME, None)
    whole, raw = io.BytesIO(), Raw(1 << 30)
    write_engine(whole, engine_parts(*arguments))
    write_engine(raw, engine_parts(*arguments))  # type: ignore[arg-type]
    assert raw.data == whole.getvalue()
    with pytest.raises(SmeltError, match="accepts no more bytes"):
        write_engine(Raw(500), engine_parts(*arguments))  # type: ignore[arg-type]
    whole.close()
    with pytest.raises(SmeltError, match="cannot be written to the file"):
        write_engine(whole, engine_parts(*arguments))


@pytest.mark.parametrize("mapped", [False, True])
def test_weights_of_a_path_are_aligned_and_read_only(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "m.engine"
    path.write_bytes(data())
    file = read_engine(path, mapped=mapped)
    for part in (file.weights, file.network_arrays):
        assert part.ctypes.data % 4096 == 0
        assert not part.flags.writeable
    assert file.weights.tobytes() == affine_data()


def test_what_is_checked_is_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writes to the file between any two reads of it: no byte is read twice."""
    path = tmp_path / "m.engine"
    sound = data(weights=bytes(1 << 20))
    path.write_bytes(sound)
    seen = np.zeros(len(sound), np.uint8)
    module: Any = _engine_reader
    read_at = module._read_at

    def read_once(file: Any, name: str, offset: int, target: memoryview) -> None:
        assert not seen[offset : offset + len(target)].any()
        seen[offset : offset + len(target)] = 1
        read_at(file, name, offset, target)

    monkeypatch.setattr(_engine_reader, "_read_at", read_once)
    assert read_engine(path).weights.size == 1 << 20
    assert seen.all()


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.engine"
    path.write_bytes(data(weights=bytes(1 << 20)))
    module: Any = _file
    message = module._message

    def shortened(content: Any) -> bytes:
        found: bytes = message(content)
        os.truncate(path, len(found) + 4096)
        return found

    monkeypatch.setattr(_file, "_message", shortened)
    with pytest.raises(EngineFormatError, match="was truncated while it was read"):
        read_engine(path)


def test_equal_engines_have_equal_bytes() -> None:
    assert data() == data()


def test_every_field_of_the_header_is_written() -> None:
    written: Any = header_to_data(rich_header())
    assert set(written) == {field.name for field in fields(EngineHeader)}


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(draw: st.DataObject) -> None:
    whole = bytearray(data())
    position = draw.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << draw.draw(st.integers(0, 7))
    try:
        engine = read_engine(bytes(whole))
    except EngineFormatError:
        return
    # Only the signature's own bytes are not covered by a checksum; the signature then is wrong.
    assert engine.signature is not None
    original = read_engine(data()).signature
    assert original is not None
    changed = (engine.signature.public_key, engine.signature.signature, engine.signature.message)
    assert changed != (original.public_key, original.signature, original.message)


@given(st.integers(0, len(data()) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(EngineFormatError):
        read_engine(data()[:length])


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(EngineFormatError):
        read_engine(noise)
    with pytest.raises(EngineFormatError):
        read_engine(data()[:64] + noise)


def rebuilt(text: bytes, tail: bytes | None = None) -> bytes:
    """A file around another header, whose lengths are right."""
    rest = data()[64 + struct.unpack_from("<Q", data(), 16)[0] :] if tail is None else tail
    prefix = bytearray(data()[:64])
    struct.pack_into("<QQ", prefix, 16, len(text), 64 + len(text) + len(rest))
    return bytes(prefix) + text + rest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_as_a_header_is_refused(content: object) -> None:
    with pytest.raises(EngineFormatError):
        read_engine(rebuilt(json.dumps(content).encode()))
    with pytest.raises(EngineFormatError):
        header_from_data(content)


@given(st.data())
def test_a_header_with_anything_in_one_place_is_refused_or_read(draw: st.DataObject) -> None:
    content: Any = json.loads(json.dumps(header_to_data(rich_header())))
    parent: Any = None
    key: Any = None
    node: Any = content
    while type(node) in {dict, list} and node and (parent is None or draw.draw(st.booleans())):
        parent = node
        keys: list[Any] = [*(node if hasattr(node, "keys") else range(len(node)))]
        key = draw.draw(st.sampled_from(keys))
        node = parent[key]
    assert parent is not None
    parent[key] = draw.draw(JSON)
    try:
        header = header_from_data(content)
    except EngineFormatError:
        return
    assert isinstance(header, EngineHeader)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"engine": 1' + b"1" * 10_000 + b"}",
        b'{"a": 1, "a": 2}',
        b"\xff\xfe",
        b'{"engine": {}, "sections": []}',
    ],
)
def test_hostile_json_is_refused(text: bytes) -> None:
    with pytest.raises(EngineFormatError):
        read_engine(rebuilt(text))


@pytest.mark.parametrize(
    "dim",
    [
        *("a" * 70000, "a // 0", "a // b", "a ** 9", "f(a)", "1.5", "a +", ""),
        *(True, "(" * 150 + "a" + ")" * 150 + " //", "9" * 30),
    ],
)
def test_a_hostile_dimension_is_refused(dim: object) -> None:
    content: Any = header_to_data(rich_header())
    content["plans"][0]["steps"][0][1]["chunks"] = dim
    with pytest.raises(EngineFormatError, match="chunks"):
        header_from_data(content)


def test_a_product_that_would_not_end_is_refused_at_once() -> None:
    content: Any = header_to_data(rich_header())
    terms = "+".join("abcdefgh")
    content["plans"][0]["steps"][0][1]["chunks"] = "*".join([f"(({terms}) // 1)"] * 80)
    with pytest.raises(EngineFormatError, match="not a dimension"):
        header_from_data(content)


@pytest.mark.parametrize("change", ["offset", "size", "name", "sha256", "extra"])
def test_a_wrong_section_table_is_refused(change: str) -> None:
    length = struct.unpack_from("<Q", data(), 16)[0]
    content = json.loads(data()[64 : 64 + length])
    rows = content["sections"]
    values = {"offset": rows[1]["offset"] + 4096, "size": 1 << 40, "name": "x", "extra": 1}
    rows[1][change] = values.get(change, hashlib.sha256(b"").hexdigest())
    text = json.dumps(content, separators=(",", ":")).encode().ljust(length)
    with pytest.raises(EngineFormatError):
        read_engine(rebuilt(text))


@pytest.mark.parametrize("at", [64, 90, 300])
def test_a_damaged_header_is_told_with_the_path_and_what_to_do(tmp_path: Path, at: int) -> None:
    whole = bytearray(data())
    whole[at] ^= 0xFF
    path = tmp_path / "net.engine"
    path.write_bytes(whole)
    with pytest.raises(EngineFormatError, match=r"net\.engine: .*; the file is damaged: copy"):
        read_engine(path)


def test_bytes_between_sections_must_be_zero() -> None:
    whole = bytearray(data())
    end = whole.index(CODE) + len(CODE)
    assert whole[end] == 0
    whole[end + 3] = 1
    with pytest.raises(EngineFormatError, match="not zero"):
        read_engine(bytes(whole))


def test_formulas_of_a_header_are_bounded_together_and_each_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100,000 short ones, each within its own limits, once took ten seconds."""
    header, n = affine_header(), SymbolicDim.symbol("n")

    def read(*extents: Dim) -> None:
        (plan,) = header.plans
        whole = replace(header, plans=(replace(plan, outputs=tuple((d,) for d in extents)),))
        assert header_from_data(header_to_data(whole)) == whole

    monkeypatch.setattr(Limit.MAX_FORMULA_CHARACTERS, "most", 2000)
    read(*[n * 7 + 3] * 1000)
    read(*(n * 7 + number for number in range(150)))
    with pytest.raises(EngineFormatError, match="MAX_FORMULA_CHARACTERS is 2,000"):
        read(*(n * 7 + number for number in range(1000)))


def test_parts_of_recipes_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 600,000 of them a refit once took half a minute."""
    header = affine_header()
    weight = replace(header.weights[0], recipe=("recipe", (("source", "w"),) * 5))
    monkeypatch.setattr(Limit.MAX_RECIPE_PARTS, "most", 19)
    for count, scales in ((3, 0), (2, 1)):
        whole = replace(header, weights=(weight,) * count, scales=(weight.recipe,) * scales)
        assert header_from_data(header_to_data(whole)) == whole
        with pytest.raises(EngineFormatError, match="MAX_RECIPE_PARTS is 19"):
            header_from_data(header_to_data(replace(whole, weights=(weight,) * (count + 1))))


def test_a_header_of_other_fields_has_another_format_version() -> None:
    """Else files of before would be called damaged: raise the version, then write both here."""
    text = "; ".join(
        f"{kind.__name__}: {', '.join(f'{f.name} {f.type}' for f in fields(kind))}"
        for kind in _RECORDS
    )
    _, version = struct.unpack_from("<8sI", data())
    assert (version, hashlib.sha256(text.encode()).hexdigest()[:12]) == (10, "3aed48f22298")


def test_another_format_version_says_so() -> None:
    whole = bytearray(data())
    whole[8] += 1
    with pytest.raises(EngineFormatError, match=r"format version 11.*build the engine again"):
        read_engine(bytes(whole))


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineFormatError, match="No such file"):
        read_engine(tmp_path / "none.engine")
    with pytest.raises(EngineFormatError, match="directory"):
        read_engine(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(EngineFormatError, match="empty"):
        read_engine(tmp_path / "empty")
    with pytest.raises(EngineFormatError, match="not as int"):
        read_engine(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_full_disc_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import resource, signal, sys
        from smelt.engine import engine_parts, write_engine
        from smelt.errors import SmeltError
        from tests.support.engines import affine_header
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            write_engine(sys.argv[1], engine_parts(affine_header(), bytes(1 << 20), b"", b"", None))
        except SmeltError as error:
            print(error)
    """)
    path = tmp_path / "m.engine"
    path.write_bytes(b"old")
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert "cannot be written" in found.stdout
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    path.write_bytes(b"old")

    class Interrupting(Signer):
        def sign(self, message: bytes) -> bytes:
            signal.raise_signal(signal.SIGINT)
            return super().sign(message)

    with pytest.raises(KeyboardInterrupt):
        write_engine(path, engine_parts(rich_header(), b"", b"", b"", Interrupting(bytes(32))))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="cannot be written"):
        write_engine(
            tmp_path / "none" / "m.engine", engine_parts(rich_header(), b"", b"", b"", None)
        )


def test_weights_may_be_any_buffer() -> None:
    array = np.arange(100, dtype=np.float32)
    assert read_engine(data(weights=array.view(np.uint8))).weights.tobytes() == array.tobytes()


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_engine(pipe, engine_parts(affine_header(), affine_data(), CODE, RUNTIME, None))
    reader.join(10)
    assert pipe.is_fifo()
    assert read_engine(received[0]).header == affine_header()

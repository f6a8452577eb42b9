"""Files cut off at every sixteenth, and processes interrupted: clear errors, nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import smelt
from smelt.engine import read_engine
from smelt.errors import ModelFormatError, SmeltError
from smelt.importers.caffe import read_mean
from tests.fuzz import caffe_seeds, onnx_seeds
from tests.support.small_networks import small_network

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = 16


def _engine() -> bytes:
    return smelt.build(small_network(), tune="none").serialize()


def _read_caffe(path: Path) -> object:
    """The network of a folder of which one file is damaged."""
    return smelt.network_from_caffe(
        path.with_name("net.prototxt"), path.with_name("net.caffemodel")
    )


def _read_onnx(path: Path) -> object:
    return smelt.network_from_onnx(path.with_name("net.onnx"))


FILES: Final[dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]]] = {
    "net.prototxt": (lambda: caffe_seeds.common_network()[0].encode(), _read_caffe),
    "net.caffemodel": (lambda: caffe_seeds.common_network()[1], _read_caffe),
    "mean.binaryproto": (lambda: next(caffe_seeds.mean_seeds()), read_mean),
    "net.onnx": (onnx_seeds.onnx_with_external_data, _read_onnx),
    "data.bin": (lambda: bytes(32), _read_onnx),
    "net.engine": (_engine, smelt.load),
}


def _refusal(read: Callable[[Path], object], path: Path) -> str | None:
    try:
        read(path)
    except SmeltError as error:
        return str(error)
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (make, _) in FILES.items():
        if name != "net.engine":
            (tmp_path / name).write_bytes(make())
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_off_anywhere_is_refused_by_its_name(name: str, folder: Path) -> None:
    make, read = FILES[name]
    path, whole = folder / name, make()
    path.write_bytes(whole)
    read(path)
    refusals: list[str] = []
    for part in range(PARTS):
        path.write_bytes(whole[: len(whole) * part // PARTS])
        refusal = _refusal(read, path)
        # A text may be whole where a layer ends; of all else the length is known.
        assert refusal is not None or name == "net.prototxt", part
        refusals += [refusal] if refusal else []
    assert len(refusals) >= PARTS - 3
    assert all(str(path) in refusal for refusal in refusals)


def test_an_empty_prototxt_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text("\n")
    with pytest.raises(ModelFormatError, match=r"net\.prototxt is empty"):
        smelt.network_from_caffe(path)


def test_an_onnx_file_beyond_two_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # sparse: it takes no room
    with pytest.raises(ModelFormatError, match=r"large\.onnx.* 3,221,225,472 bytes"):
        smelt.network_from_onnx(path)


def test_keys_cut_off_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    engine = smelt.build(small_network(), tune="none")
    engine.serialize()
    path = tmp_path / "keys" / "signing.key"
    whole = path.read_text()
    for part in range(PARTS):
        path.write_text(whole[: len(whole) * part // PARTS])
        with pytest.raises(smelt.TrustError, match=r"signing\.key is damaged; delete it"):
            smelt.build(small_network(), tune="none").serialize()


def test_caches_cut_off_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    wanted = read_engine(_engine()).code
    kept = {path: path.read_bytes() for path in (tmp_path / "cache" / "code").glob("*.o")}
    assert kept
    for part in (0, 1, PARTS // 2, PARTS - 1):
        for path, data in kept.items():
            path.write_bytes(data[: len(data) * part // PARTS])
        assert read_engine(_engine()).code == wanted
        assert {path: path.read_bytes() for path in kept} == kept


# ---- Ctrl-C, as the system sends it

_LOOP: Final = """
    import sys
    import numpy as np
    import smelt
    from tests.support.small_networks import answers, pictures, small_network

    image = pictures(1)
    wanted = answers(small_network(), image)
    path = sys.argv[1]
    engine = smelt.build(small_network(), tune="none")
    context = engine.create_context(threads=2)
    print("ready", flush=True)
    caught = 0
    while caught < 5:
        try:
            while True:
                BODY
        except KeyboardInterrupt:
            caught += 1
            print("caught", flush=True)
    (made,) = context.run({"data": image}).values()
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    engine = smelt.build(small_network(), tune="none")
    with engine.create_context(threads=2) as fresh:
        (made,) = fresh.run({"data": image}).values()
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    print("sound")
"""
_BODIES: Final = {
    "run": 'context.run({"data": image})',
    "build": 'smelt.build(small_network(), tune="fast")',
    "save": "engine.save(path)",
}


def _start(code: str, *arguments: str, home: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", _BODIES)
def test_a_program_that_catches_ctrl_c_goes_on_soundly(what: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.engine"
    process = _start(_LOOP.replace("BODY", _BODIES[what]), str(path), home=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in range(5):
        time.sleep(0.05 + 0.083 * number)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
    out, err = process.communicate(timeout=120)
    assert (out, err, process.returncode) == ("sound\n", "", 0)
    assert not [p for p in tmp_path.rglob("*") if ".part" in p.name or ".tmp" in p.name]
    if path.exists():
        smelt.load(path)  # an old file or a new one, never half of one


@pytest.mark.slow
@pytest.mark.parametrize("what", _BODIES)
def test_a_program_that_does_not_catch_ctrl_c_ends_by_it(what: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.engine"
    code = _LOOP.replace("BODY", _BODIES[what]).replace(
        "except KeyboardInterrupt", "except OSError"
    )
    process = _start(code, str(path), home=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in err
    assert not [p for p in tmp_path.rglob("*") if ".part" in p.name or ".tmp" in p.name]

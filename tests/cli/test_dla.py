"""``smelt dla``: loadables are shown, run here, and run at a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla.loadable import DataType, EmuBuffer, EmuPowerOperation
from smelt.nvdla.port import MachineDriver, PortServer
from smelt.nvdla.runtime import DlaImage
from tests.conftest import ROOT
from tests.support.nvdla_driver import RecordingDriver
from tests.support.nvdla_loadables import emulated_loadable, pooling_loadable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Smelt

LENET_MD5 = "461f65114fb0c2db90fa03d9b929aeac"


@pytest.fixture
def lenet(shared: Path) -> Path:
    return shared / "nvdla" / "flatbufs" / "kmd" / "NN" / "NN_L0_0_fbuf"


@pytest.fixture
def reshape(shared: Path) -> Path:
    return shared / "nvdla" / "flatbufs" / "kmd" / "RBK" / "RBK_L0_0_fbuf"


@pytest.mark.requirement("D-6", "D-7", "D-9")
def test_a_loadable_is_shown_as_text(smelt: Smelt, lenet: Path) -> None:
    text = smelt("dla", "inspect", lenet).out
    assert "task 1: DLA1 firmware 0.11.0, 11 operations" in text
    assert "waits for 3 events; programmed -> 6, programmed -> 4" in text
    assert "enabled -> 0 (fused parent)" in text
    assert "src         1x28x28 (CxHxW), FF16, address index 2, 25088 bytes" in text
    assert "25088 bytes, line/surface stride 896/25088 bytes" in text
    assert "prob: 1x10x1x1 NCXHWX HALF FEATURE, memory 12, 32 bytes" in text


@pytest.mark.requirement("D-9", "DX-11")
def test_a_loadable_is_shown_as_json(smelt: Smelt, lenet: Path) -> None:
    report = smelt("dla", "inspect", lenet, "--json").json
    assert report["version"] == "0.7.0"
    assert [task["interface"] for task in report["tasks"]] == ["EMU1", "DLA1", "EMU1"]
    task = report["tasks"][1]
    counts = [item["dependencies"]["dependency_count"] for item in task["operations"]]
    assert counts == [1, 1, 1, 3, 2, 2, 3, 2, 1, 3, 2]
    edges = [edge["target"] for edge in task["edges"]]
    assert [edges.count(number) for number in range(11)] == counts
    assert len(report["memories"]) == 37
    assert report["blobs"][-1]["size"] == 50048


def test_a_dependency_graph_is_drawn(smelt: Smelt, lenet: Path) -> None:
    text = smelt("dla", "inspect", lenet, "--dot").out
    assert text.startswith("digraph loadable {")
    assert 't1_0 [label="0 CONV"];' in text
    assert 't1_1 -> t1_0 [label="enabled", style=dashed];' in text
    assert text.count("{") == text.count("}")


def test_what_is_no_loadable_is_one_line(smelt: Smelt, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"something else entirely, that is not a loadable")
    for command in ("inspect", "run"):
        answer = smelt("dla", command, path)
        assert answer.code == 1
        assert answer.err.startswith(f"error: {path} is not a valid loadable: ")
        assert "the loadable has no FlatBuffers header" in answer.err
        assert answer.err.count("\n") == 1


@pytest.mark.requirement("D-15")
def test_a_loadable_is_run(smelt: Smelt, lenet: Path, tmp_path: Path) -> None:
    image, array, raw = (tmp_path / name for name in ("o.dimg", "o.npy", "o.bin"))
    report = smelt("dla", "run", lenet, "--json", "--output", image).json
    (output,) = report["outputs"]
    assert output["md5"] == LENET_MD5
    assert output["largest_index"] == 1
    assert report["estimated_cycles"] > 1000
    assert report["zero_inputs"] == 1
    packed = DlaImage.from_bytes(image.read_bytes()).to_array()
    smelt("dla", "run", lenet, "--output", array)
    np.testing.assert_array_equal(np.load(array), packed)
    assert "prob" in smelt("dla", "run", lenet, "--output", raw).out
    assert len(raw.read_bytes()) == 32


def test_an_input_is_an_array_an_image_or_memory(smelt: Smelt, lenet: Path, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (1, 1, 28, 28)).astype(np.float16)
    np.save(tmp_path / "in.npy", picture)
    memory = np.zeros((28, 28, 16), np.float16)
    memory[..., 0] = picture[0, 0]
    (tmp_path / "in.bin").write_bytes(memory.tobytes())
    answers = [
        smelt("dla", "run", lenet, "--json", "--input", tmp_path / name).json["outputs"][0]["md5"]
        for name in ("in.npy", "in.bin")
    ]
    assert answers[0] == answers[1] != LENET_MD5
    np.save(tmp_path / "wrong.npy", picture[0, 0])
    assert "CxHxW" in smelt("dla", "run", lenet, "--input", tmp_path / "wrong.npy").err
    (tmp_path / "short.bin").write_bytes(b"1")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    assert (
        "junk.npy cannot be read"
        in smelt("dla", "run", lenet, "--input", tmp_path / "junk.npy").err
    )
    assert "takes 25088" in smelt("dla", "run", lenet, "--input", tmp_path / "short.bin").err


@pytest.mark.parametrize("suffix", [".cfg", ".txn"])
def test_a_recorded_trace_plays_to_the_same_memory(
    smelt: Smelt, shared: Path, tmp_path: Path, suffix: str
) -> None:
    folder = shared / "nvdla" / "flatbufs" / "kmd"
    for name in ("RBK/RBK_L0_0", "CONV/CONV_D_L0_0"):
        trace = tmp_path / f"recorded{suffix}"
        answer = smelt("dla", "run", folder / f"{name}_fbuf", "--record-trace", trace)
        assert answer.code == 0, answer.err
        text = trace.read_text()
        assert "check_crc" in text if suffix == ".cfg" else "dump_mem" in text
        answer = smelt("dla", "trace", trace)
        assert answer.code == 0, answer.out
        assert answer.out.startswith("1 passed")


def test_where_no_trace_is_nothing_has_passed(smelt: Smelt, tmp_path: Path) -> None:
    answer = smelt("dla", "trace", tmp_path)
    assert answer.code == 1
    assert f"there is no trace (.cfg or .txn) in {tmp_path}" in answer.err
    assert "gone: No such file" in smelt("dla", "trace", tmp_path / "gone").err


def test_a_trace_is_recorded_only_in_this_process(smelt: Smelt, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pooling_loadable().to_bytes())
    answer = smelt("dla", "run", path, "--socket", "s", "--record-trace", tmp_path / "t.cfg")
    assert "without --socket" in answer.err


@pytest.mark.requirement("D-9")
def test_a_loadable_for_other_hardware_is_shown_but_not_run(smelt: Smelt, reshape: Path) -> None:
    assert "RUBIK" in smelt("dla", "inspect", reshape).out
    answer = smelt("dla", "run", reshape, "--configuration", "nv_small")
    assert answer.code == 1
    assert "nv_small has no" in answer.err


def test_an_unknown_configuration_lists_the_known(smelt: Smelt, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pooling_loadable().to_bytes())
    assert "nv_small" in smelt("dla", "run", path, "--configuration", "nv_tiny").err


@pytest.mark.requirement("D-10", "D-11", "D-13")
def test_driver_and_hardware_can_be_another_process(
    smelt: Smelt, lenet: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "s"
    server = subprocess.Popen(
        [sys.executable, "-m", "smelt", "dla", "serve", str(socket), "--devices", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    assert "serving 2 nv_full" in server.stderr.readline()
    report = smelt("dla", "run", lenet, "--socket", socket, "--instance", 1, "--json").json
    assert report["outputs"][0]["md5"] == LENET_MD5
    assert report["configuration"] == "nv_full"
    answer = smelt("dla", "run", lenet, "--socket", socket, "--configuration", "nv_small")
    assert answer.code == 1
    assert "--configuration is nv_small, but the server at" in answer.err
    assert "has nv_full" in answer.err
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 130
    server.stderr.close()
    assert not socket.exists()
    assert "smelt dla serve" in smelt("dla", "run", lenet, "--socket", socket).err


def _halves(tmp_path: Path, format_number: int = 3) -> Path:
    """A loadable that doubles 32 halves; in its tensors are 8, and atoms say which."""
    source, target = (EmuBuffer(n, 0, 64, format_number, 1, 1, 32, 32, 32) for n in (3, 4))
    doubled = EmuPowerOperation(power=1.0, scale=2.0)
    loadable = emulated_loadable(doubled, source, target)
    tensors = tuple(
        replace(tensor, data_type=DataType.HALF, c=8, w=1, stride_0=2, stride_1=32, stride_2=32)
        for tensor in loadable.tensors
    )
    path = tmp_path / "doubles"
    path.write_bytes(replace(loadable, tensors=tensors).to_bytes())
    return path


def test_a_servers_atoms_pack_the_tensors(smelt: Smelt, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(np.arange(32, dtype=np.float16).tobytes())
    run = ("dla", "run", _halves(tmp_path), "--input", tmp_path / "in.bin", "--json")
    with PortServer(tmp_path / "s", MachineDriver("nv_small")) as server:
        server.start()
        report = smelt(*run, "--socket", tmp_path / "s").json
    assert report["configuration"] == "nv_small"
    assert report["outputs"][0]["values"] == [0, 2, 4, 6, 32, 34, 36, 38]
    assert smelt(*run).json["outputs"][0]["values"] == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_server_that_does_not_say_its_hardware_needs_a_configuration(
    smelt: Smelt, tmp_path: Path
) -> None:
    path, socket = _halves(tmp_path), tmp_path / "s"
    with PortServer(socket, RecordingDriver()) as server:
        server.start()
        answer = smelt("dla", "run", path, "--socket", socket)
        assert "does not report its hardware configuration; give --configuration" in answer.err
        report = smelt(
            "dla", "run", path, "--socket", socket, "--configuration", "nv_small", "--json"
        ).json
    assert report["configuration"] == "nv_small"


def test_what_is_not_a_number_is_null(smelt: Smelt, tmp_path: Path) -> None:
    memory = np.full(32, np.nan, np.float16)
    (tmp_path / "nan.bin").write_bytes(memory.tobytes())
    report = smelt("dla", "run", _halves(tmp_path), "--json", "--input", tmp_path / "nan.bin")
    assert report.json["outputs"][0]["values"] == [None] * 8
    assert "NaN" not in report.out


def test_an_unknown_format_names_its_task_operation_and_tensor(
    smelt: Smelt, tmp_path: Path
) -> None:
    answer = smelt("dla", "run", _halves(tmp_path, 65535))
    assert "task 0: emulated operation 0: source tensor at address 3: format 65535" in (answer.err)


def test_a_folder_with_a_broken_trace_still_gives_a_list(smelt: Smelt, tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_bytes(b"\xff")
    (tmp_path / "b.cfg").write_text("// configuration: nv_small\n")
    answer = smelt("dla", "trace", tmp_path, "--json")
    assert answer.code == 1
    assert [item["state"] for item in json.loads(answer.out)] == ["failed", "skipped"]


def test_a_server_that_is_terminated_removes_its_socket(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    server = subprocess.Popen(
        [sys.executable, "-m", "smelt", "dla", "serve", str(socket)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    assert "serving" in server.stderr.readline()
    server.terminate()
    assert server.wait(20) == 128 + signal.SIGTERM
    assert server.stderr.read() == ""
    server.stderr.close()
    assert not socket.exists()


def test_where_no_trace_ran_nothing_has_passed(smelt: Smelt, tmp_path: Path) -> None:
    (tmp_path / "b.cfg").write_text("// configuration: nv_small\n")
    answer = smelt("dla", "trace", tmp_path)
    assert answer.code == 1
    assert "0 passed, 0 failed, 1 skipped" in answer.out
    assert "no trace was replayed" in answer.err


def test_a_socket_in_a_folder_that_is_not_there_says_what_to_do(
    smelt: Smelt, tmp_path: Path
) -> None:
    answer = smelt("dla", "serve", tmp_path / "absent" / "s")
    assert answer.code == 1
    assert "create it first: mkdir -p" in answer.err

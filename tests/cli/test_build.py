"""``smelt build``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.builder import load
from smelt.cli import _progress
from smelt.cli._option_types import byte_count
from smelt.engine import MAGIC
from smelt.logger import Severity, forward_to
from tests.support.small_models import boxes_model, save_model, two_inputs_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cli.conftest import Smelt


def test_a_model_becomes_an_engine_that_runs(smelt: Smelt, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    answer = smelt("build", model, "-o", path, "--tune", "none")
    assert answer.code == 0
    assert answer.out == ""
    assert f"{path}: inception, " in answer.err
    assert "in  image: float32[1, 3, 16, 16]" in answer.err
    with load(path) as engine, engine.create_context() as context:
        result = context.run({"image": np.zeros((1, 3, 16, 16), np.float32)})
    assert result["prob"].sum() == pytest.approx(1.0, abs=1e-5)


def test_without_a_destination_the_engine_has_the_models_name_and_lies_here(
    smelt: Smelt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert smelt("build", model, "--tune", "none").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["inception.engine"]


def test_an_engine_for_gpus_needs_none(smelt: Smelt, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    model, path = tmp_path / "model.onnx", tmp_path / "m.engine"
    save_model(two_inputs_model(), model)
    options = ["--device", "cuda:sm_90", "--precision", "float16", "--tune", "none"]
    options += ["--shape", "a=4x6", "--shape", "b=4x4"]
    detail = smelt("build", model, "-o", path, *options, "--json").json
    assert detail["device"] == "cuda"
    shown = smelt("inspect", path, "--json").json
    assert shown["architecture"] == "sm_90"
    assert shown["kernels"]


def test_an_engine_that_keeps_its_network_is_retuned_without_the_model(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    path, tuned = tmp_path / "m.engine", tmp_path / "tuned.engine"
    options = ["--device", "cpu:x86-64-v2", "--retunable", "--quiet"]
    answer = smelt("build", model, "-o", path, *options, "--tune", "none")
    assert (answer.code, answer.err) == (0, "")
    assert "contains its network" in smelt("inspect", path).out
    detail = smelt("retune", path, "-o", tuned, "--tune", "none", "--json").json
    assert (detail["engine"], detail["network"], detail["plans"]) == (str(tuned), "inception", 1)
    assert detail["size_bytes"] == tuned.stat().st_size
    refused = smelt("retune", tuned, "-o", tmp_path / "again.engine")
    assert refused.code == 1
    assert "smelt build --retunable" in refused.err


def test_the_json_answer_describes_the_engine(smelt: Smelt, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    detail = smelt("build", model, "-o", path, "--tune", "none", "--json").json
    assert detail["engine"] == str(path)
    assert detail["size_bytes"] == path.stat().st_size
    assert detail["plans"] == 1
    assert detail["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 3, 16, 16]}]
    assert set(detail) == {
        "engine",
        "network",
        "device",
        "seconds",
        "size_bytes",
        "layers",
        "partitions",
        "reference_steps",
        "reference_ops",
        "reference_layers",
        "host_copy_bytes",
        "plans",
        "inputs",
        "outputs",
    }


def test_a_build_says_which_steps_will_be_slow(smelt: Smelt, tmp_path: Path) -> None:
    path = save_model(boxes_model(), tmp_path / "boxes.onnx")
    answer = smelt("build", path, "-o", tmp_path / "boxes.engine", "--tune", "none")
    detail = "1 step runs in Python, which is slow: non_max_suppression (layer selected)"
    assert detail in answer.err


def test_a_build_for_a_gpu_says_what_stays_on_the_host_and_what_copies_cost(
    smelt: Smelt, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="the extra cuda-build is not installed")
    path, page = tmp_path / "boxes.engine", tmp_path / "boxes.html"
    model = save_model(boxes_model(), tmp_path / "boxes.onnx")
    answer = smelt("build", model, "-o", path, "--device", "cuda:sm_90", "--json")
    detail = answer.json
    assert detail["reference_layers"] == ["selected"]
    assert detail["host_copy_bytes"] == 8 * 4 * 4 + 8 * 4 + 3 * 3 * 8
    line = "1 step runs on the host in Python, which is slow and copies 232 B in each run"
    assert line in smelt("build", model, "-o", path, "--device", "cuda:sm_90").err
    assert line in smelt("inspect", path).out
    smelt("inspect", path, "--html", page)
    assert line in page.read_text()


def test_quiet_means_not_a_word(smelt: Smelt, model: Path, tmp_path: Path) -> None:
    answer = smelt("build", model, "-o", tmp_path / "m.engine", "--tune", "none", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


@pytest.mark.parametrize(
    ("shapes", "plans", "batch"),
    [
        (["image=2x3x16x16"], 1, 2),
        (["2x3x16x16"], 1, 2),
        (["image=1..4x3x16x16"], 1, "n"),
        (["image=1..2..4x3x16x16"], 1, "n"),
        (["image=1x3x16x16", "image=4x3x16x16"], 2, "n"),
    ],
)
def test_shapes_may_be_fixed_ranges_or_several(
    smelt: Smelt,
    open_model: Path,
    tmp_path: Path,
    shapes: list[str],
    plans: int,
    batch: int | str,
) -> None:
    options = [text for shape in shapes for text in ("--shape", shape)]
    answer = smelt("build", open_model, "-o", tmp_path / "e", "--tune", "none", "--json", *options)
    assert answer.code == 0, answer.err
    assert answer.json["plans"] == plans
    assert answer.json["inputs"][0]["shape"][0] == batch


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        (["--shape", "image=1x3xbig"], "is not a shape"),
        (["--shape", "image=1x3x1099511627777x1"], "1,099,511,627,776"),
        (["--shape", f"image=1x3x8..1{'0' * 5000}x1"], "MAX_EXTENT is"),
        (["--shape", "image=1x3x\u0661\u0666x16"], "is not a shape"),
        (["--max-workspace-bytes", "\u0661k"], "is not a size"),
        (["--tune", "\u0661"], "it must be none, fast, full or a number"),
        (["--shape", "image=1..2x3x16x16", "--shape", "image=4x3x16x16"], "one of them is a range"),
        (["--max-workspace-bytes", "much"], "is not a size"),
        (["--shape", "image=8..1x3x16x16"], "8..1 is not a range"),
        (["--device", "cuda:sm_99"], "no GPU target 'sm_99'"),
        (["--device", "cpu:neon"], "no CPU target 'neon'"),
        (["--tune", "thoroughly"], "none, fast, full or a number of seconds"),
        (["--max-batch-size", "0"], "0 is not in the range"),
    ],
)
def test_a_value_that_means_nothing_is_a_wrong_command_line(
    smelt: Smelt, open_model: Path, options: list[str], detail: str
) -> None:
    answer = smelt("build", open_model, *options)
    assert answer.code == 2
    assert detail in answer.err


def test_a_wrong_target_of_the_environment_is_told_with_its_variable(
    smelt: Smelt, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_TARGET", "i386")
    answer = smelt("build", model)
    assert answer.code == 1
    assert "SMELT_TARGET='i386'" in answer.err


def test_a_shape_without_a_name_is_refused_where_there_are_several_inputs(
    smelt: Smelt, tmp_path: Path
) -> None:
    path = save_model(two_inputs_model(), tmp_path / "two.onnx")
    answer = smelt("build", path, "--shape", "2x6")
    assert answer.code == 1
    assert "NAME is one of a, b" in answer.err


def test_an_open_extent_is_an_error_that_names_it_and_the_option(
    smelt: Smelt, open_model: Path
) -> None:
    answer = smelt("build", open_model, "--tune", "none")
    assert answer.code == 1
    assert "the inputs have symbolic extents without a value: n;" in answer.err
    assert "max_batch_size sets only an extent that is named batch" in answer.err
    assert "On the command line: --shape image=1x3x16x16, or 1..8 for a range" in answer.err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", 1 << 20), ("64MiB", 64 << 20), ("1.5g", 3 << 29), ("2 KB", 2048), ("7b", 7)],
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    assert byte_count(text) == size


def test_a_tensor_inside_the_network_can_be_made_the_output(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    detail = smelt(
        "build", model, "-o", tmp_path / "e", "--tune", "none", "--output", "relu1", "--json"
    ).json
    assert [(o["name"], o["shape"]) for o in detail["outputs"]] == [("relu1", [1, 8, 16, 16])]


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        ("gone.onnx", None, "does not exist"),
        ("cut.onnx", b"\x08\x07\x12", "is not an ONNX model, or is truncated"),
        ("net.caffemodel", b"", "contains only weights; give the network first"),
        ("bad.prototxt", b"layer {", "prototxt"),
        ("a{1}.prototxt", b"", "a{1}.prototxt is empty"),
    ],
)
def test_a_model_that_cannot_be_read_leaves_no_file(
    smelt: Smelt, tmp_path: Path, name: str, content: bytes | None, detail: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    answer = smelt("build", path, "-o", tmp_path / "m.engine")
    assert answer.code == 1
    assert detail in answer.err
    assert not (tmp_path / "m.engine").exists()


def test_a_build_of_over_a_second_tells_every_stage_with_its_count(
    smelt: Smelt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "_PATIENCE_SECONDS", 0.0)
    answer = smelt("build", model, "-o", tmp_path / "e", "--tune", "none", "--json")
    stages = [line.split()[0] for line in answer.err.splitlines()]
    assert stages == ["parse", "optimise", "tune", "pack", "link", "write"]
    assert "tune 11/11 (after " in answer.err
    assert answer.json["network"] == "inception"


def test_a_stage_that_ended_in_the_first_second_is_told_with_its_own_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([10.0, 10.5, 13.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    with _progress.ProgressLine() as line:
        line("parse", 1, 1)
        line("tune", 1, 1)
    assert capsys.readouterr().err == "parse 1/1 (after 0.5 s)\ntune 1/1 (after 3.5 s)\n"


def test_what_is_no_model_is_told_what_would_be_one(smelt: Smelt, picture: Path) -> None:
    answer = smelt("build", picture, "--tune", "none")
    assert answer.code == 1
    assert answer.err.endswith(
        "is not a model: it must be an .onnx file or Caffe's deploy.prototxt\n"
    )


@pytest.mark.requirement("G-33")
def test_the_build_log_tells_what_became_of_layers_by_name(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[Severity, str]] = []

        def log(self, severity: Severity, message: str) -> None:
            self.heard.append((severity, message))

    listener = Listener()
    with forward_to(listener):
        smelt("build", model, "-o", tmp_path / "e", "--tune", "none")
    informed = [message for severity, message in listener.heard if severity is Severity.INFO]
    assert "conv1 + relu1 -> conv1 + relu1: Conv | Relu" in informed
    assert any(message.startswith("dead -> (nothing)") for message in informed)


def _slow_build(folder: Path, model: Path) -> subprocess.Popen[str]:
    """A build that stays in its tuning for a minute."""
    code = (
        "import time, sys, smelt.tuner._tactic_choice as c\n"
        "best = c._best_by_format\n"
        "def slow(*a):\n    print('tuning', flush=True); time.sleep(60); return best(*a)\n"
        "c._best_by_format = slow\n"
        "sys.argv = ['smelt', 'build', sys.argv[1], '-o', sys.argv[2]]\n"
        "from smelt.cli import main; main()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(model), str(folder / "m.engine")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment_without_cache(folder),
    )


def environment_without_cache(folder: Path) -> Mapping[str, str]:
    """Caches and keys beside the folder, not in it."""
    return {"SMELT_HOME": str(folder.parent / "home")}


def test_ctrl_c_leaves_nothing_and_says_so_in_one_line(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    process = _slow_build(folder, model)
    assert process.stdout is not None
    assert process.stdout.readline() == "tuning\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, detail = process.communicate(timeout=120)
    assert process.returncode == 130
    assert detail.splitlines()[-1] == "interrupted; no partial file is left"
    assert "Traceback" not in detail
    assert list(folder.iterdir()) == []


def test_ctrl_c_while_the_file_is_written_leaves_the_old_one(
    smelt: Smelt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.engine"
    path.write_bytes(b"old")

    def interrupted(_number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    answer = smelt("build", model, "-o", path, "--tune", "none", "--quiet")
    assert answer.code == 130
    assert answer.err == "interrupted; no partial file is left\n"
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m.engine", b"old")]


@pytest.mark.shared
def test_a_caffe_network_is_built_from_its_prototxt_and_weights(
    smelt: Smelt, shared: Path, tmp_path: Path
) -> None:
    folder = shared / "models" / "lenet_bvlc"
    answer = smelt(
        "build",
        folder / "lenet.prototxt",
        "--weights",
        folder / "lenet_iter_10000.caffemodel",
        "-o",
        tmp_path / "lenet.engine",
        "--max-batch-size",
        "4",
        "--tune",
        "none",
        "--json",
    )
    assert answer.json["inputs"] == [
        {"name": "data", "dtype": "float32", "shape": ["batch", 1, 28, 28]}
    ]


def test_weights_beside_an_onnx_model_are_refused(smelt: Smelt, model: Path) -> None:
    answer = smelt("build", model, "--weights", model)
    assert answer.code == 1
    assert "--weights is only for Caffe's prototxt" in answer.err


def test_a_largest_batch_that_changes_nothing_is_told_with_what_would_if_anything_does(
    smelt: Smelt, model: Path, open_model: Path, tmp_path: Path
) -> None:
    options = ("-o", tmp_path / "m.engine", "--tune", "none", "--max-batch-size", 4, "--quiet")
    fixed = smelt("build", model, *options).err
    assert fixed.startswith("max_batch_size=4 has no effect: ")
    assert fixed.endswith("and it is fixed\n")
    left_open = smelt("build", open_model, "--shape", "1x3x16x16", *options).err
    assert left_open.endswith("shapes= (`--shape`) sets it\n")


def test_a_shape_of_too_few_extents_is_told_with_the_option_that_gives_it(
    smelt: Smelt, model: Path
) -> None:
    detail = smelt("build", model, "--shape", "1x3x2").err
    assert "shapes= gives 3 extents, where the network has 4" in detail
    assert "--shape image=1x3x16x16" in detail


def test_an_empty_name_is_no_file(smelt: Smelt) -> None:
    answer = smelt("build", "")
    assert answer.code == 2
    assert "Invalid value for 'MODEL': the file name is empty" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        "build none.onnx -o",
        "retune none.engine -o",
        "run none.onnx --save",
        "inspect none.onnx --html",
        "inspect none.onnx --svg",
        "compare none.onnx --reduce-to",
        "dla run none --output",
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_read(
    smelt: Smelt, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, gone = tmp_path / "file", tmp_path / "not here"
    file.touch()
    for path, detail in (
        (tmp_path, f"it is a folder; give a file in it, {tmp_path / 'NAME'}"),
        (gone / "x", f"the folder {gone} does not exist; create it first: mkdir -p '{gone}'"),
        (file / "x", f"{file} is not a folder"),
    ):
        answer = smelt(*words.split(), path)
        assert (answer.code, answer.err) == (1, f"error: {path} cannot be written: {detail}\n")

    def refuse(path: object, mode: int) -> bool:
        return (path, mode) != (tmp_path, os.W_OK)

    monkeypatch.setattr(os, "access", refuse)
    answer = smelt(*words.split(), tmp_path / "x")
    assert f"{tmp_path} is not writable; give a file in another folder" in answer.err


def test_an_engine_in_place_of_a_model_is_called_one_also_without_an_output(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.engine").write_bytes(MAGIC)
    answer = smelt("build", "m.engine")
    assert answer.code == 1
    assert "m.engine is an engine, not a model" in answer.err

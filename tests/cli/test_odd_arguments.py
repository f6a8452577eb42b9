"""Numbers and places on the command line that nothing can be done with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import network_from_onnx, ops
from smelt.builder import build
from smelt.errors import ModelFormatError
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Smelt


def test_commands_say_that_a_folder_is_locked(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    real_stat = os.stat

    def stat(path: Any, **words: Any) -> os.stat_result:
        if str(path).startswith(f"{locked}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, **words)

    monkeypatch.setattr(os, "stat", stat)
    for words in (("build", locked / "m.onnx"), ("bench", locked / "m.onnx")):
        answer = smelt(*words)
        assert answer.code != 0
        assert "Permission denied" in answer.err


@pytest.mark.parametrize("number", ["9223372036854775807", "1" * 30, "1" * 5000, "\u0663", "-1"])
@pytest.mark.parametrize("option", ["--batch", "--threads", "--iterations", "--warmup"])
def test_a_number_that_is_none_is_wrong_usage(
    smelt: Smelt, engine: Path, option: str, number: str
) -> None:
    assert smelt("bench", engine, option, number).code == 2


def test_a_batch_that_no_plan_takes_is_refused_before_memory_is(
    smelt: Smelt, open_model: Path, tmp_path: Path
) -> None:
    built = tmp_path / "m.engine"
    shape = ("--shape", "image=1..4x3x16x16", "--tune", "none")
    assert smelt("build", open_model, "-o", built, *shape).code == 0
    answer = smelt("bench", built, "--batch", 2**31 - 1)
    assert "the engine takes a batch of 1..4" in answer.err


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
@pytest.mark.parametrize("option", ["--output", "--weights", "--tune"])
def test_options_for_a_model_beside_an_engine_are_wrong_usage(
    smelt: Smelt, engine: Path, command: str, option: str
) -> None:
    value = {"--output": "prob", "--weights": "net.caffemodel", "--tune": "none"}[option]
    given = ("--input", "image=zeros") if command == "run" else ()
    answer = smelt(command, engine, option, value, *given)
    if (command, option) == ("run", "--output"):
        assert answer.code == 0
    else:
        assert answer.code == 2
        assert f"{option} cannot change it" in answer.err


@pytest.mark.parametrize(
    "option",
    [
        "--mean=1", "--scale=1/255", "--resize=none", "--crop=8", "--filter=area",
        "--channel-order=rgb", "--layout=nchw",
    ],
)  # fmt: skip
def test_an_option_for_pictures_needs_a_picture(smelt: Smelt, engine: Path, option: str) -> None:
    answer = smelt("run", engine, "--input", "image=zeros", option)
    assert answer.code == 2
    name = option.partition("=")[0]
    assert f"{name} is only for --image, which is not given" in answer.err


def test_all_options_that_need_a_picture_are_named(smelt: Smelt, engine: Path) -> None:
    answer = smelt("run", engine, "--input", "image=zeros", "--scale", "2", "--mean", "1")
    assert "--mean, --scale are only for --image, which is not given" in answer.err


@pytest.mark.parametrize("command", ["run", "bench", "compare"])
def test_an_input_that_is_given_twice_is_wrong_usage(
    smelt: Smelt, engine: Path, model: Path, command: str
) -> None:
    path = model if command == "compare" else engine
    answer = smelt(command, path, "--input", "image=zeros", "--input", "image=random")
    assert answer.code == 2
    assert "--input image is given twice" in answer.err


def test_an_input_is_given_as_an_array_or_as_a_picture(
    smelt: Smelt, engine: Path, picture: Path
) -> None:
    answer = smelt("run", engine, "--input", "image=zeros", "--image", picture)
    assert answer.code == 2
    assert "--image and --input image give the same input" in answer.err


def test_an_input_is_given_alone_or_in_an_archive(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    zeros = np.zeros((1, 3, 16, 16), np.float32)
    np.save(tmp_path / "image.npy", zeros)
    np.savez(tmp_path / "all.npz", image=zeros)
    given = ("--inputs", tmp_path / "all.npz", "--input", f"image={tmp_path / 'image.npy'}")
    answer = smelt("compare", model, *given)
    assert answer.code == 2
    assert "--input image and --inputs" in answer.err


def test_one_shape_given_twice_is_wrong_usage(smelt: Smelt, open_model: Path) -> None:
    answer = smelt("build", open_model, *["--shape", "image=1x3x16x16"] * 2)
    assert answer.code == 2
    assert "image is given the shape 1x3x16x16 twice" in answer.err


def test_a_shape_that_no_plan_takes_is_told_with_what_the_plans_take(
    smelt: Smelt, open_model: Path, tmp_path: Path
) -> None:
    built = tmp_path / "m.engine"
    shape = ("--shape", "image=2..4x3x16x16", "--tune", "none")
    assert smelt("build", open_model, "-o", built, *shape).code == 0
    np.save(tmp_path / "five.npy", np.zeros((5, 3, 16, 16), np.float32))
    answer = smelt("run", built, "--input", f"image={tmp_path / 'five.npy'}")
    assert answer.code == 1
    assert "image takes [n (2..4), 3, 16, 16]" in answer.err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--crop", "8"), "omit --crop, or give the size of the input"),
        (("--resize", "shorter:8", "--crop", "16"), "use --resize exact, or a larger --resize"),
    ],
)
def test_a_picture_of_another_size_is_refused_with_advice_that_helps(
    smelt: Smelt, engine: Path, picture: Path, options: tuple[str, ...], advice: str
) -> None:
    answer = smelt("run", engine, "--image", picture, *options)
    assert answer.code == 1
    assert advice in answer.err


@pytest.mark.parametrize("crop", ["0", "0x8", "8x0"])
def test_a_crop_of_nothing_is_wrong_usage(
    smelt: Smelt, engine: Path, picture: Path, crop: str
) -> None:
    assert smelt("run", engine, "--image", picture, "--crop", crop).code == 2


def test_a_wrong_layout_advises_what_would_be_right(
    smelt: Smelt, engine: Path, picture: Path
) -> None:
    answer = smelt("run", engine, "--image", picture, "--layout", "nhwc")
    assert answer.code == 1
    assert "16 channels" in answer.err
    assert answer.err.endswith("; --layout nhwc may be wrong: omit it\n")


def test_a_picture_of_an_engine_is_called_one(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    answer = smelt("inspect", engine, "--svg", tmp_path / "m.png")
    assert answer.code == 1
    assert f"name it {tmp_path / 'm.svg'}" in answer.err
    assert not (tmp_path / "m.png").exists()


@pytest.mark.parametrize(
    ("given", "wanted", "is_taken"),
    [
        ("int32", "int64", True),
        ("uint8", "int32", True),
        ("int64", "int32", False),
        ("int32", "float32", False),
        ("float32", "int64", False),
        ("bool", "int64", False),
    ],
)
def test_integers_are_converted_where_none_is_lost(
    smelt: Smelt, tmp_path: Path, given: str, wanted: str, is_taken: bool
) -> None:
    graph = Graph("twice")
    x = graph.add_input("x", TensorType(DType(wanted), (3,)))
    graph.outputs.append(graph.add(ops.Add(), x, x, name="y").output)
    build(graph, tune="none").save(tmp_path / "twice.engine")
    np.save(tmp_path / "x.npy", np.array([0, 1, 1]).astype(given))
    answer = smelt("run", tmp_path / "twice.engine", "--input", f"x={tmp_path / 'x.npy'}", "--json")
    assert answer.code == (0 if is_taken else 1)
    if is_taken:
        assert answer.json["outputs"]["y"]["values"] == [0, 2, 2]
        assert f"is converted from {given} to {wanted}, the type of input x" in answer.err
    else:
        assert f"has type {given}, but input x takes {wanted}" in answer.err


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "view"])
def test_an_engine_is_not_imported_as_a_model(engine: Path, kind: str) -> None:
    forms: dict[str, Any] = {
        "path": engine,
        "text": str(engine),
        "bytes": engine.read_bytes(),
        "view": memoryview(engine.read_bytes()),
    }
    with pytest.raises(
        ModelFormatError, match=r"is an engine, not a model; load it with smelt\.load"
    ):
        network_from_onnx(forms[kind])

"""An engine runs where only numpy, cryptography and smelt itself are installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = ROOT / "src" / "smelt"
RUN_HALF: Final = [
    "errors",
    "config",
    "logger",
    "types",
    "ir",
    "ops",
    "engine",
    "nvdla",
    "devices",
    "runtime",
]
ENOUGH_TO_RUN: Final = ("numpy", "cryptography", "cffi")
HEAVY: Final = ("llvmlite", "onnx", "google.protobuf", "click", "rich", "PIL", "typing_extensions")

_NO_BFLOAT16 = (
    "MissingExtraError: numpy has no bfloat16, and ml_dtypes is not installed; "
    "run: pip install ml_dtypes"
)


def _installed_parts(name: str) -> Iterator[Path]:
    """Yield the files and folders that a distribution puts at the top of site-packages."""
    installed = distribution(name)
    for top in sorted({file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}):
        path = Path(str(installed.locate_file(top)))
        if path.exists() and top != "__pycache__":
            yield path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with numpy, cryptography and smelt, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ENOUGH_TO_RUN:
        for path in _installed_parts(name):
            (folder / path.name).symlink_to(path)
    (folder / "smelt").symlink_to(SOURCE)
    return folder


def run_bare(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that sees the standard library and the folder alone."""
    begin = f"import sys; sys.path.append({str(folder)!r})\n"
    command = [sys.executable, "-I", "-S", "-B", "-c", begin + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.parametrize("name", HEAVY)
def test_a_bare_machine_really_lacks_what_builds_engines(bare: Path, name: str) -> None:
    importlib.import_module(name)  # or the next line would show nothing
    assert "ModuleNotFoundError" in run_bare(bare, f"import {name}").stderr


@pytest.mark.parametrize("room", [room for room in RUN_HALF if list(SOURCE.glob(f"{room}*"))])
def test_a_room_of_the_run_half_needs_numpy_and_cryptography_alone(bare: Path, room: str) -> None:
    done = run_bare(bare, f"import smelt.{room}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("load", ["smelt.load", "smelt.Engine.load"])
def test_an_engine_runs_on_a_bare_machine(bare: Path, tmp_path: Path, load: str) -> None:
    smelt = cast("Any", importlib.import_module("smelt"))
    random = np.random.default_rng(0)
    network = smelt.NetworkDefinition("small")
    x = network.add_input("data", "float32", (3, 8, 8))
    weights = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    y = network.add_convolution(x, 4, (3, 3), weights, np.ones(4, np.float32), name="conv")
    network.mark_output(y)
    engine = smelt.build(network)
    data = random.standard_normal((1, 3, 8, 8)).astype(np.float32)
    with engine.create_context() as context:
        (expected,) = context.run({"data": data}).values()
    engine.save(tmp_path / "small.engine")
    np.save(tmp_path / "data.npy", data)
    code = f"""
import numpy, smelt
folder = sys.argv[1]
with {load}(folder + "/small.engine").create_context() as context:
    (result,) = context.run({{"data": numpy.load(folder + "/data.npy")}}).values()
numpy.save(folder + "/result.npy", result)
"""
    done = run_bare(bare, code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), expected)


@pytest.mark.parametrize(("dtype", "detail"), [("float32", ""), ("bfloat16", _NO_BFLOAT16)])
def test_a_bare_machine_needs_a_package_for_arrays_of_bfloat16_alone(
    bare: Path, tmp_path: Path, dtype: str, detail: str
) -> None:
    smelt = cast("Any", importlib.import_module("smelt"))
    weights = np.ones((4, 8), np.float32)
    network = smelt.NetworkDefinition("small")
    x = network.add_input("data", dtype, (8,))
    network.mark_output(network.add_fully_connected(x, 4, weights))
    engine = smelt.build(network, precision="bfloat16")
    engine.save(tmp_path / "small.engine")
    code = """
import numpy, smelt
with smelt.load(sys.argv[1]).create_context() as context:
    (result,) = context.run({"data": numpy.ones((1, 8), numpy.float32)}).values()
assert (result == 8).all()
"""
    done = run_bare(bare, code, str(tmp_path / "small.engine"))
    assert (done.returncode == 0) is not bool(detail), done.stderr
    assert done.stderr.rstrip().endswith(detail)


def test_an_engine_for_gpus_says_on_a_bare_machine_what_it_needs(
    bare: Path, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    smelt = cast("Any", importlib.import_module("smelt"))
    network = smelt.NetworkDefinition("small")
    x = network.add_input("data", "float32", (8,))
    network.mark_output(network.add_activation(x, "relu"))
    engine = smelt.build(network, device="cuda:sm_90", tune="none")
    engine.save(tmp_path / "small.engine")
    code = "import smelt; smelt.load(sys.argv[1]).create_context()"
    done = run_bare(bare, code, str(tmp_path / "small.engine"))
    assert "DeviceError: " in done.stderr
    assert "small.engine is for NVIDIA GPUs (sm_90): the NVIDIA driver is not found" in done.stderr
    assert "`smelt build MODEL --device cpu`" in done.stderr


@pytest.mark.parametrize(
    ("asked", "package"),
    [
        ("network_from_onnx('m.onnx')", "onnx"),
        ("compare.compare('m.onnx')", "onnx"),
        ("network_from_caffe('m.prototxt')", "protobuf"),
    ],
)
def test_a_bare_machine_says_what_reading_a_model_needs(
    bare: Path, asked: str, package: str
) -> None:
    detail = f"MissingExtraError: {package} is not installed; run: pip install {package}"
    assert detail in run_bare(bare, f"import smelt; smelt.{asked}").stderr


def test_a_bare_machine_says_what_the_command_line_needs(bare: Path) -> None:
    done = run_bare(bare, "from smelt.cli import main; main()")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the command line needs click; run: pip install click")

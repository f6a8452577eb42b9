"""What importing smelt costs, and whether the pages about it are true."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

import smelt
from smelt import config, errors
from smelt.engine import detect_host
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = ROOT / "src" / "smelt"


def _modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(smelt.__path__, "smelt."):
        if not module.name.endswith("__main__"):
            yield module.name


def test_importing_smelt_loads_no_compiler_and_no_file_format() -> None:
    heavy = "{'llvmlite', 'onnx', 'google', 'click', 'rich', 'PIL'}"
    code = f"import sys, smelt; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_module_can_be_imported() -> None:
    for name in _modules():
        importlib.import_module(name)


def test_the_layout_page_names_every_room() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    rooms |= {path.name for path in SOURCE.glob("*.py")}
    named = set(re.findall(r"[`/](\w+(?:\.py)?)/?(?=[`/])", text))
    assert not rooms - named - {"__main__.py"}


def test_the_files_that_the_layout_page_names_exist() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text)):
        assert list(SOURCE.rglob(name)) or list(ROOT.glob(f"*/{name}")), name


def test_the_files_that_the_recipes_name_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|tests|docs|benchmarks|tools)/[\w./]+)`", text))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_start_page_names_every_flag() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {flag.variable for flag in config.FLAGS} == set(
        re.findall(r"^\| `([A-Z_]+)`", text, re.M)
    )


def test_the_package_and_its_engines_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert smelt.__version__ == project["version"]


def test_the_distribution_has_one_name_and_its_extras_are_asked_for_by_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == errors.DISTRIBUTION == "smelt-engine"
    pages = [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "docs").rglob("*.md")]
    for path in (*pages, *SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        asked = re.findall(r"(?<![\w-])(smelt[\w-]*|\.)\[([a-z][a-z,-]*)\](?!\()", text)
        for name, extras in asked:
            # A clone may be installed by its path; everything else has the distribution's name.
            allowed = (
                {errors.DISTRIBUTION, "."} if path.name == "README.md" else {errors.DISTRIBUTION}
            )
            assert name in allowed, f"{path}: {name}[{extras}]"
            assert set(extras.split(",")) <= project["optional-dependencies"].keys(), path


def test_a_missing_package_is_told_with_the_extra_that_brings_it() -> None:
    detail = str(errors.MissingExtraError("cuda-bindings", "cuda"))
    assert "run pip install 'smelt-engine[cuda]', or pip install cuda-bindings" in detail


@pytest.mark.requirement("G-75")
def test_version_and_platform_can_be_asked_for() -> None:
    host = detect_host()
    assert re.fullmatch(r"\d+\.\d+\.\d+", smelt.__version__)
    assert host.system in {"linux", "darwin", "windows"}
    assert host.architecture

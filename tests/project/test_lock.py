"""The lock file of development: packages by versions, files by hashes, for every platform."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def locked(request: pytest.FixtureRequest) -> dict[str, list[tuple[Requirement, set[str]]]]:
    """Each package's versions and hashes."""
    path: Path = request.config.rootpath / "requirements-dev.lock"
    text = path.read_text(encoding="ascii").replace("\\\n", " ")
    found: dict[str, list[tuple[Requirement, set[str]]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        pinned, *hashes = line.split("--hash=")
        requirement = Requirement(pinned.strip())
        found.setdefault(_plain(requirement.name), []).append(
            (requirement, {digest.strip() for digest in hashes})
        )
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_package_has_one_version_and_hashes(
    locked: dict[str, list[tuple[Requirement, set[str]]]],
) -> None:
    for rows in locked.values():
        for requirement, hashes in rows:
            assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
            assert requirement.url is None
            assert hashes
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in hashes)
    # Wheels for other processors, systems and Pythons have hashes too.
    assert all(len(hashes) > 20 for _, hashes in locked["numpy"])


def test_it_says_nothing_of_the_machine_that_made_it(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "requirements-dev.lock").read_text(encoding="ascii")
    assert not re.search(r"file:|https?:|index-url|find-links|trusted-host|/", text)


def test_it_is_of_what_development_needs(
    locked: dict[str, list[tuple[Requirement, set[str]]]], request: pytest.FixtureRequest
) -> None:
    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text())["project"]
    needed = list(project["dependencies"])
    extras, left = project["optional-dependencies"], ["dev"]
    while left:
        for text in extras[left.pop()]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                left += requirement.extras
            else:
                needed.append(text)
    for text in [*needed, "hatchling>=1.27"]:
        requirement = Requirement(text)
        rows = locked[_plain(requirement.name)]
        for row, _ in rows:
            version = str(row.specifier).removeprefix("==")
            assert requirement.specifier.contains(version), f"{row}; run make lock"


def _write_wheel(folder: Path) -> str:
    """Write a package of one empty module; return its wheel's SHA-256."""
    path = folder / "plain-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("plain.py", "")
        info = "plain-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n")
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_of_another_hash_is_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    makefile = (request.config.rootpath / "Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"pip install (.*) --requirement \$\(LOCK\)", makefile)
    digest = _write_wheel(tmp_path)

    def install(line: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "lock").write_text(line)
        command = [sys.executable, "-m", "pip", "install", *options.split()]
        local = [
            "--no-index",
            "--find-links",
            str(tmp_path),
            "--target",
            str(tmp_path / "installed"),
        ]
        return subprocess.run(
            [*command, "--requirement", str(tmp_path / "lock"), *local],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    other = digest.translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))
    assert "DO NOT MATCH THE HASHES" in install(f"plain==1.0 --hash=sha256:{other}").stderr
    assert "Hashes are required" in install("plain==1.0").stderr
    assert not (tmp_path / "installed").exists()
    done = install(f"plain==1.0 --hash=sha256:{digest}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "plain.py").exists()


def test_an_environment_that_was_not_locked_is_not_taken_for_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copy(request.config.rootpath / "Makefile", tmp_path)
    (tmp_path / ".venv").mkdir()
    for name in ("pyproject.toml", "requirements-dev.lock", ".venv/.stamp-python"):
        (tmp_path / name).touch()

    def dry_run() -> subprocess.CompletedProcess[str]:
        command = [
            "make",
            "--directory",
            str(tmp_path),
            "--dry-run",
            "LOCKED=1",
            "VENV=.venv",
            "lint",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "--require-hashes" in dry_run().stdout
    (tmp_path / ".venv" / ".stamp-dev").touch()
    refused = dry_run()
    assert refused.returncode == 2
    assert "was installed without LOCKED=1" in refused.stderr
    (tmp_path / ".venv" / ".stamp-locked").touch()
    assert dry_run().returncode == 0

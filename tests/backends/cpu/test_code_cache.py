"""The code cache: fast when it helps, absent when it cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from smelt.backends import CodeCache
from smelt.backends.cpu import compile_ir, target_named
from smelt.engine import KernelSpec, parameters

if TYPE_CHECKING:
    from pathlib import Path

TARGET = target_named("x86-64-v3")
KERNEL = KernelSpec("nothing", parameters(size=1))
OTHER = KernelSpec("nothing", parameters(size=2))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def opened() -> CodeCache:
    cache = CodeCache.open("edition")
    assert cache is not None
    return cache


def entries(home: Path) -> list[Path]:
    return sorted((home / "cache" / "code").iterdir())


@pytest.mark.usefixtures("home")
def test_what_was_kept_is_found_again_for_the_same_kernel_and_target_only() -> None:
    content = compile_ir("define void @k() {\n ret void\n}", TARGET)
    opened().put(KERNEL, TARGET, content)
    assert opened().get(KERNEL, TARGET) == content
    assert opened().get(OTHER, TARGET) is None
    assert opened().get(KERNEL, target_named("x86-64-v4")) is None


def test_damaged_cut_and_foreign_entries_are_not_there(home: Path) -> None:
    opened().put(KERNEL, TARGET, b"code " * 100)
    (path,) = entries(home)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:50] + b"?" + whole[51:], b"x" * 600):
        path.write_bytes(damaged)
        assert opened().get(KERNEL, TARGET) is None
    opened().put(KERNEL, TARGET, b"again")
    assert opened().get(KERNEL, TARGET) == b"again"


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/full"])
def test_an_entry_that_is_no_file_is_not_there_and_is_replaced(home: Path, kind: str) -> None:
    opened().put(KERNEL, TARGET, b"code")
    (path,) = entries(home)
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(kind)
    assert opened().get(KERNEL, TARGET) is None
    opened().put(KERNEL, TARGET, b"again")
    assert opened().get(KERNEL, TARGET) == b"again"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_an_entry_that_another_user_owns_is_not_there(home: Path) -> None:
    opened().put(KERNEL, TARGET, b"code")
    (path,) = entries(home)
    os.chown(path, 12345, -1)
    assert opened().get(KERNEL, TARGET) is None


def test_an_entry_under_anothers_name_is_not_there(home: Path) -> None:
    opened().put(KERNEL, TARGET, b"one")
    (first,) = entries(home)
    opened().put(OTHER, TARGET, b"two")
    (second,) = [path for path in entries(home) if path != first]
    second.write_bytes(first.read_bytes())
    assert opened().get(OTHER, TARGET) is None


def test_an_entry_sealed_with_anothers_key_is_not_there(home: Path) -> None:
    opened().put(KERNEL, TARGET, b"one")
    (home / "keys" / "cache.key").unlink()
    assert opened().get(KERNEL, TARGET) is None


def test_the_folder_and_its_key_are_the_users_alone(home: Path) -> None:
    opened()
    assert (home / "cache" / "code").stat().st_mode & 0o077 == 0
    assert (home / "keys" / "cache.key").stat().st_mode & 0o177 == 0


def test_there_is_no_cache_without_a_home_or_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    monkeypatch.setenv("SMELT_NO_CODE_CACHE", "1")
    assert CodeCache.open("edition") is None
    monkeypatch.delenv("SMELT_NO_CODE_CACHE")
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SMELT_HOME", str(blocked / "home"))
    assert CodeCache.open("edition") is None
    monkeypatch.delenv("SMELT_HOME")
    monkeypatch.delenv("HOME")
    assert CodeCache.open("edition") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_no_error(home: Path) -> None:
    cache = opened()
    folder = home / "cache" / "code"
    folder.chmod(0o500)
    cache.put(KERNEL, TARGET, b"one")
    assert cache.get(KERNEL, TARGET) is None
    folder.chmod(0o700)


def test_a_folder_that_has_vanished_is_no_error(home: Path) -> None:
    cache = opened()
    (home / "cache" / "code").rmdir()
    cache.put(KERNEL, TARGET, b"one")
    assert cache.get(KERNEL, TARGET) is None


def test_processes_share_the_cache(home: Path) -> None:
    program = (
        "from smelt.backends.cpu import target_named\n"
        "from smelt.backends import CodeCache\n"
        "from smelt.engine import KernelSpec, parameters\n"
        "cache = CodeCache.open('edition')\n"
        "for size in range(40):\n"
        "    kernel = KernelSpec('shared', parameters(size=size))\n"
        "    found = cache.get(kernel, target_named('x86-64-v3'))\n"
        "    assert found in (None, b'code' * size), found\n"
        "    cache.put(kernel, target_named('x86-64-v3'), b'code' * size)\n"
    )
    environment = {**os.environ, "SMELT_HOME": str(home)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    cache = opened()
    for size in range(40):
        kernel = KernelSpec("shared", parameters(size=size))
        assert cache.get(kernel, TARGET) == b"code" * size
    assert not [path for path in entries(home) if path.suffix == ".part"]

"""A file of a user's appears whole or stays as it was: one function writes them all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import smelt

SOURCES = Path(smelt.__file__).parent
NO_FILES_OF_USERS = {
    "types/_files.py",  # a device or a pipe
    "engine/_atomic_files.py",  # what it writes first
    "cli/_console.py",  # the null device
    "types/_npy_files.py",  # entries of an archive in memory
    "backends/cuda/_compiler_worker.py",  # a pipe
}
WRITERS = {"write_text", "write_bytes", "tofile", "savetxt"}
OPENERS = {"open", "fdopen"}
IN_MEMORY = {"buffer"}


def _writes(source: str) -> list[int]:
    """Lines that write a file in place."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _is_writer(call)]


def _is_writer(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in OPENERS:
        given = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode")]
        modes = [str(a.value) for a in given if isinstance(a, ast.Constant)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
    if name in {"save", "savez", "savez_compressed"}:
        of_numpy = ast.unparse(call.func).startswith("np.")
        return of_numpy and ast.unparse(call.args[0]) not in IN_MEMORY
    return name in WRITERS


@pytest.mark.parametrize(
    "text",
    [
        "Path(x).write_text('')",
        "path.write_bytes(b'')",
        "open(path, 'w')",
        "path.open('wb')",
        "open(path, mode='a')",
        "np.save(path, array)",
    ],
)
def test_a_write_in_place_is_found(text: str) -> None:
    assert _writes(text)


def test_files_of_users_are_written_atomically() -> None:
    found = {
        f"{name}:{line}"
        for path in SOURCES.rglob("*.py")
        if (name := path.relative_to(SOURCES).as_posix()) not in NO_FILES_OF_USERS
        for line in _writes(path.read_text("utf-8"))
    }
    assert not found

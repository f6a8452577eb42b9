"""The tutorial does what it says: its code runs, its commands succeed, its outputs are real."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import smelt
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES: Final = ("tutorial.md",)
SMELT: Final = (sys.executable, "-m", "smelt")
FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code in a page, and what it prints if the page shows that."""

    language: str
    code: str
    line: int
    output: str | None


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the code of a page; a ``text`` block that follows at once shows its output."""
    fences = list(FENCE.finditer(text))
    for index, fence in enumerate(fences):
        if fence[1] not in {"python", "sh"}:
            continue
        output = None
        if index + 1 < len(fences) and fences[index + 1][1] == "text":
            between = text[fence.end() : fences[index + 1].start()]
            output = fences[index + 1][2] if not between.strip() else None
        yield Block(fence[1], fence[2], text.count("\n", 0, fence.start()) + 2, output)


def run_python(block: Block, page: str, names: dict[str, Any]) -> str:
    """Execute a block where the blocks before it left off; return what it printed."""
    code = compile("\n" * (block.line - 1) + block.code, page, "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)  # noqa: S102  (the page is ours)
    return printed.getvalue()


def run_commands(block: Block, folder: Path) -> str:
    """Run each ``smelt`` command of a block; return what they printed."""
    printed = ""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["smelt"]:
            continue
        done = subprocess.run(
            [*SMELT, *words[1:]], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"line {block.line}: {line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_works(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    scripts = Path(sys.executable).parent  # a reader has activated the environment
    monkeypatch.setenv("PATH", str(scripts), prepend=os.pathsep)
    names: dict[str, Any] = {"__name__": "tutorial"}
    for block in blocks_of((ROOT / "docs" / page).read_text(encoding="utf-8")):
        if block.language == "python":
            printed = run_python(block, page, names)
        else:
            printed = run_commands(block, tmp_path)
        if block.output is not None:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(block.output, printed, flags), (
                f"line {block.line} of {page} prints\n{printed}"
            )


def test_every_listed_name_exists_and_every_public_name_is_listed() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(smelt\.[\w.]+)", text, re.MULTILINE)
    for name in listed:
        found: Any = smelt
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    assert len(listed) == len(set(listed))
    assert {f"smelt.{name}" for name in smelt.__all__} <= set(listed)
    assert smelt.ExecutionContext.profiler.__doc__


def test_what_can_be_named_is_shown_and_nothing_else() -> None:
    names = [name for name in dir(smelt) if not name.startswith("__")]
    assert set(names) >= {"build", "load", "gie", "nvdla", "inspect", "compare"}
    assert not {"Final", "TYPE_CHECKING", "find_spec", "import_module"} & set(names)
    for name in names:
        getattr(smelt, name)


def test_a_block_knows_its_line_and_output() -> None:
    text = "# Page\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\nls\n```\n"
    assert list(blocks_of(text)) == [
        Block("python", "print(1)\n", 4, "1\n"),
        Block("sh", "ls\n", 12, None),
    ]


def test_nobody_is_told_to_install_the_other_project_of_this_name() -> None:
    """On PyPI `smelt` is somebody else's: what we say to install is called smelt-engine."""
    wrong = re.compile(r"pip3? install (?:-\S+ +)*[\"']?smelt\b(?!-engine\b)|\bsmelt\[")
    places = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder, kinds in (("docs", "*.md"), ("examples", "*.*"), ("src", "*.py")):
        places += (ROOT / folder).rglob(kinds)
    texts = {path: path.read_bytes().decode(errors="ignore") for path in places if path.is_file()}
    assert [path for path, text in texts.items() if wrong.search(text)] == []

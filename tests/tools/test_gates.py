"""The gates find what they are there to find, and nothing else."""

from __future__ import annotations

import pytest

from tools.gates import PACKAGE, ROOT, breaches_of_file

ROOM = PACKAGE / "ops" / "__init__.py"
FILE = PACKAGE / "ops" / "conv.py"
LONG_BODY = "\n".join(f"    x{i} = {i}" for i in range(41))


def complaints(text: str, path: object = FILE) -> list[str]:
    file = FILE if path is FILE else ROOM
    return [complaint for _, complaint in breaches_of_file(file, text)]


def test_a_long_function_is_found() -> None:
    assert complaints(f"def work():\n{LONG_BODY}\n") == [
        "work has 42 lines; a function has at most 40"
    ]


def test_a_docstring_does_not_make_a_function_long() -> None:
    text = "\n".join(f"    line {i}" for i in range(60))
    assert not complaints(f'def work():\n    """Work.\n{text}\n    """\n    return 1\n')


@pytest.mark.parametrize("reason", ["# gate: one table", "# noqa: C901  (one table)"])
def test_a_long_function_with_a_reason_passes(reason: str) -> None:
    assert not complaints(f"def work():  {reason}\n{LONG_BODY}\n")


def test_a_bare_exception_is_no_reason() -> None:
    assert complaints(f"def work():  # noqa: C901\n{LONG_BODY}\n")


def test_a_long_file_is_found_and_may_have_a_reason() -> None:
    text = "x = 1\n" * 501
    assert complaints(text) == ["501 lines; a file has at most 500 that are not blank"]
    assert not complaints("# gate: a table of constants\n" + text)


def test_blank_lines_do_not_make_a_file_long() -> None:
    assert not complaints("x = 1\n\n" * 500)


@pytest.mark.parametrize(
    "line",
    [
        "# TO" + "DO write it",
        "raise NotImplemented" + "Error",
        "x = 1  # pragma: no " + "cover",
        "def work():\n    pass",
        "def work():\n    ...",
    ],
)
def test_unfinished_work_is_found(line: str) -> None:
    assert complaints(line + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "class Has(Protocol):\n    def work(self) -> int: ...\n",
        "class Op(ABC):\n    @abstractmethod\n    def work(self) -> int: ...\n",
        "@overload\ndef work(x: int) -> int: ...\n",
        "def hook() -> None:\n    '''Do more.'''\n",
    ],
)
def test_declarations_are_not_unfinished_work(text: str) -> None:
    assert not complaints(text)


def test_a_room_needs_a_docstring_and_names_that_exist() -> None:
    assert complaints("x = 1\n", ROOM) == [
        "a room begins with a docstring that says what it is for",
        "a room has an __all__, written out",
    ]
    assert complaints('"""Room."""\n__all__ = ["Conv", "Gone"]\nclass Conv: x = 1\n', ROOM) == [
        "__all__ has 'Gone', which is not there"
    ]


def test_a_room_that_loads_on_demand_may_export_any_name() -> None:
    text = '"""Room."""\n__all__ = ["late"]\ndef __getattr__(name): return name\n'
    assert not complaints(text, ROOM)


def test_private_files_of_other_rooms_are_not_imported() -> None:
    assert complaints("from smelt.ir._graph import Graph\n") == [
        "imports smelt.ir._graph, a private file: import smelt.ir"
    ]
    assert not complaints("from smelt.ops._shape import pad\nfrom smelt.ir import Graph\n")


def test_the_root_of_the_package_is_not_imported_from_below() -> None:
    assert complaints("from smelt import build\n")
    assert not complaints("from smelt import config\n")


def test_the_project_holds_its_own_gates_where_tools_live() -> None:
    for file in (ROOT / "tools").glob("*.py"):
        assert not list(breaches_of_file(file, file.read_text(encoding="utf-8"))), file.name

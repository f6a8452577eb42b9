"""Hold the gates that no other tool holds: sizes, rooms, stubs. Print every breach, fail on any.

- A function has at most 40 lines (without its docstring), a file at most 500 that are not blank.
  An exception stands beside its reason: ``# gate: why`` on the line of the ``def``, or anywhere on
  a line of its own at the top level of the file for the file's length.
- A room has a docstring and an ``__all__`` whose names exist; other rooms import the room, never
  its private files, and never the package's root.
- Nothing is left to do: no markers of unfinished work, no bodies that do nothing.

usage: python tools/gates.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "smelt"
FOLDERS: Final = ("src", "tests", "tools", "benchmarks", "examples")
MAX_FUNCTION_LINES: Final = 40
MAX_FILE_LINES: Final = 500

_REASON: Final = re.compile(r"#\s*gate:\s*\w+|#\s*noqa:[^(]*\(\s*\w+")
_FILE_REASON: Final = re.compile(r"^#\s*gate:\s*\w+", re.MULTILINE)
_UNFINISHED: Final = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|X{3}|NotImplemented" + r"Error)\b|pragma:\s*no cover"
)
_MAY_BE_EMPTY: Final = frozenset({"abstractmethod", "overload"})

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def breaches_of_file(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and complaint for everything wrong with one file."""
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        yield error.lineno or 1, f"this is not Python: {error.msg}"
        return
    lines = text.splitlines()
    yield from _length_breaches(tree, lines, text)
    for number, line in enumerate(lines, 1):
        if found := _UNFINISHED.search(line):
            yield number, f"{found[0]} stands in the code: finish it"
    if PACKAGE in path.parents:
        yield from _stub_breaches(tree)
        yield from _import_breaches(tree, path)
        if path.name == "__init__.py":  # one that gives its names on demand may list any
            yield from _room_breaches(tree)


def _length_breaches(
    tree: ast.Module, lines: Sequence[str], text: str
) -> Iterator[tuple[int, str]]:
    count = sum(bool(line.strip()) for line in lines)
    if count > MAX_FILE_LINES and not _FILE_REASON.search(text):
        yield 1, f"{count} lines; a file has at most {MAX_FILE_LINES} that are not blank"
    for function in _functions(tree):
        count = _line_count(function)
        head = lines[function.lineno - 1 : function.body[0].lineno]
        if count > MAX_FUNCTION_LINES and not any(_REASON.search(line) for line in head):
            yield (
                function.lineno,
                f"{function.name} has {count} lines; a function has at most {MAX_FUNCTION_LINES}",
            )


def _functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _line_count(function: Function) -> int:
    count = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if _is_text(first):
        count -= (first.end_lineno or first.lineno) - first.lineno + 1
    return count


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _stub_breaches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    protocols = {
        id(member)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Protocol" in {_name(base) for base in node.bases}
        for member in node.body
    }
    for function in _functions(tree):
        if id(function) in protocols:
            continue
        if _MAY_BE_EMPTY & {_name(decorator) for decorator in function.decorator_list}:
            continue
        body = function.body[1:] if _is_text(function.body[0]) else function.body
        if body and all(_does_nothing(statement) for statement in body):
            yield function.lineno, f"{function.name} does nothing: write it, or leave it out"


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value is Ellipsis
    return isinstance(statement, ast.Pass)


def _name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript | ast.Call):
        inner = expression.value if isinstance(expression, ast.Subscript) else expression.func
        return _name(inner)
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _import_breaches(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    here = ["smelt", *path.relative_to(PACKAGE).parent.parts]
    at_root = path.parent == PACKAGE and path.name in {"__init__.py", "__main__.py"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts == ["smelt"] and not at_root and not _imports_rooms(node):
                yield node.lineno, "imports the package's root: import the room that has the name"
            private = next((i for i, part in enumerate(parts) if part.startswith("_")), 0)
            if private and parts[0] == "smelt" and parts[:private] != here[:private]:
                room = ".".join(parts[:private])
                yield node.lineno, f"imports {module}, a private file: import {room}"


def _imports_rooms(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and all(
        (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file()
        for alias in node.names
    )


def _room_breaches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    if not ast.get_docstring(tree):
        yield 1, "a room begins with a docstring that says what it is for"
    names, exported = _bound_names(tree), _exported_names(tree)
    if exported is None:
        yield 1, "a room has an __all__, written out"
        return
    if len(set(exported)) != len(exported):
        yield 1, "__all__ has a name twice"
    for name in exported:
        if name not in names and "__getattr__" not in names:
            yield 1, f"__all__ has {name!r}, which is not there"


def _exported_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            if not isinstance(value, ast.List | ast.Tuple):
                return None
            constants = [item.value for item in value.elts if isinstance(item, ast.Constant)]
            return [name for name in constants if isinstance(name, str)]
    return None


def _bound_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def main(arguments: Sequence[str]) -> int:
    """Check every file below the folders; return 1 when something is wrong."""
    folders = [ROOT / name for name in (arguments or FOLDERS)]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    failed = 0
    for file in files:
        for line, complaint in breaches_of_file(file, file.read_text(encoding="utf-8")):
            print(f"{file.relative_to(ROOT)}:{line}: {complaint}")
            failed += 1
    print(f"gates: {len(files)} files, {failed or 'no'} breaches")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

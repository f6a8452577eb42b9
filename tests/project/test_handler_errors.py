"""No clause takes the error of a signal handler for one that it expects.

A handler may raise between any two instructions. What a handler raises to leave a call is mostly a
TimeoutError, which is an OSError, or an error of the application's, which only a clause for all
errors catches. So each clause that catches one of them passes on the error of a handler first.
"""

from __future__ import annotations

import ast
import builtins
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smelt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCES = Path(smelt.__file__).parent
ADVICE = (
    "smelt.signal_errors has what to use: call pass_on_handler_error(error) before anything leaves "
    "the clause, or raise the error again; suppress_own instead of contextlib.suppress; path_mode "
    "instead of os.path.isdir and its like; make_directory instead of exist_ok."
)
KEPT = {
    "backends/cuda/_compiler_pool.py _run_worker",
    "devices/cpu/_stream.py _complete_first",
    "devices/cuda/_stream.py _work",
    "runtime/_host_executor.py work",
    "types/_background_threads.py work",
}
"""Tasks of threads: they keep every error, and who waits for the task raises it as it is."""
REPORTS = {"cli/_main.py main"}
"""A command ends with each error, and prints what it is about."""

_BUILTINS = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
BROAD = {"UnidentifiedImageError"} | {  # of pillow, an OSError
    name
    for name, kind in _BUILTINS.items()
    if issubclass(kind, OSError) or kind in {Exception, BaseException}
}

LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Yield, ast.YieldFrom)
LOSSY = {"exists", "lexists", "isfile", "isdir", "islink", "ismount"}
"""Functions of `os.path` that answer False for any OSError, that of a handler too."""
LOSSY_METHODS = {"exists", "is_file", "is_dir"}
"""Methods of `pathlib.Path`: from Python 3.14 on they answer so, too, and before they raise where a
folder is locked."""
LOSSY_OPTIONS = {"exist_ok", "missing_ok", "ignore_errors"}
"""Options of `pathlib`, `os` and `shutil` that ignore errors which those of handlers may be."""


def _names(node: ast.AST) -> set[str]:
    """Return the names in an expression, and for those with a dot the last part."""
    parts = list(ast.walk(node))
    return {p.id for p in parts if isinstance(p, ast.Name)} | {
        p.attr for p in parts if isinstance(p, ast.Attribute)
    }


def _named_kinds(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Return the names in each constant at the top of a module, which may be a tuple of classes."""
    kinds: dict[str, set[str]] = {}
    for statement in (statement for tree in trees for statement in tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                kinds.setdefault(ast.unparse(target), set()).update(_names(statement.value))
    return kinds


def _is_broad(caught: ast.AST | None, kinds: dict[str, set[str]]) -> bool:
    """Return whether a clause catches a TimeoutError or an error of the application's."""
    if caught is None:
        return True
    found, following = set[str](), _names(caught)
    while following:
        found |= following
        following = {part for name in following for part in kinds.get(name, ())} - found
    return not found.isdisjoint(BROAD)


def _makes_internal_error(clause: ast.ExceptHandler) -> bool:
    """Return whether a clause blames smelt, which the error of no handler may lead to."""
    return any(
        isinstance(part, ast.Call) and "InternalError" in _names(part.func)
        for statement in clause.body
        for part in ast.walk(statement)
    )


def _passes_on(clause: ast.ExceptHandler) -> bool:
    """Return whether a clause passes on the error of a handler, whatever it cleans up before."""
    before: list[ast.AST] = []
    for statement in clause.body:
        is_raise = isinstance(statement, ast.Raise) and statement.exc is None
        if is_raise or ast.unparse(statement) in {
            f"pass_on_handler_error({clause.name})",
            f"if not is_direct({clause.name}):\n    raise",
        }:
            return not any(isinstance(part, LEAVING) for part in before)
        before += ast.walk(statement)
    return False


def _is_lossy_call(call: ast.Call, kinds: dict[str, set[str]]) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if any(keyword.arg in LOSSY_OPTIONS for keyword in call.keywords):
        return True
    if name in LOSSY | LOSSY_METHODS:
        return name in LOSSY_METHODS or ast.unparse(call.func) == f"os.path.{name}"
    return name == "suppress" and any(_is_broad(kind, kinds) for kind in call.args)


def _breaches(tree: ast.Module, kinds: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Yield the line of what may lose the error of a handler, and the function around it."""
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for node in ast.walk(tree):  # a function comes before what is in it
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
        elif isinstance(node, ast.ExceptHandler):
            is_watched = _is_broad(node.type, kinds) or _makes_internal_error(node)
            if is_watched and not _passes_on(node):
                yield node.lineno, _name_around(node, functions)
        elif isinstance(node, ast.Call) and _is_lossy_call(node, kinds):
            yield node.lineno, _name_around(node, functions)


def _name_around(
    node: ast.ExceptHandler | ast.Call, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]
) -> str:
    names = [f.name for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
    return names[-1] if names else ""


def _breaches_of_text(text: str) -> list[int]:
    tree = ast.parse(text)
    return [line for line, _ in _breaches(tree, _named_kinds([tree]))]


@pytest.mark.parametrize(
    "clause",
    [
        "except OSError:\n    pass",
        "except:\n    pass",
        "except (ValueError, FileNotFoundError) as error:\n    raise SmeltError() from error",
        "except EXPECTED as error:\n    log(error)",
        "except module.EXPECTED:\n    pass",
        "except Exception as error:\n    if x:\n        return\n    pass_on_handler_error(error)",
        "except OSError as error:\n    if is_late:\n        pass_on_handler_error(error)",
        "except OSError as error:\n    pass_on_handler_error(other)",
        "except OSError:\n    if is_expected:\n        return\n    raise",
        "except SmeltError as error:\n    raise InternalError() from error",
    ],
)
def test_a_clause_that_may_lose_the_error_of_a_handler_is_found(clause: str) -> None:
    text = "EXPECTED: Final = (ValueError, IOError)\n"
    assert _breaches_of_text(f"{text}try:\n    work()\n{clause}")


@pytest.mark.parametrize(
    "clause",
    [
        "except ValueError:\n    pass",
        "except OSError:\n    close()\n    raise",
        "except OSError as error:\n    pass_on_handler_error(error)\n    return None",
        "except OSError as error:\n    close()\n    pass_on_handler_error(error)\n    return None",
        "except OSError as error:\n    if not is_direct(error):\n        raise\n    return None",
    ],
)
def test_a_clause_that_loses_no_error_of_a_handler_is_accepted(clause: str) -> None:
    assert not _breaches_of_text(f"try:\n    work()\n{clause}")


def test_a_block_that_suppresses_errors_of_handlers_is_found() -> None:
    assert _breaches_of_text("with contextlib.suppress(KeyError, OSError):\n    pass")
    assert _breaches_of_text("with suppress(Exception):\n    pass")
    assert not _breaches_of_text("with suppress_own(OSError), suppress(KeyError):\n    pass")


def test_a_call_of_the_standard_library_that_loses_errors_of_handlers_is_found() -> None:
    assert _breaches_of_text("if os.path.isdir(path):\n    pass")
    assert _breaches_of_text("path.mkdir(exist_ok=True)")
    assert not _breaches_of_text("os.path.join(path, name)")


def test_no_clause_loses_the_error_of_a_handler() -> None:
    trees = {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(SOURCES.rglob("*.py"))
    }
    kinds = _named_kinds(trees.values())
    found = {
        f"{name}:{line} {function}"
        for name, tree in trees.items()
        for line, function in _breaches(tree, kinds)
        if f"{name} {function}" not in KEPT | REPORTS
    }
    assert not found, ADVICE

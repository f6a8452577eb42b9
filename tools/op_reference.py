"""Write docs/ops.md, the reference of all ops, from their docstrings and the backends' answers.

usage: python -m tools.op_reference [--check]

The text of an op is its class's docstring; the attributes are its fields with their docstrings. The
families of kernels are those that the backends offer for the op's conformance cases. With --check
nothing is written, and a stale page fails.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from smelt.ops import ALL_OPS, Fused
from tools.code_sources import RICHEST, families_of, unit_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.ops import Op

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "ops.md"
TARGETS: Final = {"CPU": RICHEST, "CUDA": "sm_90"}
"""The backends of the page, each with the target that has the most families."""
_SECTION: Final = re.compile(r"^(Shapes|Dtypes|Raises ShapeError|Source): ", re.MULTILINE)
_INTRODUCTION: Final = """\
<!-- Written by tools/op_reference.py: run `python -m tools.op_reference` after changes of ops -->
# Ops

The ops of `smelt.ops`, in alphabetical order. The names, attributes and semantics are those of the
newest ONNX operator set that has the op; the importers convert every other version, and Caffe, to
them. Each op has a reference implementation in numpy, which defines its results. The reference
runs on the host where no kernel computes the op.

The columns CPU and CUDA list the families of kernels that a backend offers for at least one
conformance case of the op, alone or as the root of a fused node;
[Where things are](layout.md#from-graph-to-engine) has the files of the families. Families in
brackets compute the simpler ops by which passes replace the op. "Partly" means that some cases
(element types, ranks, attributes or inputs that are not constant) run the reference; "reference"
means that all of them do. The families of the CPU are those for x86-64 with AVX-512, VNNI and
bfloat16 instructions. Those of CUDA are for `sm_90`, without the libraries cuBLASLt and cuDNN.
"""


@dataclass(slots=True)
class Coverage:
    """Which families compute the conformance cases of one op on one backend."""

    own: set[str] = field(default_factory=set[str])
    """Families that compute the op itself."""
    replaced: set[str] = field(default_factory=set[str])
    """Families that compute what passes make of it."""
    is_partial: bool = False
    """Whether some cases run the reference."""

    def __str__(self) -> str:
        names = ", ".join(f"`{name}`" for name in sorted(self.own or self.replaced))
        if not names:
            return "reference"
        text = names if self.own else f"({names})"
        return f"{text}, partly" if self.is_partial else text


def coverage_on(target: str) -> dict[str, Coverage]:
    """Return the coverage of each op on a target, by the op's name."""
    found = {op.name: Coverage() for op in ALL_OPS}
    for unit in unit_names(target):
        for op, families, is_own in families_of(target, unit):
            names = {op.name, op.root.name} if isinstance(op, Fused) else {op.name}
            for name in names:
                coverage = found[name]
                (coverage.own if is_own else coverage.replaced).update(families)
                coverage.is_partial |= name == op.name and not families
    return found


def attributes_of(op: type[Op]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of each attribute of an op."""
    known: dict[str, tuple[str, str]] = {}
    for base in reversed(op.__mro__[:-1]):
        known |= _documented_fields(base)
    for attribute in fields(op):
        default = attribute.default
        text = f"`{default if isinstance(default, Enum) else repr(default)}`"
        annotation, meaning = known[attribute.name]
        yield (
            attribute.name,
            f"`{annotation}`".replace(" | ", "` or `"),
            "required" if default is MISSING else text,
            meaning.replace("|", "\\|"),
        )


def _documented_fields(kind: type) -> dict[str, tuple[str, str]]:
    """Annotation and docstring of the fields that a class itself defines."""
    (definition,) = cast(
        "list[ast.ClassDef]", ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    )
    found: dict[str, tuple[str, str]] = {}
    for statement, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=annotation),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = (ast.unparse(annotation), " ".join(text.split()))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation), _:
                found[name] = (ast.unparse(annotation), "")
            case _:
                pass
    return found


def op_section(op: type[Op], coverage: Mapping[str, Coverage]) -> str:
    """Return the section of one op."""
    text, *parts = _SECTION.split(inspect.getdoc(op) or "")
    named = dict(zip(parts[::2], (" ".join(part.split()) for part in parts[1::2]), strict=True))
    lines = [f"## {op.__name__}", "", text.strip(), ""]
    lines += [f"* **Shapes:** {named['Shapes']}", f"* **Dtypes:** {named['Dtypes']}"]
    lines += [f"* **Errors:** `ShapeError` {named['Raises ShapeError']}"]
    lines += [f"* **Source:** {named['Source']}"]
    lines += [f"* **{backend}:** {found}" for backend, found in coverage.items()]
    if rows := [
        f"| `{name}` | {kind} | {default} | {meaning} |"
        for name, kind, default, meaning in attributes_of(op)
    ]:
        lines += ["", "| attribute | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    by_target = {backend: coverage_on(target) for backend, target in TARGETS.items()}
    ops = sorted(ALL_OPS, key=lambda op: op.__name__.lower())
    coverage = {op: {name: found[op.name] for name, found in by_target.items()} for op in ops}
    rows = [
        f"| [{op.__name__}](#{op.__name__.lower()}) | "
        + " | ".join(str(coverage[op][name]) for name in TARGETS)
        + " |"
        for op in ops
    ]
    table = ["| op | " + " | ".join(TARGETS) + " |", "|---" * (1 + len(TARGETS)) + "|", *rows]
    sections = [op_section(op, coverage[op]) for op in ops]
    return "\n".join([_INTRODUCTION, *table, "", *sections])


def main(arguments: Sequence[str]) -> int:
    """Write the page, or say that it is stale."""
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in arguments:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python -m tools.op_reference")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

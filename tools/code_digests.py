"""Digests of generated code that do not depend on what anything in it is called.

Text (LLVM IR, Triton) is made *canonical* first: what it names itself is called v0, v1, … in the
order of first appearance, and comments, docstrings and spaces are dropped. Of object files and
cubins the digest covers what is loaded (code, constants, relocations), without the names of
sections and symbols and without debug data. This file knows nothing of smelt.
"""

from __future__ import annotations

import ast
import hashlib
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CODE_DIGITS: Final = 16
"""Hexadecimal digits of a digest of machine code."""
TEXT_DIGITS: Final = 6
"""The same of a text: it is compared with one other text only, so chance has 24 bits to beat."""


def digest(parts: Iterable[str | bytes], digits: int) -> str:
    """The first digits of the SHA-256 of parts, each told apart from its neighbours."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # Without the length, moving a byte to the next part would change nothing.
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()[:digits]


def canonical_text(language: str, text: str) -> str:
    """The text without its own names, comments and spaces; ``language`` is "llvm" or "triton"."""
    return canonical_llvm(text) if language == "llvm" else canonical_triton(text)


# ---- LLVM IR

_FUNCTION: Final = re.compile(r"^(?=define\b)", re.MULTILINE)
_TOKEN: Final = re.compile(
    r'(?P<local>%(?:[-\w$.]+|"[^"]*"))'
    r'|(?P<shared>[@#](?:[-\w$.]+|"[^"]*")|!\d+)'
    r'|^(?P<label>[-\w$.]+|"[^"]*"):'
    r'|(?P<string>"[^"]*")'
    r"|(?P<comment>;.*)",
    re.MULTILINE,
)
_LLVM_OWN: Final = "@llvm."
"""Intrinsics: their names are instructions."""


def canonical_llvm(text: str) -> str:
    """Canonical LLVM IR."""
    shared: dict[str, str] = {}
    parts = _FUNCTION.split("\n".join(_lines(text)))
    renamed = "\n".join(_rename_function(part, shared) for part in parts)
    return "\n".join(_lines(renamed)) + "\n"


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if words := line.split():
            yield " ".join(words)


def _rename_function(text: str, shared: dict[str, str]) -> str:
    """One function renamed: its values and labels are its own, all else is the module's."""
    local: dict[str, str] = {}

    def replace(found: re.Match[str]) -> str:
        token = found[0]
        match found.lastgroup:
            case "local":
                return "%" + local.setdefault(token[1:], f"v{len(local)}")
            case "label":
                return local.setdefault(found["label"], f"v{len(local)}") + ":"
            case "shared" if not token.startswith(_LLVM_OWN):
                return token[0] + shared.setdefault(token, f"v{len(shared)}")
            case "comment":
                return ""
            case _:
                return token

    return _TOKEN.sub(replace, text)


# ---- Triton


def canonical_triton(text: str) -> str:
    """Canonical Triton or Gluon, as Python reads it: parentheses that change nothing are gone."""
    tree = cast("ast.Module", _Renamer().visit(ast.parse(text)))
    return _tree_text(tree)


def _tree_text(node: object) -> str:
    """A syntax tree as text. ``ast.dump`` and ``ast.unparse`` differ between Python versions."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        kept = [
            (name, value) for name, value in fields if value not in (None, []) and name != "ctx"
        ]
        # Statements begin lines, so that the difference of two dumps can be read.
        start = "\n" if isinstance(node, ast.stmt) else ""
        inner = ", ".join(f"{name}={_tree_text(value)}" for name, value in kept)
        return f"{start}{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{', '.join(_tree_text(item) for item in cast('list[object]', node))}]"
    return repr(node)


class _Renamer(ast.NodeTransformer):
    """Renames what the text itself binds: functions, arguments, variables.

    What it does not bind (``tl``, ``gl``, built-in functions), attributes and keywords stay.
    """

    def __init__(self) -> None:
        self._scopes: list[dict[str, str]] = []
        self._count = 0

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._in_scope(node, _bound(node.body))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._renamed(node.name)
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        given = {item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg)}
        return self._in_scope(node, given | _bound(node.body))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._renamed(node.arg)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._renamed(node.id)
        return node

    def _in_scope(self, node: ast.AST, names: set[str]) -> ast.AST:
        self._scopes.append(dict.fromkeys(names, ""))
        made = self.generic_visit(node)
        self._scopes.pop()
        return made

    def _renamed(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                if not scope[name]:
                    scope[name] = f"v{self._count}"
                    self._count += 1
                return scope[name]
        return name


def _bound(body: Iterable[ast.AST]) -> set[str]:
    """The names that statements bind, without those that only functions among them know."""
    names: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return names


# ---- object files and cubins

_HEADER: Final = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_SYMBOLS, _RELOCATIONS, _NO_CONTENT = 2, 4, 8
_ALLOCATED: Final = 2
_NOT_RUN: Final = (".eh_frame", ".note", ".llvm", ".comment")
"""Sections beside code and constants: unwinding tables and notes of compilers."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A row of an object's table of sections."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def is_loaded(self) -> bool:
        """Whether it is code, or data that code reads."""
        is_other = self.name.startswith(_NOT_RUN)
        return bool(self.flags & _ALLOCATED) and self.size > 0 and not is_other


def parts_of_object(data: bytes) -> list[bytes]:
    """What the digest of an ELF object or cubin covers.

    Symbols are told by the place of their section among those that are loaded and by their offset
    there, or by the order of their first use where another object defines them.

    Raises ValueError: it is no ELF object of 64 bits.
    """
    sections = _sections(data)
    loaded = [index for index, section in enumerate(sections) if section.is_loaded]
    parts: list[bytes] = []
    elsewhere: dict[int, int] = {}
    for index in loaded:
        section = sections[index]
        has_bytes = section.kind != _NO_CONTENT
        content = data[section.offset : section.offset + section.size] if has_bytes else b""
        parts += [struct.pack("<QQQ", section.flags, section.align, section.size), content]
        for table in sections:
            if table.kind == _RELOCATIONS and table.info == index:
                parts += _relocations(data, sections, table, loaded, elsewhere)
    return parts


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the compiler's output is no ELF object of 64 bits, little-endian")
    header = _HEADER.unpack_from(data)
    start, count, names = int(header[10]), int(header[16]), int(header[17])
    rows = [_SECTION.unpack_from(data, start + n * _SECTION.size) for n in range(count)]
    texts = int(rows[names][4])
    return [
        _Section(
            data[texts + row[0] : data.index(0, texts + row[0])].decode(),
            row[1], row[2], row[4], row[5], row[6], row[7], row[8],
        )
        for row in rows
    ]  # fmt: skip


def _relocations(
    data: bytes,
    sections: list[_Section],
    table: _Section,
    loaded: list[int],
    elsewhere: dict[int, int],
) -> Iterator[bytes]:
    """Each relocation of a table, with its symbol told by its place."""
    symbols = sections[table.link]
    content = data[table.offset : table.offset + table.size]
    for offset, info, addend in sorted(_RELOCATION.iter_unpack(content)):
        number, kind = info >> 32, info & 0xFFFFFFFF
        row = _SYMBOL.unpack_from(data, symbols.offset + number * _SYMBOL.size)
        if row[3] in loaded:
            place, value = loaded.index(row[3]), row[4]
        else:
            place, value = -1, elsewhere.setdefault(number, len(elsewhere))
        yield struct.pack("<QQqqQ", offset, kind, addend, place, value)

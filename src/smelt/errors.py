"""Every error that smelt raises.

* SmeltError                 caused by input, model, option or machine; carries ``status`` where a
document numbers it
  - GraphError               the network itself is wrong; names the node
    - ShapeError             shapes or dtypes do not fit an op
    - UnboundSymbolError     a symbolic dimension has no value
  - ModelFormatError         a model file is malformed, truncated or hostile
  - UnsupportedError         valid, but nothing here can run it; lists every reason
  - BuildError               no engine can be built with these options
  - EngineFormatError        a serialised engine is malformed, truncated or tampered with
  - EngineMismatchError      a sound engine that was made for another machine or version
  - TrustError               machine code whose signer this user does not trust
  - BindingError             an array given to an engine does not fit its binding
  - IndexRangeError          an index or a length in the data is out of range; also an IndexError
  - ContextError             an execution context or engine is used wrongly: closed, busy
  - DeviceError              the driver or the device reported a failure
  - MissingExtraError        a package is not installed; says how to get it
* InternalError              a broken invariant of smelt itself: a bug, never caught with SmeltError

Messages name what is in models and engines of strangers, so how such names are shown is here, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from unicodedata import category

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "DISTRIBUTION",
    "BindingError",
    "BuildError",
    "ContextError",
    "DeviceError",
    "EngineFormatError",
    "EngineMismatchError",
    "GraphError",
    "IndexRangeError",
    "InternalError",
    "MissingExtraError",
    "ModelFormatError",
    "ShapeError",
    "SmeltError",
    "TrustError",
    "UnboundSymbolError",
    "UnsupportedError",
    "escape_controls",
    "sanitize_name",
    "remove_controls",
]

DISTRIBUTION: Final = "smelt-engine"
"""What pip calls the package that is imported as ``smelt``: what PyPI calls so is not ours."""

_PACKAGES: Final = {"google": "protobuf", "PIL": "pillow"}
"""Modules whose package has another name."""


_MAX_SHOWN: Final = 1 << 15
"""Characters of a message."""
_MASK: Final = "\ufffd"
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0\U0001d159")
"""Letters that look like spaces and break no line: a name of them ends a line where it likes."""


def _is_shown(letter: str) -> bool:
    """Whether it is neither a control, a format, half a letter nor blank; spaces are shown."""
    if letter in _BLANK:
        return False
    return letter.isprintable() or letter == "\t" or category(letter) == "Zs"


def _replaced(line: str, replace: Callable[[str], str]) -> str:
    if line.isascii() and line.isprintable():
        return line
    return "".join(letter if _is_shown(letter) else replace(letter) for letter in line)


def remove_controls(text: str) -> str:
    """Return a text of lines in which nothing from a stranger's file gives orders to a terminal.

    Controls, formats that turn the direction of writing, halves of letters and letters that look
    like spaces are shown as the replacement character U+FFFD.
    """
    return "\n".join(_replaced(line, lambda _: _MASK) for line in text.split("\n"))


def sanitize_name(name: str) -> str:
    """Return a name from a stranger's file as it may be shown: one line `remove_controls`."""
    return _replaced(name, lambda _: _MASK).replace("\t", _MASK)


def escape_controls(text: str) -> str:
    """Return JSON text that means the same, and in which `remove_controls` finds nothing."""

    def escaped(letter: str) -> str:
        return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]

    return "\n".join(_replaced(line, escaped) for line in text.split("\n"))


class _Told(Exception):
    """Base of all: its text may be shown, whatever names are in it.

    ``lines`` stand below the message, each on a line of its own that begins with two spaces. A line
    feed in the message or in one of them is part of a name, and is masked. Within another text, as
    f-strings put it there, an error is one line. Of a text that is too long for any reader the
    middle is left out.
    """

    def __init__(self, message: str = "", *, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return _without_middle("\n  ".join(map(sanitize_name, (super().__str__(), *self.lines))))

    def __format__(self, spec: str) -> str:
        text = sanitize_name(super().__str__())
        if self.lines:
            lines = "; ".join(sanitize_name(line.removeprefix("- ")) for line in self.lines)
            text = f"{text} ({lines})"
        return format(_without_middle(text), spec)


def _without_middle(text: str) -> str:
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[: _MAX_SHOWN // 2]} … {text[-_MAX_SHOWN // 2 :]}"


class SmeltError(_Told):
    """Base of every error caused by input, model, option or machine."""

    status: int | None = None
    """The documented code of the failure, where a document numbers it."""


class GraphError(SmeltError):
    """The network is not valid."""

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(f"{node}: {message}" if node else message)
        self.message = message
        self.node = node


class ShapeError(GraphError):
    """Shapes or dtypes do not fit an op."""


class UnboundSymbolError(GraphError):
    """A symbolic dimension has no value."""


class ModelFormatError(SmeltError):
    """A model file cannot be read."""


class UnsupportedError(SmeltError):
    """Valid, but nothing here can run it. ``reasons`` holds one line for each node or candidate."""

    def __init__(self, message: str, *, reasons: Sequence[str] = ()) -> None:
        super().__init__(message, lines=[f"- {reason}" for reason in reasons])
        self.reasons = tuple(reasons)


class BuildError(SmeltError):
    """No engine can be built with these options."""


class EngineFormatError(SmeltError):
    """A serialised engine cannot be read."""


class EngineMismatchError(SmeltError):
    """A sound engine that was made for another machine or another smelt."""


class TrustError(SmeltError):
    """Machine code whose signer this user does not trust."""


class BindingError(SmeltError):
    """An array does not fit the binding it is given for."""


class IndexRangeError(SmeltError, IndexError):
    """An index or a length in the data that a network was run on is out of range."""

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(f"{node}: {message}" if node else message)
        self.message = message
        self.node = node


class ContextError(SmeltError):
    """An engine or an execution context is used wrongly."""


class DeviceError(SmeltError):
    """The driver or the device reported a failure."""


class MissingExtraError(SmeltError):
    """A package is not installed that not every machine needs."""

    def __init__(
        self, package: str, extra: str | None = None, *, advice: str = "", lead: str = ""
    ) -> None:
        """Say how to get the package.

        Args:
            package: its name on PyPI.
            extra: the extra that brings it; None for what comes with every whole installation.
            advice: what to do, where the usual is not all that there is.
            lead: what the message begins with: who needs the package.
        """
        usual = f"run: pip install {package}"
        if extra is not None:
            usual = (
                f"it is in smelt's extra {extra!r}: run pip install '{DISTRIBUTION}[{extra}]', or "
                f"pip install {package}"
            )
        super().__init__(f"{lead}{package} is not installed; {advice or usual}")
        self.package = package
        self.extra = extra
        self.advice = advice or usual

    @classmethod
    def from_import(cls, error: ModuleNotFoundError) -> MissingExtraError:
        """Say how to get the package whose module an import did not find."""
        module = (error.name or "a module").partition(".")[0]
        return cls(_PACKAGES.get(module, module))


class InternalError(_Told):
    """A broken invariant inside smelt: please report it."""

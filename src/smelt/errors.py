"""Exceptions that smelt raises, and functions that make names from files safe to display.

* SmeltError                 caused by input, model, option or machine; ``status`` has the
                             documented error code, if there is one
  - GraphError               the network is invalid; names the node
    - ShapeError             shapes or dtypes do not fit an op
    - UnboundSymbolError     a symbolic dimension has no value
  - ModelFormatError         a model file is malformed, truncated or hostile
  - UnsupportedError         a valid network that smelt cannot run; lists every reason
  - BuildError               no engine can be built with these options
  - EngineFormatError        a serialised engine is malformed, truncated or tampered with
  - EngineMismatchError      a valid engine for another machine or another version of smelt
  - TrustError               machine code that is not signed by a key that this user trusts
  - BindingError             an array given to an engine does not fit its binding
  - IndexRangeError          an index or a length in the data is out of range; also an IndexError
  - ContextError             an execution context or engine is misused, such as closed or busy
  - DeviceError              the driver or the device reported a failure
  - MissingExtraError        an optional package is not installed; says how to install it
* InternalError              a violated invariant of smelt, which is a bug; not a SmeltError

Messages contain names from untrusted models and engines. The functions that escape or mask such
names are therefore in this module too.

A message names arguments as they are written in Python, such as ``device='cpu'``. ``arguments`` of
the error has them as data, from which the command line shows its own options.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from unicodedata import category

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "DISTRIBUTION",
    "Argument",
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
    "arguments_of",
    "escape_controls",
    "sanitize_name",
    "remove_controls",
]

DISTRIBUTION: Final = "smelt-engine"
"""Name of smelt's package for pip. The package ``smelt`` on PyPI is an unrelated project."""

_PACKAGES: Final = {"google": "protobuf", "PIL": "pillow"}
"""Package name by module name, for modules whose package has another name."""


_MAX_SHOWN: Final = 1 << 15
"""Largest number of characters of a displayed message."""
_MASK: Final = "\ufffd"
"""Replacement for a character that must not be displayed."""
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0\U0001d159")
"""Printable characters that look blank. A name made of them could push text out of sight."""


def _is_shown(letter: str) -> bool:
    """Return whether a character may be displayed.

    Controls, format characters, surrogates and blank letters may not; spaces and tabs may.
    """
    if letter in _BLANK:
        return False
    return letter.isprintable() or letter == "\t" or category(letter) == "Zs"


def _replaced(line: str, replace: Callable[[str], str]) -> str:
    if line.isascii() and line.isprintable():
        return line
    return "".join(letter if _is_shown(letter) else replace(letter) for letter in line)


def remove_controls(text: str) -> str:
    """Return a text without characters that could control a terminal; line feeds are kept.

    Control characters, format characters (such as those that change the writing direction),
    surrogates and letters that look blank are replaced by the replacement character U+FFFD.
    """
    return "\n".join(_replaced(line, lambda _: _MASK) for line in text.split("\n"))


def sanitize_name(name: str) -> str:
    """Return a name from an untrusted file as one displayable line; see `remove_controls`.

    Line feeds and tabs are replaced as well.
    """
    return _replaced(name, lambda _: _MASK).replace("\t", _MASK)


def escape_controls(text: str) -> str:
    """Return equivalent JSON text in which `remove_controls` would replace nothing."""

    def escaped(letter: str) -> str:
        return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]

    return "\n".join(_replaced(line, escaped) for line in text.split("\n"))


class _SanitizedError(Exception):
    """Base of all errors; its text is safe to display, whatever names the message contains.

    ``str`` gives the message, followed by each of ``lines`` on a line of its own that is indented
    by two spaces. A line feed within the message or within one of ``lines`` comes from a name, and
    is masked. ``format``, and thus an f-string, gives a single line. The middle of a very long text
    is omitted.
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


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of `smelt.build` or `smelt.load` that a message advises or names.

    ``str`` gives its Python text: ``device='cpu'``, or ``shapes=`` without a value.
    """

    name: str
    value: bool | int | str | Mapping[str, Sequence[int]] | None = None

    def __str__(self) -> str:
        return f"{self.name}=" + ("" if self.value is None else repr(self.value))


class SmeltError(_SanitizedError):
    """Base of every error caused by input, model, option or machine."""

    status: int | None = None
    """Error code of the failure in the documentation that defines it, if any."""

    def __init__(
        self, message: str = "", *, lines: Sequence[str] = (), arguments: Sequence[Argument] = ()
    ) -> None:
        super().__init__(message, lines=lines)
        self.arguments = tuple(arguments)


def arguments_of(error: BaseException | None) -> tuple[Argument, ...]:
    """Return the arguments that an error and its causes name."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__
    return tuple(a for e in errors if isinstance(e, SmeltError) for a in e.arguments)


class _NodeError(SmeltError):
    """Base of the errors of one node. ``node`` is the name of the node, if known."""

    def __init__(
        self, message: str, *, node: str | None = None, arguments: Sequence[Argument] = ()
    ) -> None:
        super().__init__(f"{node}: {message}" if node else message, arguments=arguments)
        self.message = message
        self.node = node


class GraphError(_NodeError):
    """The network is invalid. ``node`` is the name of the node, if known."""


class ShapeError(GraphError):
    """Shapes or dtypes do not fit an op."""


class UnboundSymbolError(GraphError):
    """A symbolic dimension has no value."""


class ModelFormatError(SmeltError):
    """A model file cannot be read."""


class UnsupportedError(SmeltError):
    """The network is valid, but smelt cannot run it; ``reasons`` has a line for each cause."""

    def __init__(
        self, message: str, *, reasons: Sequence[str] = (), arguments: Sequence[Argument] = ()
    ) -> None:
        super().__init__(message, lines=[f"- {reason}" for reason in reasons], arguments=arguments)
        self.reasons = tuple(reasons)


class BuildError(SmeltError):
    """No engine can be built with these options."""


class EngineFormatError(SmeltError):
    """A serialised engine cannot be read."""


class EngineMismatchError(SmeltError):
    """A valid engine was built for another machine or by another version of smelt."""


class TrustError(SmeltError):
    """Machine code is not signed by a key that this user trusts."""


class BindingError(SmeltError):
    """An array does not fit its binding."""


class IndexRangeError(_NodeError, IndexError):
    """An index or a length in the input data of a network is out of range."""


class ContextError(SmeltError):
    """An engine or an execution context is misused, for example after it was closed."""


class DeviceError(SmeltError):
    """The driver or the device reported a failure."""


class MissingExtraError(SmeltError):
    """An optional package is not installed."""

    def __init__(
        self,
        package: str,
        extra: str | None = None,
        *,
        advice: str = "",
        lead: str = "",
        arguments: Sequence[Argument] = (),
    ) -> None:
        """Create the error with a message that says how to install the package.

        Args:
            package: name of the package on PyPI.
            extra: smelt's extra that includes the package; None for a required dependency.
            advice: what to do, instead of the usual command.
            lead: beginning of the message, which says what needs the package.
            arguments: arguments that ``advice`` names.
        """
        usual = f"run: pip install {package}"
        if extra is not None:
            usual = (
                f"it is in smelt's extra {extra!r}: run pip install '{DISTRIBUTION}[{extra}]', or "
                f"pip install {package}"
            )
        super().__init__(
            f"{lead}{package} is not installed; {advice or usual}", arguments=arguments
        )
        self.package = package
        self.extra = extra
        self.advice = advice or usual

    @classmethod
    def from_import(cls, error: ModuleNotFoundError) -> MissingExtraError:
        """Return the error for the package of a module that could not be imported."""
        module = (error.name or "a module").partition(".")[0]
        return cls(_PACKAGES.get(module, module))


class InternalError(_SanitizedError):
    """An invariant of smelt is violated. This is a bug; please report it."""

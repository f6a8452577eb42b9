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
  - ContextError             an execution context or engine is used wrongly: closed, busy
  - DeviceError              the driver or the device reported a failure
  - MissingExtraError        a package is not installed; says how to get it
* InternalError              a broken invariant of smelt itself: a bug, never caught with SmeltError
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BindingError",
    "BuildError",
    "ContextError",
    "DeviceError",
    "EngineFormatError",
    "EngineMismatchError",
    "GraphError",
    "InternalError",
    "MissingExtraError",
    "ModelFormatError",
    "ShapeError",
    "SmeltError",
    "TrustError",
    "UnboundSymbolError",
    "UnsupportedError",
]

_PACKAGES: Final = {"google": "protobuf", "PIL": "pillow"}
"""Modules whose package has another name."""


class SmeltError(Exception):
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
        super().__init__("\n  - ".join((message, *reasons)))
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
                f"smelt's extra {extra!r} brings it: run pip install '.[{extra}]' in smelt's "
                f"clone, or pip install {package}"
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


class InternalError(Exception):
    """A broken invariant inside smelt: please report it."""

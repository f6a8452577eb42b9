"""Handlers of signals that raise at a chosen point of a call, without any luck.

The interpreter looks for signals when a function begins and behind each call. A profiling function
is called at these points, too.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

POINTS = {"call", "c_return"}
"""A Python function begins; a function written in C has returned."""


class RaisingHandler:
    """A handler of a signal that raises errors which blocks expect, too, at a point of a call."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind
        self.raised: list[Exception] = []
        self.arrived: Exception | None = None
        """What the last call has raised."""
        self.lost: list[BaseException | None] = []
        """Errors that the interpreter has ignored, as it ignores those of finalizers."""

    def __call__(self, number: int, frame: Any) -> None:
        self.raised.append(self.kind("time is up"))
        raise self.raised[-1]

    def is_passed_on(self, call: Callable[[], object], point: int) -> bool | None:
        """Call, and raise at the given point; return whether it arrives, or None without one."""
        passed = 0
        self.forget()

        def look(frame: Any, event: str, argument: Any) -> None:
            nonlocal passed
            is_point = _is_point(frame, event)
            passed += is_point
            if passed == point and is_point:
                sys.setprofile(None)
                self(signal.SIGINT, frame)

        sys.setprofile(look)
        try:
            call()
        except Exception as error:  # noqa: BLE001  (which one is what the test asks)
            self.arrived = error
            return error in self.raised
        finally:
            sys.setprofile(None)
        return self.raised[0] in self.lost if self.raised else None

    def forget(self) -> None:
        """Drop all errors, as an application does behind its clause; they hold frames."""
        self.raised.clear()
        self.arrived = None

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Install the handler for a block, behind which no error and no frame of it is left."""
        old = signal.signal(signal.SIGINT, self)
        hook = sys.unraisablehook
        sys.unraisablehook = lambda ignored: self.lost.append(ignored.exc_value)
        try:
            yield
        finally:
            self.forget()
            gc.collect()  # warns of a file that was open, but not yet in the hands of its block
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, old)


def _is_point(frame: Any, event: str) -> bool:
    """Return whether a handler may raise; `logging` would keep its lock, and other threads wait."""
    return event in POINTS and frame.f_code.co_filename != logging.__file__


def points_of(call: Callable[[], object], most: int) -> list[int]:
    """Return the first point of a call at each place of its code, evenly thinned to ``most``."""
    places: dict[object, int] = {}
    passed = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal passed
        if _is_point(frame, event):
            passed += 1
            places.setdefault((event, frame.f_code, frame.f_lasti), passed)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    points = list(places.values())
    return points[:: -(-len(points) // most)]

"""Programs that wait for each other, interpreted: one runs at a time, until it has to wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 60.0


@dataclass(slots=True)
class Cluster:
    """The programs of a cluster, each in a thread of its own, of which one has the word."""

    size: int
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _speaker: int = 0
    _running: list[int] = field(default_factory=list[int])
    _in_vain: int = 0
    """Turns one after another in which a program saw that it has to wait on."""
    _errors: list[BaseException] = field(default_factory=list[BaseException])
    _own: threading.local = field(default_factory=threading.local)

    def run(self, program: Callable[[int], None], first: int) -> None:
        """Run every program from the ``first`` on to its end; raise what one of them raises."""
        self._running, self._speaker, self._in_vain = list(range(self.size)), 0, 0
        threads = [
            threading.Thread(target=self._run, args=(k, program, first)) for k in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in self._errors:
            raise error

    def _run(self, number: int, program: Callable[[int], None], first: int) -> None:
        self._own.number = number
        self._await_turn()
        try:
            if not self._errors:
                with np.errstate(all="ignore"):
                    program(first + number)
        except BaseException as error:  # noqa: BLE001  (raised again by who began)
            self._errors.append(error)
        with self._turn:
            after = self._next()
            self._running.remove(number)
            self._in_vain = 0
            self._speaker = after
            self._turn.notify_all()

    def _next(self) -> int:
        """Who comes after the one who speaks."""
        place = self._running.index(self._speaker)
        return self._running[(place + 1) % len(self._running)]

    def _await_turn(self) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._speaker == self._own.number, _PATIENCE_S)

    def let_others_go_on(self) -> None:
        """Give the word to the next program until it is this one's turn again."""
        with self._turn:
            self._in_vain += 1
            if self._errors or self._in_vain > len(self._running):
                raise RuntimeError("programs wait for each other, or for none that still runs")
            self._speaker = self._next()
            self._turn.notify_all()
        self._await_turn()

    def go_on(self) -> None:
        """Note that what the one who speaks waited for has come."""
        self._in_vain = 0

"""A few contexts of one engine, lent to whichever thread has something to run.

An interrupt may come between any two steps. So what says that a context is lent dies with the call
that has it: whatever a call leaves undone, the next one that looks finds the context free.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import ContextError
from smelt.types import require_int, reset_in_child

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.runtime._context import ExecutionContext
    from smelt.runtime._engine import Engine

_RECHECK_SECONDS: Final = 1.0
"""After an interrupt nobody may have woken those who wait."""


class _ContextLease:
    """Stands for one call that has a context."""

    __slots__ = ("__weakref__",)


_RETURNED: Final = weakref.ref(_ContextLease())


class ContextPool:
    """Makes contexts when they are needed, and keeps them until it is closed."""

    def __init__(self, engine: Engine) -> None:
        """Take the engine, whose pool this is.

        Contexts of the pool do not keep it alive, as others do: both would live until garbage is
        collected. Whoever calls its `run` does.
        """
        self._engine: Engine = weakref.proxy(engine)
        self._loans: dict[ExecutionContext, weakref.ref[_ContextLease]] = {}
        self._is_closed = False
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Forget who has a context, as a forked child must: its parent's threads are not here."""
        self._lock = threading.RLock()  # a signal handler may run the engine as well
        self._freed = threading.Condition(self._lock)
        self._loans = dict.fromkeys(self._loans, _RETURNED)

    def run(
        self, most: int, inputs: Mapping[str, Any], outputs: Iterable[str] | None
    ) -> dict[str, Any]:
        """Run in a free context, in a new one if there are fewer than ``most``, or wait for one.

        Raises:
            ContextError: ``most`` is not a positive number, or the pool is closed.
            SmeltError: what creating a context or the run itself raises.
        """
        most = require_int(most, "contexts", ContextError, least=1)
        loan = _ContextLease()
        context = self._lend(loan, most)
        try:
            return context.run(inputs, outputs)
        finally:
            self._take_back(context)

    def _lend(self, loan: _ContextLease, most: int) -> ExecutionContext:
        with self._lock:
            while not self._is_closed:
                loans = list(self._loans.items())  # a handler may add one meanwhile
                free = (context for context, known in loans if known() is None)
                context = next(free, None)
                if context is None and len(self._loans) < most:
                    context = self._engine.loaded_code.create_context(self._engine, None, None)
                if context is not None:
                    self._loans[context] = weakref.ref(loan)
                    return context
                self._freed.wait(_RECHECK_SECONDS)
        raise ContextError("this engine is closed; load it again")

    def _take_back(self, context: ExecutionContext) -> None:
        with self._lock:
            if self._is_closed:
                context.close()
            else:
                self._loans[context] = _RETURNED
                self._freed.notify()

    def close(self) -> None:
        """Close the contexts, those that are lent when they come back. Again is harmless."""
        with self._lock:
            self._is_closed = True
            for context, loan in self._loans.items():
                if loan() is None:
                    context.close()
            self._loans.clear()
            self._freed.notify_all()


def _reset(pool: ContextPool) -> None:
    """In a forked child: runs of the parent's other threads are not going on here."""
    pool.reset()


_pools = reset_in_child(_reset)

"""Pool of execution contexts of one engine, shared by the threads that call `Engine.run`.

An interrupt may occur between any two steps of a call. A lease is therefore a weak reference to an
object that lives as long as the call: whatever an interrupted call leaves undone, later calls find
its context free.
"""

from __future__ import annotations

import threading
import weakref
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import ContextError
from smelt.runtime._context import ExecutionContext
from smelt.runtime._plan_executor import create_executor
from smelt.signal_errors import suppress_own
from smelt.types import ForkLock, require_int, reset_in_child

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.runtime._engine import Engine

_RECHECK_SECONDS: Final = 1.0
"""Seconds between checks while waiting: an interrupted call may not have notified the waiters."""
_MAX_RETURNS: Final = 64
"""Largest number of returned contexts that are announced at once; further calls check again."""


class _ContextLease:
    """Token of one call that uses a context. Only the call's list refers to it."""

    __slots__ = ("__weakref__",)


_Leases = dict[ExecutionContext, tuple[weakref.ref[_ContextLease], int]]
"""Each context with the lease of its last call, and the call's thread."""
_RETURNED: Final = (weakref.ref(_ContextLease()), 0)


class ContextPool:
    """Creates contexts on demand and keeps them until the pool is closed."""

    def __init__(self, engine: Engine) -> None:
        """Create the pool of an engine.

        Contexts of the pool do not keep the engine alive, unlike others: the reference cycle would
        delay its release until garbage collection. The caller of `Engine.run` keeps it alive.
        """
        self._engine: Engine = weakref.proxy(engine)
        self._leases: _Leases = {}
        self._is_closed = False
        self._lock = ForkLock()
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Discard all leases in a forked child, where the parent's threads do not exist."""
        self._returns: SimpleQueue[None] = SimpleQueue()
        """An entry for each context that was returned while calls may wait for one."""
        self._leases = dict.fromkeys(self._leases, _RETURNED)

    def run(
        self, max_contexts: int, inputs: Mapping[str, Any], outputs: Iterable[str] | None
    ) -> dict[str, Any]:
        """Run in a free context; create one if there are fewer than ``max_contexts``, else wait.

        Raises:
            ContextError: ``max_contexts`` is not a positive number, or the pool is closed.
            SmeltError: any error of creating a context or of the run.
        """
        max_contexts = require_int(max_contexts, "contexts", ContextError, minimum=1)
        lease, context = [_ContextLease()], None
        try:
            context = self._acquire(lease, max_contexts)
            return context.run(inputs, outputs)
        finally:
            # The first step whatever has happened, and one call: the context is free even if an
            # interrupt comes next, and if somebody keeps its traceback and the frames in it.
            lease.clear()
            if context is not None:
                self._release(context)

    def _acquire(self, lease: list[_ContextLease], max_contexts: int) -> ExecutionContext:
        """Lease a free or new context, or wait for one."""
        thread = threading.get_ident()
        while not self._is_closed:
            with self._lock:
                leases = list(self._leases.items())  # a handler may add one meanwhile
                free = [context for context, (lease_ref, _) in leases if lease_ref() is None]
                context = free[0] if free else None
                if context is None and len(self._leases) < max_contexts:
                    context = ExecutionContext(self._engine, create_executor(self._engine))
                if context is not None:
                    self._leases[context] = weakref.ref(lease[0]), thread
                    return context
            if {user for _, (_, user) in leases} == {thread}:
                raise ContextError(
                    f"all contexts of the engine ({len(leases)}) are in use by this thread, in "
                    "calls that have not returned; pass a larger contexts= to run, or create a "
                    "context with create_context"
                )
            with suppress_own(Empty):
                self._returns.get(timeout=_RECHECK_SECONDS)
        raise ContextError("this engine is closed; load it again")

    def _release(self, context: ExecutionContext) -> None:
        """Close a context of a closed pool, whose lease has ended, or wake one waiting call."""
        if self._is_closed:
            context.close()
        self._wake()

    def _wake(self) -> None:
        """Wake one waiting call. Entries for which no call waits cost a call one more look."""
        if self._returns.qsize() < _MAX_RETURNS:
            self._returns.put(None)

    def close(self) -> None:
        """Close all contexts; leased ones are closed when they are returned. Idempotent."""
        with self._lock:
            self._is_closed = True
            for context, (lease_ref, _) in list(self._leases.items()):  # a handler may close too
                if lease_ref() is None:
                    context.close()
            self._leases.clear()
        for _ in range(_MAX_RETURNS):
            self._wake()


_pools = reset_in_child(ContextPool.reset)

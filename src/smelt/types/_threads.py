"""Threads: started, or refused in words where the system has no more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from smelt.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable


def start_thread(
    target: Callable[..., object], *arguments: Any, name: str | None = None
) -> threading.Thread:
    """Start a thread that ends with the process.

    Raises:
        DeviceError: the system starts no more; nothing of it is left.
    """
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise DeviceError(
            f"cannot start a thread: this process already has {threading.active_count()} "
            f"({error}); use fewer threads, or raise the limits on processes and memory "
            "(ulimit -u, ulimit -v)"
        ) from error
    return thread

"""Starting of threads, with an error that explains a refusal by the operating system."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from smelt.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable


def start_thread(
    target: Callable[..., object], *arguments: Any, name: str | None = None
) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        DeviceError: the operating system cannot start another thread.
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

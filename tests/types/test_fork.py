"""A lock that neither a handler nor a forked child waits for in vain."""

from __future__ import annotations

import os
import threading

import pytest

from smelt.types import ForkLock


def test_its_thread_may_take_it_again_and_another_waits() -> None:
    lock, order, waiting = ForkLock(), list[int](), threading.Event()

    def other() -> None:
        waiting.set()
        with lock:
            order.append(2)

    with lock, lock:
        thread = threading.Thread(target=other)
        thread.start()
        waiting.wait()
        order.append(1)
    thread.join()
    assert order == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, from 3.12
def test_a_forked_child_does_not_wait_for_a_thread_of_the_parent() -> None:
    lock, held, end = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        threading.Timer(60, os._exit, [1]).start()
        with lock:
            os._exit(0)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_is_forked_within_a_block_leaves_it() -> None:
    """A handler may fork anywhere; the child goes on in the block that was interrupted."""
    lock = ForkLock()
    status, child = 1, -1
    try:
        with lock:
            child = os.fork()
        status = 0 if not lock.is_held else 2
    finally:
        if child == 0:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0

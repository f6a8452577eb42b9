"""Threads whose start is one step, and a map over threads that may not come."""

from __future__ import annotations

import _thread
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from smelt.errors import DeviceError
from smelt.types import (
    BackgroundThread,
    Latch,
    _background_threads,  # pyright: ignore[reportPrivateUsage]
    parallel_map,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_thread_is_joined_when_it_has_ended() -> None:
    begin, done = Latch(), list[int]()

    def work() -> None:
        begin.wait()
        done.append(1)

    thread = BackgroundThread(work)
    assert thread.is_alive
    assert not thread.is_current
    thread.join(0.01)
    assert done == []
    begin.open()
    thread.join()
    assert (thread.is_alive, done) == (False, [1])
    assert thread.native_id not in (None, threading.get_native_id())


def test_a_latch_lets_all_through_once_it_is_open_and_none_before() -> None:
    latch, passed = Latch(), list[int]()

    def work() -> None:
        latch.wait()
        passed.append(1)

    threads = [BackgroundThread(work) for _ in range(4)]
    assert not latch.wait(0.02)
    assert passed == []
    latch.open()
    latch.open()
    for thread in threads:
        thread.join()
    assert len(passed) == 4
    assert latch.wait()


def test_results_are_in_the_order_of_the_items_whatever_the_threads() -> None:
    for threads in (1, 2, 7):
        assert parallel_map(lambda x: x * x, range(20), threads) == [x * x for x in range(20)]
    assert parallel_map(str, [], 3) == []


def test_the_first_error_is_raised_and_the_rest_is_left() -> None:
    calls: list[int] = []

    def fail(item: int) -> None:
        calls.append(item)
        time.sleep(0.001)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"\d"):
        parallel_map(fail, range(1000), 3)
    assert len(calls) < 10


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def _start_nothing(*_: object) -> int:
    """A thread that dies before its first instruction, as it does when memory is exhausted."""
    return 0


@pytest.mark.parametrize("start", [_refuse, _start_nothing])
def test_without_threads_the_caller_computes_all(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", start)
    assert parallel_map(lambda x: x + 1, range(5), 4) == [1, 2, 3, 4, 5]
    with pytest.raises(DeviceError, match="a thread cannot be started"):
        BackgroundThread(os.getpid)


def test_a_thread_that_begins_late_still_delivers_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller once returned without the item of a thread that had begun meanwhile."""
    start = _thread.start_new_thread

    def start_late(target: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            time.sleep(0.02)
            target(*arguments)

        return start(run, ())

    monkeypatch.setattr(_thread, "start_new_thread", start_late)

    def work(item: int) -> int:
        time.sleep(0.05)
        return item

    assert parallel_map(work, range(7), 3) == list(range(7))


@pytest.mark.parametrize("reason", ["slow", "forked", "interrupted"])
def test_a_thread_that_was_given_up_does_nothing_when_it_begins(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creator does not know it, and may free what it would work on."""
    start, begin, ended, calls = _thread.start_new_thread, Latch(), Latch(), list[int]()

    def start_late(target: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            begin.wait()
            target(*arguments)
            ended.open()

        return start(run, ())

    def interrupt(*_: object) -> NoReturn:
        raise InterruptedError

    monkeypatch.setattr(_thread, "start_new_thread", start_late)
    if reason == "slow":
        monkeypatch.setattr(_background_threads, "_START_LIMIT_S", -1.0)
    elif reason == "forked":
        monkeypatch.setattr(os, "getpid", iter(range(10**9)).__next__)
    else:
        monkeypatch.setattr(BackgroundThread, "_wait_for_begin", interrupt)
    error = InterruptedError if reason == "interrupted" else DeviceError
    with pytest.raises(error):
        BackgroundThread(calls.append, 1)
    begin.open()
    assert ended.wait(60)
    assert calls == []


def test_the_work_of_a_thread_is_known_to_run_when_the_thread_is_there() -> None:
    thread = BackgroundThread(list)
    assert thread.ident != 0
    assert thread.native_id is not None
    thread.join()

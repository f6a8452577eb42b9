"""Kernels are compiled in processes: what happens to one harms neither the others nor the build."""

from __future__ import annotations

import gc
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.engine import KernelSpec, Launch, View, parameters
from smelt.errors import BuildError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOPPER = CudaTarget(90)
_FAKE = """
import os, time
from smelt.backends.cuda._compiler_worker import DONE, READY, REFUSED, read_frame, write_frame
replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
write_frame(replies, READY)
while (asked := read_frame(sys.stdin.buffer)) is not None:
    text = json.loads(asked)[2]
    if text == "die":
        print("out of memory", flush=True)
        os._exit(3)
    if text == "hang":
        time.sleep(60)
    if text == "cut short":
        os.write(replies.fileno(), b"\\x08\\0\\0\\0+")
        os._exit(0)
    write_frame(replies, REFUSED + b"no" if text == "wrong" else DONE + text.encode())
"""


@pytest.fixture
def pool() -> Iterator[CompilerPool]:
    made = CompilerPool(2, seconds=5.0, program=_FAKE)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def triton() -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")


def _kernel(number: int = 0) -> KernelSpec:
    return KernelSpec("copy", parameters(number=number))


def _copies(count: int) -> list[KernelSpec]:
    """Kernels that compile: copies of various lengths."""
    backend = CudaBackend(jobs=1)
    views = [
        [View(buffer, 0, DType.FLOAT32, (256 * n,), (1,)) for buffer in range(2)]
        for n in range(1, count + 1)
    ]
    steps = [step for pair in views for step in backend.reformat(*pair)]
    return [step.kernel for step in steps if isinstance(step, Launch)]


def test_each_kernel_gets_its_own_answer(pool: CompilerPool) -> None:
    futures = [pool.submit(_kernel(n), f"text {n}", _HOPPER) for n in range(40)]
    assert [f.result(60) for f in futures] == [f"text {n}".encode() for n in range(40)]


def test_a_refused_kernel_harms_no_other(pool: CompilerPool) -> None:
    texts = ["one", "wrong", "two"]
    one, wrong, two = [pool.submit(_kernel(n), t, _HOPPER) for n, t in enumerate(texts)]
    assert (one.result(60), two.result(60)) == (b"one", b"two")
    with pytest.raises(BuildError, match="no"):
        wrong.result(60)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("die", r"ended with status 3\n  out of memory"), ("cut short", "ended with status")],
)
def test_a_compiler_that_dies_refuses_its_kernel_and_is_replaced(
    text: str, reason: str, pool: CompilerPool
) -> None:
    texts = [text, "one", text, text, "two"]
    futures = [pool.submit(_kernel(n), t, _HOPPER) for n, t in enumerate(texts)]
    assert (futures[1].result(60), futures[4].result(60)) == (b"one", b"two")
    for number in (0, 2, 3):
        with pytest.raises(BuildError, match=rf"copy_\w+ does not compile: .*{reason}"):
            futures[number].result(60)


def test_a_kernel_that_takes_forever_is_refused_and_the_next_compiles() -> None:
    pool = CompilerPool(1, seconds=2.0, program=_FAKE)
    hangs, after = pool.submit(_kernel(), "hang", _HOPPER), pool.submit(_kernel(1), "x", _HOPPER)
    with pytest.raises(BuildError, match="exceeded its time limit of 2 s"):
        hangs.result(60)
    assert after.result(60) == b"x"
    pool.close()


def test_closing_ends_what_runs_and_cancels_what_waits() -> None:
    pool = CompilerPool(1, program=_FAKE)
    pool.submit(_kernel(), "text", _HOPPER).result(60)
    hangs = pool.submit(_kernel(1), "hang", _HOPPER)
    waits = [pool.submit(_kernel(n), "text", _HOPPER) for n in range(2, 9)]
    while not hangs.running():
        time.sleep(0.01)
    pool.close()
    assert isinstance(hangs.exception(10), BuildError)
    assert all(f.cancelled() for f in waits)
    pool.close()


def test_where_no_process_starts_kernels_are_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/does/not/exist")
    backend = CudaBackend(jobs=2)
    assert backend.compile(_copies(1), _HOPPER).code


def test_records_do_not_depend_on_how_many_are_compiled_at_once_nor_on_the_order() -> None:
    kernels = _copies(3)
    one, many = CudaBackend(jobs=1), CudaBackend(jobs=3)
    many.precompile(kernels[::-1], _HOPPER)
    for kernel in kernels:
        assert one.records(kernel, _HOPPER) == many.records(kernel, _HOPPER)
    assert one.compile(kernels, _HOPPER) == many.compile(kernels, _HOPPER)


def test_what_does_not_compile_stays_out_of_the_way_until_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = CudaBackend(jobs=1)
    good, bad = _copies(2)
    generate = CudaBackend.generate

    def write(self: CudaBackend, kernel: KernelSpec, target: CudaTarget) -> str:
        if kernel == bad:
            return "def kernel(p0, p1):\n    nonsense(p0)\n"
        return generate(self, kernel, target)

    monkeypatch.setattr(CudaBackend, "generate", write)
    backend.precompile([bad, good], _HOPPER)
    assert backend.records(good, _HOPPER)
    with pytest.raises(BuildError, match="does not compile"):
        backend.compile([good, bad], _HOPPER)


def test_a_backend_that_nothing_refers_to_ends_its_pool_at_once() -> None:
    """The compiler's processes and folder must not wait for a collection of cycles."""
    gc.disable()
    try:
        backend = CudaBackend(jobs=1)
        pool = weakref.ref(backend.pool)
        del backend
        assert pool() is None
    finally:
        gc.enable()

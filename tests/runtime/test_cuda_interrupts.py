"""A run that is interrupted leaves nothing behind that the next one tells."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.devices.cpu import CpuMemory
from smelt.devices.cuda import CudaEvent, CudaStream
from smelt.engine import ERROR_BYTES
from smelt.errors import IndexRangeError
from smelt.runtime import Stream
from smelt.runtime._index_errors import ErrorWords
from tests.support.cuda_engines import StubGpuArray, affine_gpu_engine, empty_there
from tests.support.engines import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.runtime import Engine
    from tests.support.cuda_driver_stub import StubDriver


@pytest.fixture
def engine(stub: StubDriver) -> Iterator[Engine]:
    with affine_gpu_engine(stub) as found:
        yield found


@pytest.fixture
def words(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> ErrorWords:
    """The error words that the next context gets."""
    memory = CpuMemory().allocate(len(engine.header.layers) * ERROR_BYTES, "index error records")
    made = ErrorWords(memory, engine.header.layers)

    def give(*_: object) -> ErrorWords:
        return made

    monkeypatch.setattr("smelt.runtime._cuda_executor.error_words", give)
    return made


@pytest.mark.parametrize("place", ["wait", "check"])
@pytest.mark.parametrize("way", ["host", "gpu", "execute"])
def test_a_run_tells_nothing_of_one_that_was_interrupted(
    engine: Engine, words: ErrorWords, monkeypatch: pytest.MonkeyPatch, place: str, way: str
) -> None:
    """The words that its launches left were once the next run's error."""
    x, y = batch_of(2), empty_there(2)
    with engine.create_context() as context:

        def run() -> None:
            if way == "execute":
                context.execute(2, [x, y.array])
            else:
                context.run({"x": x if way == "host" else StubGpuArray(x).array})

        run()
        for _ in range(2):
            with monkeypatch.context() as patched:
                if place == "wait":
                    _replace_waits(patched, _interrupt)
                else:
                    patched.setattr(words, "check", _interrupt)
                with pytest.raises(KeyboardInterrupt):
                    run()
            _write_index_error(words)  # a launch that was still going on
            run()
        assert not words.are_set
        with monkeypatch.context() as patched:  # its own it does not miss

            def tell(_: object) -> None:
                _write_index_error(words)

            _replace_waits(patched, tell)
            with pytest.raises(IndexRangeError, match="7 is out of range"):
                run()
        run()


def test_what_a_queued_run_told_is_raised_after_an_interrupted_one_too(
    engine: Engine, words: ErrorWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = StubGpuArray(batch_of(2)), empty_there(2)
    with engine.create_context() as context, Stream("cuda") as stream:
        context.enqueue(2, [x.array, y.array], stream)
        with monkeypatch.context() as patched:
            patched.setattr(CudaStream, "synchronize", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                context.run({"x": batch_of(2)})
        _write_index_error(words)
        with pytest.raises(IndexRangeError, match="7 is out of range"):
            context.run({"x": batch_of(2)})
        context.run({"x": batch_of(2)})


def _replace_waits(patched: pytest.MonkeyPatch, by: Callable[..., None]) -> None:
    """Do something else where a run's end is waited for."""
    for kind in (CudaStream, CudaEvent):
        patched.setattr(kind, "synchronize", by)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _write_index_error(words: ErrorWords) -> None:
    """What a launch writes that meets an index out of range."""
    ctypes.memmove(words.address, np.array([7, ~4]).tobytes(), ERROR_BYTES)

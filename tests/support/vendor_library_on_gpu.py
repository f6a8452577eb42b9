"""Calls of NVIDIA's libraries on a real GPU: run again and again, alone and in whole engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends.cuda import CudaBackend
from smelt.devices.cuda import (
    LIBRARIES,
    CudaLaunch,
    CudaMemory,
    CudaRunList,
    CudaStream,
    KernelLoader,
    RunListGraph,
    call_to_bytes,
)
from smelt.engine import Launch
from smelt.errors import MissingExtraError
from smelt.types import DType
from tests.support.gpu import download, nothing_is_lost, upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import smelt
    from smelt.backends import Refusal, Tactic
    from smelt.devices.cuda import CudaDevice, LibraryCall, LoadedLibrary

Array = np.ndarray[Any, Any]
_ERRORS = {DType.FLOAT32: 1e-5, DType.FLOAT16: 2e-3, DType.BFLOAT16: 2e-2}
"""How far results may be from the right ones, relative to the largest."""
_POISON = 77
_RUNS = 8
_ROOM_BYTES = 256
"""A library wants its workspace at rounder addresses than memory has."""


def library_on(gpu: CudaDevice, provider: str) -> LoadedLibrary:
    """A library on a GPU; where it is not installed the test is skipped."""
    try:
        return LIBRARIES[provider].open(gpu, None)
    except MissingExtraError:
        pytest.skip("not installed: smelt-engine[cuda-libraries]")


def stored(array: Array, dtype: DType) -> Array:
    """Numbers as memory has them."""
    return array.astype(dtype.numpy)


def decoded(array: Array, dtype: DType) -> Array:
    """Numbers of memory as float32."""
    return array.view(dtype.numpy).astype(np.float32)


def runs_of(
    gpu: CudaDevice, call: LibraryCall, arrays: Sequence[Array], shape: Sequence[int]
) -> list[Array]:
    """Results of launches and, by turns, of a graph's, each into poisoned memory.

    Args:
        gpu: where.
        call: what is run.
        arrays: its operands but the result, as memory has them.
        shape: the result's extents as memory has them.
    """
    memory, result = CudaMemory(gpu), np.full(shape, _POISON, call.result.numpy)
    sizes = [a.nbytes for a in arrays] + [result.nbytes]
    sizes += [call.workspace_bytes + _ROOM_BYTES] * (call.workspace_bytes > 0)
    rooms = [memory.allocate(size, "call") for size in sizes]
    place = rooms[len(arrays)].address
    found: list[Array] = []
    with CudaStream(gpu) as stream:
        for room, array in zip(rooms, arrays, strict=False):
            upload(gpu, room.address, array, stream)
        loaded = KernelLoader(gpu).load(call_to_bytes(call))
        words = np.array([room.address for room in rooms], np.int64)
        rows = CudaRunList([CudaLaunch(loaded, len(words), 0)], words, [1])
        graph = RunListGraph(rows, stream)  # first of all: libraries load code when they are called
        for number in range(_RUNS):
            upload(gpu, place, result, stream)
            if number % 2:
                rows.launch_all(stream)
            else:
                graph.launch(stream)
            found.append(download(gpu, place, result.copy(), stream))
        graph.close()
    for room in rooms:
        room.close()
    return [decoded(array, call.result) for array in found]


def check_twice(gpu: CudaDevice, check: Callable[[], None]) -> None:
    """Check something, and that its second time leaves nothing on a GPU.

    What a library loads when it is first called it keeps.
    """
    check()
    with nothing_is_lost(gpu):
        check()


def fault_of(
    runs: Sequence[Array], wanted: Array, dtype: DType, bound: float | None = None
) -> str | None:
    """What is wrong with the results of runs, if anything is."""
    error = float(np.abs(runs[0] - wanted).max() / np.abs(wanted).max())
    if not error <= (bound or _ERRORS[dtype]):
        return f"an error of {error}"
    return None if all(np.array_equal(runs[0], run) for run in runs) else "runs differ"


def families(engine: smelt.Engine) -> set[str]:
    """The families of an engine's kernels."""
    (plan,) = engine.header.plans
    return {step.kernel.family for step in plan.steps if isinstance(step, Launch)}


def keep_apart(patch: pytest.MonkeyPatch) -> None:
    """Have no two nodes computed in one launch: no library does that."""

    def can_fuse_pair(*_nodes: object) -> bool:
        return False

    patch.setattr(CudaBackend, "can_fuse_pair", can_fuse_pair)


def prefer_families(patch: pytest.MonkeyPatch, *preferred: str) -> None:
    """Have backends offer nothing else where one of these families can do a node, its last first.

    The first of them that can do it is offered.
    """
    offered = CudaBackend.candidates

    def candidates(*arguments: Any) -> tuple[list[Tactic], list[Refusal]]:
        tactics, refusals = offered(*arguments)
        for name in preferred:
            if own := [tactic for tactic in tactics if tactic.family == name]:
                return own[::-1], refusals
        return tactics, refusals

    patch.setattr(CudaBackend, "candidates", candidates)

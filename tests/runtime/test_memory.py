"""What an engine takes: weights are mapped once for all, and no processor between two runs."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.runtime import Engine

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="only Linux tells how memory is shared"
)

EXTENT = 768
WEIGHT_BYTES = EXTENT * EXTENT * 4
INPUT = np.random.default_rng(0).standard_normal((1, EXTENT)).astype(np.float32)


@pytest.fixture(scope="module")
def built() -> Engine:
    """A network that is all weights."""
    network = smelt.NetworkDefinition("dense")
    random = np.random.default_rng(1)
    x = network.add_input("x", "float32", (1, EXTENT), batch="explicit")
    weights = random.standard_normal((EXTENT, EXTENT)).astype(np.float32)
    network.mark_output(network.add_fully_connected(x, EXTENT, weights, None))
    return smelt.build(network, tune="none")


@pytest.fixture(scope="module")
def saved(built: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("engine") / "dense.engine"
    built.save(file)
    return file


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def _mapping(process: str, file: Path) -> dict[str, int]:
    """Bytes of each kind in a process's mappings of a file, and whether any may be written."""
    found: dict[str, int] = {"writable": 0}
    inside = False
    with Path(f"/proc/{process}/smaps").open() as rows:
        for row in rows:
            if "-" in row.split(" ", 1)[0]:
                inside = row.rstrip().endswith(str(file))
                found["writable"] += inside and "w" in row.split()[1]
            elif inside and row.split()[-1] == "kB":
                name, size, _ = row.split()
                found[name[:-1]] = found.get(name[:-1], 0) + int(size) * 1024
    return found


def _own_bytes() -> int:
    """Memory of this process that no file stands behind."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon"))


def _used_contexts(engine: Engine, count: int) -> Iterator[float]:
    for _ in range(count):
        context = engine.create_context(threads=1)
        yield float(next(iter(context.run({"x": INPUT}).values())).sum())


def test_contexts_of_an_engine_in_memory_share_one_copy_of_its_weights(built: Engine) -> None:
    first = list(_used_contexts(built, 1))
    before = _own_bytes()
    contexts = [built.create_context(threads=1) for _ in range(8)]
    answers = [float(next(iter(c.run({"x": INPUT}).values())).sum()) for c in contexts]
    assert answers == first * 8
    assert _own_bytes() - before < WEIGHT_BYTES


def test_a_saved_engine_takes_no_memory_for_weights_but_its_file(saved: Path) -> None:
    before = _own_bytes()
    with smelt.load(saved, mapped=True) as engine:
        contexts = [engine.create_context(threads=1) for _ in range(4)]
        for context in contexts:
            context.run({"x": INPUT})
        mapped = _mapping("self", saved)
    assert _own_bytes() - before < WEIGHT_BYTES / 2
    assert mapped["Rss"] >= WEIGHT_BYTES
    assert (mapped["writable"], mapped["Anonymous"], mapped["Private_Dirty"]) == (0, 0, 0)


def test_a_saved_engine_is_kept_in_large_pages_where_the_system_can(
    saved: Path, tmp_path: Path
) -> None:
    """It can when it does so for a file that is mapped right after it has left the cache."""
    plain = tmp_path / "plain"
    plain.write_bytes(saved.read_bytes())
    wanted = 0
    with plain.open("rb") as file, contextlib.suppress(AttributeError):
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view.madvise(mmap.MADV_HUGEPAGE)
        assert any(view)
        wanted = _mapping("self", plain)["FilePmdMapped"]
    with smelt.load(saved, mapped=True) as engine:
        assert int(engine.loaded_code.weights.bytes[::4096].sum()) > 0
        assert _mapping("self", saved)["FilePmdMapped"] >= wanted


def test_processes_share_the_weights_of_one_file(saved: Path) -> None:
    program = (
        "import sys, time, numpy as np, smelt\n"
        "context = smelt.load(sys.argv[1], mapped=True).create_context(threads=1)\n"
        f"context.run({{'x': np.zeros((1, {EXTENT}), np.float32)}})\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(saved)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment())
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            mapped = _mapping(str(process.pid), saved)
            assert mapped["Rss"] >= WEIGHT_BYTES
            # Each counts for half of what both have.
            assert mapped["Pss"] <= 0.6 * mapped["Rss"]
            assert mapped["Private_Dirty"] == 0
        for process in processes:
            process.kill()


def test_no_worker_works_between_two_runs(built: Engine) -> None:
    with built.create_context(threads=4) as context:
        for _ in range(20):
            context.run({"x": INPUT})
        time.sleep(0.01)
        before = time.process_time()
        time.sleep(0.3)
        used = time.process_time() - before
    assert used < 0.01


def test_an_engine_that_is_trusted_loads_no_compiler_and_no_op(saved: Path) -> None:
    program = (
        "import sys, smelt\n"
        "smelt.load(sys.argv[1]).create_context(threads=1)\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('smelt.')}\n"
        "print(sorted(rooms & {'backends', 'importers', 'ops', 'passes', 'tuner'}))\n"
    )
    command = [sys.executable, "-c", program, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout == "[]\n"

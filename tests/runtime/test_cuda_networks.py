"""Networks built for a GPU, run whole by the runtime's own code on a driver without one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[subprocess.Popen[str]]:
    """A process in which Triton interprets kernels."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels' language is not installed: the extra cuda-build")
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.cuda_networks"],
        cwd=_ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as made:  # its end closes the process's input, which ends it
        yield made


@pytest.mark.parametrize(
    "network",
    [
        "small",
        "small in float16",
        "branches",
        "inception",
        "python",
        "partitions",
        "libraries",
        "bottlenecks",
        "differences",
        "indices",
    ],
)
@pytest.mark.slow
def test_a_network_computes_on_a_gpu_what_its_references_do(
    network: str, interpreter: subprocess.Popen[str]
) -> None:
    assert interpreter.stdin is not None
    assert interpreter.stdout is not None
    print(network, file=interpreter.stdin, flush=True)
    answer = interpreter.stdout.readline()
    assert answer, "the interpreter ended; its message stands above"
    wrong = json.loads(answer)
    assert not wrong, wrong

"""A process whose GPUs are interpreted: it runs functions as if there were two GPUs.

``TRITON_INTERPRET=1 python -m tests.support.host_gpu MODULE`` reads the names of functions of the
module and answers with what they raise.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from smelt.builder._cuda_toolchain import CudaToolchain
from smelt.tuner import CostModelTimer
from tests.support.cuda_networks import InterpretedGpu

if TYPE_CHECKING:
    from smelt.builder._toolchain import TunedGraph

_ROOT = Path(__file__).resolve().parents[2]


class HostGpu:
    """A process with GPUs that are not there."""

    def __init__(self, module: str) -> None:
        """Start it; it runs functions of a module."""
        paths = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host_gpu", module],
            cwd=_ROOT,
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str) -> None:
        """Run a function; fail with what it raises."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the process ended in {name}; its message stands above"
        wrong = cast("str", json.loads(answer))
        assert not wrong, wrong

    def close(self) -> None:
        """End the process."""
        with self.process:  # closes its input, which ends it
            pass


def _estimate(*_: object) -> CostModelTimer:
    """What an interpreter takes says nothing, and takes long."""
    return CostModelTimer()


def _leave(_self: object, draft: TunedGraph, _spent_s: float) -> TunedGraph:
    others = draft.alternatives
    return draft if others is None else others.by_estimates(draft)


def main() -> None:
    """Answer each line with a line of JSON: nothing, or a traceback."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what scenarios print must not get among the replies
    module = importlib.import_module(sys.argv[1])
    with pytest.MonkeyPatch.context() as patch:
        InterpretedGpu().install(patch)
        patch.setattr(CudaToolchain, "timer", _estimate)
        patch.setattr(CudaToolchain, "tune_in_network", _leave)
        for line in sys.stdin:
            wrong = ""
            try:
                getattr(module, line.strip())()
            except BaseException:  # noqa: BLE001  (told to the process that asked)
                wrong = traceback.format_exc()
            print(json.dumps(wrong), file=replies, flush=True)


if __name__ == "__main__":
    main()

"""GPUs that are not there: the driver stub, whose kernels Triton interprets on the host's memory.

Everything of a build and of a run happens but the compiling, which leaves a kernel's name where its
machine code would be. Triton interprets only where that is said before it is first imported, so a
process of its own runs scenarios: ``TRITON_INTERPRET=1 python -m tests.support.host_gpu MODULE``
reads the names of functions of the module and answers with what they raise.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from smelt.backends.cuda import CompilerPool, CudaBackend
from smelt.devices.cuda import CudaKernel, Driver
from tests.support.cuda_driver_stub import StubDriver, code_for
from tests.support.triton_interpreter import interpret

if TYPE_CHECKING:
    from smelt.backends.cuda import CudaTarget
    from smelt.engine import KernelSpec

_ROOT = Path(__file__).resolve().parents[2]
_SCRATCH_WORDS = 2
_SIGN = 1 << 63


def install(devices: int = 2) -> StubDriver:
    """Let this process have GPUs; streams do their work as late as they may."""
    stub = StubDriver(devices=devices, lazy=True)
    drivers: Any = importlib.import_module("smelt.devices.cuda._driver")
    drivers._drivers[0] = Driver(stub)
    backend = CudaBackend()

    def submit(
        _pool: CompilerPool, kernel: KernelSpec, text: str, target: CudaTarget
    ) -> Future[bytes]:
        del text
        stub.kernels[kernel.symbol] = partial(_run, backend, kernel)
        stub.words[kernel.symbol] = _words_of(kernel) + _SCRATCH_WORDS
        code = code_for(target.architecture, kernel.symbol)
        made = CudaKernel(kernel.symbol, code, 128, 0, _SCRATCH_WORDS)
        done = Future[bytes]()
        done.set_result(made.to_bytes())
        return done

    pool: Any = CompilerPool
    pool.submit = submit
    return stub


def _words_of(kernel: KernelSpec) -> int:
    return len(kernel["dtypes"]) + int(kernel["scalars"])


def _run(backend: CudaBackend, kernel: KernelSpec, words: list[int], blocks: int) -> None:
    count = len(kernel["dtypes"])
    scalars = [w - 2 * _SIGN if w & _SIGN else w for w in words[count : _words_of(kernel)]]
    interpret(backend, kernel, words[:count], scalars, blocks)


class HostGpu:
    """A process with GPUs that are not there."""

    def __init__(self, module: str) -> None:
        """Start it; it runs functions of a module."""
        paths = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host_gpu", module],
            cwd=_ROOT,
            env=os.environ
            | {
                "TRITON_INTERPRET": "1",
                "PYTHONPATH": os.pathsep.join(paths),
                "SMELT_CACHE_DIR": "",  # a cache would have real machine code
            },
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


def main() -> None:
    """Answer each line with a line of JSON: nothing, or a traceback."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what scenarios print must not get among the replies
    install()
    module = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        wrong = ""
        try:
            getattr(module, line.strip())()
        except BaseException:  # noqa: BLE001  (told to the process that asked)
            wrong = traceback.format_exc()
        print(json.dumps(wrong), file=replies, flush=True)


if __name__ == "__main__":
    main()

"""Measure what it costs that a step waits for every worker: a run list of equal small steps.

A step has a chunk of a quarter of a microsecond for each worker. Its time, less that of a chunk on
a thread that has nobody to wait for, is what handing over and waiting take.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.results import numbers, parser_for, write_fused_kernel
from smelt.backends.cpu import compile_ir, compile_runtime, host_target, link
from smelt.devices.cpu import (
    CpuMemory,
    MappedCode,
    RunList,
    RunListRow,
    Scratch,
    native_runtime,
    worker_pool,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEPS: Final = 2000
"""So many that a worker that has to wake up first is there for most of them."""
_CHUNK: Final = """
define void @spin(ptr %words, i64 %begin, i64 %end, ptr %scratch) {
entry:
 %chunks = sub i64 %end, %begin
 %rounds = mul i64 %chunks, 4000
 br label %body
body:
 %i = phi i64 [0, %entry], [%next, %body]
 %read = load volatile i64, ptr %scratch
 %next = add i64 %i, 1
 %more = icmp ult i64 %next, %rounds
 br i1 %more, label %body, label %done
done:
 ret void
}
"""


def step_times(threads: int, runs: int) -> tuple[float, float]:
    """Return the microseconds a step, in the shortest run and in the middlemost."""
    target, memory = host_target(), CpuMemory()
    image, symbols = link([compile_ir(_CHUNK, target)])
    code = MappedCode(image)
    function = code.address + dict(symbols)["spin"]
    rows = [RunListRow(function, 0, before) for before in range(_STEPS)]
    scratch = Scratch(memory, 64, threads)
    loops = compile_runtime(target)
    runtime = native_runtime(loops.code, dict(loops.symbols))
    steps = RunList(rows, runtime, worker_pool(), memory, threads=threads, scratch=scratch)
    steps.set_chunks([threads] * _STEPS)
    times: list[float] = []
    for _ in range(runs):
        begin = time.perf_counter()
        steps.run()
        times.append((time.perf_counter() - begin) * 1e6 / _STEPS)
    steps.close()
    scratch.close()
    return min(times), statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure with each number of threads and write the rows."""
    parser = parser_for(__doc__)
    parser.add_argument("--threads", type=numbers, default=[2])
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args(arguments)
    alone = step_times(1, options.runs)
    print(f"a chunk takes {alone[0]:.3f} µs at best, {alone[1]:.3f} in the middle")
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        best, middle = step_times(threads, options.runs)
        waits = best - alone[0], middle - alone[1]
        print(f"{threads} threads: a barrier {waits[0]:.3f} µs, {waits[1]:.3f} in the middle")
        rows.append(
            {"threads": threads, "best_us": round(waits[0], 4), "median_us": round(waits[1], 4)}
        )
        write_fused_kernel(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

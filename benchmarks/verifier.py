"""Measure how long the plan verifier takes for plans of very many steps, in seconds.

An engine file chooses how many steps there are, whether they wait for each other, and what they
touch. Twice the steps are to take about twice the time, whatever they are.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.results import numbers, parser_for, write_fused_kernel
from smelt.engine import (
    Buffer,
    EngineHeader,
    Fingerprint,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    Space,
    View,
    verify_plan,
)
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SIZES: Final = (1000, 2000, 4000, 8000, 16000, 32000)
_LINE: Final = 64


def _window(buffer: int, offset: int, size: int) -> View:
    return View(buffer, offset, DType.UINT8, (size,), (1,))


def _launch(read: View, written: View, *, waits: bool) -> Launch:
    return Launch(KernelSpec("any", ()), (read, written), (1,), waits=waits)


def _plan(buffers: Sequence[Buffer], steps: Sequence[Launch]) -> Plan:
    room = max(buffer.start + buffer.size_bytes for buffer in buffers)
    return Plan((), tuple(buffers), tuple(steps), room, 0)


def side_by_side(count: int) -> Plan:
    """Return steps that never wait: all read one buffer, and each writes one of its own."""
    shared = _LINE * count
    buffers = [Buffer(Space.ARENA, 0, shared)]
    buffers += [Buffer(Space.ARENA, shared + _LINE * i, _LINE) for i in range(count)]
    steps = [
        _launch(_window(0, 0, shared), _window(i + 1, 0, _LINE), waits=i == 0) for i in range(count)
    ]
    return _plan(buffers, steps)


def one_behind_the_other(count: int) -> Plan:
    """Return steps of which each waits, and takes the room of the one before the last."""
    buffers = [Buffer(Space.ARENA, _LINE * (i % 2), _LINE) for i in range(count)]
    windows = [_window(i, 0, _LINE) for i in range(count)]
    steps = [Launch(KernelSpec("any", ()), (windows[0],), (0,))]
    steps += [_launch(a, b, waits=True) for a, b in itertools.pairwise(windows)]
    return _plan(buffers, steps)


def in_pieces(count: int) -> Plan:
    """Return steps that write a buffer in pieces with gaps between, and each read all of it."""
    whole = 2 * _LINE * count
    other = Buffer(Space.ARENA, whole, _LINE)
    steps = [
        _launch(_window(1, 0, _LINE), _window(0, 2 * _LINE * i, _LINE), waits=True)
        for i in range(count)
    ]
    steps += [_launch(_window(0, 0, whole), _window(1, 0, _LINE), waits=True)] * count
    return _plan([Buffer(Space.ARENA, 0, whole), other], steps)


PLANS: Final[dict[str, Callable[[int], Plan]]] = {
    "side by side": side_by_side,
    "one behind the other": one_behind_the_other,
    "in pieces": in_pieces,
}


def seconds_for(plan: Plan) -> float:
    """Return how long the plan is verified. Raises EngineFormatError: it is not sound."""
    fingerprint = Fingerprint("cpu", "any", (), "linux", 0, "0")
    layers = (LayerInfo("layer", "any", "any"),)
    header = EngineHeader("verified", fingerprint, (), None, (plan,), layers, ())
    start = time.perf_counter()
    verify_plan(header, plan, weights_bytes=0)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each plan and size."""
    parser = parser_for(__doc__)
    parser.add_argument("--steps", type=numbers, default=_SIZES, help="numbers of steps")
    options = parser.parse_args(arguments)
    rows: list[dict[str, object]] = []
    for name, make in PLANS.items():
        for count in options.steps:
            seconds = seconds_for(make(count))
            rows.append({"plan": name, "steps": count, "seconds": seconds})
            print(f"{name:24}{count:8}{seconds:10.2f} s")
    write_fused_kernel(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

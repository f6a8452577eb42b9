"""Prove that a long run on a GPU is right and loses nothing: two streams, changing batches.

One engine, two contexts, each with a stream of its own and many inferences in flight. Every output
is compared with what the same batch gave alone, bit for bit; free memory of the GPU and memory of
the process must be at the end what they were after the first rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.models import reference_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

_MOST: Final = 8
"""The largest batch."""
_INPUTS: Final = 8
"""Different inputs of each batch."""
_IN_FLIGHT: Final = 64
"""Inferences of one stream that are queued before anything is waited for."""
_SLACK_BYTES: Final = 8 << 20


@dataclass(slots=True)
class _InFlightRequest:
    """Where one inference in flight writes its outputs."""

    memory: Any
    batch: int = 0
    chosen: int = 0


class _StreamWorker:
    """A context with a stream, and its inferences in flight."""

    def __init__(self, soak: Soak, seed: int) -> None:
        self.soak = soak
        self.stream = soak.smelt.Stream(soak.device_name)
        self.raw = soak.cuda.CudaStream(soak.device, self.stream)
        self.context = soak.engine.create_context()
        self.slots = [
            _InFlightRequest(soak.allocate(soak.output_bytes(_MOST))) for _ in range(soak.in_flight)
        ]
        self._random = np.random.default_rng(seed)

    def queue(self) -> None:
        """Queue as many inferences as there are slots."""
        for slot in self.slots:
            slot.batch = int(self._random.integers(1, _MOST + 1))
            slot.chosen = int(self._random.integers(_INPUTS))
            source = self.soak.inputs[slot.batch, slot.chosen]
            addresses = self.soak.bindings(source.address, slot.memory.address)
            self.context.enqueue(slot.batch, addresses, self.stream)

    def check(self) -> int:
        """Wait for them; return how many are wrong."""
        found: list[Array] = []
        for slot in self.slots:
            array = np.empty(self.soak.output_bytes(slot.batch), np.uint8)
            place = int(array.ctypes.data)
            size = array.nbytes
            self.soak.cuda.copy_memory(self.soak.device, place, slot.memory.address, size, self.raw)
            found.append(array)
        self.raw.synchronize()
        pairs = zip(self.slots, found, strict=True)
        return sum(not np.array_equal(a, self.soak.wanted[s.batch, s.chosen]) for s, a in pairs)


class Soak:
    """An engine with one input and one output, its inputs on the GPU and the right answers."""

    def __init__(self, engine: Any, device_name: str, in_flight: int = _IN_FLIGHT) -> None:
        """Put inputs on the GPU, and compute each answer alone."""
        self.smelt = cast("Any", importlib.import_module("smelt"))
        self.cuda = cast("Any", importlib.import_module("smelt.devices.cuda"))
        self.engine, self.device_name, self.in_flight = engine, device_name, in_flight
        self.device = self.cuda.selected_device()
        self._memory = self.cuda.CudaMemory(self.device)
        (binding,), (result,) = engine.inputs, engine.outputs
        self._input = engine.binding_index(binding.name)
        self._shape, self._result_shape = (tuple(b.shape[1:]) for b in (binding, result))
        self.inputs: dict[tuple[int, int], Any] = {}
        self.wanted: dict[tuple[int, int], Array] = {}
        random = np.random.default_rng(0)
        with engine.create_context() as context, self.cuda.CudaStream(self.device) as stream:
            for batch in range(1, _MOST + 1):
                for chosen in range(_INPUTS):
                    shape = (batch, *map(int, self._shape))
                    array = random.standard_normal(shape).astype(np.float32)
                    (made,) = context.run({binding.name: array}).values()
                    self.wanted[batch, chosen] = made.reshape(-1).view(np.uint8).copy()
                    there = self.allocate(array.nbytes)
                    source = int(array.ctypes.data)
                    self.cuda.copy_memory(self.device, there.address, source, array.nbytes, stream)
                    stream.synchronize()
                    self.inputs[batch, chosen] = there

    def allocate(self, size_bytes: int) -> Any:
        """Memory of the GPU."""
        return self._memory.allocate(size_bytes, "soak")

    def output_bytes(self, batch: int) -> int:
        """Size of the output of a batch."""
        return 4 * batch * int(np.prod([int(extent) for extent in self._result_shape]))

    def bindings(self, source: int, target: int) -> list[int]:
        """Addresses in the order of the bindings."""
        return [source, target] if self._input == 0 else [target, source]

    def run(self, count: int, seconds: float) -> dict[str, Any]:
        """Run so many inferences, or as many as the time allows; return what there is to say."""
        lanes = [_StreamWorker(self, seed) for seed in (1, 2)]
        done = wrong = 0
        first: tuple[int, int] | None = None
        begin = time.monotonic()
        while done < count and time.monotonic() - begin < seconds:
            for lane in lanes:
                lane.queue()
            wrong += sum(lane.check() for lane in lanes)
            done += sum(len(lane.slots) for lane in lanes)
            if first is None and (done >= count // 20 or len(self.wanted) <= done):
                first = self._memory_now()
        last = self._memory_now()
        first = first or last
        taken = time.monotonic() - begin
        for lane in lanes:
            lane.context.close()
        return {
            "inferences": done,
            "wrong": wrong,
            "seconds": round(taken, 2),
            "gpu_bytes_lost": first[0] - last[0],
            "host_bytes_gained": last[1] - first[1],
        }

    def _memory_now(self) -> tuple[int, int]:
        """Free bytes of the GPU, resident bytes of the process."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return self.device.free_bytes, pages * 4096


def is_good(found: dict[str, Any], count: int) -> bool:
    """Whether all were run, all are right, and memory is flat."""
    flat = max(found["gpu_bytes_lost"], found["host_bytes_gained"]) <= _SLACK_BYTES
    return found["inferences"] >= count and not found["wrong"] and flat


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak LeNet and print one line of JSON for each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inferences of each precision")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each precision at most")
    parser.add_argument("--precision", default="float32,float16", help="separated by commas")
    # Untuned, no launch starts before the one before has ended: that would prove less.
    parser.add_argument("--tune", default="fast", help="tuning effort")
    options = parser.parse_args(arguments)
    smelt = cast("Any", importlib.import_module("smelt"))
    folder = reference_folder() / "lenet_bvlc"
    failed = False
    for precision in options.precision.split(","):
        network, _ = smelt.network_from_caffe(
            folder / "lenet.prototxt", folder / "lenet_iter_10000.caffemodel"
        )
        engine = smelt.build(
            network, device="cuda", precision=precision, max_batch_size=_MOST, tune=options.tune
        )
        found = Soak(engine, "cuda").run(options.count, options.seconds)
        failed |= not is_good(found, options.count)
        print(json.dumps({"precision": precision, **found}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Where does the time of GoogLeNet go? Build it, run it, and see each layer's share.

usage: python profile_layers.py [--size PIXELS] [--batch N] [--iterations N] [--layers] …

The weights are random, of a fixed seed: layers take the same time whatever they have learnt.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import smelt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from smelt.network import Tensor

MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Filters of each inception module: 1x1; 3x3 and what leads to it; 5x5 likewise; behind pooling."""
CLASSES = 1000
MOVES = ("halo", "reformat")
"""Steps that only move or clear memory."""


class GoogLeNet:
    """The network, layer by layer. Source: Szegedy et al., "Going deeper with convolutions"."""

    def __init__(self, size: int) -> None:
        self.network = smelt.NetworkDefinition("googlenet")
        self.random = np.random.default_rng(2014)
        self.network.mark_output(self.head(self.body(self.stem(size))))

    def numbers(self, *shape: int) -> NDArray[np.float32]:
        """Weights that keep signals about as large as they come in."""
        scale = np.float32((2 / np.prod(shape[1:])) ** 0.5)
        return self.random.standard_normal(shape, np.float32) * scale

    def conv(self, x: Tensor, name: str, count: int, extent: int, stride: int = 1) -> Tensor:
        """A convolution and its ReLU, two layers until the build makes them one."""
        channels = int(str(x.shape[0]))
        weights = self.numbers(count, channels, extent, extent)
        bias = np.full(count, 0.1, np.float32)
        padding = extent // 2
        y = self.network.add_convolution(
            x, count, extent, weights, bias, stride=stride, padding=padding, name=name
        )
        return self.network.add_activation(y, "relu", name=f"{name}/relu")

    def pool(self, x: Tensor, name: str, stride: int = 2) -> Tensor:
        """The largest of each 3 by 3 elements; rounding up, as Caffe does."""
        return self.network.add_pooling(
            x, "max", 3, stride=stride, padding=2 - stride, ceil_mode=True, name=name
        )

    def stem(self, size: int) -> Tensor:
        """What stands before the modules."""
        x = self.network.add_input("data", "float32", (3, size, size))
        x = self.pool(self.conv(x, "conv1", 64, 7, stride=2), "pool1")
        x = self.network.add_lrn(x, 5, 1e-4, 0.75, 1.0, name="norm1")
        x = self.conv(self.conv(x, "conv2/reduce", 64, 1), "conv2", 192, 3)
        x = self.network.add_lrn(x, 5, 1e-4, 0.75, 1.0, name="norm2")
        return self.pool(x, "pool2")

    def body(self, x: Tensor) -> Tensor:
        """The nine modules, with pooling after the second and the seventh."""
        for name, filters in MODULES.items():
            x = self.module(x, f"inception_{name}", filters)
            if name in ("3b", "4e"):
                x = self.pool(x, f"pool{int(name[0])}")
        return x

    def module(self, x: Tensor, name: str, filters: tuple[int, ...]) -> Tensor:
        """Four branches, joined along the channels."""
        ones, lead3, threes, lead5, fives, behind = filters
        return self.network.add_concatenation(
            [
                self.conv(x, f"{name}/1x1", ones, 1),
                self.conv(self.conv(x, f"{name}/3x3_reduce", lead3, 1), f"{name}/3x3", threes, 3),
                self.conv(self.conv(x, f"{name}/5x5_reduce", lead5, 1), f"{name}/5x5", fives, 5),
                self.conv(self.pool(x, f"{name}/pool", stride=1), f"{name}/pool_proj", behind, 1),
            ],
            name=f"{name}/output",
        )

    def head(self, x: Tensor) -> Tensor:
        """Means of all pixels, classes, odds."""
        window = (int(str(x.shape[1])), int(str(x.shape[2])))
        x = self.network.add_pooling(x, "average", window, name="mean")
        channels = int(str(x.shape[0]))
        x = self.network.add_fully_connected(
            x, CLASSES, self.numbers(CLASSES, channels), name="classifier"
        )
        return self.network.add_softmax(x, name="prob")


class LayerTimes:
    """A profiler: it adds up the times of each layer over all iterations."""

    def __init__(self) -> None:
        self.milliseconds: defaultdict[str, float] = defaultdict(float)

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Take one layer's time in one run."""
        self.milliseconds[name] += milliseconds


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds, all of them means over the iterations."""

    layers: dict[str, float]
    profiled: float
    plain: float


def measure(engine: smelt.Engine, batch: int, size: int, iterations: int, threads: int) -> Measured:
    """Run with the profiler attached, and again without it."""
    data = np.random.default_rng(0).random((batch, 3, size, size), np.float32)
    odds = np.zeros((batch, CLASSES, 1, 1), np.float32)
    bindings = [data, odds]  # the engine's order: inputs, then outputs
    profiler = LayerTimes()
    with engine.create_context(threads=threads or None) as context:
        context.execute(batch, bindings)  # the first run warms the caches up
        context.profiler = profiler
        profiled = _mean_ms(lambda: context.execute(batch, bindings), iterations)
        context.profiler = None
        plain = _mean_ms(lambda: context.execute(batch, bindings), iterations)
    if not np.allclose(odds.sum(1), 1, atol=1e-3):
        raise SystemExit("the odds do not add up to one")
    means = {name: total / iterations for name, total in profiler.milliseconds.items()}
    return Measured(means, profiled, plain)


def _mean_ms(run: Callable[[], None], iterations: int) -> float:
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    return 1000 * (time.perf_counter() - start) / iterations


def print_counts(network: smelt.NetworkDefinition, engine: smelt.Engine) -> None:
    """Print how many layers there are before and after the build, by kind."""
    before = Counter(layer.kind for layer in network.layers)
    moving = Counter(layer.kind for layer in engine.layers if layer.kind in MOVES)
    after = Counter(
        layer.tactic.partition("(")[0] for layer in engine.layers if layer.kind not in MOVES
    )
    print(f"layers before the build: {sum(before.values()):4}   {_counted(before)}")
    print(f"layers after the build:  {sum(after.values()):4}   {_counted(after)}")
    print(f"and steps between them:  {sum(moving.values()):4}   {_counted(moving)}\n")


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def print_profile(measured: Measured, *, every: bool) -> None:
    """Print each layer's mean time, the slowest first; the ten slowest unless all are wanted."""
    total = sum(measured.layers.values())
    ranked = sorted(measured.layers.items(), key=lambda pair: -pair[1])
    shown = ranked if every else ranked[:10]
    width = min(70, max(len(name) for name, _ in shown))
    for name, milliseconds in shown:
        label = name if len(name) <= width else f"{name[: width - 1]}…"
        share = milliseconds / total if total else 0.0
        print(f"  {label:{width}}  {milliseconds * 1000:9.1f} us  {share:6.1%}")
    if len(ranked) > len(shown):
        rest = sum(milliseconds for _, milliseconds in ranked[len(shown) :])
        print(f"  {f'{len(ranked) - len(shown)} others':{width}}  {rest * 1000:9.1f} us")
    print(
        f"\nall layers {total:.2f} ms; a run {measured.profiled:.2f} ms with the profiler, ", end=""
    )
    print(f"{measured.plain:.2f} ms without")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """What reads an option that is a whole number within bounds."""

    def read(text: str) -> int:
        if not (text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read


SIZE = whole_number(47, 2048)  # of 46 rows too few are left for the last window
BATCH = whole_number(1, 256)


def main() -> None:
    """Build, profile, print."""
    parser = argparse.ArgumentParser(description="profile GoogLeNet layer by layer")
    parser.add_argument("--size", type=SIZE, default=224, help="rows and columns of the input")
    parser.add_argument("--batch", type=BATCH, default=1, help="images at a time")
    parser.add_argument(
        "--iterations", type=whole_number(1, 10**6), default=10, help="averaged runs"
    )
    parser.add_argument("--threads", type=whole_number(0, 1024), default=0, help="0: one a core")
    parser.add_argument("--layers", action="store_true", help="print every layer")
    parser.add_argument("--tune", default="fast", choices=("none", "fast", "full"))
    options = parser.parse_args()
    network = GoogLeNet(options.size).network
    start = time.perf_counter()
    engine = smelt.build(network, max_batch_size=options.batch, tune=options.tune)
    print(f"built in {time.perf_counter() - start:.1f} s")
    print_counts(network, engine)
    measured = measure(engine, options.batch, options.size, options.iterations, options.threads)
    print(f"mean of {options.iterations} iterations, batch {options.batch}:")
    print_profile(measured, every=options.layers)


if __name__ == "__main__":
    try:
        main()
    except (smelt.SmeltError, MemoryError) as error:
        raise SystemExit(f"error: {error or 'there is not enough memory for this'}") from error

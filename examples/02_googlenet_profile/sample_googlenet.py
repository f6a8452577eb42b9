"""The same network through smelt.gie: the flow of the GPU Inference Engine's second sample.

usage: python sample_googlenet.py [--size PIXELS] [--batch N]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import numpy as np
from profile_layers import BATCH, SIZE, GoogLeNet

import smelt
from smelt import gie

TIMING_ITERATIONS = 10


class Logger:
    """Prints warnings and errors, and suppresses information."""

    def log(self, severity: gie.Severity, message: str) -> None:
        """Take one message."""
        if severity != gie.Severity.INFO:
            print(message, file=sys.stderr)


class Profiler:
    """Adds up the time of each layer; the guide calls it once for each layer and execution."""

    def __init__(self) -> None:
        self.milliseconds: defaultdict[str, float] = defaultdict(float)

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Take one layer's time in one execution."""
        self.milliseconds[name] += milliseconds

    def print_layer_times(self) -> None:
        """Print the means."""
        for name, total in self.milliseconds.items():
            print(f"{name[:60]:60} {total / TIMING_ITERATIONS:8.3f} ms")
        total = sum(self.milliseconds.values()) / TIMING_ITERATIONS
        print(f"{'time over all layers':60} {total:8.3f} ms")


def main() -> None:
    """Build with half2 mode where it pays, execute synchronously, print the means."""
    parser = argparse.ArgumentParser(description="GoogLeNet through the GIE façade")
    parser.add_argument("--size", type=SIZE, default=224, help="rows and columns of the input")
    parser.add_argument("--batch", type=BATCH, default=4, help="images at a time")
    options = parser.parse_args()
    builder = gie.create_infer_builder(Logger())
    network = builder.create_network()
    network.fill(GoogLeNet(options.size).network)  # a parser would fill it from Caffe's files
    builder.set_max_batch_size(options.batch)
    builder.set_max_workspace_size(16 << 20)
    # Half2 wants 16-bit weights too: parser.parse(deploy, model, network, gie.DataType.HALF).
    builder.set_half2_mode(builder.platform_has_fast_fp16)
    engine = builder.build_cuda_engine(network)
    context, profiler = engine.create_execution_context(), Profiler()
    context.profiler = profiler
    buffers = [
        np.zeros((options.batch, *engine.get_binding_dimensions(index)), np.float32)
        for index in range(engine.nb_bindings)
    ]
    for _ in range(TIMING_ITERATIONS):
        engine.execute(context, buffers)
    print(f"{network.nb_layers} layers became {engine.nb_layers}")
    profiler.print_layer_times()
    for thing in (context, engine, builder):
        thing.destroy()


if __name__ == "__main__":
    try:
        main()
    except (smelt.SmeltError, MemoryError) as error:
        raise SystemExit(f"error: {error or 'there is not enough memory for this'}") from error

"""Whole networks on a GPU that is none: built as for one, run by the runtime's own code.

The driver is the stub, at its laziest; where an engine would have machine code, Triton's own
interpreter runs the kernels' text. Triton decides when it is first imported whether it interprets,
so this runs as a process of its own, which reads the names of networks and answers with what is
wrong:
``TRITON_INTERPRET=1 python -m tests.support.cuda_networks``.
"""

from __future__ import annotations

import json
import sys
import traceback
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cuda import CompilerPool, CudaBackend
from smelt.devices.cuda import CudaKernel
from smelt.interp import interpret as interpret_graph
from tests.support.cublaslt_stub import StubCublasLt
from tests.support.cuda_driver_stub import StubDriver, code_for
from tests.support.cuda_engines import use_stub
from tests.support.cudnn_stub import StubCudnn
from tests.support.index_errors import (
    Picking,
    check_arrays_there,
    check_next_call,
    check_queued,
    check_shared_stream,
    check_synchronous,
    picking_network,
)
from tests.support.small_networks import network_of_differences, small_network, weights
from tests.support.triton_interpreter import interpret
from tests.support.vendor_library_on_gpu import prefer_families

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.engine import KernelSpec
    from smelt.runtime import Engine

Array = np.ndarray[Any, Any]
_ARCHITECTURE = "sm_90"
_SIGN = 1 << 63


class InterpretedGpu(StubDriver):
    """A driver whose kernels are Triton's text, interpreted."""

    def __init__(self) -> None:
        super().__init__(lazy=True)
        self._backend = CudaBackend()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Be this process's driver, and have engines built for it."""
        use_stub(self, patch)

        def submit(_pool: CompilerPool, kernel: KernelSpec, *_: object) -> Future[bytes]:
            return self._compiled(kernel)

        patch.setattr(CompilerPool, "submit", submit)
        patch.setenv("SMELT_NO_CODE_CACHE", "1")  # there may be real machine code

    def _compiled(self, kernel: KernelSpec) -> Future[bytes]:
        """The record of a kernel, whose code is its symbol."""
        self._learn(kernel)
        record = CudaKernel(
            kernel.symbol,
            code_for(_ARCHITECTURE, kernel.symbol),
            32 * kernel["num_warps"],
            0,
            scratch_words=2,
            supports_pdl=True,
        )
        done = Future[bytes]()
        done.set_result(record.to_bytes())
        return done

    def _learn(self, kernel: KernelSpec) -> None:
        operands, scalars = len(kernel["dtypes"]), int(kernel["scalars"])

        def run(words: list[int], blocks: int) -> None:
            assert words[operands + scalars :] == [0, 0], "the compiler's scratch pointers"
            signed = [(w ^ _SIGN) - _SIGN for w in words[operands : operands + scalars]]
            interpret(self._backend, kernel, words[:operands], signed, blocks)

        self.kernels[kernel.symbol] = run
        self.words[kernel.symbol] = operands + scalars + 2


def _branches() -> smelt.NetworkDefinition:
    """Convolutions with a residual, by strides and groups, on two branches."""
    net = smelt.NetworkDefinition("branches")
    x = net.add_input("data", "float32", (4, 12, 12))
    y = net.add_convolution(x, 8, 3, weights(8, 4, 3, 3), weights(8), padding=1, name="stem")
    y = net.add_activation(y, "relu", name="stem_relu")
    z = net.add_convolution(y, 8, 3, weights(8, 8, 3, 3, seed=1), padding=1, name="body")
    y = net.add_elementwise(y, z, "sum", name="residual")
    left = net.add_pooling(y, "average", 2, stride=2, name="average")
    right = net.add_convolution(
        y, 8, 3, weights(8, 1, 3, 3, seed=2), stride=2, padding=1, groups=8, name="depthwise"
    )
    net.mark_output(net.add_concatenation([left, right], name="join"))
    net.mark_output(net.add_activation(z, "sigmoid", name="gate"))
    return net


def _with_python() -> smelt.NetworkDefinition:
    """A running sum, which no kernel makes, between launches."""
    net = smelt.NetworkDefinition("sorted")
    x = net.add_input("data", "float32", (24,))
    y = net.add_fully_connected(x, 16, weights(16, 24), weights(16), name="fc")
    total: Any = net.add(ops.CumSum(), y, np.array(1))
    net.mark_output(net.add_activation(total, "relu", name="relu"))
    return net


def _partitions() -> smelt.NetworkDefinition:
    """A running sum and the largest elements, for a CPU, while a GPU computes another branch."""
    net = smelt.NetworkDefinition("partitions")
    x = net.add_input("data", "float32", (24,))
    y = net.add_fully_connected(x, 16, weights(16, 24), weights(16), name="fc")
    total: Any = net.add(ops.CumSum(), y, np.array(1))
    other = net.add_fully_connected(y, 16, weights(16, 16, seed=1), weights(16), name="other")
    other = net.add_activation(other, "relu", name="relu")
    y = net.add_fully_connected(
        net.add_elementwise(total, other, "sum", name="sum"), 16, weights(16, 16), name="late"
    )
    best: Any = net.add(ops.TopK(), y, np.array([3]))
    for value in best:
        net.mark_output(value)
    net.mark_output(net.add_activation(y, "tanh", name="tanh"))
    return net


def _inception() -> smelt.NetworkDefinition:
    """Branches of one, two and three steps, joined, twice."""
    net = smelt.NetworkDefinition("inception")
    y = net.add_input("data", "float32", (8, 6, 6))
    for block in range(2):
        parts = [net.add_convolution(y, 4, 1, weights(4, 8, 1, 1, seed=block), name=f"a{block}")]
        z = net.add_convolution(y, 4, 1, weights(4, 8, 1, 1, seed=5 + block), name=f"b{block}")
        z = net.add_convolution(
            z, 2, 3, weights(2, 4, 3, 3, seed=7 + block), padding=1, name=f"c{block}"
        )
        parts.append(z)
        z = net.add_pooling(y, "max", 3, stride=1, padding=1, name=f"pool{block}")
        parts.append(net.add_convolution(z, 2, 1, weights(2, 8, 1, 1), name=f"d{block}"))
        y = net.add_concatenation(parts, name=f"join{block}")
    net.mark_output(y)
    return net


def _libraries() -> smelt.NetworkDefinition:
    """Convolutions of one tap with bias, activation and a residual, beside a window's, joined."""
    net = smelt.NetworkDefinition("libraries")
    x = net.add_input("data", "float32", (8, 6, 6))
    y = net.add_convolution(x, 8, 1, weights(8, 8, 1, 1), weights(8), name="first")
    y = net.add_activation(y, "relu", name="relu")
    z = net.add_convolution(y, 8, 1, weights(8, 8, 1, 1, seed=1), weights(8), name="second")
    z = net.add_activation(net.add_elementwise(y, z, "sum", name="residual"), "relu", name="relu2")
    window = net.add_convolution(y, 8, 3, weights(8, 8, 3, 3), padding=1, name="window")
    net.mark_output(net.add_concatenation([window, z], name="join"))
    return net


def _bottlenecks() -> smelt.NetworkDefinition:
    """Two residual blocks that narrow and widen: the first one's sum is read by two."""
    net = smelt.NetworkDefinition("bottlenecks")
    y = net.add_input("data", "float32", (48, 6, 6))
    for block in range(2):
        z = net.add_convolution(y, 16, 1, weights(16, 48, 1, 1), weights(16), name=f"in{block}")
        z = net.add_activation(z, "relu", name=f"in_relu{block}")
        z = net.add_convolution(
            z, 16, 3, weights(16, 1, 3, 3, seed=block), padding=1, groups=16, name=f"window{block}"
        )
        z = net.add_convolution(z, 48, 1, weights(48, 16, 1, 1), weights(48), name=f"out{block}")
        y = net.add_elementwise(y, z, "sum", name=f"sum{block}")
        y = net.add_activation(y, "relu", name=f"relu{block}")
    net.mark_output(y)
    return net


NETWORKS: dict[str, tuple[Callable[[], smelt.NetworkDefinition], str, float]] = {
    "small": (small_network, "float32", 1e-4),
    "small in float16": (small_network, "float16", 3e-3),
    "branches": (_branches, "float32", 1e-4),
    "inception": (_inception, "float32", 1e-4),
    "python": (_with_python, "float32", 1e-4),
    "partitions": (_partitions, "float32", 1e-4),
    "libraries": (_libraries, "float16", 3e-3),
    "bottlenecks": (_bottlenecks, "float16", 3e-3),
    "differences": (network_of_differences, "float16", 3e-3),
}


def check(name: str) -> str:
    """What is wrong with a network; nothing if nothing is."""
    make, precision, tolerance = NETWORKS[name]
    calls, is_parted = name == "libraries", name == "partitions"
    engine = smelt.build(
        make(),
        device=["cuda" if calls else "cuda:sm_90", *(["cpu"] if is_parted else [])],
        precision=precision,
        tune="none",
        max_batch_size=1 if calls else 3,
        libraries=calls,
    )
    found: list[str] = []
    called = [str(engine.layers).count(f"{library}(") for library in ("cublaslt", "cudnn")]
    if calls and called != [2, 1]:
        found.append(f"the libraries are called otherwise than twice and once: {engine.layers}")
    if is_parted and [part.device for part in engine.partitions] != ["cpu", "cpu"]:
        found.append(f"the partitions are {engine.partitions}")
    if name == "bottlenecks" and "sum0 + relu0 + in1" not in str(engine.layers):
        found.append(f"no launch computes two products: {engine.layers}")
    if name == "differences" and "float16" not in engine.header.report:
        found.append("every layer is in float32")
    rng = np.random.default_rng(1)
    with engine.create_context() as context, engine.create_context() as other:
        for batch in (1, 1, 1) if calls else (1, 3, 1):
            given = engine.inputs[0]
            shape = (batch, *(int(str(d)) for d in given.shape[1:]))
            x = rng.standard_normal(shape).astype(np.float32)
            wanted = interpret_graph(make().graph, {given.name: x})
            by_name = context.run({given.name: x})
            found += _differences(by_name, wanted, tolerance)
            found += _differences(_enqueued(engine, other, x, by_name), wanted, tolerance)
    return "\n".join(found)


def check_indices() -> str:
    """Indices out of range, on a network that picks rows; it fails with what is wrong."""
    with smelt.build(picking_network(), device="cuda:sm_90", tune="none") as engine:
        picking = Picking(engine)
        check_synchronous(picking)
        check_queued(picking, "cuda")
        check_next_call(picking, "cuda")
        check_shared_stream(picking, "cuda")
        check_arrays_there(picking)
    return ""


def _enqueued(
    engine: Engine, context: smelt.ExecutionContext, x: Array, like: dict[str, Array]
) -> dict[str, Array]:
    """The same on a stream of the application's, from and to arrays of the host."""
    made = {binding.name: np.zeros_like(like[binding.name]) for binding in engine.outputs}
    bindings = [x if b.is_input else made[b.name] for b in engine.bindings]
    with smelt.Stream("cuda") as stream:
        context.enqueue(len(x), bindings, stream)
        stream.synchronize()
    return made


def _differences(made: dict[str, Array], wanted: dict[str, Array], tolerance: float) -> list[str]:
    found: list[str] = []
    for name, array in wanted.items():
        mine = made[name]
        scale = float(np.abs(array).max(initial=0.0)) or 1.0
        if mine.shape != array.shape:
            found.append(f"{name} has shape {mine.shape}, not {array.shape}")
        elif (error := float(np.abs(mine - array).max(initial=0.0)) / scale) > tolerance:
            found.append(f"{name} has an error of {error:.2g} for a batch of {len(array)}")
    return found


def main() -> None:
    """Answer each line, a network's name, with a line of JSON."""
    gpu, patch = InterpretedGpu(), pytest.MonkeyPatch()
    gpu.install(patch)
    StubCublasLt(gpu).install(patch)
    StubCudnn(gpu).install(patch)
    prefer_families(patch, "cublaslt", "cudnn")
    for line in sys.stdin:
        try:
            name = line.strip()
            answer = check_indices() if name == "indices" else check(name)
        except Exception:  # noqa: BLE001  (the test shows it)
            answer = traceback.format_exc()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""What a run pays for looking at indices: the same engine with kernels that do, and with others.

The others clamp indices, as one must to stay inside the memory, and tell nobody. Both run in turns,
in one process, so that both meet the same neighbours.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np

import smelt
from benchmarks.support.models import find_models, random_inputs, reference_folder
from smelt import ops
from smelt.backends.cpu.families.indexing import IndexReader
from smelt.engine import Space
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from smelt.backends.cpu._emit import Int, Reg
    from smelt.ir import Value

    Inputs = dict[str, NDArray[Any]]

_TURN_S: Final = 0.05
_ELEMENTS: Final = 1 << 16
_PICTURE: Final = 160
_CLASSES: Final = 4


def index_rows(models: Sequence[str], folder: Path | None, turns: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, for a detector's tail, and for a gather of single elements.

    One without a kernel that reads an index has no figure.

    Args:
        models: their names.
        folder: where to look for them first.
        turns: how often each of two engines runs for a while.
    """
    folders = [position for position in (folder, reference_folder()) if position is not None]
    for name in models:
        for model, file in find_models(name, folders, 1):
            inputs = random_inputs(file, 1, {})
            yield _row(model, smelt.network_from_onnx(file), inputs, turns)
    yield _row("a detector", *_detector(), turns)
    yield _row("single elements", *single_elements(), turns)


def _detector() -> tuple[Graph, Inputs]:
    """Convolutions, boxes and scores of every cell, and the boxes that NonMaxSuppression picks."""
    graph, rng = Graph("detector"), np.random.default_rng(0)

    def convolve(value: Value, channels: int, name: str, stride: int = 1) -> Value:
        shape = (channels, int(value.tensor.shape[1]), 3, 3)  # type: ignore[arg-type]  # fixed
        filters = rng.standard_normal(shape).astype(np.float32) / 3 / shape[1] ** 0.5
        conv = ops.Conv(kernel_shape=(3, 3), strides=(stride, stride), pads=(1, 1, 1, 1))
        weights = graph.add_constant(filters, f"{name}.weights")
        return graph.add(conv, value, weights, name=name).output

    def row_of_cells(value: Value, channels: int, name: str) -> Value:
        head = graph.add(ops.Sigmoid(), convolve(value, channels, name), name=f"{name}.in 0..1")
        shape = graph.add_constant(np.array([1, channels, -1]), f"{name}.shape")
        return graph.add(ops.Reshape(), head.output, shape, name=f"{name}.row").output

    x = value = graph.add_input("x", TensorType(DType.FLOAT32, (1, 3, _PICTURE, _PICTURE)))
    for level, channels in enumerate((16, 32, 64)):
        made = convolve(value, channels, f"level {level}", stride=2)
        value = graph.add(ops.Relu(), made, name=f"level {level}.relu").output
    boxes = row_of_cells(value, 4, "boxes")
    boxes = graph.add(ops.Transpose((0, 2, 1)), boxes, name="boxes.last").output
    scores = row_of_cells(value, _CLASSES, "scores")
    limits = [np.array(50), np.array(0.5, np.float32), np.array(0.6, np.float32)]
    given = [graph.add_constant(limit, f"limit {k}") for k, limit in enumerate(limits)]
    op = ops.NonMaxSuppression(center_point_box=1, count_symbol="count")
    graph.symbol_bounds["count"] = 50 * _CLASSES
    rows = graph.add(op, boxes, scores, *given, name="picked").output
    two, one = graph.add_constant(np.array(2), "two"), graph.add_constant(np.array([0]), "one")
    cells = graph.add(ops.Gather(1), rows, two, name="cells").output
    flat = graph.add(ops.Squeeze(), boxes, one, name="boxes.flat").output
    graph.outputs = [graph.add(ops.Gather(), flat, cells, name="found").output]
    return graph, {x.name: rng.standard_normal((1, 3, _PICTURE, _PICTURE), np.float32)}


def single_elements() -> tuple[smelt.NetworkDefinition, Inputs]:
    """Return a network of one gather, each element by an index of its own, and its inputs."""
    net = smelt.NetworkDefinition("gather")
    x = net.add_input("x", "float32", (_ELEMENTS,), batch="explicit")
    i = net.add_input("i", "int64", (_ELEMENTS,), batch="explicit")
    picked: Any = net.add(ops.Gather(), x, i)
    net.mark_output(picked)
    rng = np.random.default_rng(0)
    indices = rng.integers(-_ELEMENTS, _ELEMENTS, _ELEMENTS)
    return net, {"x": rng.standard_normal(_ELEMENTS, np.float32), "i": indices}


def _row(
    name: str, net: smelt.NetworkDefinition | Graph, inputs: Inputs, turns: int
) -> dict[str, Any]:
    shapes = {key: array.shape for key, array in inputs.items()}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, SMELT_NO_CODE_CACHE="1"))
        engine = stack.enter_context(smelt.build(net, shapes=shapes, tune="none"))
        launches = _looking(engine)
        row: dict[str, Any] = {"check": f"indices of {name}", "launches": launches}
        if not launches:  # then nothing differs: there are no words, and nobody reads them
            return row
        contexts = [stack.enter_context(engine.create_context(threads=1))]
        contexts[0].run(inputs)
        with _without_looking():
            other = stack.enter_context(smelt.build(net, shapes=shapes, tune="none"))
            contexts.append(stack.enter_context(other.create_context(threads=1)))
            contexts[1].run(inputs)
        checked, unchecked = _in_turns(contexts, inputs, turns)
    percent = (checked / unchecked - 1) * 100
    times = {"us": round(checked * 1e6, 2), "unchecked_us": round(unchecked * 1e6, 2)}
    return {**row, **times, "percent": round(percent, 2)}


def _looking(engine: smelt.Engine) -> int:
    """How many launches of the engine look at indices."""
    buffers = engine.header.plans[0].buffers
    return sum(buffer.space is Space.ERRORS for buffer in buffers)


@contextmanager
def _without_looking() -> Generator[None]:
    """Build kernels that clamp indices, and contexts that read no error words."""

    def position(reader: IndexReader, index: Reg, extent: Int) -> Reg:
        e = reader.e
        value = e.load(f"i{8 * reader.index_bytes}", index)
        wide = value if value.type == "i64" else e.convert("sext", value, "i64")
        wrapped = e.select(e.compare("slt", wide, 0), e.i64(e.add(wide, extent)), wide)
        return e.i64(e.maximum(0, e.minimum(wrapped, e.sub(extent, 1))))

    with (
        patch.object(IndexReader, "position", position),
        patch("smelt.runtime._segments.reports_index_errors", return_value=False),
    ):
        yield


def _in_turns(
    contexts: Sequence[smelt.ExecutionContext], inputs: Inputs, turns: int
) -> list[float]:
    """The least processor time of a run of each, in seconds: of other processes it knows little."""
    best = [float("inf")] * len(contexts)
    for turn in range(turns):
        for number in (0, 1) if turn % 2 else (1, 0):
            end = time.perf_counter() + _TURN_S
            while time.perf_counter() < end:
                start = time.thread_time()
                contexts[number].run(inputs)
                best[number] = min(best[number], time.thread_time() - start)
    return best

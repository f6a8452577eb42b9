"""An engine against an oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.builder import build, device_to_run
from smelt.compare._error_metrics import TOLERANCES, ErrorTolerances, OutputError
from smelt.compare._export import model_from_graph
from smelt.compare._inputs import fix_shapes, input_sets, inputs_of, shapes_of_inputs
from smelt.compare._layers import LayerDifference, find_first_difference, layer_errors
from smelt.compare._oracle import (
    EXTERNAL_ORACLES,
    check_oracle,
    is_caffe,
    make_oracle,
    make_part_oracle,
)
from smelt.compare._quantization_steps import ALLOWED_QUANTIZATION_STEPS, quantized_steps
from smelt.compare._recorded_oracle import is_recording
from smelt.compare._reduce import reduce_graph
from smelt.compare._weak_agreement import weak_agreement_note
from smelt.engine import write_atomically
from smelt.errors import BindingError, SmeltError, UnsupportedError
from smelt.importers import network_from_caffe, network_from_onnx, read_onnx
from smelt.ir import Graph
from smelt.network import NetworkDefinition
from smelt.types import (
    enough_memory_for,
    require_bool,
    require_float,
    require_int,
    require_path,
    write_arrays,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from smelt.builder import Progress, ShapeSpec
    from smelt.compare._oracle import Oracle
    from smelt.ir import Array
    from smelt.runtime import ExecutionContext

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto | NetworkDefinition | Graph


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest part of the network that fails."""

    nodes: tuple[str, ...]
    """Its nodes, as ``op name``."""
    model_path: str | None
    """Where it was saved as ONNX; None where ONNX has no op for one of them."""
    inputs_path: str | None
    """Where the inputs on which it fails were saved (.npz)."""
    reason: str = ""
    """Why it was not saved."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out."""

    network: str
    against: str
    outputs: tuple[OutputError, ...]
    """The worst error of each output, over all plans."""
    layers: tuple[tuple[str, OutputError], ...] = ()
    """(layer, error) of the intermediate results, where they were asked for."""
    first_difference: LayerDifference | None = None
    reduction: Reduction | None = None

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance, and no layer differs."""
        return all(error.passed for error in self.outputs) and self.first_difference is None


@enough_memory_for("the comparison")
def compare(  # gate: options of one question, each with its default
    model: Model,
    against: str | os.PathLike[str] = "reference",
    inputs: Mapping[str, Array] | None = None,
    *,
    weights: str | os.PathLike[str] | bytes | None = None,
    layers: bool = False,
    reduce: str | os.PathLike[str] | None = None,
    tolerance: float | None = None,
    steps: int = ALLOWED_QUANTIZATION_STEPS,
    shapes: Mapping[str, ShapeSpec] | None = None,
    outputs: Sequence[str] | None = None,
    max_batch_size: int = 1,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Compare the engine that is built from a model with what gives the right answers.

    Args:
        model: an ONNX model (path, bytes or message), the path of a prototxt, or a network.
        against: ``"reference"`` (our ops' numpy references), ``"onnxruntime"``, ``"openvino"``
            (not for Caffe), or a file: another engine of the same network, or outputs that were
            recorded for these inputs, by name (.npz) or alone (.npy).
        inputs: arrays by input name; missing ones are random.
        weights: the caffemodel of a prototxt.
        layers: whether to compare every intermediate result, and find the first that differs.
        reduce: where to save the smallest failing part as ONNX, if there is a failure; its inputs
            go beside it. A file cannot tell, as it knows the whole network alone.
        tolerance: largest error allowed, relative to an output's largest magnitude; None for
            1e-4, and where the model or the engine computes in less than float32 for 3e-3 (float16,
            half2), 1e-2 (tf32) or 2e-2 (bfloat16).
        steps: quantisation steps by which what follows from quantised tensors may differ besides.
        shapes: as for `build`; the inputs' own where they are given.
        outputs: values to compare instead of the model's outputs.
        max_batch_size: batch, where the network leaves it open.
        threads: threads of the engine.
        seed: of the random inputs.
        progress: told of each build.
        options: further options of `build`.

    Raises:
        SmeltError: the model cannot be read or built, or the oracle cannot run it.
        BindingError: a file has not every output, or is for inputs that are not given.
        MissingExtraError: the oracle is not installed.
    """
    against = str(require_path(against, "right answers"))
    check_oracle(against, model, weights, in_parts=reduce is not None)
    graph, message = _open(model, weights, outputs, against)
    asked = {name: options[name] for name in ("precision", "libraries") if name in options}
    device = device_to_run(options.get("device", "cpu"), **asked)
    given = inputs_of(inputs)
    if tolerance is not None:
        tolerance = require_float(tolerance, "tolerance", BindingError, 0.0, math.inf)
    steps = require_int(steps, "steps", BindingError, least=0)
    layers = require_bool(layers, "layers", BindingError)
    if is_recording(against):
        _check_all_given(against, graph, given)
    shapes = shapes_of_inputs(graph, given, shapes)
    sets = input_sets(graph, given, shapes, max_batch_size, seed)
    oracle = make_oracle(against, graph, message)
    if tolerance is None:
        tolerance = TOLERANCES.get(str(options.get("precision")))
    engine_options: dict[str, Any] = options | {
        "device": device,
        "progress": progress,
        "max_batch_size": max_batch_size,
    }
    tolerances = ErrorTolerances(tolerance, steps, quantized_steps(graph))
    with (
        build(graph, shapes=shapes, **engine_options) as engine,
        engine.create_context(threads=threads) as context,
    ):
        errors, failing = _worst_errors(graph, sets, oracle, context, tolerances)
    trial = _Trial(against, tolerances, threads, engine_options)
    found: Comparison = Comparison(graph.name, against, errors)
    if not layers and (reduce is None or found.passed):
        return found
    return trial.explain(found, graph, sets[failing], message, layers=layers, reduce=reduce)


def _check_all_given(path: str, graph: Graph, inputs: Mapping[str, Array]) -> None:
    missing = [value.name for value in graph.inputs if value.name not in inputs]
    if missing:
        raise BindingError(
            f"{path} has the expected outputs for the inputs that it was recorded with, not for "
            "random ones; give those inputs: "
            f"{' '.join(f'--input {name}=FILE.npy' for name in missing)}, or --inputs FILE.npz, "
            "which `smelt run --save-inputs FILE.npz` writes"
        )


def _worst_errors(
    graph: Graph,
    sets: Sequence[Mapping[str, Array]],
    oracle: Oracle,
    context: ExecutionContext,
    tolerances: ErrorTolerances,
) -> tuple[tuple[OutputError, ...], int]:
    """The worst error of each output over all inputs, and the inputs where one is not allowed.

    What says little with these inputs is a caution, if no others say more.
    """
    worst: dict[str, OutputError] = {}
    cautions: dict[str, str] = {}
    made = {value.name: value for value in graph.outputs}
    failing = 0
    for number, arrays in enumerate(sets):
        wanted = oracle.values(arrays, list(made))
        results = [context.run(arrays) for _ in range(2)]
        for error in _output_errors(results, wanted, tolerances):
            name, array = error.name, wanted[error.name]
            if name not in worst or _badness(error) > _badness(worst[name]):
                worst[name] = error
                failing = failing if error.passed else number
            if cautions.get(name, "first"):
                cautions[name] = weak_agreement_note(made[name], array, tolerances.limit(array))
    return tuple(replace(e, caution=cautions[e.name]) for e in worst.values()), failing


def _badness(error: OutputError) -> tuple[bool, float]:
    return not error.passed, error.relative_error


def _open(
    model: Model,
    weights: str | os.PathLike[str] | bytes | None,
    outputs: Sequence[str] | None,
    against: str,
) -> tuple[Graph, onnx.ModelProto | None]:
    """The graph, and the ONNX model that it comes from, if any, where another engine runs it."""
    if isinstance(model, Graph):
        return model, None
    if isinstance(model, NetworkDefinition):
        return model.graph, None
    if is_caffe(model, weights):
        network, _ = network_from_caffe(model, weights, outputs=outputs)  # type: ignore[arg-type]
        return network.graph, None
    if against not in EXTERNAL_ORACLES:
        return network_from_onnx(model, outputs=outputs).graph, None
    message = read_onnx(model)
    return network_from_onnx(message, outputs=outputs).graph, message


def _output_errors(
    results: Sequence[Mapping[str, Array]],
    wanted: Mapping[str, Array],
    tolerances: ErrorTolerances,
) -> list[OutputError]:
    first, second = results
    return [
        tolerances.error(
            name,
            np.asarray(first[name]),
            array,
            moves=np.asarray(first[name]).tobytes() != np.asarray(second[name]).tobytes(),
        )
        for name, array in wanted.items()
    ]


@dataclass(frozen=True, slots=True)
class _Trial:
    """How parts of the network are tried."""

    against: str
    tolerances: ErrorTolerances
    threads: int | None
    options: dict[str, Any]

    def explain(
        self,
        found: Comparison,
        graph: Graph,
        inputs: Mapping[str, Array],
        message: onnx.ModelProto | None,
        *,
        layers: bool,
        reduce: str | os.PathLike[str] | None,
    ) -> Comparison:
        """The comparison with the first layer that differs, and the smallest part that fails."""
        fixed = fix_shapes(graph, inputs)
        rows: tuple[tuple[str, OutputError], ...] = ()
        first: LayerDifference | None = None
        if layers:
            oracle = make_oracle(self.against, fixed, message)
            ask = partial(make_part_oracle, self.against)
            errors = layer_errors(fixed, inputs, oracle, self.tolerances, self.run, ask)
            rows = tuple((" + ".join(node.layers) or node.name, error) for node, error in errors)
            if not (found.passed and all(error.passed for _, error in errors)):
                first = find_first_difference(
                    fixed, inputs, oracle, self.tolerances, self.run, errors
                )
        reduction = None
        if reduce is not None and (first is not None or not found.passed):
            reduction = self.reduce(fixed, inputs, require_path(reduce, "the smallest part"))
        return Comparison(found.network, found.against, found.outputs, rows, first, reduction)

    def run(self, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Build an engine and run it."""
        needed = {value.name: inputs[value.name] for value in graph.inputs}
        with (
            build(graph, **self.options) as engine,
            engine.create_context(threads=self.threads) as context,
        ):
            return context.run(needed)

    def fails(self, graph: Graph, inputs: Mapping[str, Array]) -> bool:
        """Whether the engine of a network differs from the oracle."""
        try:
            oracle = make_part_oracle(self.against, graph)
            wanted = oracle.values(inputs, [value.name for value in graph.outputs])
            got = self.run(graph, inputs)
        except SmeltError:
            return False  # this part is not a network by itself
        tolerances = replace(self.tolerances, quantized=quantized_steps(graph))
        return any(
            not tolerances.error(name, got[name], array).passed for name, array in wanted.items()
        )

    def reduce(self, graph: Graph, inputs: Mapping[str, Array], path: Path) -> Reduction:
        """Find the smallest part that fails, and save it."""
        part = reduce_graph(graph, inputs, self.fails)
        if part is None:
            return Reduction((), None, None, "the failure is gone when shapes are fixed")
        smallest, arrays = part
        nodes = tuple(str(node) for node in smallest.nodes)
        try:
            data = model_from_graph(smallest).SerializeToString()
        except UnsupportedError as error:
            return Reduction(nodes, None, None, str(error))
        beside = path.with_suffix(".npz")
        write_atomically(path, iter([data]))
        write_atomically(beside, iter([write_arrays(arrays)]))
        return Reduction(nodes, str(path), str(beside))

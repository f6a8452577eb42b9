"""Comparison of an engine with an oracle, which gives the expected results."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.builder import build, devices_to_run
from smelt.compare._delta_debugging import reduce_graph
from smelt.compare._error_metrics import TOLERANCES, ErrorTolerances, OutputError
from smelt.compare._inputs import fix_shapes, input_sets, inputs_of, shapes_of_inputs
from smelt.compare._layers import LayerComparer, LayerDifference
from smelt.compare._onnx_export import model_from_graph
from smelt.compare._oracle import (
    EXTERNAL_ORACLES,
    check_oracle,
    is_caffe,
    make_oracle,
    make_part_oracle,
)
from smelt.compare._quantization_steps import ALLOWED_QUANTIZATION_STEPS, quantized_steps
from smelt.compare._recorded_oracle import is_recording
from smelt.compare._uninformative_outputs import weak_agreement_note
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

    from smelt.builder import ProgressCallback, ShapeSpec
    from smelt.compare._oracle import Oracle
    from smelt.ir import Array
    from smelt.runtime import ExecutionContext

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto | NetworkDefinition | Graph


@dataclass(frozen=True, slots=True)
class ReducedNetwork:
    """The smallest part of the network that fails."""

    nodes: tuple[str, ...]
    """Nodes of the part, as ``op name``."""
    model_path: str | None
    """ONNX file of the part; None if it was not saved."""
    inputs_path: str | None
    """File (.npz) of the inputs on which the part fails; None if it was not saved."""
    reason: str = ""
    """Why the part was not saved, such as an op that ONNX does not have."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison."""

    network: str
    against: str
    outputs: tuple[OutputError, ...]
    """Largest error of each output over all plans."""
    layers: tuple[tuple[str, OutputError], ...] = ()
    """(layer, error) of each intermediate result, if layers were compared."""
    first_difference: LayerDifference | None = None
    reduction: ReducedNetwork | None = None

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance and no layer differs."""
        return all(error.passed for error in self.outputs) and self.first_difference is None


@enough_memory_for("the comparison")
def compare(  # gate: options of one question, each with its default
    model: Model,
    against: str | os.PathLike[str] = "reference",
    inputs: Mapping[str, Array] | None = None,
    *,
    weights: str | os.PathLike[str] | bytes | None = None,
    layers: bool = False,
    reduce_to: str | os.PathLike[str] | None = None,
    tolerance: float | None = None,
    quantization_steps: int = ALLOWED_QUANTIZATION_STEPS,
    shapes: Mapping[str, ShapeSpec] | None = None,
    outputs: Sequence[str] | None = None,
    max_batch_size: int = 1,
    threads: int | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Comparison:
    """Build an engine from a model and compare its outputs with those of an oracle.

    Args:
        model: an ONNX model (path, bytes or message), the path of a prototxt, or a network.
        against: the oracle: ``"reference"`` (the numpy references of smelt's ops),
            ``"onnxruntime"``, ``"openvino"`` (not for Caffe), or a file: another engine of the same
            network, or outputs that were recorded for these inputs, by name (.npz) or a single
            one (.npy).
        inputs: arrays by the input's name; missing ones are random.
        weights: the caffemodel of a prototxt.
        layers: whether to compare every intermediate result, and find the first that differs.
        reduce_to: ONNX file for the smallest failing part, which is written if the comparison
            fails; its inputs are saved to an .npz file of the same name. Not supported with a file
            as oracle, which gives results for the whole network only.
        tolerance: largest allowed error, relative to an output's largest magnitude; None for the
            default: 1e-4, or in less than float32 3e-3 (float16, half2), 1e-2 (tf32) or 2e-2
            (bfloat16).
        quantization_steps: quantisation steps by which tensors that depend on quantised ones may
            differ, in addition to the tolerance.
        shapes: shapes as for `build`; by default those of the given arrays.
        outputs: names of values to compare instead of the model's outputs.
        max_batch_size: largest batch, if the network leaves it open.
        threads: number of threads of the engine.
        seed: seed of the random inputs.
        progress: receives the progress of each build.
        options: further options of `build`.

    Raises:
        SmeltError: the model cannot be read or built, or the oracle cannot run it.
        BindingError: a file lacks an output, or recorded outputs are used with random inputs.
        MissingExtraError: the oracle is not installed.
    """
    against = str(require_path(against, "the oracle"))
    check_oracle(against, model, weights, needs_parts=reduce_to is not None)
    graph, message = _open(model, weights, outputs, against)
    device = devices_to_run(
        options.get("device", "cpu"),
        options.get("precision", "float32"),
        use_libraries=options.get("libraries", False),
    )
    arrays = inputs_of(inputs)
    if tolerance is not None:
        tolerance = require_float(tolerance, "tolerance", BindingError, 0.0, math.inf)
    quantization_steps = require_int(
        quantization_steps, "quantization_steps", BindingError, minimum=0
    )
    layers = require_bool(layers, "layers", BindingError)
    if is_recording(against):
        _check_all_given(against, graph, arrays)
    shapes = shapes_of_inputs(graph, arrays, shapes)
    sets = input_sets(graph, arrays, shapes, max_batch_size, seed)
    oracle = make_oracle(against, graph, message)
    if tolerance is None:
        tolerance = TOLERANCES.get(str(options.get("precision")))
    own_options = {"device": device, "progress": progress, "max_batch_size": max_batch_size}
    engine_options: dict[str, Any] = options | own_options
    tolerances = ErrorTolerances(tolerance, quantization_steps, quantized_steps(graph))
    with (
        build(graph, shapes=shapes, **engine_options) as engine,
        engine.create_context(threads=threads) as context,
    ):
        errors, failing = _worst_errors(graph, sets, oracle, context, tolerances)
    trial = _PartComparer(against, tolerances, threads, engine_options)
    comparison: Comparison = Comparison(graph.name, against, errors)
    if not layers and (reduce_to is None or comparison.passed):
        return comparison
    return trial.explain(
        comparison, graph, sets[failing], message, layers=layers, reduce_to=reduce_to
    )


def _check_all_given(path: str, graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Check that every input is given, since recorded outputs are for certain inputs.

    Raises:
        BindingError: an input is missing.
    """
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
    """Return the largest error of each output over all sets of inputs, and the index of a set.

    The index is that of a set on which an output fails, or 0. An output has a caution if it is weak
    evidence on every set of inputs.
    """
    worst: dict[str, OutputError] = {}
    cautions: dict[str, str] = {}
    outputs = {value.name: value for value in graph.outputs}
    failing = 0
    for number, arrays in enumerate(sets):
        expected = oracle.values(arrays, list(outputs))
        results = [context.run(arrays) for _ in range(2)]
        for name, array in expected.items():
            first, second = (np.asarray(result[name]) for result in results)
            is_nondeterministic = first.tobytes() != second.tobytes()
            error = tolerances.error(name, first, array, varies_between_runs=is_nondeterministic)
            if name not in worst or _rank(error) > _rank(worst[name]):
                worst[name] = error
                failing = failing if error.passed else number
            if cautions.get(name, "first"):
                cautions[name] = weak_agreement_note(outputs[name], array, tolerances.limit(array))
    return tuple(replace(e, caution=cautions[e.name]) for e in worst.values()), failing


def _rank(error: OutputError) -> tuple[bool, float]:
    """Return a key by which failures come after other errors, and larger errors after smaller."""
    return not error.passed, error.relative_error


def _open(
    model: Model,
    weights: str | os.PathLike[str] | bytes | None,
    outputs: Sequence[str] | None,
    against: str,
) -> tuple[Graph, onnx.ModelProto | None]:
    """Return the graph, and the ONNX model that it was read from if an external oracle needs it."""
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


@dataclass(frozen=True, slots=True)
class _PartComparer:
    """Builds parts of the network and compares their outputs with the oracle's."""

    against: str
    tolerances: ErrorTolerances
    threads: int | None
    options: dict[str, Any]

    def explain(
        self,
        comparison: Comparison,
        graph: Graph,
        inputs: Mapping[str, Array],
        message: onnx.ModelProto | None,
        *,
        layers: bool,
        reduce_to: str | os.PathLike[str] | None,
    ) -> Comparison:
        """Return the comparison with its first differing layer and its smallest failing part.

        Args:
            comparison: result for the outputs.
            graph: the network.
            inputs: inputs on which an output fails, or the first ones.
            message: ONNX model of the network, if an external oracle needs it.
            layers: whether to compare the intermediate results.
            reduce_to: ONNX file for the smallest failing part, if requested.
        """
        fixed = fix_shapes(graph, inputs)
        rows: tuple[tuple[str, OutputError], ...] = ()
        first: LayerDifference | None = None
        if layers:
            oracle = make_oracle(self.against, fixed, message)
            comparer = LayerComparer(fixed, inputs, oracle, self.tolerances, self.run)
            errors = comparer.errors(partial(make_part_oracle, self.against))
            rows = tuple((" + ".join(node.layers) or node.name, error) for node, error in errors)
            if not (comparison.passed and all(error.passed for _, error in errors)):
                first = comparer.find_first_difference(errors)
        reduction = None
        if reduce_to is not None and (first is not None or not comparison.passed):
            reduction = self.reduce(fixed, inputs, require_path(reduce_to, "the smallest part"))
        return replace(comparison, layers=rows, first_difference=first, reduction=reduction)

    def run(self, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Build an engine, run it once, and return its outputs."""
        needed = {value.name: inputs[value.name] for value in graph.inputs}
        with (
            build(graph, **self.options) as engine,
            engine.create_context(threads=self.threads) as context,
        ):
            return context.run(needed)

    def fails(self, graph: Graph, inputs: Mapping[str, Array]) -> bool:
        """Return whether the engine of a part of the network differs from the oracle."""
        try:
            oracle = make_part_oracle(self.against, graph)
            expected = oracle.values(inputs, [value.name for value in graph.outputs])
            actual = self.run(graph, inputs)
        except SmeltError:
            return False  # the part is not a valid network, or is not supported
        tolerances = replace(self.tolerances, quantized=quantized_steps(graph))
        return any(
            not tolerances.error(name, actual[name], array).passed
            for name, array in expected.items()
        )

    def reduce(self, graph: Graph, inputs: Mapping[str, Array], path: Path) -> ReducedNetwork:
        """Find the smallest failing part, and save it and its inputs."""
        part = reduce_graph(graph, inputs, self.fails)
        if part is None:
            reason = "the comparison passes when the shapes are fixed to those of the given inputs"
            return ReducedNetwork((), None, None, reason)
        smallest, arrays = part
        nodes = tuple(str(node) for node in smallest.nodes)
        try:
            data = model_from_graph(smallest).SerializeToString()
        except UnsupportedError as error:
            return ReducedNetwork(nodes, None, None, str(error))
        beside = path.with_suffix(".npz")
        write_atomically(path, iter([data]))
        write_atomically(beside, iter([write_arrays(arrays)]))
        return ReducedNetwork(nodes, str(path), str(beside))

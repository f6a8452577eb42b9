"""Oracles, which give the expected results: smelt's references, other engines, or files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from smelt.compare._inputs import fix_shapes
from smelt.compare._onnx_export import model_from_graph
from smelt.compare._recorded_oracle import has_answers, recorded_oracle
from smelt.errors import MissingExtraError, SmeltError, UnsupportedError
from smelt.interp import interpret
from smelt.ir import clone
from smelt.passes import PromoteHalf, run_passes
from smelt.types import is_path, override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from smelt.ir import Array, Graph

EXTERNAL_ORACLES: Final = ("onnxruntime", "openvino")
"""Inference engines of other projects, which read ONNX models."""
ORACLES: Final = ("reference", *EXTERNAL_ORACLES)
"""Names of oracles; a file is an oracle too."""
_CAFFE: Final = frozenset({".prototxt", ".pbtxt", ".txt"})


class Oracle(Protocol):
    """Source of the expected values of a network."""

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        """Return the values of given names for inputs; values that are unknown here are omitted."""
        ...


class _NumpyReferenceOracle(Oracle):
    """The numpy references of smelt's ops, run node by node.

    Intermediate results of half precision are kept in float32: each reference rounds its result,
    and the rounding errors of half precision would be as large as the errors to be detected.

    The graph is inferred again for the extents of the inputs, as the build does: an op whose
    operands have different symbols is more general at known extents, such as 1, which broadcasts.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.wide = clone(graph)
        run_passes(self.wide, [PromoteHalf()])

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        known = self.wide.values_by_name()
        results: dict[str, Array] = {}
        for graph, requested in (
            (self.wide, [name for name in names if name in known]),
            (self.graph, [name for name in names if name not in known]),
        ):
            if requested:
                results |= interpret(fix_shapes(graph, inputs), inputs, outputs=requested)
        values = self.graph.values_by_name()
        return {
            name: array.astype(values[name].tensor.dtype.numpy, copy=False)
            for name, array in results.items()
        }


class _OnnxRuntimeOracle(Oracle):
    """ONNX Runtime on the original model, so that errors of smelt's importer are found too."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.runtime = _import_package("onnxruntime")
        self.model = model

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        computed = {name for node in model.graph.node for name in node.output if name}
        computed.update(value.name for value in model.graph.output)
        known = [name for name in names if name in computed]
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in known)
        options = self.runtime.SessionOptions()
        # Errors are raised; warnings about the model are of no interest here.
        options.log_severity_level = 4
        try:
            session = self.runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            input_names = {value.name for value in session.get_inputs()}
            used = {name: array for name, array in inputs.items() if name in input_names}
            results: list[Array] = session.run(known, used)
        except _errors_of(self.runtime) as error:
            raise SmeltError(f"ONNX Runtime cannot run the model: {error}") from error
        return dict(zip(known, results, strict=True))


class _OpenVinoOracle(Oracle):
    """OpenVINO's CPU plugin in float32, on the original model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.openvino = _import_package("openvino")
        self.data = model.SerializeToString()

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        core = self.openvino.Core()
        try:
            model = core.read_model(self.data, b"")
            computed = {n for op in model.get_ops() for o in op.outputs() for n in o.get_names()}
            known = [name for name in names if name in computed]
            outputs = {name for port in model.outputs for name in port.get_names()}
            for name in known:
                if name not in outputs:
                    model.add_outputs(name)
            compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            input_names = {name for port in compiled.inputs for name in port.get_names()}
            used = {name: array for name, array in inputs.items() if name in input_names}
            results = compiled(used)
            return {name: np.array(results[name]) for name in known}
        except (RuntimeError, ValueError, TypeError) as error:
            raise SmeltError(f"OpenVINO cannot run the model: {error}") from error


def _import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name, "bench") from error


def _errors_of(runtime: Any) -> tuple[type[Exception], ...]:
    """Return the exception types of ONNX Runtime, which have no common base class."""
    module: Any = runtime.capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
    return (RuntimeError, ValueError, *(getattr(module, name) for name in names))


def make_oracle(against: str, graph: Graph, model: onnx.ModelProto | None = None) -> Oracle:
    """Return the oracle of a name for a graph.

    Args:
        against: one of `ORACLES`, or the path of an engine or of recorded outputs.
        graph: the network.
        model: the ONNX model that the graph comes from; without one, the graph is exported.

    Raises:
        SmeltError: a file cannot be read, or lacks an output.
        MissingExtraError: the oracle is not installed.
        UnsupportedError: the graph cannot be written as ONNX.
    """
    if against == "reference":
        return _NumpyReferenceOracle(graph)
    if against not in ORACLES:
        return recorded_oracle(against, graph)
    known = model_from_graph(graph) if model is None else model
    return _OnnxRuntimeOracle(known) if against == "onnxruntime" else _OpenVinoOracle(known)


def make_part_oracle(against: str, part: Graph) -> Oracle:
    """Return the oracle of a name for a part of the network.

    Raises:
        UnsupportedError: the oracle is a file, which gives results for the whole network only, or
            the part cannot be written as ONNX.
    """
    if against not in ORACLES:
        raise UnsupportedError(
            f"{against} gives results for the whole network only, not for parts of it"
        )
    return make_oracle(against, part)


def is_caffe(model: object, weights: object) -> bool:
    """Return whether a model is Caffe's: it has separate weights, or a prototxt's suffix."""
    return weights is not None or Path(_path(model)).suffix.lower() in _CAFFE


def _path(model: object) -> str:
    """Return the path of a model; empty if the model is not a path."""
    return str(model) if is_path(model) else ""


def check_oracle(
    against: str, model: object, weights: object, *, needs_parts: bool = False
) -> None:
    """Check that an oracle supports a comparison, before the model is read.

    Args:
        against: name of the oracle, or a file.
        model: the model, or its path.
        weights: the caffemodel of a prototxt.
        needs_parts: whether the network will be reduced, for which its parts are compared, too.

    Raises:
        SmeltError: there is no such oracle or file, or the oracle is a file, which does not give
            results for parts.
        UnsupportedError: the oracle does not read models of this format.
    """
    if against not in ORACLES and not has_answers(against):
        raise SmeltError(
            f"the network cannot be compared with {against!r}; give {', '.join(ORACLES)}, or the "
            "file of an engine or of recorded outputs (.npz, .npy)"
        )
    if against not in ORACLES and needs_parts:
        raise SmeltError(
            f"{against} gives results for the whole network only, and reduction needs those of "
            f"its parts; compare with one of {', '.join(ORACLES)}"
        )
    if against == "openvino" and is_caffe(model, weights):
        raise UnsupportedError(
            f"{_path(model) or 'the model'} is a Caffe model, and OpenVINO reads only ONNX; "
            "compare the model with reference or onnxruntime (for which smelt exports it to ONNX)"
        )

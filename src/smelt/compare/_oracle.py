"""Who knows the right answer: our references, or another engine."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from smelt.compare._export import model_from_graph
from smelt.compare._recorded_oracle import has_answers, recorded_oracle
from smelt.errors import MissingExtraError, SmeltError, UnsupportedError
from smelt.interp import interpret
from smelt.ir import clone
from smelt.passes import PromoteHalf, run_passes
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from smelt.ir import Array, Graph

EXTERNAL_ORACLES: Final = ("onnxruntime", "openvino")
"""Engines of others, which read ONNX."""
ORACLES: Final = ("reference", *EXTERNAL_ORACLES)
"""What an engine can be compared with, besides the answers in a file."""
_CAFFE: Final = frozenset({".prototxt", ".pbtxt", ".txt"})


class Oracle(Protocol):
    """Answers for a network."""

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        """The values of these names, as far as the oracle knows them."""
        ...


class _References(Oracle):
    """The references of our ops, node by node; what is half precision between them is float32.

    Each rounds its result: in half precision that is an error as large as those to be found.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.wide = clone(graph)
        run_passes(self.wide, [PromoteHalf()])

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        known = {value.name for value in self.wide.values()}
        found: dict[str, Array] = {}
        for graph, wanted in (
            (self.wide, [name for name in names if name in known]),
            (self.graph, [name for name in names if name not in known]),
        ):
            found |= interpret(graph, inputs, outputs=wanted) if wanted else {}
        types = {v.name: v.tensor.dtype.numpy for v in self.graph.values() if v.name in found}
        return {name: array.astype(types[name], copy=False) for name, array in found.items()}


class _OnnxRuntime(Oracle):
    """ONNX Runtime, on the model as it was given, so that our importer is compared as well."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self.runtime: Any = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise MissingExtraError("onnxruntime", "bench") from error
        self.model = model

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        made = {name for node in model.graph.node for name in node.output if name}
        made.update(value.name for value in model.graph.output)
        known = [name for name in names if name in made]
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in known)
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised; its warnings are not ours
        try:
            session = self.runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            wanted = {value.name for value in session.get_inputs()}
            given = {name: array for name, array in inputs.items() if name in wanted}
            results: list[Array] = session.run(known, given)
        except _errors_of(self.runtime) as error:
            raise SmeltError(f"ONNX Runtime cannot run the model: {error}") from error
        return dict(zip(known, results, strict=True))


class _OpenVino(Oracle):
    """OpenVINO's CPU plugin in full precision, on the model as it was given."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self.openvino: Any = importlib.import_module("openvino")
        except ImportError as error:
            raise MissingExtraError("openvino", "bench") from error
        self.data = model.SerializeToString()

    @override
    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        core = self.openvino.Core()
        try:
            model = core.read_model(self.data, b"")
            made = {n for op in model.get_ops() for port in op.outputs() for n in port.get_names()}
            known = [name for name in names if name in made]
            shown = {name for port in model.outputs for name in port.get_names()}
            for name in known:
                if name not in shown:
                    model.add_outputs(name)
            compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            wanted = {name for port in compiled.inputs for name in port.get_names()}
            given = {name: array for name, array in inputs.items() if name in wanted}
            results = compiled(given)
            return {name: np.array(results[name]) for name in known}
        except (RuntimeError, ValueError, TypeError) as error:
            raise SmeltError(f"OpenVINO cannot run the model: {error}") from error


def _errors_of(runtime: Any) -> tuple[type[Exception], ...]:
    """ONNX Runtime's own errors: each is a class by itself."""
    module: Any = runtime.capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
    return (RuntimeError, ValueError, *(getattr(module, name) for name in names))


def make_oracle(against: str, graph: Graph, model: onnx.ModelProto | None = None) -> Oracle:
    """The oracle of a name for a graph.

    Args:
        against: one of `ORACLES`, or the path of an engine or of recorded outputs.
        graph: the network.
        model: the ONNX model that the graph comes from; without one, the graph is exported.

    Raises:
        SmeltError: a file cannot be read, or has not every output.
        MissingExtraError: the oracle is not installed.
        UnsupportedError: the graph cannot be written as ONNX.
    """
    if against == "reference":
        return _References(graph)
    if against not in ORACLES:
        return recorded_oracle(against, graph)
    known = model_from_graph(graph) if model is None else model
    return _OnnxRuntime(known) if against == "onnxruntime" else _OpenVino(known)


def make_part_oracle(against: str, part: Graph) -> Oracle:
    """The oracle of a name for a part of the network.

    Raises:
        UnsupportedError: it is a file, which answers for the whole, or ONNX has no op for the part.
    """
    if against not in ORACLES:
        raise UnsupportedError(
            f"{against} gives results for the whole network only, not for parts of it"
        )
    return make_oracle(against, part)


def is_caffe(model: object, weights: object) -> bool:
    """Whether a model is Caffe's: the path of a prototxt, or what has weights beside it."""
    return weights is not None or Path(_path(model)).suffix.lower() in _CAFFE


def _path(model: object) -> str:
    """A model's path; empty where it is none."""
    if isinstance(model, os.PathLike):
        return str(cast("os.PathLike[str]", model))
    return model if isinstance(model, str) else ""


def check_oracle(against: str, model: object, weights: object, *, in_parts: bool = False) -> None:
    """See to it that an oracle can be meant for a model, before that is read.

    Args:
        against: its name, or a file.
        model: the model, or its path.
        weights: the caffemodel of a prototxt.
        in_parts: whether it is asked about parts of the network, too.

    Raises:
        SmeltError: there is no such oracle or file, or it knows the whole network alone.
        UnsupportedError: it does not read such models.
    """
    if against not in ORACLES and not has_answers(against):
        raise SmeltError(
            f"cannot compare with {against!r}: it is not one of {', '.join(ORACLES)}, an engine, "
            "or a file of recorded outputs (.npz, .npy)"
        )
    if against not in ORACLES and in_parts:
        raise SmeltError(
            f"{against} gives results for the whole network only, and reduction needs those of "
            f"its parts; compare with one of {', '.join(ORACLES)}"
        )
    if against == "openvino" and is_caffe(model, weights):
        raise UnsupportedError(
            f"{_path(model) or 'this'} is a Caffe model, and OpenVINO reads only ONNX; compare it "
            "with reference or onnxruntime (smelt exports the network to ONNX for it)"
        )

"""Who knows the right answer: our references, or another engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol

from smelt.compare._export import model_from_graph
from smelt.errors import MissingExtraError, SmeltError
from smelt.interp import interpret
from smelt.ir import clone
from smelt.passes import PromoteHalf, run_passes
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from smelt.ir import Array, Graph

ORACLES: Final = ("reference", "onnxruntime")
"""What an engine can be compared with."""


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


def _errors_of(runtime: Any) -> tuple[type[Exception], ...]:
    """ONNX Runtime's own errors: each is a class by itself."""
    module: Any = runtime.capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
    return (RuntimeError, ValueError, *(getattr(module, name) for name in names))


def make_oracle(against: str, graph: Graph, model: onnx.ModelProto | None = None) -> Oracle:
    """The oracle of a name for a graph.

    Args:
        against: one of `ORACLES`.
        graph: the network.
        model: the ONNX model that the graph comes from; without one, the graph is exported.

    Raises:
        SmeltError: there is no such oracle.
        MissingExtraError: it is not installed.
        UnsupportedError: the graph cannot be written as ONNX.
    """
    if against == "reference":
        return _References(graph)
    if against == "onnxruntime":
        return _OnnxRuntime(model_from_graph(graph) if model is None else model)
    raise SmeltError(f"against is {against!r}; it must be one of {', '.join(ORACLES)}")

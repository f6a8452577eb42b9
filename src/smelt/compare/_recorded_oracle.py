"""Oracles from files: another engine, or recorded outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.builder import load
from smelt.compare._inputs import check_output, load_output
from smelt.engine import MAGIC
from smelt.errors import BindingError, SmeltError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Limit, open_file, read_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smelt.compare._oracle import Oracle
    from smelt.ir import Array, Graph
    from smelt.types import ArrayHeader

_RECORDING_SUFFIXES: Final = frozenset({".npy", ".npz"})


class _EngineOracle:
    """Another engine of the same network, which runs on its own device."""

    def __init__(self, path: str, graph: Graph) -> None:
        self._path = path
        self._engine = load(path)
        self._known = [binding.name for binding in self._engine.outputs]
        _check_outputs(path, graph, self._known)

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        requested = [name for name in names if name in self._known]
        input_names = {binding.name for binding in self._engine.inputs}
        used = {name: array for name, array in inputs.items() if name in input_names}
        try:
            return self._engine.run(used, requested)
        except SmeltError as error:
            raise BindingError(f"{self._path} cannot run on these inputs: {error}") from error


class _RecordedOracle:
    """Outputs that were recorded for certain inputs."""

    def __init__(self, path: str, graph: Graph) -> None:
        names_in_file: list[str] = []
        known = graph.values_by_name()

        def is_known(name: str, header: ArrayHeader) -> bool:
            names_in_file.append(name)
            if (value := known.get(name)) is None:
                return False
            check_output(path, name, value.tensor, header)
            return True

        if Path(path).suffix.lower() == ".npz":
            self._arrays = read_arrays(path, is_known)
        elif len(graph.outputs) == 1:
            output = graph.outputs[0]
            names_in_file = [output.name]
            self._arrays = {output.name: load_output(path, output.name, output.tensor)}
        else:
            names = ", ".join(value.name for value in graph.outputs)
            raise BindingError(
                f"{path} is one array without a name, but the outputs are {names}; select one "
                "with --output, or give an .npz archive with the outputs by name"
            )
        _check_outputs(path, graph, names_in_file)

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        return {name: np.asarray(self._arrays[name]) for name in names if name in self._arrays}


def is_recording(path: str) -> bool:
    """Return whether a path names recorded outputs, which are for certain inputs only."""
    return Path(path).suffix.lower() in _RECORDING_SUFFIXES


def recorded_oracle(path: str, graph: Graph) -> Oracle:
    """Return the oracle for the whole network from a file of an engine or of recorded outputs.

    Raises:
        SmeltError: the file cannot be read, or lacks an output of the network.
    """
    return _RecordedOracle(path, graph) if is_recording(path) else _EngineOracle(path, graph)


def has_answers(path: str) -> bool:
    """Return whether a path names an existing file of an engine or of recorded outputs."""
    try:
        with open_file(path, Limit.MAX_ENGINE_BYTES) as file:
            return is_recording(path) or file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        return False


def _check_outputs(path: str, graph: Graph, known: Iterable[str]) -> None:
    missing = [value.name for value in graph.outputs if value.name not in known]
    if missing:
        raise BindingError(
            f"{path} has no output {missing[0]!r}; it has: {', '.join(known)}. Use --output NAME "
            "to select the tensors to compare"
        )

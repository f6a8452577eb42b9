"""Answers that lie in a file: of another engine, or recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.builder import load
from smelt.compare._inputs import check_output, load_archive, load_output
from smelt.engine import MAGIC
from smelt.errors import BindingError, SmeltError
from smelt.types import Limit, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smelt.compare._oracle import Oracle
    from smelt.ir import Array, Graph
    from smelt.types import ArrayHeader

_RECORDED: Final = frozenset({".npy", ".npz"})


class _OtherEngine:
    """Another engine of the same network, on the device for which it was built."""

    def __init__(self, path: str, graph: Graph) -> None:
        self._path = path
        self._engine = load(path)
        self._known = [binding.name for binding in self._engine.outputs]
        _check_outputs(path, graph, self._known)

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        wanted = [name for name in names if name in self._known]
        taken = {binding.name for binding in self._engine.inputs}
        given = {name: array for name, array in inputs.items() if name in taken}
        try:
            return self._engine.run(given, wanted)
        except SmeltError as error:
            raise BindingError(f"{self._path} cannot run on these inputs: {error}") from error


class _Recording:
    """What was recorded for certain inputs."""

    def __init__(self, path: str, graph: Graph) -> None:
        held: list[str] = []
        known = {value.name: value for value in graph.values()}

        def is_known(name: str, header: ArrayHeader) -> bool:
            held.append(name)
            if (value := known.get(name)) is None:
                return False
            check_output(path, name, value.tensor, header)
            return True

        if Path(path).suffix.lower() == ".npz":
            self._arrays = load_archive(path, is_known)
        elif len(graph.outputs) == 1:
            output = graph.outputs[0]
            held = [output.name]
            self._arrays = {output.name: load_output(path, output.name, output.tensor)}
        else:
            names = ", ".join(value.name for value in graph.outputs)
            raise BindingError(
                f"{path} is one array without a name, and the outputs are {names}; choose one "
                "with --output, or give an .npz archive that has them by name"
            )
        _check_outputs(path, graph, held)

    def values(self, inputs: Mapping[str, Array], names: Sequence[str], /) -> dict[str, Array]:
        return {name: np.asarray(self._arrays[name]) for name in names if name in self._arrays}


def is_recording(path: str) -> bool:
    """Whether the path names arrays, which are right for certain inputs alone."""
    return Path(path).suffix.lower() in _RECORDED


def recorded_oracle(path: str, graph: Graph) -> Oracle:
    """The oracle that a file is, for the whole network.

    Raises:
        SmeltError: the file cannot be read, or has not every output of the network.
    """
    return _Recording(path, graph) if is_recording(path) else _OtherEngine(path, graph)


def has_answers(path: str) -> bool:
    """Whether there is such a file, of arrays or an engine."""
    try:
        with open_file(path, Limit.MAX_ENGINE_BYTES) as file:
            return is_recording(path) or file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def _check_outputs(path: str, graph: Graph, known: Iterable[str]) -> None:
    missing = [value.name for value in graph.outputs if value.name not in known]
    if missing:
        raise BindingError(
            f"{path} has no output {missing[0]!r}; it has: {', '.join(known)}. To "
            "compare other tensors of the model, name them (`--output NAME`)"
        )

"""Which layers must compute in float32 for the answers to be right, where 16 bits are asked for.

Most networks lose little by rounding: where many channels are added up, errors are, too, and they
differ. Some multiply what the first few of their layers have lost. So a network is interpreted on
random inputs in float32, and with every layer's operands rounded as its kernels will round them.
Where answers err by too much, a stretch of layers is looked for without whose rounding they do not:
first where it must end if it begins with the network, then where it may begin.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Aliasing
from smelt.errors import BuildError, GraphError, SmeltError, sanitize_name
from smelt.interp import run_node
from smelt.ir import Operand
from smelt.passes import Note, PassRecord, PassReport
from smelt.types import DType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend
    from smelt.ir import Array, Graph, Node, Value
    from smelt.tuner import Candidates

    Sizes = Mapping[str, int]
    Rounded = Mapping[str, tuple[bool, ...]]

_LOG = logging.getLogger(__name__)
_SAMPLES: Final = 3
"""Random inputs. Answers that are right on one of them are so on all: others may be luck."""
_ERROR_TARGET_SHARE: Final = 0.3
"""How much of what is allowed the answers may err by when layers are kept: pictures err by up to
three times as much."""
_MAX_FLOP: Final = 2_000_000_000
"""Of a network that is looked at unasked: some tenths of a second for each time that it is run."""
_MAX_ELEMENTS: Final = 1 << 24
"""That all its layers make: what is no product takes time, too, and a run keeps all its results."""
_NARROW: Final = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Float32Layers:
    """Layers that stay in float32."""

    names: frozenset[str]
    """Of their nodes."""
    error: float
    """The largest error of an answer, relative to its largest magnitude, if none stays ..."""
    error_with_float32_layers: float
    """... and if they do."""


def find_float32_layers(
    graph: Graph, rounded_inputs_by_node: Rounded, storage: DType, sizes: Sizes, most: float
) -> Float32Layers | None:
    """The layers to keep in float32 so that answers do not err by too much.

    Args:
        graph: optimised.
        rounded_inputs_by_node: for each node by name, which of its inputs its kernels round.
        storage: the type that they are rounded to.
        sizes: the symbols' values.
        most: how far they may err, relative to each one's largest magnitude.

    Returns:
        None where none need be.

    Raises:
        BuildError: it cannot be told. Where rounding decides something (a comparison, an order), a
            difference says nothing about errors; and references may refuse what an input holds.
    """
    if not any(map(any, rounded_inputs_by_node.values())):
        return None
    try:
        return _find_float32_range(graph, rounded_inputs_by_node, storage, sizes, most)
    except (SmeltError, MemoryError) as error:
        raise BuildError(
            f"the rounding error of {graph.name} cannot be measured: {error}"
        ) from error


def _find_float32_range(
    graph: Graph, rounded_inputs_by_node: Rounded, storage: DType, sizes: Sizes, most: float
) -> Float32Layers | None:
    for node in graph.nodes:
        if _decides(node):
            raise BuildError(f"a value that is known only at run time is needed by {node.name}")
    samples: list[_Sample] = []
    for seed in range(_SAMPLES):
        samples.append(_Sample(graph, rounded_inputs_by_node, storage, _inputs(graph, sizes, seed)))
        if not most < samples[-1].error(0, 0):
            return None
    samples.sort(key=lambda sample: -sample.error(0, 0))
    first, last = _smallest_sufficient_range(samples, len(graph.nodes), most * _ERROR_TARGET_SHARE)
    return Float32Layers(
        frozenset(node.name for node in graph.nodes[first:last]),
        max(sample.error(0, 0) for sample in samples),
        max(sample.error(first, last) for sample in samples),
    )


def _smallest_sufficient_range(
    samples: Sequence[_Sample], count: int, goal: float
) -> tuple[int, int]:
    """Where the nodes that are kept begin and end: as few as a search by halves finds.

    Most often they begin with the network, so their beginning is looked for by growing steps.
    """

    def holds(first: int, last: int) -> bool:
        return all(sample.error(first, last) <= goal for sample in samples)

    last = bisect_left(range(count), 1, key=lambda end: holds(0, end))
    first, step = 0, 1
    while step:
        fits = first + step < last and holds(first + step, last)
        first, step = (first + step, 2 * step) if fits else (first, step // 4)
    return first, last


def report_float32_layers(
    float32_layers: Float32Layers, graph: Graph, most: float, storage: DType
) -> dict[str, Any]:
    """Warn of what stays in float32, and what a build's report says of it beside its passes."""
    nodes = [node for node in graph.nodes if node.name in float32_layers.names]
    _LOG.warning(
        "%d of %d layers of %s stay in float32: with all layers in %s, the relative error on "
        "random inputs "
        "would be %.2g of the largest magnitude; with these layers in float32 it is %.2g. "
        "rounding_error= (`--rounding-error`) is the allowed error, %g; 1 keeps no layer in "
        "float32",
        len(nodes),
        len(graph.nodes),
        sanitize_name(graph.name),
        storage.value,
        float32_layers.error,
        float32_layers.error_with_float32_layers,
        most,
    )
    notes = tuple(Note(node.layers, node.layers, "stays in float32") for node in nodes)
    count = len(graph.nodes)
    options = {"rounding_error": most}
    record = PassRecord("keep-float32", options, bool(notes), count, count, 0.0, notes)
    report: list[dict[str, Any]] = PassReport(graph.name, [record]).to_json()["passes"]
    return report[0]


def rounded_inputs(node: Node, candidates: Candidates, backend: Backend[Any]) -> tuple[bool, ...]:
    """Which inputs of a node its best kernel rounds; none where it only hands them on, or none can.

    What nothing can run, the choice refuses, and says why.
    """
    tactics = candidates.tactics
    if not tactics or tactics[0].aliasing is not Aliasing.NONE or tactics[0].is_reference:
        return ()
    tactic = min(tactics, key=lambda t: t.cost_hint)
    packed = backend.family(tactic.family).pack(node, tactic)
    is_narrow = any(constant.type.dtype in _NARROW for constant in packed)

    def is_rounded(position: int, value: Value | None) -> bool:
        fmt = tactic.inputs[position]
        if value is None or value.tensor.dtype is not DType.FLOAT32:
            return False
        is_factor = position == 0 or (fmt is None and value.tensor.rank > 1)
        return (fmt is not None and fmt.dtype in _NARROW) or (is_factor and is_narrow)

    return tuple(is_rounded(position, value) for position, value in enumerate(node.inputs))


def is_small(graph: Graph, sizes: Sizes) -> bool:
    """Whether a network is run in no time, and in little memory; False where only values tell."""
    flop = numbers = 0
    try:
        for node in graph.nodes:
            operands = [None if v is None else Operand(v.type, None, v.dims) for v in node.inputs]
            flop += evaluate_dim(node.op.count_flop(operands), sizes)
            made = (element_count(value.tensor.shape) for value in node.outputs)
            numbers += sum(evaluate_dim(count, sizes) for count in made)
    except (GraphError, TypeError):
        return False
    return flop <= _MAX_FLOP and numbers <= _MAX_ELEMENTS


def _decides(node: Node) -> bool:
    """Whether a node makes of floats what is none, and somebody reads it; or runs other nodes."""
    reads = any(v is not None and v.constant is None and _is_float(v) for v in node.inputs)
    makes = any(value.users and not _is_float(value) for value in node.outputs)
    return bool(node.op.regions) or (reads and makes)


def _is_float(value: Value) -> bool:
    return value.tensor.dtype.is_float


def _inputs(graph: Graph, sizes: Sizes, seed: int) -> dict[Value, Array]:
    """Floats from -1 to 1, which change slowly along the axes of images, as pictures do.

    White noise says of some networks that they err by three times as much as on any picture. For
    the rest zeros and ones, which are indices and masks mostly.
    """
    rng = np.random.default_rng(seed)
    made: dict[Value, Array] = {}
    for value in graph.inputs:
        shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
        array = _low_frequency_noise(shape, rng) if _is_float(value) else rng.integers(0, 2, shape)
        made[value] = array.astype(value.tensor.dtype.numpy)
    return made


def _low_frequency_noise(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise whose amplitudes fall with the frequency along every axis behind the second."""
    noise = rng.standard_normal(shape)
    if not noise.size:
        return noise
    for axis in range(2, len(shape)):
        waves: Array = np.fft.rfft(noise, axis=axis)
        falling: Array = 1 / np.arange(1, waves.shape[axis] + 1, dtype=np.float64)
        waves = waves * falling.reshape(-1, *[1] * (len(shape) - 1 - axis))
        noise = np.fft.irfft(waves, shape[axis], axis)
    return noise / (np.abs(noise).max(initial=0.0) or 1.0)


@dataclass(slots=True)
class _Sample:
    """A graph on one set of inputs; every tensor as it is before anybody rounds it."""

    graph: Graph
    rounded_inputs_by_node: Rounded
    storage: DType
    inputs: Mapping[Value, Array]
    exact: dict[Value, Array] = field(init=False)
    narrow: dict[Value, Array] = field(init=False)
    """Where every node rounds."""

    def __post_init__(self) -> None:
        count = len(self.graph.nodes)
        self.exact = self._run(dict(self.inputs), 0, 0, count)
        self.narrow = self._run(dict(self.inputs), 0, 0, 0)

    def error(self, first: int, last: int) -> float:
        """The largest error of an answer where the nodes from first to last do not round."""
        known, start = (self.exact, last) if first == 0 else (self.narrow, first)
        values = self._run(dict(known), start, first, last) if last else self.narrow
        answers = [value for value in self.graph.outputs if _is_float(value)]
        return max((_error(values[v], self.exact[v]) for v in answers), default=0.0)

    def _run(
        self, values: dict[Value, Array], start: int, first: int, last: int
    ) -> dict[Value, Array]:
        """Compute the nodes from ``start`` on."""
        for place, node in enumerate(self.graph.nodes[start:], start):
            rounds = () if first <= place < last else self.rounded_inputs_by_node.get(node.name, ())
            arrays = [
                None if value is None else self._array(value, values) for value in node.inputs
            ]
            for position in (n for n, is_rounded in enumerate(rounds) if is_rounded):
                arrays[position] = _round(arrays[position], self.storage)
            values.update(zip(node.outputs, run_node(node, arrays), strict=False))
        return values

    def _array(self, value: Value, values: Mapping[Value, Array]) -> Array:
        return values[value] if value.constant is None else value.constant.array


def _round(array: Array | None, storage: DType) -> Array | None:
    if array is None or array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(storage.numpy).astype(np.float32)


def _error(mine: Array, exact: Array) -> float:
    """The largest difference, relative to the largest magnitude; 0 where that is not a number."""
    largest = float(np.abs(exact).max(initial=0.0))
    if not np.isfinite(largest):
        return 0.0
    difference = float(np.abs(mine.astype(np.float64) - exact).max(initial=0.0))
    return difference / (largest or 1.0) if np.isfinite(difference) else np.inf

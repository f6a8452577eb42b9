"""Selection of the layers that must compute in float32 in a 16-bit build.

Most networks lose little accuracy by rounding, because errors differ between channels and average
out in sums. Some networks amplify the errors of their first layers. Each network is therefore
interpreted on random inputs, once in float32 and once with the operands of every layer rounded as
its kernels will round them. If the outputs err by too much, a contiguous range of layers is
searched for that reduces the error sufficiently when it is not rounded: first the end of a range
that starts with the network, then its start.
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
from smelt.passes import Note, PassPipelineReport, PassRecord
from smelt.signal_errors import convert_own
from smelt.types import DType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend
    from smelt.ir import Array, Graph, Node, Value
    from smelt.tuner import Candidates

    Sizes = Mapping[str, int]
    RoundedInputs = Mapping[str, tuple[bool, ...]]

_LOG = logging.getLogger(__name__)
_SAMPLES: Final = 3
"""Number of random inputs. The search ends at the first input with an acceptable error; only a
network that errs on every input keeps layers in float32.
"""
_ERROR_TARGET_SHARE: Final = 0.3
"""Share of the allowed error that must be reached when layers are kept in float32. Natural images
have up to three times the error of the random inputs.
"""
_MAX_FLOP: Final = 2_000_000_000
"""Flop of the largest network that is examined by default; each evaluation takes some tenths of a
second.
"""
_MAX_ELEMENTS: Final = 1 << 24
"""Elements of all results of the largest network that is examined by default: an evaluation keeps
all results, and elementwise layers take time, too.
"""
_NARROW_TYPES: Final = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Float32Layers:
    """The layers that stay in float32."""

    names: frozenset[str]
    """Names of the nodes."""
    error_if_all_rounded: float
    """Largest error of an output relative to its largest magnitude, if all layers are rounded."""
    error_with_float32_layers: float
    """The same error if these layers are not rounded."""


def find_float32_layers(
    graph: Graph,
    rounded_inputs_by_node: RoundedInputs,
    storage: DType,
    sizes: Sizes,
    max_error: float,
) -> Float32Layers | None:
    """Return the layers to keep in float32 so that outputs stay within the allowed error.

    Args:
        graph: optimised graph.
        rounded_inputs_by_node: for each node name, which inputs its kernels round.
        storage: type to which they are rounded.
        sizes: values of the symbols.
        max_error: allowed error of each output, relative to its largest magnitude.

    Returns:
        The layers, or None if no layer has to stay in float32.

    Raises:
        BuildError: the error cannot be measured. Where rounding changes a decision (a comparison,
            an order), a difference is no measure of the error; and the reference of an op may
            reject an input.
    """
    if not any(map(any, rounded_inputs_by_node.values())):
        return None
    with convert_own(
        lambda error: BuildError(f"the rounding error of {graph.name} cannot be measured: {error}"),
        SmeltError,
        MemoryError,
    ):
        for node in graph.nodes:
            if _depends_on_decision(node):
                raise BuildError(f"{node.name} makes, or may contain, a decision by rounded values")
        samples: list[_Sample] = []
        for seed in range(_SAMPLES):
            samples.append(
                _Sample(graph, rounded_inputs_by_node, storage, _inputs(graph, sizes, seed))
            )
            if not max_error < samples[-1].error(0, 0):
                return None
        samples.sort(key=lambda sample: -sample.error(0, 0))
        first, last = _smallest_sufficient_range(
            samples, len(graph.nodes), max_error * _ERROR_TARGET_SHARE
        )
        return Float32Layers(
            frozenset(node.name for node in graph.nodes[first:last]),
            max(sample.error(0, 0) for sample in samples),
            max(sample.error(first, last) for sample in samples),
        )


def _smallest_sufficient_range(
    samples: Sequence[_Sample], count: int, max_error: float
) -> tuple[int, int]:
    """Return the first node of a small sufficient range, and the node after its last.

    The end is found by bisection for a range that starts with the network. Such ranges are the most
    frequent, so the start is then searched for in growing steps from the first node.
    """

    def suffices(first: int, last: int) -> bool:
        return all(sample.error(first, last) <= max_error for sample in samples)

    last = bisect_left(range(count), 1, key=lambda end: suffices(0, end))
    first, step = 0, 1
    while step:
        is_sufficient = first + step < last and suffices(first + step, last)
        first, step = (first + step, 2 * step) if is_sufficient else (first, step // 4)
    return first, last


def report_float32_layers(
    float32_layers: Float32Layers, graph: Graph, max_error: float, storage: DType
) -> dict[str, Any]:
    """Warn which layers stay in float32, and return the entry for the build report."""
    nodes = [node for node in graph.nodes if node.name in float32_layers.names]
    _LOG.warning(
        "%d of %d layers of %s stay in float32: with all layers in %s, the error on random inputs "
        "would be %.2g of the outputs' largest magnitude; with these layers in float32 it is %.2g. "
        "max_rounding_error= (`--max-rounding-error`) is the allowed error, %g; 1 keeps no layer "
        "in float32",
        len(nodes),
        len(graph.nodes),
        sanitize_name(graph.name),
        storage.value,
        float32_layers.error_if_all_rounded,
        float32_layers.error_with_float32_layers,
        max_error,
    )
    notes = tuple(Note(node.layers, node.layers, "stays in float32") for node in nodes)
    count = len(graph.nodes)
    options = {"max_rounding_error": max_error}
    record = PassRecord("keep-float32", options, bool(notes), count, count, 0.0, notes)
    report: list[dict[str, Any]] = PassPipelineReport(graph.name, [record]).to_json()["passes"]
    return report[0]


def rounded_inputs(node: Node, candidates: Candidates, backend: Backend[Any]) -> tuple[bool, ...]:
    """Return for each input of a node whether the kernel with the lowest estimate rounds it.

    The result is empty if the node has no kernel, or only passes its input on. A node that no
    tactic supports is refused later, with its reasons.
    """
    tactics = candidates.tactics
    if not tactics or tactics[0].aliasing is not Aliasing.NONE or tactics[0].is_host_step:
        return ()
    tactic = min(tactics, key=lambda t: t.estimated_seconds)
    packed = backend.family(tactic.family).pack(node, tactic)
    is_narrow = any(constant.type.dtype in _NARROW_TYPES for constant in packed)

    def is_rounded(position: int, value: Value | None) -> bool:
        fmt = tactic.input_formats[position]
        if value is None or value.tensor.dtype is not DType.FLOAT32:
            return False
        is_factor = position == 0 or (fmt is None and value.tensor.rank > 1)
        return (fmt is not None and fmt.dtype in _NARROW_TYPES) or (is_factor and is_narrow)

    return tuple(is_rounded(position, value) for position, value in enumerate(node.inputs))


def is_small(graph: Graph, sizes: Sizes) -> bool:
    """Return whether a network can be evaluated with little time and memory.

    The result is False if the sizes depend on values.
    """
    flop = elements = 0
    try:
        for node in graph.nodes:
            operands = [None if v is None else Operand(v.type, None, v.dims) for v in node.inputs]
            flop += evaluate_dim(node.op.count_flop(operands), sizes)
            counts = (element_count(value.tensor.shape) for value in node.outputs)
            elements += sum(evaluate_dim(count, sizes) for count in counts)
    except (GraphError, TypeError):
        return False
    return flop <= _MAX_FLOP and elements <= _MAX_ELEMENTS


def _depends_on_decision(node: Node) -> bool:
    """Return whether a node turns floats into other types that are read, or runs other nodes."""
    reads_floats = any(v is not None and v.constant is None and _is_float(v) for v in node.inputs)
    makes_other_types = any(value.users and not _is_float(value) for value in node.outputs)
    return bool(node.op.regions) or (reads_floats and makes_other_types)


def _is_float(value: Value) -> bool:
    return value.tensor.dtype.is_float


def _inputs(graph: Graph, sizes: Sizes, seed: int) -> dict[Value, Array]:
    """Return random inputs of the graph.

    Floats are from -1 to 1 and change slowly along the axes of images, like natural images; on
    white noise some networks err by three times as much as on any image. Other inputs are zeros and
    ones, because most are indices and masks.
    """
    rng = np.random.default_rng(seed)
    inputs: dict[Value, Array] = {}
    for value in graph.inputs:
        shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
        array = _low_frequency_noise(shape, rng) if _is_float(value) else rng.integers(0, 2, shape)
        inputs[value] = array.astype(value.tensor.dtype.numpy)
    return inputs


def _low_frequency_noise(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return noise whose amplitude falls with the frequency along each axis after the second."""
    noise = rng.standard_normal(shape)
    if not noise.size:
        return noise
    for axis in range(2, len(shape)):
        spectrum: Array = np.fft.rfft(noise, axis=axis)
        attenuation: Array = 1 / np.arange(1, spectrum.shape[axis] + 1, dtype=np.float64)
        spectrum = spectrum * attenuation.reshape(-1, *[1] * (len(shape) - 1 - axis))
        noise = np.fft.irfft(spectrum, shape[axis], axis)
    return noise / (np.abs(noise).max(initial=0.0) or 1.0)


@dataclass(slots=True)
class _Sample:
    """The results of a graph on one set of inputs, before rounding by their readers."""

    graph: Graph
    rounded_inputs_by_node: RoundedInputs
    storage: DType
    inputs: Mapping[Value, Array]
    exact: dict[Value, Array] = field(init=False)
    narrow: dict[Value, Array] = field(init=False)
    """Results if every node rounds its inputs."""

    def __post_init__(self) -> None:
        count = len(self.graph.nodes)
        self.exact = self._run(dict(self.inputs), 0, 0, count)
        self.narrow = self._run(dict(self.inputs), 0, 0, 0)

    def error(self, first: int, last: int) -> float:
        """Return the largest relative error of an output if a range of nodes does not round.

        The range consists of the nodes from ``first`` to ``last - 1``.
        """
        initial, start = (self.exact, last) if first == 0 else (self.narrow, first)
        values = self._run(dict(initial), start, first, last) if last else self.narrow
        outputs = [v for v in self.graph.outputs if _is_float(v) and v.constant is None]
        return max((_error(values[v], self.exact[v]) for v in outputs), default=0.0)

    def _run(
        self, values: dict[Value, Array], start: int, first: int, last: int
    ) -> dict[Value, Array]:
        """Compute the nodes from ``start`` on; nodes first to last - 1 do not round."""
        for number, node in enumerate(self.graph.nodes[start:], start):
            rounded = (
                () if first <= number < last else self.rounded_inputs_by_node.get(node.name, ())
            )
            arrays = [
                None if value is None else self._array(value, values) for value in node.inputs
            ]
            for position in (n for n, is_rounded in enumerate(rounded) if is_rounded):
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


def _error(actual: Array, exact: Array) -> float:
    """Return the largest difference relative to the largest exact magnitude.

    The result is 0 if the exact values are not finite, and infinite if only the others are not.
    """
    largest = float(np.abs(exact).max(initial=0.0))
    if not np.isfinite(largest):
        return 0.0
    difference = float(np.abs(actual.astype(np.float64) - exact).max(initial=0.0))
    return difference / (largest or 1.0) if np.isfinite(difference) else np.inf

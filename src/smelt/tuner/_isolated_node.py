"""Isolated nodes: the steps of one tactic on memory of their own, inputs and expected results.

Benches of all devices prepare tactics with these functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Operands, StoredTensor, error_view, root_of
from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import IndexRangeError
from smelt.interp import run_node
from smelt.ops import AveragePool, Conv, ConvSum, Fused, FusedPair, MaxPool
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    TensorType,
    evaluate_dim,
    is_float_dtype,
    random_array,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Tactic
    from smelt.engine import Step, View
    from smelt.ir import Array, Constant, Node, Op

_DISTINCT_IMAGES: Final = 4
"""Number of distinct images in a large batch. References of four images take an eighth of the time
of 32 (docs/lab/tuning-on-gpus.md)."""
_NARROW_DTYPES: Final = (DType.BFLOAT16, DType.FLOAT16)
"""Narrow storage types in order of precision, the least precise first."""


@dataclass(frozen=True, slots=True)
class TimingRepeats:
    """Sampling of a time: ``count`` samples, each the mean of ``runs_per_mean`` runs."""

    count: int
    runs_per_mean: int = 1
    seconds: float = 0.02
    """Time limit in seconds, checked after two samples."""
    min_sample_seconds: float = 0.0
    """Minimum duration of a sample in seconds; shorter samples average more runs."""


@dataclass(slots=True)
class NodeAllocation:
    """A block of memory that a tactic requires."""

    size_bytes: int
    fill: int = 0
    """Initial value of each byte; it determines the values in halos."""
    content: Constant | None = None
    """The packed constant that it holds; None for other memory."""
    is_constant: bool = False
    """Whether it holds constants, which no run changes."""


@dataclass(slots=True)
class IsolatedNode:
    """Steps of one tactic on memory that is not allocated yet: buffer k is allocation k."""

    steps: tuple[Step, ...]
    allocations: list[NodeAllocation]
    inputs: list[View | None]
    outputs: list[View]

    @property
    def launches(self) -> list[Launch]:
        """The steps that are device launches."""
        return [s for s in self.steps if isinstance(s, Launch)]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that each worker needs."""
        return max((launch.scratch_bytes for launch in self.launches), default=0)


def argument_words(launch: Launch, addresses: Sequence[int], sizes: Mapping[str, int]) -> list[int]:
    """Return the argument words of a launch on allocations at ``addresses``."""
    words = [addresses[v.buffer] + evaluate_dim(v.offset, sizes) for v in launch.operands]
    return words + [evaluate_dim(scalar, sizes) for scalar in launch.scalars]


@dataclass(slots=True)
class _AllocationPlan:
    """Collects the allocations of an isolated node."""

    sizes: Mapping[str, int]
    allocations: list[NodeAllocation] = field(default_factory=list[NodeAllocation])

    def view(self, stored: StoredTensor, *, fill: int = 0, is_constant: bool = False) -> View:
        """Add an allocation for a stored tensor and return the view of the tensor in it."""
        stored.buffer = len(self.allocations)
        size = evaluate_dim(stored.geometry()[2], self.sizes)
        self.allocations.append(NodeAllocation(size, fill, is_constant=is_constant))
        return stored.view()


def lower_isolated_node(
    backend: Backend[Any], node: Node, tactic: Tactic, sizes: Mapping[str, int]
) -> IsolatedNode:
    """Lower one tactic of one node to steps on allocations of their own."""
    allocation_plan = _AllocationPlan(sizes)
    family = backend.family(tactic.family)
    fill = tactic.halo_value & 0xFF  # only 1-byte types have halo values other than zero
    halos = tactic.halos or ((),) * len(node.inputs)
    inputs = [
        None
        if v is None or f is None
        else allocation_plan.view(
            StoredTensor(v.name, v.tensor, f, Space.ARENA, halo=h),
            fill=fill,
            is_constant=v.constant is not None,
        )
        for v, f, h in zip(node.inputs, tactic.input_formats, halos, strict=True)
    ]
    outputs = [
        allocation_plan.view(StoredTensor(v.name, v.tensor, f, Space.ARENA))
        for v, f in zip(node.outputs, tactic.output_formats, strict=True)
    ]
    packed: list[View] = []
    for constant in family.pack(node, tactic):
        linear = TensorFormat(constant.type.dtype, Layout.LINEAR)
        stored = StoredTensor(constant.name, constant.type, linear, Space.ARENA)
        packed.append(allocation_plan.view(stored, is_constant=True))
        allocation_plan.allocations[-1].content = constant
    workspace = None
    if tactic.workspace_bytes != 0:
        tensor = TensorType(DType.UINT8, (evaluate_dim(tactic.workspace_bytes, sizes),))
        linear = TensorFormat(tensor.dtype, Layout.LINEAR)
        workspace = allocation_plan.view(StoredTensor("workspace", tensor, linear, Space.ARENA))
    errors = None
    if family.reports_index_errors(node):
        errors = error_view(len(allocation_plan.allocations))
        allocation_plan.allocations.append(NodeAllocation(ERROR_BYTES))
    operands = Operands(tuple(inputs), tuple(outputs), tuple(packed), workspace, errors)
    steps = family.lower(node, tactic, operands)
    return IsolatedNode(steps, allocation_plan.allocations, inputs, outputs)


def lower_isolated_copy(
    backend: Backend[Any], kind: TensorType, sizes: Mapping[str, int]
) -> IsolatedNode:
    """Lower a copy of a tensor from the model's axis order to channels last."""
    allocation_plan = _AllocationPlan(sizes)
    formats = [TensorFormat(kind.dtype, f) for f in (Layout.LINEAR, Layout.CHANNELS_LAST)]
    stored = [StoredTensor("copied", kind, form, Space.ARENA) for form in formats]
    source, destination = map(allocation_plan.view, stored)
    steps = backend.reformat(source, destination)
    return IsolatedNode(steps, allocation_plan.allocations, [source], [destination])


def tensor_view(view: View, memory: NDArray[np.uint8], sizes: Mapping[str, int]) -> NDArray[Any]:
    """Return a tensor as an array in the memory of its allocation, in logical axis order."""
    dtype = view.dtype.numpy
    flat = memory[evaluate_dim(view.offset, sizes) :]
    flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
    shape = tuple(evaluate_dim(d, sizes) for d in view.shape)
    strides = tuple(evaluate_dim(s, sizes) * dtype.itemsize for s in view.strides)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def to_stored_layout(array: Array, layout: Layout) -> Array:
    """Arrange an array in the axis order that views of a layout have.

    In the paired layout, the last image of an odd batch is paired with a copy of itself, so the
    results of the copy equal those of the image.
    """
    if layout is not Layout.PAIRED:
        return array
    if len(array) % 2:
        array = np.concatenate([array, array[-1:]])
    return np.moveaxis(array.reshape(-1, 2, *array.shape[1:]), 1, -1)


# ---- inputs and expected results


def storage_dtype_of(tactics: Sequence[Tactic]) -> DType:
    """Return the least precise storage type of the tactics; float32 if none is narrow."""
    dtypes = {f.dtype for tactic in tactics for f in tactic.formats if f is not None}
    return next((dtype for dtype in _NARROW_DTYPES if dtype in dtypes), DType.FLOAT32)


def random_inputs_and_reference(
    node: Node, sizes: Mapping[str, int], rng: np.random.Generator, storage: DType
) -> tuple[list[Array | None], tuple[Array, ...]]:
    """Return random inputs of a node, with its own constants, and the reference results.

    ``storage`` represents the numbers exactly, so that all tactics compute from equal inputs. If
    the images of a batch are independent, a large batch repeats a few images in random order,
    because the reference is slow.
    """
    arrays: list[Array | None] = []
    batch = _independent_batch_size(node, sizes)
    order = rng.permutation(np.arange(batch) % _DISTINCT_IMAGES)
    for value in node.inputs:
        if value is None or value.constant is not None:
            arrays.append(None if value is None or value.constant is None else value.constant.array)
            continue
        shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
        if batch:
            shape = (_DISTINCT_IMAGES, *shape[1:])
        if value.dims is not None:  # the values follow from shapes, and kernels may rely on them
            known = [evaluate_dim(d, sizes) for d in value.dims]
            arrays.append(np.array(known, value.tensor.dtype.numpy).reshape(shape))
            continue
        array = random_array(value.tensor.dtype.numpy, shape, rng)
        narrow = array.dtype == np.float32 and storage is not DType.FLOAT32
        arrays.append(cast_to_storage(array, storage).astype(np.float32) if narrow else array)
    arrays, results = _with_valid_indices(node, arrays)
    if not batch:
        return arrays, results
    varying = [value is not None and value.constant is None for value in node.inputs]
    spread = [
        array[order] if varies and array is not None else array
        for array, varies in zip(arrays, varying, strict=True)
    ]
    return spread, tuple(result[order] for result in results)


def _with_valid_indices(
    node: Node, arrays: list[Array | None]
) -> tuple[list[Array | None], tuple[Array, ...]]:
    """Run the reference; retry with zeros as integer inputs if some are indices out of range."""
    try:
        return arrays, run_node(node, arrays)
    except IndexRangeError:
        varying = [value is not None and value.constant is None for value in node.inputs]
        arrays = [
            np.zeros_like(array)
            if array is not None and array.dtype.kind in "iu" and varies
            else array
            for array, varies in zip(arrays, varying, strict=True)
        ]
        return arrays, run_node(node, arrays)


def _independent_batch_size(node: Node, sizes: Mapping[str, int]) -> int:
    """Return the batch size if it is large and its images are independent, else 0."""
    if not isinstance(_first_op(node), Conv | ConvSum | MaxPool | AveragePool):
        return 0
    images = [v.tensor for v in node.inputs if v is not None and v.constant is None]
    counts = {evaluate_dim(kind.shape[0], sizes) if kind.rank > 2 else 0 for kind in images}
    count = counts.pop() if len(counts) == 1 else 0
    return count if count > _DISTINCT_IMAGES else 0


def _first_op(node: Node) -> Op:
    """Return the first op that a node computes; of a fused pair, the root of its first op."""
    root = root_of(node)[0]
    first = root.first if isinstance(root, FusedPair) else root
    return first.root if isinstance(first, Fused) else first


def cast_to_storage(array: Array, stored: DType) -> Array:
    """Convert floats to the storage dtype; other elements are returned unchanged."""
    return array.astype(stored.numpy) if is_float_dtype(array.dtype) else array


def smallest_nonzero(stored: DType) -> float:
    """Return the spacing of float16 numbers near zero, which bounds the accuracy; else 0."""
    return float(np.finfo(np.float16).smallest_subnormal) if stored is DType.FLOAT16 else 0.0


def large_error_reason(error: float, tolerance: float) -> str:
    """Return why results are rejected whose relative error exceeds the tolerance."""
    return f"the error is {error:.1e} of the largest magnitude; at most {tolerance:.1e} is accepted"


def largest_error(actual: Array, wanted: Array) -> tuple[float, float]:
    """Return the largest magnitude of the finite wanted elements, and the largest error.

    The error is infinite if the shapes differ, or the elements that are not finite numbers.
    """
    if actual.shape != wanted.shape:
        return 0.0, math.inf
    a, b = actual.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return 0.0, math.inf
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    magnitude = float(np.abs(b[finite]).max(initial=0.0))
    return magnitude, math.inf if math.isnan(error) else error


def relative_error(actual: Array, wanted: Array, step: float = 0.0) -> float:
    """Return the largest difference relative to the largest finite magnitude of ``wanted``.

    Integers give 0 if all are equal, else infinity. So do different shapes and non-finite elements
    that differ. ``step`` is subtracted from the difference: it is the spacing of stored numbers
    near zero.
    """
    if not is_float_dtype(wanted.dtype):
        return 0.0 if np.array_equal(actual, wanted) else math.inf
    magnitude, error = largest_error(actual, wanted)
    return max(0.0, error - step) / (magnitude or 1.0)

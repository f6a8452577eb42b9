"""Dataclasses of the report on an engine. Sizes are in bytes, at each plan's largest shapes."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar, cast

from smelt.errors import remove_controls, sanitize_name
from smelt.types import is_dict, is_tuple


@dataclass(frozen=True, slots=True)
class BindingReport:
    """An input or output of an engine."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int | str, ...]
    """Extents; a symbolic one is given as text."""


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """A tactic that was considered for a layer."""

    tactic: str
    seconds: float | None
    """Measured time of the tactic, or the cost estimate if no tactic was timed.

    None for a tactic that was not promising enough to be timed, or that was rejected because its
    results were wrong or differed between runs.
    """
    formats: str
    """Formats of inputs and outputs; empty if all candidates of the layer have the same."""
    network_seconds: float | None
    """Time measured in the whole network, including the effect on neighbouring layers.

    None for a tactic that was not tried in the network. If there are such times, they determine the
    choice.
    """
    chosen: bool


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """A launch of a kernel by a layer."""

    kernel: str
    """Symbol of the kernel."""
    blocks: int | None
    """Number of thread blocks on a GPU, or of chunks of work on a processor."""
    moved_bytes: int | None
    """Bytes that the launch reads and writes, each operand once; None if unknown."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """Arithmetic and memory traffic of a layer, and its roofline bound."""

    flop: float | None
    """Multiplications and additions of the layer's products; other arithmetic is not counted. None
    if the build report does not have it."""
    moved_bytes: int | None
    """Bytes that the layer's steps read and write, each operand of each step once; None if
    unknown."""
    flop_per_byte: float | None
    """Arithmetic intensity; None if unknown."""
    factors: str
    """Type in which the layer multiplies; empty for a layer without products."""
    bound_seconds: float | None
    """Least time on a device with the report's peak rates; None without peak rates."""
    bound_by: str
    """Limiting resource, "arithmetic" or "memory"."""
    measured_seconds: float | None
    """Measured time, if a profile was given."""
    share_of_bound: float | None
    """Bound divided by the measured time, 1 at the bound. Data in caches can make it larger."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer of the optimised engine; its name is that in the profiler."""

    index: int
    name: str
    """Names of the model's layers that are fused in it, joined by " + "."""
    kind: str
    op: str
    """Op with its epilogue: ``conv | relu``."""
    tactic: str
    node: str
    """Name of the graph's node; empty for a layer that the planner added (format conversion, halo).
    """
    inputs: tuple[str, ...]
    """Types of the inputs, including weights."""
    outputs: tuple[str, ...]
    """Types of the outputs."""
    input_formats: tuple[str | None, ...]
    output_formats: tuple[str, ...]
    steps: int
    """Number of steps in the plan; 0 for a layer that was optimised away."""
    is_reference: bool
    """Whether the layer runs its op's reference in Python, which is slow."""
    candidates: tuple[CandidateReport, ...]
    """Candidates, the fastest first."""
    refusals: tuple[str, ...]
    """Kernel families that do not support the layer, with the reasons."""
    launches: tuple[LaunchReport, ...]
    work: WorkReport | None
    """Work of the layer; None for a layer without steps."""

    @property
    def is_timed(self) -> bool:
        """Whether the layer's measured time is known."""
        return self.work is not None and self.work.measured_seconds is not None


@dataclass(frozen=True, slots=True)
class PassNote:
    """A change that a pass made, or decided against."""

    before: tuple[str, ...]
    """Names of the layers before the change."""
    after: tuple[str, ...]
    """Names of the layers after the change."""
    detail: str
    """Description of the change; if it was not made, the reason."""
    applied: bool
    """Whether the change was made."""


@dataclass(frozen=True, slots=True)
class PassSummary:
    """Summary of one pass of the optimiser."""

    name: str
    nodes_before: int
    nodes_after: int
    seconds: float
    notes: tuple[PassNote, ...]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of the optimised graph."""

    name: str
    op: str
    layers: tuple[str, ...]
    inputs: tuple[str, ...]
    """Names of the input tensors, without weights."""
    outputs: tuple[str, ...]
    """Names of the output tensors."""
    types: tuple[str, ...]
    """Type of each output."""
    tactic: str
    is_reference: bool
    """Whether the node runs its op's reference in Python."""
    is_view: bool
    """Whether the output is a view of the input, which takes no time."""


@dataclass(frozen=True, slots=True)
class TensorLifetime:
    """Position and lifetime of a tensor in the arena."""

    name: str
    offset: int
    """Offset in the arena in bytes."""
    size_bytes: int
    first_step: int
    """Index of the first step that uses the tensor."""
    last_step: int
    """Index of the last step that uses the tensor."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan of the engine, which is valid for a range of sizes."""

    symbols: tuple[tuple[str, int, int], ...]
    """(name, smallest, largest) value of each symbol that the plan supports."""
    steps: int
    segments: int
    """Number of segments, which are sequences of steps of one kind (native or Python)."""
    native_segments: int
    host_segments: int
    """Number of segments of steps in Python."""
    reference_steps: int
    """Number of steps that run an op's reference in Python."""
    reference_ops: tuple[str, ...]
    """Op of each of these steps."""
    host_copy_bytes: int
    """Bytes that each run copies between the device and the host for these steps."""
    arena_bytes: int
    arena_lower_bound_bytes: int
    """Largest total size of tensors alive at once; no arena can be smaller."""
    scratch_bytes: int
    """Scratch memory of each worker."""
    layers: tuple[LayerReport, ...]
    passes: tuple[PassSummary, ...]
    storage: tuple[str, ...]
    """Notes on which concatenations are written in place and which are copied."""
    memory: tuple[TensorLifetime, ...]
    source_nodes: tuple[tuple[str, str], ...]
    """(name, op) of each node of the model, before the passes."""
    nodes: tuple[NodeReport, ...]
    """Nodes of the graph after the passes, in the order of execution."""
    counted_at: tuple[tuple[str, int], ...]
    """Values of the symbols for which blocks and work are counted."""
    work: WorkReport
    """Total work of all layers; the bounds are added, as for layers that run one after another."""


@dataclass(frozen=True, slots=True)
class WeightReport:
    """A packed weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    refittable: bool
    """Whether the weight can be computed again from new values of the model's weights."""
    sources: tuple[str, ...] = ()
    """Names of the model's arrays that the weight is computed from, as `refit` takes them."""


@dataclass(frozen=True, slots=True)
class CodeReport:
    """Resources of a GPU kernel and its occupancy, for one architecture.

    A field is None if its value cannot be read from the machine code.
    """

    architecture: str
    threads: int | None = None
    """Threads per block."""
    registers: int | None = None
    """Registers per thread."""
    static_shared_bytes: int | None = None
    """Static shared memory per block."""
    dynamic_shared_bytes: int | None = None
    """Dynamic shared memory per block."""
    local_bytes: int | None = None
    """Local memory per thread: spilled registers, and arrays with dynamic indices."""
    code_bytes: int | None = None
    blocks: int | None = None
    """Blocks that are resident on a multiprocessor at once."""
    occupancy: float | None = None
    """Threads of these blocks divided by the multiprocessor's maximum of threads."""
    limited_by: str = ""
    """Resource that limits the blocks: "registers", "shared memory", "threads" or "blocks"."""
    problem: str = ""
    """Why a field is None; empty if none is."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Source text of a kernel, which is the same for the given architectures."""

    architectures: tuple[str, ...]
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A compiled kernel."""

    symbol: str
    family: str
    uses: int
    """Number of steps that launch the kernel."""
    parameters: tuple[tuple[str, str], ...]
    codes: tuple[CodeReport, ...] = ()
    """Resources on each architecture, for a GPU kernel."""
    sources: tuple[SourceReport, ...] = ()
    """Source texts, if requested; architectures with the same text share one."""
    measured_seconds: float | None = None
    """Time of all its launches in a run, if a profile was given.

    None for a kernel that shares a layer with other kernels, because times are those of layers.
    """
    share_of_bound: float | None = None
    """Sum of the bounds of the kernel's layers, divided by the measured time."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a device."""

    device: str
    """Name of the device."""
    bytes_per_second: float
    """Peak memory bandwidth in bytes/s."""
    flop_per_second: tuple[tuple[str, float], ...]
    """Peak arithmetic rate in FLOP/s by the type of the factors; "any" is for all other types."""

    def flop_of(self, kind: str) -> float | None:
        """Return the peak rate in FLOP/s for a type of factors; None if unknown."""
        rates = dict(self.flop_per_second)
        return rates.get(kind, rates.get("any"))


@dataclass(frozen=True, slots=True)
class SignerReport:
    """Signature of an engine file."""

    key_id: str
    """ID of the signing key; empty for an unsigned file."""
    label: str
    """Label of the key on this machine; empty if the key is not trusted."""
    is_trusted: bool
    is_right: bool
    """Whether the signature is valid: made with the key, for the unchanged file."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Report on an engine."""

    network: str
    device: str
    architecture: str
    features: tuple[str, ...]
    """Required features of the processor; for GPUs, the allowed arithmetic: "tf32", "half2"."""
    libraries: tuple[str, ...]
    """Libraries, with their versions, that the engine needs at run time."""
    multiprocessors: int | None
    """Multiprocessors of the GPU that the engine was tuned for; it also runs on other GPUs."""
    tuned_on: str
    """Machine on which tactics were timed; empty if they were chosen by cost estimates."""
    system: str
    version: str
    max_batch_size: int | None
    bindings: tuple[BindingReport, ...]
    plans: tuple[PlanReport, ...]
    weights: tuple[WeightReport, ...]
    kernels: tuple[KernelReport, ...]
    signer: SignerReport | None = None
    """None for an engine that was not read from a file."""
    peaks: Peaks | None = None
    """Peak rates for the layers' bounds; None if they are not known."""
    no_sources: str = ""
    """Why kernel sources were requested but are missing."""
    is_retunable: bool = False
    """Whether the engine contains its network."""
    partitions: tuple[EngineReport, ...] = ()
    """Reports on the engines of other devices that run parts of this one."""

    @property
    def reference_steps(self) -> int:
        """Largest number of steps of a plan that run an op's reference in Python."""
        return max((plan.reference_steps for plan in self.plans), default=0)

    @property
    def reference_ops(self) -> tuple[str, ...]:
        """Distinct ops of the steps that run a reference in Python."""
        return tuple(dict.fromkeys(op for plan in self.plans for op in plan.reference_ops))

    @property
    def reference_layers(self) -> tuple[str, ...]:
        """Distinct names of the layers that run a reference in Python."""
        layers = (layer for plan in self.plans for layer in plan.layers if layer.is_reference)
        return tuple(dict.fromkeys(layer.name for layer in layers))

    @property
    def host_copy_bytes(self) -> int:
        """Largest number of bytes that a run copies for these steps between device and host."""
        return max((plan.host_copy_bytes for plan in self.plans), default=0)

    @property
    def weight_bytes(self) -> int:
        """Total size of all packed weights."""
        return sum(weight.size_bytes for weight in self.weights)


ReportT = TypeVar("ReportT")


def masked_report(report: ReportT) -> ReportT:
    """Return a copy of a report whose texts are safe to display: single lines without controls.

    Kernel sources keep their line feeds.
    """
    return cast("ReportT", _masked(report))


def _masked(value: object) -> object:
    """Return a copy of a value in which all texts are safe to display."""
    if isinstance(value, str):
        return sanitize_name(value)
    if is_tuple(value):
        return tuple(map(_masked, value))
    if is_dict(value):
        return {_masked(name): _masked(field) for name, field in value.items()}
    if isinstance(value, SourceReport):
        return replace(value, text=remove_controls(value.text))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _masked(getattr(value, f.name)) for f in fields(value)})
    return value

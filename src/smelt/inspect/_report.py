"""The report on an engine, as values. Sizes are in bytes, at each plan's largest shapes."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar, cast

from smelt.errors import remove_controls, sanitize_name


@dataclass(frozen=True, slots=True)
class BindingReport:
    """An input or output."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int | str, ...]
    """Extents; a symbol's name where a run decides."""


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """A way to run a layer that was considered."""

    tactic: str
    seconds: float | None
    """Measured, or estimated where nothing was timed; None for what was not promising enough to be
    timed, and for what gave wrong or moving results and was disqualified."""
    formats: str
    """Of what it reads and writes, where others of the layer have other formats; else empty."""
    network_seconds: float | None
    """Measured in the whole network, with what it costs the layers around; None for what was not
    tried there. Where there are such times, they decide."""
    chosen: bool


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """A kernel's run within a layer."""

    kernel: str
    """The kernel's symbol."""
    blocks: int | None
    """Blocks of threads on a GPU; on a processor, pieces of work for its threads."""
    moved_bytes: int | None
    """What it reads and writes, each operand once; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """How much a layer computes and moves, and how long that takes at least."""

    flop: float | None
    """Multiplications and additions of its products; other arithmetic is not counted. None where
    the build did not tell."""
    moved_bytes: int | None
    """What its steps read and write, each operand of each step once."""
    flop_per_byte: float | None
    factors: str
    """In what it multiplies; empty for a layer without products."""
    bound_seconds: float | None
    """The least time that a device of these peaks could take; None without peaks."""
    bound_by: str
    """"arithmetic" or "memory"."""
    measured_seconds: float | None
    """Its time, where a profile was given."""
    share_of_bound: float | None
    """The bound as a share of the measured time: 1 is as fast as can be. What a cache holds may
    be faster."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer of the optimised engine, as the profiler names it."""

    index: int
    name: str
    """The layers of the model that it stands for, joined by " + "."""
    kind: str
    op: str
    """What it computes, with its epilogue: ``conv | relu``."""
    tactic: str
    node: str
    """Name of the graph's node; empty for what the planner added (formats, halos)."""
    inputs: tuple[str, ...]
    """Types of what it reads, weights included."""
    outputs: tuple[str, ...]
    input_formats: tuple[str | None, ...]
    output_formats: tuple[str, ...]
    steps: int
    """Steps of the plan that it takes; 0 for a layer that was optimised into nothing."""
    is_reference: bool
    """Whether its reference runs in Python: right, but slow."""
    candidates: tuple[CandidateReport, ...]
    """Fastest first."""
    refusals: tuple[str, ...]
    """Families of kernels that cannot run it, and why."""
    launches: tuple[LaunchReport, ...]
    work: WorkReport | None
    """None for a layer without steps."""

    @property
    def is_timed(self) -> bool:
        """Whether its time is known."""
        return self.work is not None and self.work.measured_seconds is not None


@dataclass(frozen=True, slots=True)
class PassNote:
    """One thing that a pass did, or did not do."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    detail: str
    """What was done; for what was not, why not."""
    applied: bool


@dataclass(frozen=True, slots=True)
class PassSummary:
    """What one pass of the optimiser did."""

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
    """Names of the tensors that it reads, without weights."""
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    """Type of each output."""
    tactic: str
    is_reference: bool
    is_view: bool
    """Whether it only looks differently at memory, and takes no time."""


@dataclass(frozen=True, slots=True)
class TensorLifetime:
    """Where a tensor lies in the arena, and how long."""

    name: str
    offset: int
    size_bytes: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """One way to run the engine."""

    symbols: tuple[tuple[str, int, int], ...]
    """(name, smallest, largest) value for which the plan runs."""
    steps: int
    segments: int
    """Stretches of steps of one kind: one, where no Python runs in between."""
    native_segments: int
    host_segments: int
    reference_steps: int
    """Steps that run an op's reference in Python."""
    reference_ops: tuple[str, ...]
    """The op of each such step."""
    host_copy_bytes: int
    """Bytes that are copied between the device and the host for these steps in each run."""
    arena_bytes: int
    arena_lower_bound_bytes: int
    """The largest sum of tensors alive at once; no arena can be smaller."""
    scratch_bytes: int
    """For each worker."""
    layers: tuple[LayerReport, ...]
    passes: tuple[PassSummary, ...]
    storage: tuple[str, ...]
    """Which concatenations are written in place, and which are copied."""
    memory: tuple[TensorLifetime, ...]
    source_nodes: tuple[tuple[str, str], ...]
    """(name, op) of the nodes of the model, before the passes."""
    nodes: tuple[NodeReport, ...]
    """The graph after the passes, in the order in which it runs."""
    counted_at: tuple[tuple[str, int], ...]
    """The symbols' values for which blocks and work are told."""
    work: WorkReport
    """Of all layers together; their bounds are added up, as if one ran after the other."""


@dataclass(frozen=True, slots=True)
class WeightReport:
    """A packed weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    refittable: bool
    """Whether new values of the model's weights can be pushed through what was folded into it."""
    sources: tuple[str, ...] = ()
    """The model's arrays that it follows from, as `refit` takes them."""


@dataclass(frozen=True, slots=True)
class CodeReport:
    """What a GPU's multiprocessor gives a kernel, by its machine code for one architecture.

    What the code does not tell, or not soundly, is None.
    """

    architecture: str
    threads: int | None = None
    """Of a block."""
    registers: int | None = None
    """Of a thread."""
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    local_bytes: int | None = None
    """Of a thread: registers that were spilled to memory, and arrays that are indexed there."""
    code_bytes: int | None = None
    blocks: int | None = None
    """How many a multiprocessor holds at once."""
    occupancy: float | None = None
    """How many of the threads that it could hold these are."""
    limited_by: str = ""
    """What it lacks for more: "registers", "shared memory", "threads" or "blocks"."""
    problem: str = ""
    """Why something is not told."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a kernel's machine code was made from."""

    architectures: tuple[str, ...]
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A piece of machine code."""

    symbol: str
    family: str
    uses: int
    """Steps that launch it."""
    parameters: tuple[tuple[str, str], ...]
    codes: tuple[CodeReport, ...] = ()
    """For a GPU: one for each architecture."""
    sources: tuple[SourceReport, ...] = ()
    """Its text, where it was asked for; architectures of one text share it."""
    measured_seconds: float | None = None
    """Of all its launches in a run, where a profile was given; None also for a kernel that shares a
    layer with others, for times are those of layers."""
    share_of_bound: float | None = None
    """The bounds of these layers as a share of that time."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device does in a second at best."""

    device: str
    """Its name."""
    bytes_per_second: float
    flop_per_second: tuple[tuple[str, float], ...]
    """For each kind of factors; "any" stands for all others."""

    def flop_of(self, kind: str) -> float | None:
        """The rate for factors of a kind; None where it is not known."""
        rates = dict(self.flop_per_second)
        return rates.get(kind, rates.get("any"))


@dataclass(frozen=True, slots=True)
class SignerReport:
    """Who signed an engine file."""

    key_id: str
    """Empty when nobody did."""
    label: str
    """What the user calls the key; empty when he does not trust it."""
    is_trusted: bool
    is_right: bool
    """Whether the signature is the key's, and the file as it was when it was signed."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Everything that an engine says about itself."""

    network: str
    device: str
    architecture: str
    features: tuple[str, ...]
    """What a processor must have; of an engine for GPUs, what it was allowed: "tf32", "half2"."""
    libraries: tuple[str, ...]
    """Libraries with their versions that it calls wherever it runs."""
    multiprocessors: int | None
    """Of the GPU for which it was tuned; it runs on larger and smaller ones, too."""
    tuned_on: str
    """Where its tactics were timed; empty where they were chosen by estimates."""
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
    """What layers' bounds follow from; None where the device is not known."""
    no_sources: str = ""
    """Why there are no sources, where they were asked for."""
    is_retunable: bool = False
    """Whether it keeps its network."""

    @property
    def reference_steps(self) -> int:
        """Steps of an inference that run an op's reference in Python: those of the worst plan."""
        return max((plan.reference_steps for plan in self.plans), default=0)

    @property
    def reference_ops(self) -> tuple[str, ...]:
        """The ops of those steps, each once."""
        return tuple(dict.fromkeys(op for plan in self.plans for op in plan.reference_ops))

    @property
    def reference_layers(self) -> tuple[str, ...]:
        """The layers of those steps."""
        layers = (layer for plan in self.plans for layer in plan.layers if layer.is_reference)
        return tuple(dict.fromkeys(layer.name for layer in layers))

    @property
    def host_copy_bytes(self) -> int:
        """Bytes copied for those steps in each run; 0 where the device has no memory of its own."""
        return max((plan.host_copy_bytes for plan in self.plans), default=0)

    @property
    def weight_bytes(self) -> int:
        """Size of all packed weights."""
        return sum(weight.size_bytes for weight in self.weights)


ReportT = TypeVar("ReportT")


def masked_report(report: ReportT) -> ReportT:
    """The report as it may be shown: every text in it one line without controls.

    Only the text of kernels keeps its lines.
    """
    return cast("ReportT", _masked(report))


def _masked(value: object) -> object:
    if isinstance(value, str):
        return sanitize_name(value)
    if isinstance(value, tuple):
        return tuple(map(_masked, cast("tuple[object, ...]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
        return {_masked(name): _masked(field) for name, field in pairs}
    if isinstance(value, SourceReport):
        return replace(value, text=remove_controls(value.text))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _masked(getattr(value, f.name)) for f in fields(value)})
    return value

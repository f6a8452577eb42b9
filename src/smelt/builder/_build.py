"""``build``: passes, tactic selection, code generation and assembly of an engine."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smelt.backends import WeightStore, build_plan
from smelt.builder._bindings import bindings_of
from smelt.builder._build_report import describe_plan
from smelt.builder._build_warnings import warn_of_batch, warn_of_estimates, warn_of_precision
from smelt.builder._embedded_network import EmbeddedNetwork, embed_network
from smelt.builder._optimization_profiles import BATCH, SymbolRanges, optimization_profiles_of
from smelt.builder._options import (
    EFFORTS,
    MIXED,
    PRECISIONS,
    BuildOptions,
    ProgressCallback,
    TuningEffort,
)
from smelt.builder._placement import NodeSupport, extract_partitions, place
from smelt.builder._plan_recipe import plan_recipes_json
from smelt.builder._runtime_symbol_bounds import bound_runtime_symbols, used_runtime_symbols
from smelt.builder._tactic_selection import PlanBuildState, TacticSelector
from smelt.builder._toolchain import Toolchain, open_toolchains
from smelt.builder._weight_recipes import with_recipes
from smelt.config import cache_directory
from smelt.devices import device_kind
from smelt.engine import EngineHeader, check_header
from smelt.errors import BuildError, EngineFormatError, sanitize_name
from smelt.ir import Graph, clone, verify
from smelt.network import NetworkDefinition
from smelt.passes import run_passes
from smelt.runtime import Engine
from smelt.tuner import TimingCache, check_timings
from smelt.types import Limit, enough_memory_for, require_callable, substitute_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.builder._optimization_profiles import ShapeSpec
    from smelt.builder._placement import PlacedPartition
    from smelt.engine import EngineFile, Fingerprint, KernelSpec
    from smelt.ir import Node

_LOG = logging.getLogger(__name__)


@enough_memory_for("the build")
def build(
    network: NetworkDefinition | Graph,
    device: str | Sequence[str] = "cpu",
    precision: str = "float32",
    max_batch_size: int = 1,
    max_workspace_bytes: int = 1 << 30,
    shapes: Mapping[str, ShapeSpec] | None = None,
    timing_cache: str | Path | None = None,
    progress: ProgressCallback | None = None,
    tune: str | float | TuningEffort = "fast",
    *,
    retunable: bool = False,
    libraries: bool = False,
    self_contained: bool = False,
    max_rounding_error: float | None = None,
) -> Engine:
    """Build an engine from a network.

    Args:
        network: the network, which is not changed. Weights are read during the build, by reference.
        device: ``"cpu"``, ``"cpu:x86-64-v3"`` (a compilation target), ``"cuda"`` or ``"cuda:1"`` (a
            GPU of this machine), ``"cuda:sm_90"`` or ``"cuda:sm_80,sm_90"`` (GPU architectures; no
            GPU is needed) or ``"null"`` (computes nothing). A list of devices is in order of
            preference. Of each kind, the first device that can be built for here is used. Every
            layer runs on the first of these that has a kernel for it, and what none has runs as a
            reference in Python; the engine is bound to the first device.
        precision: storage type of float32 tensors between layers, and the type in which GPUs (and
            CPUs with AVX512_BF16 for bfloat16) multiply: ``"float32"``, ``"bfloat16"`` or
            ``"float16"``. Sums and all other arithmetic are float32, and bindings keep the model's
            types. On processors that cannot convert the type, storage stays float32. ``"tf32"``
            stores float32 and lets GPUs round the operands of products to ten bits. ``"half2"``
            stores float16 and keeps images in pairs between a GPU's layers.
        max_batch_size: largest implicit batch; smaller batches run, too.
        max_workspace_bytes: limit in bytes of the scratch memory that one step may use in addition
            to its tensors. The same limit applies to tensors whose extents are known only at run
            time and have no other bound, such as the trips of a Loop; a run that needs more fails.
        shapes: for each input a shape; a list of shapes (one plan each); or a tuple (smallest,
            best, largest) of shapes.
        timing_cache: path of a file of measured times, which is read and extended.
        progress: function called with (stage, done, total). The stages are optimise, tune
            (candidates alone), measure (the best candidates in the whole network), pack and link.
        tune: ``"none"``, ``"fast"``, ``"full"``, a time limit in seconds, or a `TuningEffort`.
            Candidates are timed alone first, then the best in the whole network, with the default
            number of threads of a context. Candidates for another machine cannot be timed; a
            warning then says so.
        retunable: whether the engine contains its network, so that `retune` can build it again on
            the machine where it runs. Its file grows by the size of the network's weights.
        libraries: whether cuBLASLt's products and cuDNN's convolutions compete with generated
            kernels on a GPU of this machine, by measured time. An engine that uses a library
            requires that version of it wherever it runs.
        self_contained: whether the engine must contain all code that it runs: no library and no
            reference implementation in Python. A node without another tactic is then unsupported.
        max_rounding_error: allowed error of the outputs due to float16 or bfloat16 storage on GPUs,
            relative to their largest magnitude. The network is evaluated on random inputs. If the
            error is larger, as many layers as necessary stay in float32, and a warning says how
            many. 1 allows any error. None means 3e-3 in float16 and 2e-2 in bfloat16, and skips
            networks that compute more than 2 GFLOP or more than 16 million elements in all layers
            together.

    Raises:
        GraphError: the network is not valid.
        UnboundSymbolError: a symbolic extent has no value.
        UnsupportedError: no tactic can run a node; the message lists the reasons.
        BuildError: the options contradict each other, or the workspace limit is too low.
        DeviceError: this machine does not have the GPU.
        MissingExtraError: the compiler, or a requested library, is not installed.
    """
    options = BuildOptions(
        precision,
        max_batch_size,
        max_workspace_bytes,
        shapes,
        timing_cache,
        tune,
        retunable,
        libraries,
        self_contained,
        max_rounding_error,
    )
    return build_graph(_graph_of(network), device, options, progress)


@np.errstate(all="ignore")
def build_graph(
    graph: Graph,
    device: str | Sequence[str],
    options: BuildOptions,
    progress: ProgressCallback | None = None,
    *,
    is_retuning: bool = False,
) -> Engine:
    """Build an engine from a graph; see `build` for options and errors.

    Infinities and NaNs are valid results of constant folding, so numpy's warnings are disabled.
    """
    if progress is not None:
        require_callable(progress, "progress", BuildError)
    tools, *others = open_toolchains(
        device,
        options.precision,
        use_libraries=options.libraries,
        purpose="retune" if is_retuning else "build",
    )
    if useless := [t for t in others if not device_kind(t.fingerprint.device).computes]:
        # Its layers would have arbitrary results within a network that computes.
        _LOG.warning("device %s is skipped: it computes nothing", useless[0].fingerprint.device)
    others = [tools_ for tools_ in others if tools_ not in useless]
    ignore_progress: ProgressCallback = lambda _stage, _done, _total: None  # noqa: E731  (a def cannot be annotated so)
    progress = progress or ignore_progress
    return _Build(graph, options, tools, progress, is_retuning=is_retuning, others=others).run()


def _graph_of(network: object) -> Graph:
    """Return the graph of the network to build.

    Raises:
        BuildError: the argument is not a network; the message says how to obtain one.
    """
    if isinstance(network, Graph):
        return network
    if isinstance(network, NetworkDefinition):
        return network.graph
    advice = "read one with smelt.network_from_onnx or smelt.network_from_caffe"
    kind = type(network)
    if kind is tuple:
        advice = "network_from_caffe returns the network and its blobs; pass the network"
    raise BuildError(f"expected a network, not {kind.__name__}; {advice}")


@dataclass(slots=True)
class _Build:
    """One build: its inputs, and the state that its stages share."""

    graph: Graph
    options: BuildOptions
    tools: Toolchain
    progress: ProgressCallback
    is_retuning: bool = False
    """Whether the network was read from an engine; the advice in messages depends on it."""
    others: Sequence[Toolchain] = ()
    """Toolchains of further devices, in order of preference."""
    given_profile: SymbolRanges | None = None
    """Optimization profile of a partition; None if the shapes of the options determine them."""
    partitions: list[tuple[PlacedPartition, PlanBuildState]] = field(
        default_factory=list["tuple[PlacedPartition, PlanBuildState]"]
    )
    """The parts that run on other devices, each with its plan."""
    weights: WeightStore = field(default_factory=WeightStore)
    timings: TimingCache = field(init=False)
    deadline: float = field(init=False)
    """Time of ``time.perf_counter`` in seconds at which tuning must end."""

    def __post_init__(self) -> None:
        """Open the timing cache, and set the deadline of tuning."""
        path = self.options.timing_cache
        folder = cache_directory()
        if path is not None:
            check_timings(Path(path))
        elif folder is not None:
            path = folder / "timings.json"
        self.timings = TimingCache(path)
        effort = self.effort
        self.deadline = time.perf_counter() + (effort.seconds if effort else 0.0)

    @property
    def effort(self) -> TuningEffort | None:
        """The tuning effort, or None if candidates are not timed."""
        tune = self.options.tune
        if isinstance(tune, TuningEffort):
            return tune
        if isinstance(tune, str):
            return EFFORTS.get(tune)
        return dataclasses.replace(EFFORTS["full"], seconds=tune)

    def run(self) -> Engine:
        """Run all stages and return the engine."""
        _check_outputs(self.graph)
        verify(self.graph)
        profiles = self._profiles()
        plans = [self._optimise(p, number, len(profiles)) for number, p in enumerate(profiles)]
        for plan in plans:
            self._selector(plan).run()
        refusals = chain.from_iterable(reasons for p in plans for reasons in p.refusals.values())
        if hint := self.tools.hint(refusals):
            _LOG.warning("%s", hint)
        self.timings.save()
        self._pack(plans)
        return self._make_engine(plans, profiles)

    def _make_engine(
        self, plans: Sequence[PlanBuildState], profiles: Sequence[SymbolRanges]
    ) -> Engine:
        """Return the engine of packed plans, ready to run.

        Raises:
            BuildError: the engine exceeds a limit of the engine format.
        """
        kernels = [x.kernel for p in plans if p.assembled for x in p.assembled.plan.launches]
        image, runtime = self.tools.link(kernels, partial(self.progress, "link"))
        options = self.options
        embedded = embed_network(self.graph, options) if options.retunable else EmbeddedNetwork()
        batches = [profile[BATCH].high for profile in profiles if BATCH in profile]
        header = EngineHeader(
            name=self.graph.name,
            fingerprint=self._fingerprint(kernels),
            bindings=bindings_of(self.graph, plans),
            max_batch_size=max(batches, default=None),
            plans=tuple(p.assembled.plan for p in plans if p.assembled),
            layers=tuple(x for p in plans if p.assembled for x in p.assembled.layers),
            weights=(),
            symbols=image.symbols,
            runtime_symbols=runtime.symbols,
            report=json.dumps([describe_plan(self.graph, p) for p in plans]),
            program=plan_recipes_json(
                [p.program for p in plans], self.weights, [v.name for v in self.graph.outputs]
            ),
            network=embedded.text,
            network_arrays=embedded.network_arrays,
        )
        # The plans are packed: by which constants they decide is known, and a partition must not
        # offer these for a refit.
        partitions = tuple(self._build_partition(part, plan) for part, plan in self.partitions)
        header = with_recipes(header, self.graph, self.weights)
        try:
            check_header(header)
            sections = (self.weights.data(), image.code, runtime.code, embedded.data)
            return Engine.create(header, *sections, partitions, device=self.tools.device)
        except EngineFormatError as error:
            name = sanitize_name(self.graph.name)
            raise BuildError(f"{name} cannot be built as an engine: {error}") from error

    def _profiles(self) -> list[SymbolRanges]:
        """Return the optimization profile of each plan."""
        if self.given_profile is not None:
            return [self.given_profile]
        shapes, batch = self.options.shapes, self.options.max_batch_size
        profiles = optimization_profiles_of(self.graph, shapes, batch)
        self._warn(profiles)
        return profiles

    def _selector(self, plan: PlanBuildState) -> TacticSelector:
        """Return the tactic selector of a plan."""
        effort = self.effort
        if effort is not None and (guard := plan.broken_guard(plan.sizes)) is not None:
            # A size known only at run time is tuned at its upper bound, which may violate a guard.
            _LOG.warning(
                "no tactic is timed, because a condition fails at the upper bounds of the extents "
                "that only a run determines: %s",
                guard.violation(plan.sizes | plan.fixed),
            )
            effort = None
        parts = (self.tools, self.options, effort, self.deadline, self.timings)
        return TacticSelector(plan, *parts, self.progress)

    def _fingerprint(self, kernels: Sequence[KernelSpec]) -> Fingerprint:
        """Return the fingerprint of the target, with the requirements of the kernels."""
        target_fingerprint = self.tools.fingerprint
        requirements = self.tools.requirements(kernels)
        is_timed = self.effort is not None and self.tools.can_measure
        return dataclasses.replace(
            target_fingerprint,
            features=(*target_fingerprint.features, *requirements),
            tuned_on=self.tools.timing_key if is_timed else "",
        )

    def _warn(self, profiles: Sequence[SymbolRanges]) -> None:
        """Warn about options that have no effect in this build."""
        options, tools = self.options, self.tools
        if options.max_batch_size > 1 and not any(BATCH in profile for profile in profiles):
            warn_of_batch(options.max_batch_size, self.graph)
        if targets_without_precision := tools.targets_without_precision(options.precision):
            warn_of_precision(options.precision, tools, targets_without_precision)
        if self.effort is not None and not tools.can_measure:
            warn_of_estimates(tools.name, self._advice())
        if options.max_rounding_error is not None and not (
            tools.backend.supports_mixed_precision and options.precision in MIXED
        ):
            _LOG.warning(
                "max_rounding_error= (`--max-rounding-error`) has no effect: it applies only to "
                "GPUs, with precision %s",
                " or ".join(MIXED),
            )
        if options.libraries and (self.effort is None or not tools.libraries):
            _LOG.warning(
                "libraries=True (`--libraries`) has no effect: library kernels are checked and "
                "timed on a GPU of this machine, so they need device='cuda' (`--device cuda`) and "
                "a tune other than 'none'"
            )

    def _advice(self) -> str:
        """Return advice on how tactics can be timed nevertheless."""
        if self.is_retuning:
            return "On the machine with that device, retune without `--device`"
        if self.options.retunable:
            return (
                "On the machine where the engine runs, smelt.retune (`smelt retune`) times the "
                "tactics"
            )
        return (
            "An engine that contains its network (retunable=True, `smelt build --retunable`) can "
            "be retuned on the machine where it runs"
        )

    def _pack(self, plans: list[PlanBuildState]) -> None:
        """Assemble all plans, which packs their weights.

        The layers of an engine are numbered across its plans.
        """
        self.progress("pack", 0, len(plans))
        first_layer = 0
        for number, plan in enumerate(plans):
            assert plan.choice is not None  # noqa: S101  (set by the tactic selector)
            plan.assembled = build_plan(
                plan.graph,
                plan.choice.tactics,
                self.tools.backend,
                self.weights,
                symbols=plan.symbols,
                guards_before_passes=plan.guards,
                first_layer=first_layer,
            )
            first_layer += len(plan.assembled.layers)
            self.progress("pack", number + 1, len(plans))

    def _optimise(self, profile: SymbolRanges, number: int, count: int) -> PlanBuildState:
        """Run the passes on a copy of the graph for one optimization profile."""
        fixed = {name: b.low for name, b in profile.items() if b.low == b.high}
        if len(fixed) < len(profile) and self.given_profile is None:
            # Inference must succeed at the bounds and at the tuned values, too: this reports the
            # input or layer that fails there. A partition may have symbols that a run determines.
            for end in ("low", "best", "high"):
                specialise(clone(self.graph), {n: getattr(b, end) for n, b in profile.items()})
        graph = clone(self.graph)
        specialise(graph, fixed)
        runtime_symbols = bound_runtime_symbols(graph, profile, self.options.max_workspace_bytes)
        storage = self.tools.storage(PRECISIONS[self.options.precision])
        passes = self.tools.passes(storage)
        report = run_passes(graph, passes, lambda _: self.progress("optimise", number, count))
        for note in report.notes:
            _LOG.info("%s", sanitize_name(str(note)))
        self.progress("optimise", number + 1, count)
        open_ranges = {name: b for name, b in profile.items() if name not in fixed}
        plan = PlanBuildState(
            open_ranges,
            fixed,
            used_runtime_symbols(graph, profile, runtime_symbols),
            graph,
            report.to_json(),
            report.guards,
        )
        if self.others:
            self._place(plan)
        return plan

    def _place(self, plan: PlanBuildState) -> None:
        """Take the parts out of a plan that other devices run, and leave a partition for each.

        Times are estimated for float32, because not every device has the plan's precision.

        Raises:
            BuildError: there are more partitions than an engine may have.
        """
        devices = [partial(_support, tools) for tools in (self.tools, *self.others)]
        placement = place(plan.graph, devices, plan.sizes)
        kinds = [tools.fingerprint.device for tools in (self.tools, *self.others)]
        partitions = extract_partitions(plan.graph, placement.devices, kinds, len(self.partitions))
        self.partitions += [(part, plan) for part in partitions]
        if len(self.partitions) > Limit.MAX_PARTITIONS.most:
            raise BuildError(
                f"the engine would alternate too often between the devices {', '.join(kinds)}: "
                f"{Limit.MAX_PARTITIONS.excess(len(self.partitions))}; build for one of these "
                "devices"
            )
        moved = (guard for part in partitions for node in part.nodes for guard in node.guards)
        plan.guards = (*plan.guards, *moved)
        for part in partitions:
            plan.placed[part.node.name] = [
                f"{node}: {reason}"
                for node in part.nodes
                for reason in placement.reasons[node.name]
            ]

    def _build_partition(self, part: PlacedPartition, plan: PlanBuildState) -> EngineFile:
        """Return the engine of a part, whose symbols are those of its plan.

        It computes in float32: it has few layers, and the error that the options allow was found
        without it.
        """
        used = symbols_of(*(extent for v in part.graph.values() for extent in v.tensor.shape))
        ranges = plan.profile | plan.runtime_symbols
        options = dataclasses.replace(
            self.options,
            precision="float32",
            retunable=False,
            libraries=False,
            max_rounding_error=None,
        )
        build = _Build(
            part.graph,
            options,
            self.others[part.device - 1],
            self.progress,
            given_profile={name: ranges[name] for name in sorted(used)},
        )
        return build.run().file


def _support(tools: Toolchain, node: Node) -> NodeSupport:
    """Return how a device supports a node in float32."""
    tactics, refusals = tools.backend.candidates(node, tools.target)
    hints = [tactic.estimated_seconds for tactic in tactics if not tactic.is_host_step]
    device = tools.fingerprint.device
    reasons = [f"{device}, {refusal}" for refusal in refusals]
    reasons = reasons or [f"{device} has no kernel family for the op"]
    return NodeSupport(bool(hints), min(hints, default=0.0), reasons)


def _check_outputs(graph: Graph) -> None:
    """Check that there are outputs, and that the names of all bindings differ."""
    if not graph.outputs:
        raise BuildError(f"network {graph.name!r} has no output; mark one with mark_output")
    binding_names = {value.name for value in graph.inputs}
    for value in graph.outputs:
        if value.name in binding_names:
            raise BuildError(
                f"{value.name!r} of network {graph.name!r} would be two bindings, because it is "
                "both an input and an output, or is an output twice; make one of them the output "
                "of an Identity with its own name"
            )
        binding_names.add(value.name)


def specialise(graph: Graph, values: Mapping[str, int]) -> None:
    """Replace symbols by values throughout a graph and infer it again.

    Raises:
        GraphError: a guard or a shape check fails at these values.
    """
    if not values:
        return
    for value in graph.inputs:
        type_ = value.tensor
        value.type = type(type_)(type_.dtype, tuple(substitute_dim(d, values) for d in type_.shape))
    for symbol, bound in graph.symbol_bounds.items():
        graph.symbol_bounds[symbol] = substitute_dim(bound, values)
    guards = [guard.at(values) for guard in graph.guards]
    for guard in guards:
        if not guard.symbols and not guard.holds({}):
            raise guard.violation({})
    graph.guards = tuple(guard for guard in guards if guard.symbols)
    graph.infer()

"""Network and options to engine: the one place that sees everything below it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import WeightStore, build_plan
from smelt.builder._build_report import describe_plan
from smelt.builder._embedded_network import EmbeddedNetwork, embed_network
from smelt.builder._make_engine import EngineParts, make_engine
from smelt.builder._optimization_profiles import BATCH, SymbolRanges, optimization_profiles_of
from smelt.builder._options import (
    EFFORTS,
    HALF2,
    MIXED,
    PRECISIONS,
    BuildOptions,
    Progress,
    TuningEffort,
)
from smelt.builder._plan_recipe import plan_recipes_json
from smelt.builder._runtime_symbols import bound_runtime_symbols, used_runtime_symbols
from smelt.builder._tactic_selection import PlanState, TacticSelector
from smelt.builder._toolchain import Toolchain, open_toolchain
from smelt.config import cache_directory
from smelt.engine import Binding, Launch
from smelt.errors import BuildError, sanitize_name
from smelt.ir import Graph, clone, verify
from smelt.network import NetworkDefinition
from smelt.passes import run_passes
from smelt.tuner import TimingCache, check_timings
from smelt.types import enough_memory_for, require_callable, substitute_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import BuiltPlan
    from smelt.builder._optimization_profiles import ShapeSpec
    from smelt.engine import Fingerprint, KernelSpec
    from smelt.runtime import Engine

_LOG = logging.getLogger(__name__)
_TO_BUILD: Final = "To build on a machine without a GPU, give the architecture: device='cuda:sm_90'"
_TO_RETUNE: Final = (
    "Retuning times candidates, so it needs the machine with the GPU; the engine may also run "
    "there without retuning"
)


@enough_memory_for("the build")
def build(
    network: NetworkDefinition | Graph,
    device: str | Sequence[str] = "cpu",
    precision: str = "float32",
    max_batch_size: int = 1,
    max_workspace_bytes: int = 1 << 30,
    shapes: Mapping[str, ShapeSpec] | None = None,
    timing_cache: str | Path | None = None,
    progress: Progress | None = None,
    tune: str | float | TuningEffort = "fast",
    *,
    retunable: bool = False,
    libraries: bool = False,
    portable: bool = False,
    rounding_error: float | None = None,
) -> Engine:
    """Build an engine from a network.

    Args:
        network: what to run; it is not changed. Its weights are read now, by reference.
        device: ``"cpu"``, ``"cpu:x86-64-v3"`` (a target to compile for), ``"cuda"`` and
            ``"cuda:1"`` (a GPU of this machine), ``"cuda:sm_90"`` and ``"cuda:sm_80,sm_90"`` (GPU
            architectures, for which no GPU is needed) or ``"null"`` (computes nothing); a list of
            them is an order of preference: the first that can be built for here.
        precision: ``"float32"``, or ``"bfloat16"`` or ``"float16"``: how what the model has in
            float32 is stored between layers, and multiplied where the device multiplies that
            (GPUs; bfloat16 with AVX512_BF16). Sums and all other arithmetic are float32; bindings
            keep the model's dtype. For processors that cannot convert it, it stays float32.
            ``"tf32"`` stores float32, and lets GPUs round it to ten bits where it is multiplied.
            ``"half2"`` stores float16, and keeps images in pairs between a GPU's layers.
        max_batch_size: largest implicit batch. Smaller ones run too.
        max_workspace_bytes: bound of the scratch memory, in bytes, that one step may use beside
            its tensors; and of the memory for tensors whose extents only a run tells and nothing
            else bounds, as the trips of a Loop: a run that needs more is refused.
        shapes: for each input, a shape; a list of shapes (one plan each); or a tuple (smallest,
            best, largest) of shapes.
        timing_cache: file of measured times, read and extended.
        progress: called with (stage, done, total). Stages are optimise, tune (candidates alone),
            measure (the best of them in the whole network), pack and link.
        tune: ``"none"``, ``"fast"``, ``"full"``, seconds to spend on timing candidates, or a
            `TuningEffort`. Candidates are timed alone, then the best in the whole network, with as
            many threads as a context has by default. What is built for another machine cannot be
            timed, and says so.
        retunable: whether the engine keeps the network, so that `retune` can build it again where
            it runs. Its file grows by the network's own weights.
        libraries: whether cuBLASLt's products and cuDNN's convolutions compete with our kernels,
            on a GPU of this machine and by the clock. An engine in which they win says so, and
            needs that version of the library wherever it runs.
        portable: whether the engine must carry all the code that it runs: no library, and no
            reference in Python. What has no other tactic is then unsupported.
        rounding_error: how far answers may err because GPUs store float16 or bfloat16, relative to
            the answers' largest magnitude. The network is tried on random inputs; where it errs by
            more, the layers that this takes stay in float32, and a warning says how many. 1 keeps
            none. None is 3e-3 in float16 and 2e-2 in bfloat16, and leaves alone what computes more
            than 2 GFLOP or makes more than 16 million numbers in all its layers.

    Raises:
        GraphError: the network is not valid. UnboundSymbolError: a symbolic extent has no value.
        UnsupportedError: nothing can run a node; lists every reason.
        BuildError: the options contradict each other or the workspace limit.
        DeviceError: there is no such GPU here.
        MissingExtraError: its compiler, or a library that is asked for, is not installed.
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
        portable,
        rounding_error,
    )
    return build_graph(_graph_of(network), device, options, progress)


@np.errstate(all="ignore")
def build_graph(
    graph: Graph,
    device: str | Sequence[str],
    options: BuildOptions,
    progress: Progress | None = None,
    *,
    is_retuning: bool = False,
) -> Engine:
    """Build an engine from a graph; `build` says what may be asked, and what is raised.

    What is infinite or no number is an answer: numpy warns of none that the build computes.
    """
    if progress is not None:
        require_callable(progress, "progress", BuildError)
    tools = open_toolchain(
        device,
        options.precision,
        libraries=options.libraries,
        advice=_TO_RETUNE if is_retuning else _TO_BUILD,
    )
    silent: Progress = lambda _stage, _done, _total: None  # noqa: E731  (it has a type)
    return _Build(graph, options, tools, progress or silent, is_retuning=is_retuning).run()


def _graph_of(network: object) -> Graph:
    """The graph of what is to be built, or what to give instead."""
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
    graph: Graph
    options: BuildOptions
    tools: Toolchain
    progress: Progress
    is_retuning: bool = False
    """Whether the network comes from an engine that keeps it; what to advise depends on it."""
    weights: WeightStore = field(default_factory=WeightStore)
    timings: TimingCache = field(init=False)
    deadline: float = field(init=False)
    """When tuning must be done, in the time of ``time.perf_counter``."""

    def __post_init__(self) -> None:
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
        """How thoroughly candidates are timed; None when they are not."""
        tune = self.options.tune
        if isinstance(tune, TuningEffort):
            return tune
        if isinstance(tune, str):
            return EFFORTS.get(tune)
        return dataclasses.replace(EFFORTS["full"], seconds=tune)

    def run(self) -> Engine:
        _check_outputs(self.graph)
        verify(self.graph)
        shapes, batch = self.options.shapes, self.options.max_batch_size
        profiles = optimization_profiles_of(self.graph, shapes, batch)
        self._warn(profiles)
        plans = [self._optimise(p, number, len(profiles)) for number, p in enumerate(profiles)]
        for plan in plans:
            self._selector(plan).run()
        refusals = chain.from_iterable(reasons for p in plans for reasons in p.refusals.values())
        if hint := self.tools.hint(refusals):
            _LOG.warning("%s", hint)
        self.timings.save()
        self._pack(plans)
        kernels = _kernels(plans)
        image, runtime = self.tools.link(kernels, partial(self.progress, "link"))
        return make_engine(
            EngineParts(
                name=self.graph.name,
                fingerprint=self._fingerprint(kernels),
                device=self.tools.device,
                bindings=_bindings(self.graph, plans),
                max_batch_size=max(
                    (profile[BATCH].high for profile in profiles if BATCH in profile), default=None
                ),
                plans=tuple(p.assembled.plan for p in plans if p.assembled),
                layers=tuple(x for p in plans if p.assembled for x in p.assembled.layers),
                weights=self.weights,
                model=self.graph,
                image=image,
                runtime=runtime,
                report=json.dumps([_report(p, self.graph) for p in plans]),
                program=plan_recipes_json(
                    [p.program for p in plans],
                    self.weights,
                    [value.name for value in self.graph.outputs],
                ),
                embedded_network=self._embedded_network(),
            )
        )

    def _selector(self, plan: PlanState) -> TacticSelector:
        effort = self.effort
        if effort is not None and (guard := plan.broken_guard(plan.sizes)) is not None:
            # A size that only a run decides is tuned for its bound, which may not be legal.
            _LOG.warning(
                "no tactic is timed: at the largest sizes that a run can determine, %s",
                guard.violation(plan.sizes | plan.fixed),
            )
            effort = None
        parts = (self.tools, self.options, effort, self.deadline, self.timings)
        return TacticSelector(plan, *parts, self.progress)

    def _fingerprint(self, kernels: Sequence[KernelSpec]) -> Fingerprint:
        """What the engine is made for, and what else it needs."""
        made_for = self.tools.fingerprint
        needs = self.tools.requirements(kernels)
        is_timed = self.effort is not None and self.tools.can_measure
        return dataclasses.replace(
            made_for,
            features=(*made_for.features, *needs),
            tuned_on=self.tools.place if is_timed else "",
        )

    def _warn(self, boxes: Sequence[SymbolRanges]) -> None:
        """Say which options change nothing here."""
        asked, tools = self.options, self.tools
        if asked.max_batch_size > 1 and not any(BATCH in box for box in boxes):
            _warn_of_batch(asked.max_batch_size, self.graph)
        if targets_without_precision := tools.targets_without_precision(asked.precision):
            _warn_of_precision(asked.precision, tools, targets_without_precision)
        if self.effort is not None and not tools.can_measure:
            _warn_of_estimates(tools.name, self._advice())
        if asked.rounding_error is not None and not (
            tools.supports_mixed_precision and asked.precision in MIXED
        ):
            _LOG.warning(
                "rounding_error= (`--rounding-error`) has no effect: it applies to GPUs and to %s",
                " and ".join(MIXED),
            )
        if asked.libraries and (self.effort is None or not tools.libraries):
            _LOG.warning(
                "libraries=True (`--libraries`) has no effect: library kernels are checked and "
                "timed on a GPU of this machine, so they need device='cuda' (`--device cuda`)"
            )

    def _advice(self) -> str:
        """How tactics come to be timed after all."""
        if self.is_retuning:
            return "On the machine with that device, retune without `--device`"
        if self.options.retunable:
            return "On the machine where the engine runs, smelt.retune (`smelt retune`) times them"
        return (
            "An engine that contains its network (retunable=True, `smelt build --retunable`) can "
            "be retuned on the machine where it runs"
        )

    def _embedded_network(self) -> EmbeddedNetwork:
        return (
            embed_network(self.graph, self.options) if self.options.retunable else EmbeddedNetwork()
        )

    def _pack(self, plans: list[PlanState]) -> None:
        self.progress("pack", 0, len(plans))
        first = 0
        for number, plan in enumerate(plans):
            plan.assembled = self._assemble(plan, first)
            first += len(plan.assembled.layers)
            self.progress("pack", number + 1, len(plans))

    def _optimise(self, box: SymbolRanges, number: int, count: int) -> PlanState:
        if any(b.low != b.high for b in box.values()):
            # What fits as symbols fits where it is tuned and at both ends, or is refused by name.
            for end in ("low", "best", "high"):
                specialise(clone(self.graph), {n: getattr(b, end) for n, b in box.items()})
        graph = clone(self.graph)
        fixed = {name: b.low for name, b in box.items() if b.low == b.high}
        specialise(graph, fixed)
        counts = bound_runtime_symbols(graph, box, self.options.max_workspace_bytes)
        storage = self.tools.storage(PRECISIONS[self.options.precision])
        report = run_passes(
            graph, self.tools.passes(storage), lambda _: self.progress("optimise", number, count)
        )
        for note in report.notes:
            _LOG.info("%s", sanitize_name(str(note)))
        self.progress("optimise", number + 1, count)
        open_box = {n: b for n, b in box.items() if n not in fixed}
        return PlanState(
            open_box,
            fixed,
            used_runtime_symbols(graph, box, counts),
            graph,
            report.to_json(),
            report.guards,
        )

    def _assemble(self, plan: PlanState, first_layer: int) -> BuiltPlan:
        assert plan.choice is not None  # noqa: S101  (chosen in the stage before)
        return build_plan(
            plan.graph,
            plan.choice.tactics,
            self.tools.backend,
            self.weights,
            symbols=plan.symbols,
            guards=plan.guards,
            first_layer=first_layer,
        )


def _warn_of_batch(size: int, graph: Graph) -> None:
    is_open = any(symbols_of(*value.tensor.shape[:1]) for value in graph.inputs)
    _LOG.warning(
        "max_batch_size=%d has no effect: the batch of %s is part of its inputs' shapes, %s",
        size,
        sanitize_name(graph.name),
        "and shapes= (`--shape`) sets it" if is_open else "where it is fixed",
    )


def _warn_of_precision(
    precision: str, tools: Toolchain, targets_without_precision: Sequence[str]
) -> None:
    wanted = PRECISIONS[precision]
    if precision == HALF2 and tools.storage(wanted) is wanted:
        _LOG.warning(
            "precision='half2' means float16 here: only GPUs have half2 instructions, and the "
            "device is %s",
            tools.name,
        )
        return
    others = (
        ""
        if len(targets_without_precision) == len(tools.parts())
        else f": one plan is for {tools.name}"
    )
    _LOG.warning(
        "precision=%r has no effect: %s cannot compute in it, and float32 is kept%s",
        precision,
        " and ".join(targets_without_precision),
        others,
    )


def _warn_of_estimates(target: str, advice: str) -> None:
    _LOG.warning(
        "no tactic is timed: %s is not this machine, so tactics are chosen by cost estimates. "
        "%s; tune='none' (`--tune none`) silences this warning",
        target,
        advice,
    )


def _check_outputs(graph: Graph) -> None:
    if not graph.outputs:
        raise BuildError(f"network {graph.name!r} has no output; mark one with mark_output")
    seen = {value.name for value in graph.inputs}
    for value in graph.outputs:
        if value.name in seen:
            raise BuildError(
                f"{value.name!r} of network {graph.name!r} would be two bindings, because it is "
                "both an input and an output, or is an output twice; make one of them the output "
                "of an Identity with its own name"
            )
        seen.add(value.name)


def specialise(graph: Graph, values: Mapping[str, int]) -> None:
    """Replace symbols by their values throughout a graph."""
    if not values:
        return
    for value in graph.inputs:
        kind = value.tensor
        value.type = type(kind)(kind.dtype, tuple(substitute_dim(d, values) for d in kind.shape))
    bound = [guard.at(values) for guard in graph.guards]
    for guard in bound:
        if not guard.symbols and not guard.holds({}):
            raise guard.violation({})
    graph.guards = tuple(guard for guard in bound if guard.symbols)
    graph.infer()


def _bindings(original: Graph, plans: list[PlanState]) -> tuple[Binding, ...]:
    """Inputs and outputs; what every plan fixes alike is an int, the rest stays symbolic."""
    fixed = dict(plans[0].fixed)
    for plan in plans[1:]:
        fixed = {n: v for n, v in fixed.items() if plan.fixed.get(n) == v}
    pairs = [(True, v, [p.graph.inputs[i] for p in plans]) for i, v in enumerate(original.inputs)]
    pairs += [
        (False, v, [p.graph.outputs[i] for p in plans]) for i, v in enumerate(original.outputs)
    ]
    bindings: list[Binding] = []
    for is_input, value, typed in pairs:
        dtype, rank = typed[0].tensor.dtype, typed[0].tensor.rank
        if any(own.tensor.rank != rank for own in typed):
            ranks = " and ".join(str(own.tensor) for own in typed)
            raise BuildError(
                f"the rank of {value.name} depends on the input shapes: it is {ranks}; build one "
                "engine for each, or give the op that removes axes (Squeeze) its axes"
            )
        # A Squeeze of whatever is 1 removes more once shapes are known.
        theirs = value.tensor.shape if value.tensor.rank == rank else typed[0].tensor.shape
        axes = zip(theirs, *(own.tensor.shape for own in typed), strict=True)
        # Plans know their own shapes best: what depends on data may be settled there.
        shape = (own[0] if len({*own}) == 1 else substitute_dim(dim, fixed) for dim, *own in axes)
        bindings.append(Binding(value.name, is_input, dtype, tuple(shape)))
    return tuple(bindings)


def _kernels(plans: list[PlanState]) -> list[KernelSpec]:
    steps = (s for p in plans if p.assembled for s in p.assembled.plan.steps)
    return [step.kernel for step in steps if isinstance(step, Launch)]


def _report(plan: PlanState, source: Graph) -> dict[str, Any]:
    assert plan.assembled is not None  # noqa: S101
    assert plan.choice is not None  # noqa: S101  (both made in earlier stages)
    described = describe_plan(
        source, plan.graph, plan.report, plan.choice, plan.refusals, plan.assembled
    )
    return {**described, "workspace_bytes": plan.workspace_bytes}

"""Builds the report from an engine's header, without running any code of the engine.

The header's ``report`` is JSON text that the builder wrote. An engine may come from an untrusted
source, so entries that are not of the expected form are omitted.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, get_type_hints

import numpy as np

from smelt.devices import DEVICE_KINDS
from smelt.devices.cuda import LIBRARIES, SIZE_FEATURE
from smelt.engine import EngineFile, HostCall, HostStep, Space, key_id, verify_signature
from smelt.errors import EngineFormatError, SmeltError, TrustError, UnboundSymbolError
from smelt.inspect._kernel_resources import CubinReader
from smelt.inspect._kernel_sources import SourceWriter
from smelt.inspect._report import (
    BindingReport,
    CandidateReport,
    EngineReport,
    KernelReport,
    LayerReport,
    NodeReport,
    PassNote,
    PassSummary,
    Peaks,
    PlanReport,
    SignerReport,
    WeightReport,
)
from smelt.inspect._roofline import Profile, RooflineModel, known_peaks, total_work, work_of_kernels
from smelt.inspect._tensor_lifetimes import lifetimes_of_plan, max_live_bytes, reported_lifetimes
from smelt.ir import Constant
from smelt.ops import recipe_from_json
from smelt.types import (
    enough_memory_for,
    evaluate_dim,
    fields_of,
    is_json_object,
    items_of,
    parse_json,
    require_bool,
    require_instance,
    shared_formula_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from smelt.engine import EngineHeader, Plan, Step, Weight
    from smelt.inspect._report import ReportT


_MAX_DIGITS: Final = 10
"""Numbers in the features of a fingerprint must have fewer digits than this."""


class Inspectable(Protocol):
    """An engine, either loaded or only read from its file."""

    @property
    def header(self) -> EngineHeader:
        """Header of the engine."""
        ...

    @property
    def code(self) -> bytes:
        """Machine code of the kernels."""
        ...


@enough_memory_for("the report")
@shared_formula_limit
def report_of(
    engine: Inspectable,
    *,
    sources: bool = False,
    profile: Profile | None = None,
    peaks: Peaks | None = None,
) -> EngineReport:
    """Return the report on an engine.

    Args:
        engine: a loaded engine, or a file that was only read, which may be for another machine.
        sources: whether to include the source text of kernels; it is omitted for files whose signer
            this user does not trust.
        profile: measured times of the layers, if any.
        peaks: peak rates of the device; None for those of the engine's architectures, if known.

    Raises:
        SmeltError: an argument has a wrong type.
    """
    if not hasattr(engine, "header"):
        raise SmeltError(
            "report_of expects an engine or the result of smelt.engine.read_engine, not "
            f"{type(engine).__name__}"
        )
    header, fingerprint = engine.header, engine.header.fingerprint
    _check_arguments(sources, profile, peaks)
    peaks = peaks or known_peaks(fingerprint.architecture)
    signer = _signer(engine) if isinstance(engine, EngineFile) else None
    plans = tuple(_plans(header, peaks, profile))
    writer, no_sources = _source_writer(header, signer) if sources else (None, "")
    return EngineReport(
        network=header.name,
        device=fingerprint.device,
        architecture=fingerprint.architecture,
        **_fields_from_features(fingerprint.features),
        tuned_on=fingerprint.tuned_on,
        system=fingerprint.system,
        version=fingerprint.version,
        max_batch_size=header.max_batch_size,
        bindings=tuple(
            BindingReport(b.name, b.is_input, b.dtype.value, tuple(_extent(d) for d in b.shape))
            for b in header.bindings
        ),
        plans=plans,
        weights=tuple(map(_weight, header.weights)),
        kernels=tuple(_kernels(engine, writer, plans)),
        signer=signer,
        peaks=peaks,
        no_sources=no_sources,
        is_retunable=bool(header.network),
        partitions=tuple(_partitions(engine, sources=writer is not None)),
    )


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition of an engine; the signature of the whole covers it."""

    header: EngineHeader
    code: bytes


def _partitions(engine: Inspectable, *, sources: bool) -> Iterator[EngineReport]:
    """Yield the reports on the partitions of an engine."""
    file = engine if isinstance(engine, EngineFile) else getattr(engine, "file", None)
    for part in file.partitions if isinstance(file, EngineFile) else ():
        yield report_of(_Partition(part.header, part.code), sources=sources)


def _check_arguments(sources: object, profile: object, peaks: object) -> None:
    """Check the types of the arguments of `report_of`.

    Raises:
        SmeltError: an argument has a wrong type.
    """
    require_bool(sources, "sources", SmeltError)
    for name, value, kind in (("profile", profile, Profile), ("peaks", peaks, Peaks)):
        if value is not None:
            require_instance(value, kind, name, SmeltError, f"a {kind.__name__}")


def _fields_from_features(features: Sequence[str]) -> dict[str, Any]:
    """Return the report's fields from a fingerprint's features, which are not validated."""
    rest: list[str] = []
    libraries: list[str] = []
    size: int | None = None
    for feature in features:
        name, _, number = feature.partition("=")
        is_number = number.isdecimal() and len(number) < _MAX_DIGITS
        if is_number and name in LIBRARIES:
            libraries.append(LIBRARIES[name].of_version(int(number)))
        elif is_number and name == SIZE_FEATURE:
            size = int(number)
        else:
            rest.append(feature)
    return {"features": tuple(rest), "libraries": tuple(libraries), "multiprocessors": size}


def _plans(
    header: EngineHeader, peaks: Peaks | None, profile: Profile | None
) -> Iterator[PlanReport]:
    """Yield the report on each plan; a profile counts for the first plan that its sizes fit."""
    record, ranges = _reported_plans(header.report), list(_layer_ranges(header))
    names = {name for plan in header.plans for name, _, _ in plan.symbols}
    if profile is not None and not names >= profile.sizes.keys():
        profile = None  # the profile is of an engine with other symbols
    for number, plan in enumerate(header.plans):
        roofline_model = RooflineModel(plan.largest, peaks, None)
        if profile is not None and profile.fits(plan):
            roofline_model = RooflineModel({**plan.largest, **profile.sizes}, peaks, profile)
            profile = None  # a run uses the first plan that fits
        known: Mapping[str, object] = record[number] if number < len(record) else {}
        yield _PlanReporter(header, number, known, ranges[number], roofline_model).report()


def _weight(weight: Weight) -> WeightReport:
    return WeightReport(
        weight.name,
        weight.dtype.value,
        weight.shape,
        math.prod(weight.shape) * weight.dtype.size_bytes,
        weight.recipe is not None,
        _sources(weight),
    )


def _sources(weight: Weight) -> tuple[str, ...]:
    """Return the names of the model's arrays that a packed weight is computed from."""
    names: list[str] = []

    def record_name(name: str) -> Constant:
        names.append(name)
        return Constant(name, np.zeros(0, np.float32))

    if weight.recipe is not None:
        with contextlib.suppress(EngineFormatError):
            recipe_from_json(weight.recipe, record_name)
    return tuple(dict.fromkeys(names))


def _signer(file: EngineFile) -> SignerReport:
    """Return the report on the signature of a file."""
    if file.signature is None:
        return SignerReport("", "", is_trusted=False, is_right=False)
    name = key_id(file.signature.public_key)
    try:
        return SignerReport(name, verify_signature(file).label, is_trusted=True, is_right=True)
    except EngineFormatError:
        return SignerReport(name, "", is_trusted=False, is_right=False)
    except TrustError:
        return SignerReport(name, "", is_trusted=False, is_right=True)


def _extent(dim: object) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _kernels(
    engine: Inspectable, writer: SourceWriter | None, plans: Sequence[PlanReport]
) -> Iterator[KernelReport]:
    """Yield the report on each kernel that the plans launch."""
    header = engine.header
    launches = [launch for plan in header.plans for launch in plan.launches]
    uses = Counter(launch.kernel for launch in launches)
    kind = DEVICE_KINDS.get(header.fingerprint.device)  # None in engines of other versions
    has_cubins = kind is not None and kind.has_cubins
    reader = CubinReader(header, engine.code) if has_cubins else None
    timed_layers = next((p.layers for p in plans if any(layer.is_timed for layer in p.layers)), ())
    works = work_of_kernels(timed_layers)
    for kernel, count in uses.items():
        work = works.get(kernel.symbol)
        yield KernelReport(
            symbol=kernel.symbol,
            family=kernel.family,
            uses=count,
            parameters=tuple((name, str(value)) for name, value in kernel.parameters),
            codes=reader.codes(kernel.symbol) if reader is not None else (),
            sources=writer.sources(kernel) if writer is not None else (),
            measured_seconds=None if work is None else work.measured_seconds,
            share_of_bound=None if work is None else work.share_of_bound,
        )


def _source_writer(
    header: EngineHeader, signer: SignerReport | None
) -> tuple[SourceWriter | None, str]:
    """Return the writer of kernel sources, or None and the reason why there is none."""
    if signer is not None and not (signer.is_trusted and signer.is_right):
        return None, "the engine is not signed by a trusted key (see `smelt trust`)"
    try:
        return SourceWriter(header.fingerprint), ""
    except SmeltError as error:
        return None, str(error)


def _layer_ranges(header: EngineHeader) -> Iterator[range]:
    """Yield the index range of each plan's layers, which are consecutive in the header."""
    count = len(header.layers)
    firsts = (min((s.layer for s in plan.steps), default=0) for plan in header.plans)
    starts = [min(max(first, 0), count) for first in firsts]
    starts[:1] = [0]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        yield range(start, end)


# ---- one plan


def _has_own_memory(header: EngineHeader) -> bool:
    """Return whether the device of an engine has its own memory; unknown devices have not."""
    kind = DEVICE_KINDS.get(header.fingerprint.device)
    return kind is not None and kind.has_own_memory


@dataclass(frozen=True, slots=True)
class _PlanReporter:
    """Reports on one plan."""

    header: EngineHeader
    """Header of the engine."""
    number: int
    """Index of the plan."""
    record: Mapping[str, object]
    """Its entry in the build report, which is not validated."""
    layers: range
    """Indices of its layers."""
    roofline_model: RooflineModel
    """Sizes, peak rates and times for the layers' work."""

    def report(self) -> PlanReport:
        """Return the report on the plan."""
        plan = self.header.plans[self.number]
        kinds = [is_host for is_host, _ in groupby(isinstance(s, HostStep) for s in plan.steps)]
        host_steps = [step for step in plan.steps if isinstance(step, HostStep)]
        copied_steps = host_steps if _has_own_memory(self.header) else []
        references = tuple(_op_name(step) for step in host_steps if isinstance(step, HostCall))
        memory = tuple(reported_lifetimes(self.record)) or tuple(lifetimes_of_plan(plan))
        layer_reports = tuple(self._layers(plan.steps))
        bound = self.record.get("lower_bound_bytes")
        sources = _records(self.record.get("source"))
        return PlanReport(
            symbols=plan.symbols,
            steps=len(plan.steps),
            segments=len(kinds),
            native_segments=kinds.count(False),
            host_segments=kinds.count(True),
            reference_steps=len(references),
            reference_ops=references,
            host_copy_bytes=sum(_copied_bytes(step, plan) for step in copied_steps),
            arena_bytes=plan.arena_bytes,
            arena_lower_bound_bytes=bound if isinstance(bound, int) else max_live_bytes(memory),
            scratch_bytes=plan.scratch_bytes,
            layers=layer_reports,
            passes=tuple(_passes(self.record)),
            storage=_texts(self.record.get("storage")),
            memory=memory,
            source_nodes=tuple((_text(n.get("name")), _text(n.get("op"))) for n in sources),
            nodes=tuple(map(_node, _records(self.record.get("nodes")))),
            counted_at=tuple((name, self.roofline_model.sizes[name]) for name in plan.largest),
            work=total_work([layer.work for layer in layer_reports if layer.work is not None]),
        )

    def _layers(self, steps: Sequence[Step]) -> Iterator[LayerReport]:
        """Yield the report on each layer of the plan."""
        own: dict[int, list[Step]] = {index: [] for index in self.layers}
        for step in steps:
            own.setdefault(step.layer, []).append(step)
        records = _records(self.record.get("nodes"))
        nodes = {_text(node.get("name")): node for node in reversed(records)}
        nodes.pop("", None)  # layers that the planner added have no node
        for index in self.layers:
            node = _text(dict(self.header.layers[index].details).get("node"))
            yield self._layer(index, own[index], nodes.get(node, {}))

    def _layer(self, index: int, own: Sequence[Step], known: Mapping[str, object]) -> LayerReport:
        """Return the report on one layer.

        Args:
            index: index of the layer.
            own: its steps.
            known: the node's entry in the build report, which is not validated.
        """
        info = self.header.layers[index]
        details = dict(info.details)
        node = _text(details.get("node"))
        recorded = partial(_field, self.record, key=node)
        formats = [_formats(items_of(pair)) for pair in items_of(recorded("formats"))]
        chosen = info.tactic, _formats((known.get("input_formats"), known.get("output_formats")))
        candidates = _candidates(recorded("candidates"), formats, recorded("in_network"), chosen)
        return LayerReport(
            index=index,
            name=info.name,
            kind=info.kind,
            op=_text(known.get("op")) or info.kind,
            tactic=info.tactic,
            node=node,
            inputs=_texts(details.get("inputs")),
            outputs=_texts(details.get("outputs")),
            input_formats=tuple(
                format_ if isinstance(format_, str) else None
                for format_ in items_of(known.get("input_formats"))
            ),
            output_formats=_texts(known.get("output_formats")),
            steps=len(own),
            is_reference=any(isinstance(step, HostCall) for step in own),
            candidates=tuple(candidates),
            refusals=_texts(recorded("refusals")),
            launches=self.roofline_model.launches(own),
            work=self.roofline_model.work(info.name, known.get("flop") if node else "0", own),
        )


def _op_name(step: HostCall) -> str:
    op = step.op
    return str(op[1]) if isinstance(op, tuple) and len(op) > 1 else "?"


def _copied_bytes(step: HostStep, plan: Plan) -> int:
    """Return the bytes copied between host and device for a step, at the plan's largest sizes."""
    views = [view for view in (*step.inputs, *step.outputs) if view is not None]
    total = 0
    for view in views:
        # Weights are on the host as well. The index is checked because an engine that was only read
        # has not been verified.
        if view.buffer in range(len(plan.buffers)) and (
            plan.buffers[view.buffer].space is not Space.WEIGHTS
        ):
            with contextlib.suppress(UnboundSymbolError):
                extents = [evaluate_dim(extent, plan.largest) for extent in view.shape]
                total += math.prod(extents) * view.dtype.size_bytes
    return total


def _candidates(
    record: object, formats: Sequence[str], in_network: object, chosen: tuple[str, str]
) -> Iterator[CandidateReport]:
    """Yield the candidates of a layer.

    Args:
        record: (tactic, seconds) pairs of the build report, which are not validated.
        formats: formats of each candidate, or an empty list if all have the same.
        in_network: (tactic, seconds) pairs of in-network trials.
        chosen: tactic and formats of the layer.
    """
    network_times = {name: time for name, time in _times(in_network) if math.isfinite(time)}
    times = list(_times(record))
    own = formats if len(formats) == len(times) else [""] * len(times)
    is_open = True  # at most one candidate is marked as chosen
    for (tactic, seconds), candidate_formats in zip(times, own, strict=True):
        is_chosen = is_open and (tactic, candidate_formats or chosen[1]) == chosen
        is_open = not is_chosen and is_open
        # What runs on the host is never timed; its time in the build report is a placeholder.
        timed = math.isfinite(seconds) and not tactic.startswith(("reference(", "partition("))
        yield CandidateReport(
            tactic,
            seconds if timed else None,
            candidate_formats,
            network_times.pop(tactic, None),
            is_chosen,
        )


def _formats(pair: Sequence[object]) -> str:
    """Return the formats of inputs and outputs as text."""
    inputs, outputs = pair if len(pair) == 2 else ((), ())
    input_text = " ".join(f if isinstance(f, str) else "-" for f in items_of(inputs))
    return f"{input_text} -> {' '.join(_texts(outputs))}"


def _times(record: object) -> Iterator[tuple[str, float]]:
    """Yield the valid (tactic, seconds) pairs of a list in the build report."""
    for entry in items_of(record):
        match entry:
            case [str(tactic), float() | int() as seconds]:
                with contextlib.suppress(OverflowError):
                    yield tactic, float(seconds)
            case _:
                continue


def _passes(plan: Mapping[str, object]) -> Iterator[PassSummary]:
    """Yield the summary of each pass from a plan's entry in the build report."""
    for record in _records(plan.get("passes")):
        notes = tuple(_report(PassNote, note) for note in _records(record.get("notes")))
        yield _report(PassSummary, record, notes=notes)


def _node(record: Mapping[str, object]) -> NodeReport:
    """Return the report on a node from its entry in the build report."""
    return _report(NodeReport, record, is_view=record.get("aliasing") not in ("none", None))


# ---- access to the build report, which is not validated


_field_types: Final[Callable[[Any], Mapping[str, Any]]] = cache(get_type_hints)
"""Evaluates the annotations of a class, which takes longer than to read an entry."""


def _report(kind: type[ReportT], record: Mapping[str, object], **known: object) -> ReportT:
    """Return a report whose fields have the names of those of an entry in the build report.

    Args:
        kind: type of the report; the fields' types say how they are read.
        record: the entry.
        known: fields that are not read from the entry.
    """
    readers: dict[object, Callable[[Any], object]] = {
        str: _text,
        tuple[str, ...]: _texts,
        bool: lambda value: value is True,
        int: lambda value: int(_number(value)),
        float: _number,
    }
    hints = {name: hint for name, hint in _field_types(kind).items() if name not in known}
    return kind(**known, **{name: readers[hint](record.get(name)) for name, hint in hints.items()})


def _reported_plans(text: str) -> list[Mapping[str, object]]:
    """Return the entries of the plans in the build report; none if the text is not valid."""
    try:
        record = parse_json(text)
    except ValueError:
        return []
    return _records(record)


def _records(value: object) -> list[Mapping[str, object]]:
    return [part for part in items_of(value) if is_json_object(part)]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(part for part in items_of(value) if isinstance(part, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return 0.0


def _field(record: Mapping[str, object], name: str, key: str) -> object:
    return fields_of(record.get(name)).get(key)

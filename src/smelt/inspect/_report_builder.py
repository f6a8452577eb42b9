"""From an engine's header to the report. Nothing of the engine runs.

The header's ``report`` is text that the builder wrote; an engine may come from anywhere, so what is
not as expected there is left out, never believed.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from smelt.devices.cuda import LIBRARIES, SIZE_FEATURE
from smelt.engine import EngineFile, HostCall, Launch, Space, key_id, verify_signature
from smelt.errors import EngineFormatError, SmeltError, TrustError, UnboundSymbolError
from smelt.inspect._kernel_sources import SourceWriter
from smelt.inspect._machine_code import CubinReader
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
    TensorLifetime,
    WeightReport,
)
from smelt.inspect._roofline import (
    Profile,
    WorkModel,
    known_peaks,
    total_work,
    work_of_kernels,
)
from smelt.ir import Constant
from smelt.ops import recipe_from_json
from smelt.types import (
    enough_memory_for,
    evaluate_dim,
    items_of,
    one_file_of_formulas,
    parse_json,
    require_bool,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.engine import EngineHeader, LayerInfo, Plan, Step, Weight


_MAX_DIGITS: Final = 10
"""Of a number in a feature."""


class Inspectable(Protocol):
    """An engine, loaded or only read."""

    @property
    def header(self) -> EngineHeader:
        """The engine's description."""
        ...

    @property
    def code(self) -> bytes:
        """Its kernels' machine code."""
        ...


@enough_memory_for("the report")
@one_file_of_formulas()
def report_of(
    engine: Inspectable,
    *,
    sources: bool = False,
    profile: Profile | None = None,
    peaks: Peaks | None = None,
) -> EngineReport:
    """Everything that an engine says about itself.

    Args:
        engine: an engine, or a file that was read and not loaded: one for another machine will do.
        sources: whether to tell each kernel's text, too; not for files that this user does not
            trust.
        profile: what its layers were measured to take.
        peaks: what the device does at best; None for what is known of the engine's architectures.
    """
    if not hasattr(engine, "header"):
        raise SmeltError(
            "a report is made from an engine, or from the result of smelt.engine.read_engine, "
            f"not from {type(engine).__name__}"
        )
    header = engine.header
    print_ = header.fingerprint
    _check_asked(sources, profile, peaks)
    known = peaks or known_peaks(print_.architecture)
    signer = _signer(engine) if isinstance(engine, EngineFile) else None
    plans = tuple(_plans(header, known, profile))
    writer, no_sources = _source_writer(header, signer) if sources else (None, "")
    return EngineReport(
        network=header.name,
        device=print_.device,
        architecture=print_.architecture,
        **_facts_from_features(print_.features),
        tuned_on=print_.tuned_on,
        system=print_.system,
        version=print_.version,
        max_batch_size=header.max_batch_size,
        bindings=tuple(
            BindingReport(b.name, b.is_input, b.dtype.value, tuple(_extent(d) for d in b.shape))
            for b in header.bindings
        ),
        plans=plans,
        weights=tuple(map(_weight, header.weights)),
        kernels=tuple(_kernels(engine, writer, plans)),
        signer=signer,
        peaks=known,
        no_sources=no_sources,
        is_retunable=bool(header.network),
    )


def _check_asked(sources: object, profile: object, peaks: object) -> None:
    """Raise SmeltError: what a report shall tell is of a wrong type."""
    require_bool(sources, "sources", SmeltError)
    for what, given, kind in (("profile", profile, Profile), ("peaks", peaks, Peaks)):
        if given is not None and not isinstance(given, kind):
            raise SmeltError(f"{what} is {shown(given)}; it must be a {kind.__name__}")


def _facts_from_features(features: Sequence[str]) -> dict[str, Any]:
    """What a fingerprint's features say; the file may say anything."""
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
    record, ranges = _reported_plans(header.report), list(_layer_ranges(header))
    names = {name for plan in header.plans for name, _, _ in plan.symbols}
    if profile is not None and not names >= profile.sizes.keys():
        profile = None  # of an engine whose extents are open where this one's are not
    for number, plan in enumerate(header.plans):
        work_model = WorkModel(plan.largest, peaks, None)
        if profile is not None and profile.fits(plan):
            work_model = WorkModel({**plan.largest, **profile.sizes}, peaks, profile)
            profile = None  # a run takes the first plan that will do
        yield _plan(
            header,
            number,
            record[number] if number < len(record) else {},
            ranges[number],
            work_model,
        )


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
    """The model's arrays that a packed weight follows from."""
    names: list[str] = []

    def note(name: str) -> Constant:
        names.append(name)
        return Constant(name, np.zeros(0, np.float32))

    if weight.recipe is not None:
        with contextlib.suppress(EngineFormatError):
            recipe_from_json(weight.recipe, note)
    return tuple(dict.fromkeys(names))


def _signer(file: EngineFile) -> SignerReport:
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
    header = engine.header
    launches = [s for p in header.plans for s in p.steps if isinstance(s, Launch)]
    uses = Counter(launch.kernel for launch in launches)
    is_for_gpus = header.fingerprint.device == "cuda"
    reader = CubinReader(header, engine.code) if is_for_gpus else None
    run = next((p.layers for p in plans if any(layer.is_timed for layer in p.layers)), ())
    works = work_of_kernels(run)
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
    """Who writes the kernels' text, or why nobody does."""
    if signer is not None and not (signer.is_trusted and signer.is_right):
        return None, "no trusted key has signed this engine (see `smelt trust`)"
    try:
        return SourceWriter(header.fingerprint), ""
    except SmeltError as error:
        return None, str(error)


def _layer_ranges(header: EngineHeader) -> Iterator[range]:
    """The layers of each plan: they follow one another."""
    count = len(header.layers)
    firsts = (min((s.layer for s in plan.steps), default=0) for plan in header.plans)
    starts = [min(max(first, 0), count) for first in firsts]
    starts[:1] = [0]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        yield range(start, end)


# ---- one plan


def _plan(
    header: EngineHeader,
    number: int,
    record: Mapping[str, Any],
    layers: range,
    work_model: WorkModel,
) -> PlanReport:
    plan = header.plans[number]
    kinds = [is_host for is_host, _ in groupby(isinstance(s, HostCall) for s in plan.steps)]
    calls = [step for step in plan.steps if isinstance(step, HostCall)]
    references = tuple(map(_op_name, calls))
    is_apart = header.fingerprint.device == "cuda"
    memory = tuple(_memory(record)) or tuple(_memory_of_plan(plan))
    reported = tuple(_layers(header, layers, plan.steps, record, work_model))
    bound = record.get("lower_bound_bytes")
    return PlanReport(
        symbols=plan.symbols,
        steps=len(plan.steps),
        segments=len(kinds),
        native_segments=kinds.count(False),
        host_segments=kinds.count(True),
        reference_steps=len(references),
        reference_ops=references,
        host_copy_bytes=sum(_copied_bytes(call, plan) for call in calls) if is_apart else 0,
        arena_bytes=plan.arena_bytes,
        arena_lower_bound_bytes=bound if isinstance(bound, int) else _most_alive(memory),
        scratch_bytes=plan.scratch_bytes,
        layers=reported,
        passes=tuple(_passes(record)),
        storage=_texts(record.get("storage")),
        memory=memory,
        source_nodes=tuple(
            (_text(n.get("name")), _text(n.get("op"))) for n in _records(record.get("source"))
        ),
        nodes=tuple(map(_node, _records(record.get("nodes")))),
        counted_at=tuple((name, work_model.sizes[name]) for name in plan.largest),
        work=total_work([layer.work for layer in reported if layer.work is not None]),
    )


def _op_name(step: HostCall) -> str:
    op = step.op
    return str(op[1]) if isinstance(op, tuple) and len(op) > 1 else "?"


def _copied_bytes(call: HostCall, plan: Plan) -> int:
    """Bytes that cross between host and device for a step, at the plan's largest extents."""
    views = [view for view in (*call.inputs, *call.outputs) if view is not None]
    total = 0
    for view in views:
        # Weights are on the host as well. A file that was only read has not been verified.
        if view.buffer in range(len(plan.buffers)) and (
            plan.buffers[view.buffer].space is not Space.WEIGHTS
        ):
            with contextlib.suppress(UnboundSymbolError):
                extents = [evaluate_dim(extent, plan.largest) for extent in view.shape]
                total += math.prod(extents) * view.dtype.size_bytes
    return total


def _layers(
    header: EngineHeader,
    layers: range,
    steps: Sequence[Step],
    record: Mapping[str, Any],
    work_model: WorkModel,
) -> Iterator[LayerReport]:
    own: dict[int, list[Step]] = {index: [] for index in layers}
    for step in steps:
        own.setdefault(step.layer, []).append(step)
    nodes = {_text(node.get("name")): node for node in reversed(_records(record.get("nodes")))}
    nodes.pop("", None)  # what the planner added is not a node's
    for index in layers:
        info = header.layers[index]
        node = _text(dict(info.details).get("node"))
        yield _layer(index, info, own[index], record, nodes.get(node, {}), work_model)


def _layer(
    index: int,
    info: LayerInfo,
    own: Sequence[Step],
    record: Mapping[str, Any],
    known: Mapping[str, Any],
    work_model: WorkModel,
) -> LayerReport:
    details = dict(info.details)
    node = _text(details.get("node"))
    chosen = _formats((known.get("input_formats"), known.get("output_formats")))
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
            for format_ in _items(known.get("input_formats"))
        ),
        output_formats=_texts(known.get("output_formats")),
        steps=len(own),
        is_reference=any(isinstance(step, HostCall) for step in own),
        candidates=tuple(
            _candidates(
                _field(record, "candidates", node),
                [_formats(_items(pair)) for pair in _items(_field(record, "formats", node))],
                _field(record, "in_network", node),
                (info.tactic, chosen),
            )
        ),
        refusals=_texts(_field(record, "refusals", node)),
        launches=work_model.launches(own),
        work=work_model.work(info.name, known.get("flop") if node else "0", own),
    )


def _candidates(
    record: object, formats: Sequence[str], in_network: object, chosen: tuple[str, str]
) -> Iterator[CandidateReport]:
    in_place = {tactic: time for tactic, time in _times(in_network) if math.isfinite(time)}
    times = list(_times(record))
    own = formats if len(formats) == len(times) else [""] * len(times)
    is_free = True
    for (tactic, seconds), how in zip(times, own, strict=True):
        is_chosen = is_free and (tactic, how or chosen[1]) == chosen
        is_free = not is_chosen and is_free
        # The reference is never timed: what stands there is only larger than anything.
        timed = math.isfinite(seconds) and not tactic.startswith("reference(")
        yield CandidateReport(
            tactic,
            seconds if timed else None,
            how,
            in_place.pop(tactic, None),
            is_chosen,
        )


def _formats(pair: Sequence[object]) -> str:
    """Formats of inputs and outputs, in words."""
    read, made = pair if len(pair) == 2 else ((), ())
    inputs = " ".join(f if isinstance(f, str) else "-" for f in _items(read))
    return f"{inputs} -> {' '.join(_texts(made))}"


def _times(record: object) -> Iterator[tuple[str, float]]:
    for entry in _items(record):
        match entry:
            case [str(tactic), float() | int() as seconds]:
                with contextlib.suppress(OverflowError):
                    yield tactic, float(seconds)
            case _:
                continue


def _passes(plan: Mapping[str, Any]) -> Iterator[PassSummary]:
    for record in _records(plan.get("passes")):
        yield PassSummary(
            _text(record.get("name")),
            int(_number(record.get("nodes_before"))),
            int(_number(record.get("nodes_after"))),
            _number(record.get("seconds")),
            tuple(
                PassNote(
                    _texts(note.get("before")),
                    _texts(note.get("after")),
                    _text(note.get("detail")),
                    note.get("applied") is True,
                )
                for note in _records(record.get("notes"))
            ),
        )


def _node(record: Mapping[str, Any]) -> NodeReport:
    return NodeReport(
        name=_text(record.get("name")),
        op=_text(record.get("op")),
        layers=_texts(record.get("layers")),
        inputs=_texts(record.get("inputs")),
        outputs=_texts(record.get("outputs")),
        types=_texts(record.get("types")),
        tactic=_text(record.get("tactic")),
        is_reference=record.get("is_reference") is True,
        is_view=record.get("aliasing") not in ("none", None),
    )


# ---- memory


def _memory(record: Mapping[str, Any]) -> Iterator[TensorLifetime]:
    for entry in _items(record.get("memory")):
        match entry:
            case [str(name), int(offset), int(size), int(first), int(last)] if (
                0 <= first <= last and size >= 0 and offset >= 0
            ):
                yield TensorLifetime(name, offset, size, first, last)
            case _:
                continue


def _memory_of_plan(plan: Plan) -> Iterator[TensorLifetime]:
    """Lives as the steps themselves show them, where the report does not tell."""
    live_ranges: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        views = step.operands if isinstance(step, Launch) else (*step.inputs, *step.outputs)
        for view in views:
            # A file that was only read has not met the plan verifier yet.
            if view is None or not 0 <= view.buffer < len(plan.buffers):
                continue
            if plan.buffers[view.buffer].space is Space.ARENA:
                first, _ = live_ranges.get(view.buffer, (number, number))
                live_ranges[view.buffer] = (first, number)
    for index, (first, last) in live_ranges.items():
        buffer = plan.buffers[index]
        yield TensorLifetime(f"buffer {index}", buffer.start, buffer.size_bytes, first, last)


def _most_alive(memory: Sequence[TensorLifetime]) -> int:
    ends = sorted(
        [(life.first_step, life.size_bytes) for life in memory]
        + [(life.last_step + 1, -life.size_bytes) for life in memory]
    )
    total = most = 0
    for _, change in ends:
        total += change
        most = max(most, total)
    return most


# ---- what was told, read with suspicion


def _reported_plans(text: str) -> list[Mapping[str, Any]]:
    try:
        record = parse_json(text)
    except ValueError:
        return []
    return [cast("Mapping[str, Any]", plan) for plan in _items(record) if isinstance(plan, dict)]


def _items(value: object) -> Sequence[object]:
    return items_of(value)


def _records(value: object) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", part) for part in _items(value) if isinstance(part, dict)]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(part for part in _items(value) if isinstance(part, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(cast("float", value)) if good else 0.0


def _field(record: Mapping[str, Any], name: str, key: str) -> object:
    found = record.get(name)
    return cast("Mapping[str, object]", found).get(key) if isinstance(found, dict) else None

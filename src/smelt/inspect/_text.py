"""The report as text in sections, and the formatting of its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends import backend_of
from smelt.devices import DEVICE_KINDS
from smelt.errors import SmeltError
from smelt.inspect._report import EngineReport, SourceReport, masked_report
from smelt.types import (
    WIDTH_OF_FILES,
    TextTable,
    counted,
    format_integer,
    format_number,
    format_percent,
    require_instance,
    require_int,
    require_list,
    shown,
    wrap_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.inspect._report import (
        CandidateReport,
        CodeReport,
        KernelReport,
        LayerReport,
        PlanReport,
        SignerReport,
        WorkReport,
    )

_MAX_SIZE_BITS: Final = 80
"""Largest bit length of a size that is shown with a unit; larger ones come from damaged files."""
_MAX_LAYERS_SHOWN: Final = 3
"""Largest number of layers that a sentence names; tables name all."""


def report_to_text(
    report: EngineReport, sections: Sequence[str] = ("layers",), *, width: int | None = None
) -> str:
    """Return the report as text: a summary and the given sections.

    Lines are wrapped between words, and a row of a table that does not fit takes several lines.
    Numbers and names of kernels are never broken, and kernel sources are not wrapped.

    Args:
        report: the report.
        sections: names of sections, from `SECTIONS`.
        width: width of the terminal in columns; None for a file, where a table's row is one line.

    Raises:
        SmeltError: a section does not exist, or an argument has a wrong type.
    """
    require_instance(report, EngineReport, "the report", SmeltError, "a report from report_of")
    if width is not None:
        width = require_int(width, "width", SmeltError, minimum=1)
    sections = require_list(sections, "sections", SmeltError)
    unknown = [
        section for section in sections if not isinstance(section, str) or section not in SECTIONS
    ]
    if unknown:
        raise SmeltError(
            f"there is no section {shown(unknown[0])}; the sections are {', '.join(SECTIONS)}"
        )
    parts = _parts(masked_report(report), sections)
    return "".join(_laid_out(part, width) for part in parts)


def _parts(
    report: EngineReport, sections: Sequence[str]
) -> Iterator[str | TextTable | SourceReport]:
    """Yield the lines, tables and kernel sources of the text."""
    yield from _summary(report)
    for number, plan in enumerate(report.plans):
        yield ""
        yield from _plan_summary(plan, number, len(report.plans))
        for section in sections:
            if section in _PLAN_WRITERS:
                yield ""
                yield from _PLAN_WRITERS[section](report, plan)
    for section in sections:
        if section in _ENGINE_WRITERS:
            yield ""
            yield from _ENGINE_WRITERS[section](report)
    for part in report.partitions:
        yield ""
        yield from _parts(part, sections)


def _laid_out(part: str | TextTable | SourceReport, width: int | None) -> str:
    """Return a part as complete lines, wrapped to a width."""
    if isinstance(part, SourceReport):
        return part.text if part.text.endswith("\n") else part.text + "\n"
    if isinstance(part, TextTable):
        lines = part.lines(width)
    else:
        lines = iter(wrap_words(part, WIDTH_OF_FILES if width is None else width))
    return "".join(f"{line}\n" for line in lines)


def format_bytes(size_bytes: int, like: int | None = None) -> str:
    """Return a size with a suitable unit: that of the size itself, or of the size ``like``."""
    if size_bytes.bit_length() > _MAX_SIZE_BITS:  # from an engine that was not verified
        return f"{format_integer(size_bytes)} B"
    size, other = float(size_bytes), float(size_bytes if like is None else like)
    for unit in ("B", "KiB", "MiB"):
        if other < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size, other = size / 1024, other / 1024
    return f"{size:.2f} GiB"


def format_seconds(seconds: float | None, digits: int = 1) -> str:
    """Return a time in microseconds as text; a dash for None."""
    return "-" if seconds is None else f"{format_number(seconds * 1e6, digits)} us"


def format_host_steps(report: EngineReport) -> str:
    """Return a sentence on the steps that run in Python; empty if all steps are native code."""
    if not report.reference_steps:
        return ""
    layers = report.reference_layers
    names = ", ".join(layers[:_MAX_LAYERS_SHOWN])
    if len(layers) > _MAX_LAYERS_SHOWN:
        names += f" and {len(layers) - _MAX_LAYERS_SHOWN} more"
    where = "in Python, which is slow"
    if report.host_copy_bytes:
        size = format_bytes(report.host_copy_bytes)
        where = f"on the host in Python, which is slow and copies {size} in each run"
    ops = ", ".join(report.reference_ops)
    steps = "1 step runs" if report.reference_steps == 1 else f"{report.reference_steps} steps run"
    noun = "layer" if len(layers) == 1 else "layers"
    return f"{steps} {where}: {ops} ({noun} {names})"


def format_plan_sizes(plan: PlanReport) -> str:
    """Return the ranges of a plan's symbols as text; empty for a plan with fixed sizes."""
    return ", ".join(
        f"{name} = {low}" if low == high else f"{name} from {low} to {high}"
        for name, low, high in plan.symbols
    )


def system_of(report: EngineReport) -> str:
    """Return the operating system that an engine is for."""
    return "any system" if report.system == "any" else report.system


def machine_of(report: EngineReport) -> str:
    """Return the processor or GPU architectures of an engine, with their features, as text."""
    kind = DEVICE_KINDS.get(report.device)
    if kind is None:  # an engine of another version
        return report.architecture
    backend = backend_of(kind)
    return backend.target_text(report.architecture, report.features)


def _summary(report: EngineReport) -> Iterator[str]:
    """Yield the lines on the engine as a whole."""
    where = f"{report.device}, {machine_of(report)}, {system_of(report)}, smelt {report.version}"
    yield f"{report.network}: an engine for {where}"
    yield f"  {format_tuning(report)}"
    if report.libraries:
        yield f"  needs {', '.join(report.libraries)}"
    if report.signer is not None:
        yield f"  {format_signer(report.signer)}"
    for b in report.bindings:
        shape = ", ".join(map(str, b.shape))
        yield f"  {'in ' if b.is_input else 'out'} {b.name}: {b.dtype}[{shape}]"
    yield f"  weights {format_bytes(report.weight_bytes)}, {counted(len(report.kernels), 'kernel')}"
    if report.is_retunable:
        yield "  contains its network: `smelt retune` builds it again on another machine"
    yield f"  reference steps: {report.reference_steps}"
    if host_steps := format_host_steps(report):
        yield f"  {host_steps}"


def format_tuning(report: EngineReport) -> str:
    """Return how an engine's tactics were chosen, as text."""
    if not report.tuned_on:
        return "tactics were chosen by cost estimates: none was timed"
    return f"tactics were timed on {report.tuned_on}"


def format_signer(signer: SignerReport) -> str:
    """Return the signature of an engine as text."""
    if not signer.key_id:
        return "not signed"
    if not signer.is_right:
        return f"the signature by the key {signer.key_id} is invalid: the file was changed"
    if signer.is_trusted:
        return f"signed by the key {signer.key_id} ({signer.label}), which is trusted here"
    return f"signed by the key {signer.key_id}, which is not trusted here"


def _plan_summary(plan: PlanReport, number: int, count: int) -> Iterator[str]:
    """Yield the lines on a plan as a whole."""
    ranges = format_plan_sizes(plan)
    yield f"plan {number + 1} of {count}" + (f" for {ranges}" if ranges else "")
    before, after = len(plan.source_nodes), len(plan.nodes)
    yield (
        f"  {counted(before, 'node')} before the passes, {after} after; "
        f"{counted(len(plan.layers), 'layer')}, {counted(plan.steps, 'step')}, "
        f"segments: {plan.native_segments} native, {plan.host_segments} host"
    )
    ratio = plan.arena_bytes / plan.arena_lower_bound_bytes if plan.arena_lower_bound_bytes else 1
    yield (
        f"  arena {format_bytes(plan.arena_bytes)}, {ratio:.2f} times the lower bound; "
        f"scratch {format_bytes(plan.scratch_bytes)} per worker"
    )


def _layers(report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    """Yield the table of layers with their tactics."""
    slow = "reference on the host (slow)" if report.host_copy_bytes else "reference (slow)"
    rows = [
        (
            layer.index,
            layer.name,
            layer.op,
            ", ".join(layer.outputs),
            " ".join(layer.output_formats),
            slow if layer.is_reference else layer.tactic,
        )
        for layer in plan.layers
    ]
    yield TextTable(("layer", "name", "op", "output", "format", "tactic"), rows, "layer")


def format_times_note(report: EngineReport) -> str:
    """Return an explanation of the candidates' times and of the choice among them."""
    kind = "measured" if report.tuned_on else "cost estimates, because no tactic was timed"
    return (
        f"times are {kind}; the chosen tactics have the least total time, including format "
        "conversions, so the tactic of a layer need not be its fastest; a time in the network "
        "includes the effect on neighbouring layers"
    )


def _tactics(report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    yield f"tactics: candidates' {format_times_note(report)};"
    yield "    -: not timed, or rejected for wrong results; no: does not support the layer"
    for layer in plan.layers:
        if layer.node:
            yield from _tactics_of(layer)


def _tactics_of(layer: LayerReport) -> Iterator[str]:
    """Yield the lines on a layer's candidates and refusals."""
    yield f"{layer.name} ({layer.op})"
    for candidate in layer.candidates:
        marker = "*" if candidate.chosen else " "
        seconds = candidate.network_seconds
        in_network = "" if seconds is None else f", in the network {format_seconds(seconds)}"
        yield (
            f"  {marker} {format_seconds(candidate.seconds):>12}{in_network}  "
            f"{format_candidate(candidate)}"
        )
    for refusal in layer.refusals:
        yield f"    {'no':>12}  {refusal}"


def format_candidate(candidate: CandidateReport) -> str:
    """Return a candidate's tactic, with its formats if the candidates' formats differ."""
    return f"{candidate.tactic} {candidate.formats}".rstrip()


def _passes(_report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    """Yield the notes of all passes that changed the graph or decided against a change."""
    yield "passes: the changes that each pass made, and why it did not make others"
    effective = [p for p in plan.passes if p.notes or p.nodes_before != p.nodes_after]
    for summary in effective:
        yield f"{summary.name}: {summary.nodes_before} -> {counted(summary.nodes_after, 'node')}"
        for note in summary.notes:
            before = " + ".join(note.before)
            if note.applied:
                after = " + ".join(note.after) or "(nothing)"
                yield f"    {before} -> {after}" + (f": {note.detail}" if note.detail else "")
            else:
                yield f"    {before}: kept: {note.detail}"
    others = len(plan.passes) - len(effective)
    yield f"({others} further {'pass' if others == 1 else 'passes'} changed nothing)"
    if plan.storage:
        yield "storage: where concatenated tensors are written"
        yield from (f"    {note}" for note in plan.storage)


def _memory(_report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    lives = sorted(plan.memory, key=lambda life: (life.first_step, life.offset))
    rows = [(x.name, x.offset, x.size_bytes, x.first_step, x.last_step) for x in lives]
    verb = "takes" if len(rows) == 1 else "share"
    yield f"memory: {counted(len(rows), 'tensor')} {verb} {format_bytes(plan.arena_bytes)}"
    heads = ("tensor", "offset", "bytes", "first", "last")
    yield TextTable(heads, rows, "offset bytes first last")


def _graph(_report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    yield f"graph before: {counted(len(plan.source_nodes), 'node')}"
    yield from (f"    {op} {name}" for name, op in plan.source_nodes)
    yield f"graph after: {counted(len(plan.nodes), 'node')}"
    for node in plan.nodes:
        outputs = ", ".join(f"%{n}: {t}" for n, t in zip(node.outputs, node.types, strict=False))
        inputs = ", ".join(f"%{name}" for name in node.inputs)
        view = " (a view)" if node.is_view else ""
        yield f"    {outputs} = {node.op}({inputs}){view} of {', '.join(node.layers)}"


def _kernels(report: EngineReport) -> Iterator[str | TextTable]:
    """Yield the table of kernels, for GPUs with their resources on each architecture."""
    timed = is_timed(report)
    if not any(kernel.codes for kernel in report.kernels):
        plain = [(k.symbol, k.family, *use_cells(k, timed=timed)) for k in report.kernels]
        yield TextTable(("kernel", "family", *use_heads(timed=timed)), plain, _NUMBERS, "kernel")
        return
    yield (
        "kernels: registers and local memory (spilled registers) per thread, shared memory "
        "(static + dynamic) per block; resident blocks per multiprocessor, and the resource that "
        "limits them"
    )
    heads = ("kernel", *use_heads(timed=timed), *CODE_HEADS)
    rows = [
        (kernel.symbol, *use_cells(kernel, timed=timed), *code_cells(code))
        for kernel in report.kernels
        for code in kernel.codes
    ]
    yield TextTable(heads, rows, _NUMBERS, "kernel for limit")
    for kernel in report.kernels:
        for code in kernel.codes:
            if code.problem:
                yield f"{kernel.symbol}, {code.architecture}: {code.problem}"


_NUMBERS: Final = (
    "uses time share threads registers local shared code blocks occupancy "
    "MFLOP moved flop/byte bound"
)


def is_timed(report: EngineReport) -> bool:
    """Return whether the time of any layer is known."""
    return any(layer.is_timed for plan in report.plans for layer in plan.layers)


def use_heads(*, timed: bool) -> tuple[str, ...]:
    """Return the heads of the columns of a kernel's launches and, with a profile, its time."""
    return ("uses", "time", "share") if timed else ("uses",)


def use_cells(kernel: KernelReport, *, timed: bool) -> tuple[str, ...]:
    """Return the cells of a kernel under `use_heads`."""
    if not timed:
        return (str(kernel.uses),)
    time = format_seconds(kernel.measured_seconds, 2)
    return str(kernel.uses), time, format_percent(kernel.share_of_bound)


CODE_HEADS: Final = (
    "for", "threads", "registers", "local", "shared", "code", "blocks", "occupancy", "limit",
)  # fmt: skip


def code_cells(code: CodeReport) -> tuple[str, ...]:
    """Return the cells of a kernel's resources under `CODE_HEADS`."""

    def shown(number: int | None, unit: str = "") -> str:
        return "?" if number is None else f"{number}{unit}"

    return (
        code.architecture,
        shown(code.threads),
        shown(code.registers),
        shown(code.local_bytes, " B"),
        f"{shown(code.static_shared_bytes)} + {shown(code.dynamic_shared_bytes, ' B')}",
        shown(code.code_bytes, " B"),
        shown(code.blocks),
        "?" if code.occupancy is None else f"{code.occupancy:.0%}",
        code.limited_by,
    )


def _source(report: EngineReport) -> Iterator[str | TextTable | SourceReport]:
    if report.no_sources:
        yield f"the source of the kernels is not shown: {report.no_sources}"
    for kernel in report.kernels:
        for source in kernel.sources:
            yield f"{kernel.symbol}: {source.language} for {', '.join(source.architectures)}"
            yield source


def roofline_note(report: EngineReport) -> str:
    """Return the peak rates that the bounds are computed from, as text."""
    peaks = report.peaks
    if peaks is None:
        return (
            f"no peak rates of {report.architecture} are known, so there are no bounds; give the "
            "rates with --peaks FLOP/S,BYTES/S"
        )
    rates = dict.fromkeys(f"{rate / 1e12:.4g} ({kind})" for kind, rate in peaks.flop_per_second)
    return (
        f"bounds are those of {peaks.device}: {', '.join(rates)} TFLOP/s, "
        f"{peaks.bytes_per_second / 1e9:,.4g} GB/s"
    )


WORK_NOTE: Final = (
    "flop: two for each multiply-accumulate of the layer's definition; moved: the bytes that the "
    "layer's steps read and write, each operand once, without caches; bound: the least time for "
    "both"
)


def counted_at(plan: PlanReport) -> str:
    """Return the sizes for which work is counted, as text; empty for a plan with fixed sizes."""
    sizes = ", ".join(f"{name} = {size}" for name, size in plan.counted_at)
    return f"counted at {sizes}" if sizes else ""


def roofline_heads(*, timed: bool) -> tuple[str, ...]:
    """Return the heads of the columns of the roofline table."""
    times = ("time", "share") if timed else ()
    return ("layer", "MFLOP", "factors", "moved", "flop/byte", "bound", "by", *times, "kernels")


def roofline_rows(plan: PlanReport, *, timed: bool) -> list[tuple[str, ...]]:
    """Return the rows under `roofline_heads`: each layer with steps, then the total.

    The last cell has a line for each kernel of the layer.
    """
    rows = [
        (
            layer.name,
            *_work_cells(layer.work, timed=timed),
            "\n".join(x.kernel for x in layer.launches),
        )
        for layer in plan.layers
        if layer.work is not None
    ]
    return [*rows, ("all", *_work_cells(plan.work, timed=timed), "")]


def _work_cells(work: WorkReport, *, timed: bool) -> tuple[str, ...]:
    """Return the cells of a layer's work, without its name and kernels."""
    cells = (
        "?" if work.flop is None else format_number(work.flop / 1e6, 2) if work.flop else "-",
        work.factors,
        "?" if work.moved_bytes is None else format_bytes(work.moved_bytes),
        format_number(work.flop_per_byte, 1) if work.flop_per_byte else "-",
        _in_column(work.bound_seconds),
        work.bound_by,
    )
    if not timed:
        return cells
    share = format_percent(work.share_of_bound)
    return (*cells, _in_column(work.measured_seconds), share)


def _in_column(seconds: float | None) -> str:
    """Return a time in microseconds with three decimals, as for all times of a column."""
    if seconds is None:
        return "-"
    return "<0.001 us" if 0 < seconds < 0.5e-9 else f"{seconds * 1e6:,.3f} us"


def _roofline(report: EngineReport, plan: PlanReport) -> Iterator[str | TextTable]:
    timed = is_timed(report)
    yield f"roofline: {roofline_note(report)}"
    yield WORK_NOTE + (f"; {sizes}" if (sizes := counted_at(plan)) else "")
    yield TextTable(
        roofline_heads(timed=timed), roofline_rows(plan, timed=timed), _NUMBERS, "kernels"
    )


def _weights(report: EngineReport) -> Iterator[str | TextTable]:
    """Yield the table of packed weights."""
    rows = [
        (
            w.name,
            f"{w.dtype}{list(w.shape)}",
            w.size_bytes,
            ", ".join(w.sources) or "not refittable",
        )
        for w in report.weights
    ]
    yield TextTable(("weight", "packed", "bytes", "refitted from"), rows, "bytes")


_PLAN_WRITERS: Final[dict[str, Callable[[EngineReport, PlanReport], Iterator[str | TextTable]]]] = {
    "layers": _layers,
    "passes": _passes,
    "tactics": _tactics,
    "memory": _memory,
    "graph": _graph,
    "roofline": _roofline,
}
_ENGINE_WRITERS: Final[
    dict[str, Callable[[EngineReport], Iterator[str | TextTable | SourceReport]]]
] = {
    "kernels": _kernels,
    "source": _source,
    "weights": _weights,
}
SECTIONS: Final = (*_PLAN_WRITERS, *_ENGINE_WRITERS)
"""Names of the sections of `report_to_text`: those of each plan, then those of the engine."""

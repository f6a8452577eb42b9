"""The report as a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smelt.inspect._report import masked_report
from smelt.inspect._svg_graph import PageSpace, draw_graph
from smelt.inspect._svg_memory import memory_to_svg
from smelt.inspect._text import (
    CODE_HEADS,
    WORK_NOTE,
    code_cells,
    counted_at,
    format_bytes,
    format_candidate,
    format_host_steps,
    format_plan_sizes,
    format_seconds,
    format_signer,
    format_times_note,
    format_tuning,
    is_timed,
    machine_of,
    roofline_heads,
    roofline_note,
    roofline_rows,
    system_of,
    use_cells,
    use_heads,
)
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from smelt.inspect._report import EngineReport, KernelReport, LayerReport, PassNote, PlanReport
    from smelt.inspect._svg_graph import GraphDrawing

_BUTTONS: Final = (
    ("previous", "&lsaquo;", "previous", "Shift+Enter, N"),
    ("next", "&rsaquo;", "next", "Enter, n"),
    ("in", "+", "zoom in", "+, or Ctrl and the mouse wheel"),
    ("out", "&minus;", "zoom out", "-, or Ctrl and the mouse wheel"),
    ("fit", "All", "show everything", "0"),
)
"""Value, text, title and keys of each button above a graph."""
_MAX_EQUAL_ROWS: Final = 3
"""Largest number of layers with the same note of a pass that get a row each; more share one row."""
_CODE_NUMBERS: Final = (*use_heads(timed=True), *CODE_HEADS[1:-1])
_ROOFLINE_NUMBERS: Final = ("MFLOP", "moved", "flop/byte", "bound", "time", "share")


def report_to_html(report: EngineReport) -> str:
    """Return the report as a complete HTML document that loads no other resource.

    The only script moves and searches the graph. The content security policy allows only a script
    of its hash, so that no text of an engine could run even if it were not escaped.
    """
    report, script = masked_report(report), _resource("_graph_view.js")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(report.network)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
        f"<style>\n{_resource('_report.css')}</style></head><body>",
    ]
    space = PageSpace()
    for engine in (report, *report.partitions):
        parts += _head(engine)
        for number, plan in enumerate(engine.plans):
            parts += _plan(engine, plan, number, space)
        parts += [*_kernels(engine), *_weights(engine)]
    return "\n".join([*parts, f"<script>{script}</script>", "</body></html>"]) + "\n"


@cache
def _resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"default-src 'none'; base-uri 'none'; form-action 'none'; {allowed}"


def _head(report: EngineReport) -> Iterator[str]:
    """Yield the HTML of the engine's summary."""
    yield f"<h1>{escape(report.network)}</h1>"
    yield (
        f"<p>An engine for {escape(report.device)}: {escape(machine_of(report))}, "
        f"{escape(system_of(report))}; "
        f"built by smelt {escape(report.version)}.</p>"
    )
    yield f"<p>{escape(_sentence(format_tuning(report)))}</p>"
    if report.signer is not None:
        yield f"<p>{escape(_sentence(format_signer(report.signer)))}</p>"
    facts = [
        ("weights", format_bytes(report.weight_bytes)),
        ("kernels", str(len(report.kernels))),
        ("plans", str(len(report.plans))),
        ("reference steps", str(report.reference_steps)),
        ("needs", ", ".join(report.libraries)),
        (
            "tuned for" if report.tuned_on else "assumed, because no tactic was timed",
            "" if report.multiprocessors is None else f"{report.multiprocessors} multiprocessors",
        ),
        ("largest batch", "" if report.max_batch_size is None else str(report.max_batch_size)),
        ("contains its network", "can be retuned" if report.is_retunable else ""),
    ]
    yield from _facts(facts)
    if note := format_host_steps(report):
        yield f'<p class="no">{escape(note)}.</p>'
    rows = [
        (
            "in" if b.is_input else "out",
            _code(b.name),
            f"{b.dtype}[{escape(', '.join(map(str, b.shape)))}]",
        )
        for b in report.bindings
    ]
    yield _table(("", "binding", "type"), rows)


def _facts(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the HTML of names and texts, without those whose text is empty."""
    items = "".join(
        f"<li><b>{escape(text)}</b><span>{escape(name)}</span></li>" for name, text in facts if text
    )
    yield f'<ul class="facts">{items}</ul>'


def _plan(report: EngineReport, plan: PlanReport, number: int, space: PageSpace) -> Iterator[str]:
    """Yield the HTML of a plan."""
    ranges = format_plan_sizes(plan)
    title = "Plan" if len(report.plans) == 1 else f"Plan {number + 1}"
    yield f"<h2>{title}{escape(f' for {ranges}' if ranges else '')}</h2>"
    yield from _facts(
        [
            ("nodes before the passes", str(len(plan.source_nodes))),
            ("nodes after", str(len(plan.nodes))),
            ("layers", str(len(plan.layers))),
            ("steps", str(plan.steps)),
            ("native + host segments", f"{plan.native_segments} + {plan.host_segments}"),
            ("arena", format_bytes(plan.arena_bytes)),
            ("lower bound of the arena", format_bytes(plan.arena_lower_bound_bytes)),
        ]
    )
    if plan.memory:
        yield from _memory(plan)
    if plan.nodes:
        yield "<h3>Graph after the passes</h3>"
        yield "<p>Grey nodes are views: they copy nothing. Red nodes run in Python.</p>"
        yield from _graph(draw_graph(plan, report.bindings, space))
    yield "<h3>Layers</h3>"
    yield f"<p>Open a tactic to see the alternatives. {_sentence(format_times_note(report))}</p>"
    yield from _layers(plan.layers)
    yield "<h3>Roofline</h3>"
    note = roofline_note(report)
    at_sizes = f"; {sizes}" if (sizes := counted_at(plan)) else ""
    yield f"<p>{escape(f'{_sentence(note)} {_sentence(WORK_NOTE + at_sizes)}')}</p>"
    timed = is_timed(report)
    heads = roofline_heads(timed=timed)
    yield _table(heads, _roofline(plan, timed=timed), numbers=_ROOFLINE_NUMBERS)
    yield "<h3>What the passes did</h3>"
    yield from _passes(plan)


def _memory(plan: PlanReport) -> Iterator[str]:
    yield "<h3>Memory over time</h3>"
    yield (
        "<p>Each box is a tensor: the vertical axis shows its bytes in the arena, and the "
        "horizontal axis the steps of its lifetime."
    )
    yield " Hover over a box for its name. The dashed line is the lower bound of the arena.</p>"
    yield memory_to_svg(plan)


def _graph(drawing: GraphDrawing) -> Iterator[str]:
    """Yield the HTML of a graph with its buttons and search field."""
    if drawing.note:
        yield f'<p class="no">{escape(drawing.note)}</p>'
    buttons = "".join(
        f'<button type="button" value="{value}" title="{title} ({key})">{text}</button>'
        for value, text, title, key in _BUTTONS
    )
    yield '<figure class="graph"><div class="tools" role="search">'
    yield '<label>Search <input type="search" placeholder="layer, op, type or tactic"/></label>'
    yield f"{buttons}<output></output></div>"
    yield '<div class="view" tabindex="0" role="group" aria-label="The graph. Arrow keys move'
    yield ' it, plus and minus zoom, 0 shows everything, / searches, n goes to the next match.">'
    yield f"{drawing.svg}</div></figure>"


def _layers(layers: Sequence[LayerReport]) -> Iterator[str]:
    """Yield the HTML table of layers with their tactics."""
    yield '<div class="wide">'
    yield "<table><tr><th>layer</th><th>op</th><th>output</th><th>format</th><th>tactic</th></tr>"
    for layer in layers:
        slow = ' class="slow"' if layer.is_reference else ""
        yield (
            f"<tr{slow}><td>{escape(layer.name)}</td><td>{escape(layer.op)}</td>"
            f"<td class=mono>{escape(', '.join(layer.outputs))}</td>"
            f"<td class=mono>{escape(' '.join(layer.output_formats))}</td>"
            f"<td>{''.join(_tactic(layer))}</td></tr>"
        )
    yield "</table></div>"


def _tactic(layer: LayerReport) -> Iterator[str]:
    """Yield the HTML of a layer's tactic, with its alternatives in a folded table."""
    chosen = _code(layer.tactic)
    if not layer.candidates and not layer.refusals:
        yield chosen
        return
    yield f"<details><summary>{chosen}</summary>"
    rows = [
        (
            "<b>chosen</b>" if candidate.chosen else "",
            escape(format_seconds(candidate.seconds)),
            escape(format_seconds(candidate.network_seconds)),
            _code(format_candidate(candidate)),
        )
        for candidate in layer.candidates
    ]
    rows += [
        ('<span class="no">not supported</span>', "", "", escape(reason))
        for reason in layer.refusals
    ]
    yield _table(("", "time", "in the network", "candidate"), rows) + "</details>"


def _passes(plan: PlanReport) -> Iterator[str]:
    """Yield the HTML of the passes' notes; many layers with the same note share a row."""
    rows: list[tuple[str, str, str]] = []
    for summary in plan.passes:
        for detail, notes in groupby(summary.notes, key=_detail_of_unchanged):
            pairs = [_note(note) for note in notes]
            if detail and len(pairs) > _MAX_EQUAL_ROWS:
                layers = "".join(f"<li>{layers}</li>" for layers, _ in pairs)
                pairs = [(_folded(f"{len(pairs)} layers", f"<ul>{layers}</ul>"), escape(detail))]
            rows += [(_code(summary.name), *cells) for cells in pairs]
    yield (
        _table(("pass", "layers", "change, or why none was made"), rows)
        if rows
        else "<p>Nothing.</p>"
    )
    if plan.storage:
        yield f"<details><summary>{counted(len(plan.storage), 'note')} on storage</summary><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in plan.storage)
        yield "</ul></details>"


def _detail_of_unchanged(note: PassNote) -> str:
    """Return the detail of a note whose layers keep their names; empty if they change."""
    return note.detail if note.applied and note.before == note.after else ""


def _note(note: PassNote) -> tuple[str, str]:
    before = escape(" + ".join(note.before))
    if not note.applied:
        return before, f'<span class="no">kept: {escape(note.detail)}</span>'
    after = escape(" + ".join(note.after) or "(nothing)")
    return before if note.before == note.after else f"{before} → {after}", escape(note.detail)


def _roofline(plan: PlanReport, *, timed: bool) -> Iterator[tuple[str, ...]]:
    for *row, kernels in roofline_rows(plan, timed=timed):
        links = (f'<a href="#{_anchor(k)}">{_code(k)}</a>' for k in kernels.split("\n") if k)
        yield *map(escape, row), "<br>".join(links)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _anchor(symbol: str) -> str:
    return escape(f"kernel-{symbol}")


def _kernels(report: EngineReport) -> Iterator[str]:
    """Yield the HTML of the kernels, with their source text if the report has it."""
    yield "<h2>Kernels</h2>"
    if reason := escape(report.no_sources):
        yield f'<p class="no">The source of the kernels is not shown: {reason}.</p>'
    has_codes = any(kernel.codes for kernel in report.kernels)
    if has_codes:
        yield "<p>Registers and local memory (spilled registers) are per thread; shared memory"
        yield (
            " (static + dynamic) is per block. 'blocks' is the number of blocks that fit on a "
            "multiprocessor at once,"
        )
        yield " 'occupancy' is their threads as a share of its maximum, and 'limit' is the resource"
        yield " that limits both.</p>"
    timed = is_timed(report)
    heads = ("kernel", "family", *use_heads(timed=timed), *(CODE_HEADS if has_codes else ()))
    yield f'<div class="wide"><table><tr>{_heads(heads, _CODE_NUMBERS)}</tr>'
    for kernel in report.kernels:
        yield from _kernel(kernel, timed=timed)
    yield "</table></div>"
    if any(kernel.sources for kernel in report.kernels):
        yield "<h3>Source</h3>"
    for kernel in report.kernels:
        for source in kernel.sources:
            kind = f"{source.language} for {', '.join(source.architectures)}"
            yield _folded(f"{kernel.symbol}: {kind}", f"<pre>{escape(source.text)}</pre>")


def _kernel(kernel: KernelReport, *, timed: bool) -> Iterator[str]:
    """Yield the table rows of a kernel, one for each architecture."""
    problems = "".join(
        f'<br><span class="no">{escape(f"{code.architecture}: {code.problem}")}</span>'
        for code in kernel.codes
        if code.problem
    )
    span = f' rowspan="{len(kernel.codes)}"' if len(kernel.codes) > 1 else ""
    head = (
        f"<td{span}>{_code(kernel.symbol)}{problems}</td><td{span}>{escape(kernel.family)}</td>"
        + "".join(f"<td{span} class=number>{cell}</td>" for cell in use_cells(kernel, timed=timed))
    )
    for number, code in enumerate(kernel.codes or (None,)):
        anchor = "" if number else f' id="{_anchor(kernel.symbol)}"'
        cells = () if code is None else zip(CODE_HEADS, code_cells(code), strict=True)
        row = "".join(f"<td{_kind(h, _CODE_NUMBERS)}>{escape(cell)}</td>" for h, cell in cells)
        yield f"<tr{anchor}>{'' if number else head}{row}</tr>"


def _weights(report: EngineReport) -> Iterator[str]:
    """Yield the HTML table of packed weights, folded."""
    yield "<h2>Weights</h2>"
    rows = [
        (
            escape(w.name),
            _code(f"{w.dtype}{list(w.shape)}"),
            format_bytes(w.size_bytes),
            escape(", ".join(w.sources)) or "not refittable",
        )
        for w in report.weights
    ]
    table = _table(("weight", "packed as", "size", "refitted from"), rows)
    yield _folded(f"{counted(len(rows), 'weight')}, {format_bytes(report.weight_bytes)}", table)


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()
) -> str:
    """Return an HTML table of cells that are HTML already; columns of numbers are right-aligned."""
    kinds = [_kind(head, numbers) for head in heads]

    def line(row: Sequence[str]) -> str:
        cells = zip(kinds, row, strict=True)
        return f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in cells)}</tr>"

    inner = f"<tr>{_heads(heads, numbers)}</tr>{''.join(map(line, rows))}"
    return f'<div class="wide"><table>{inner}</table></div>'


def _heads(heads: Sequence[str], numbers: Collection[str]) -> str:
    return "".join(f"<th{_kind(text, numbers)}>{escape(text)}</th>" for text in heads)


def _kind(head: str, numbers: Collection[str]) -> str:
    return " class=number" if head in numbers else ""

"""``smelt inspect``: what an engine is made of, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from smelt.cli._console import print_json, say
from smelt.cli._files import FileCommand, ResultFile, SourceFile
from smelt.cli._models import BuildArguments, build_options, is_model, open_engine
from smelt.cli._parse import Numbers

if TYPE_CHECKING:
    from smelt.inspect import EngineReport, Inspectable, Peaks, Profile

_WIDTH_WITHOUT_TERMINAL = 160


@click.command(
    cls=FileCommand, short_help="Show layers, fusions, tactics with their times, memory over time."
)
@click.argument("engine_path", metavar="ENGINE", type=SourceFile())
@click.option("--layers", is_flag=True, help="Layers with formats and tactics (the default).")
@click.option("--passes", is_flag=True, help="What was fused and folded, and why the rest was not.")
@click.option(
    "--tactics", is_flag=True, help="Every candidate's time; who refused a layer and why."
)
@click.option("--memory", is_flag=True, help="Each tensor's place in the arena, and its life.")
@click.option("--graph", is_flag=True, help="The graph before and after the passes.")
@click.option("--roofline", is_flag=True, help="Each layer's work, and how long it takes at least.")
@click.option(
    "--kernels", is_flag=True, help="The pieces of machine code; on GPUs what each one takes."
)
@click.option("--source", is_flag=True, help="Each kernel's text: Triton, or LLVM IR.")
@click.option("--packed-weights", "weights_", is_flag=True, help="The packed weights.")
@click.option("--all", "everything", is_flag=True, help="All of these but --source.")
@click.option(
    "--times",
    metavar="FILE",
    type=SourceFile(),
    help="Layers' times: what `smelt bench --profile --json` answered.",
)
@click.option(
    "--peaks",
    type=Numbers(),
    metavar="FLOP/S,BYTES/S",
    help="What the device does at best, for --roofline: 790e12,4.3e12.  [default: an H200's for "
    "sm_90, else none]",
)
@click.option(
    "--html",
    metavar="FILE",
    type=ResultFile(),
    help="Write the whole report as a page for a browser.",
)
@click.option(
    "--svg",
    metavar="FILE",
    type=ResultFile(),
    help="Write a picture: --graph's, else memory over time.",
)
@click.option("--output", multiple=True, metavar="NAME", help="Outputs of a MODEL; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON on stdout.")
@build_options
def inspect(
    *,
    engine_path: str,
    html: str | None,
    svg: str | None,
    output: tuple[str, ...],
    as_json: bool,
    everything: bool,
    times: str | None,
    peaks: tuple[float, ...] | None,
    build_arguments: BuildArguments,
    **sections: bool,
) -> None:
    r"""Show what ENGINE is made of; a model instead of an engine is built first.

    Nothing of the engine runs, so one from anywhere, for any machine, can be inspected. A reference
    step runs an op's numpy reference: right, but slow; --tactics says why there was nothing better.

    \b
    Examples:
      smelt inspect model.engine
      smelt inspect model.engine --passes --tactics
      smelt inspect model.engine --html report.html --svg memory.svg
      smelt inspect model.engine --roofline --times bench.json
      smelt inspect model.engine --kernels --source
      smelt inspect model.engine --json | python -m json.tool
      smelt inspect model.onnx --shape input=1x3x224x224 --tune none --graph
    """
    from smelt.inspect import SECTIONS, report_of, report_to_json

    del output
    engine = _opened(engine_path, build_arguments, quiet=as_json)
    is_short = engine.header.fingerprint.device == "cuda"  # as LLVM IR never is
    sources = sections["source"] or (html is not None and is_short)
    report = report_of(engine, sources=sources, profile=_profile(times), peaks=_peaks(peaks))
    _check_times(report, times)
    if html is not None:
        _write_html(html, report)
    if svg is not None:
        _write_svg(svg, report, graph=sections["graph"])
    if as_json:
        print_json(report_to_json(report))
        return
    wanted = {name.rstrip("_") for name, given in sections.items() if given}
    if everything:
        wanted |= set(SECTIONS) - {"source"}
    if html is not None or svg is not None:
        for path in filter(None, (html, svg)):
            say(f"wrote {path}")
        if not wanted:
            return
    _show(report, [name for name in SECTIONS if name in (wanted or {"layers"})])


def _opened(path: str, arguments: BuildArguments, *, quiet: bool) -> Inspectable:
    from smelt.engine import read_engine

    if is_model(path) or arguments.given - {"output"}:
        return open_engine(path, arguments, quiet=quiet)
    return read_engine(path)


def _profile(path: str | None) -> Profile | None:
    """What `smelt bench --profile --json` answered.

    Raises SmeltError: that is not what the file holds.
    """
    import json
    from pathlib import Path

    from smelt.errors import SmeltError
    from smelt.inspect import Profile

    if path is None:
        return None
    try:
        told = json.loads(Path(path).read_bytes())
        seconds = {str(x["name"]): _seconds(x["milliseconds"]) for x in told["layers"]}
        sizes = {str(name): int(size) for name, size in told["sizes"].items()}
    except (
        OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise SmeltError(
            f"{path} has no layers' times ({type(error).__name__}: {error}); "
            "make it with: smelt bench ENGINE --profile --json > FILE"
        ) from error
    return Profile(seconds, sizes)


def _seconds(milliseconds: Any) -> float:
    seconds = float(milliseconds) / 1e3
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds * 1e3} ms is no time")
    return seconds


def _check_times(report: EngineReport, path: str | None) -> None:
    """Raise SmeltError if no layer was measured: the times are of another engine."""
    from smelt.errors import SmeltError

    if path is None:
        return
    works = [layer.work for plan in report.plans for layer in plan.layers]
    if not any(work is not None and work.measured_seconds is not None for work in works):
        raise SmeltError(f"{path} has no time of any layer of {report.network}, as it runs here")


def _peaks(rates: tuple[float, ...] | None) -> Peaks | None:
    from smelt.inspect import Peaks

    if rates is None:
        return None
    if len(rates) != 2 or not all(0 < rate < float("inf") for rate in rates):
        raise click.BadParameter(
            "two rates are needed, FLOP/S,BYTES/S: 790e12,4.3e12", param_hint="--peaks"
        )
    return Peaks("the given peaks", rates[1], (("any", rates[0]),))


def _show(report: EngineReport, sections: list[str]) -> None:
    import shutil
    import sys

    from smelt.inspect import report_to_text

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    click.echo(report_to_text(report, sections, width=width), nl=False)


def _write_html(path: str, report: EngineReport) -> None:
    from smelt.engine import write_atomically
    from smelt.inspect import report_to_html

    write_atomically(path, iter([report_to_html(report).encode()]))


def _write_svg(path: str, report: EngineReport, *, graph: bool) -> None:
    from smelt.engine import write_atomically
    from smelt.errors import SmeltError
    from smelt.inspect import graph_to_svg, memory_to_svg

    if not report.plans:  # the file was only read: it may hold anything
        raise SmeltError(f"{report.network} has no plan, and there is nothing to draw")
    plan = report.plans[0]
    text = graph_to_svg(plan, report.bindings) if graph else memory_to_svg(plan)
    write_atomically(path, iter([text.encode()]))

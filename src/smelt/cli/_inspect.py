"""``smelt inspect``: show the contents of an engine and the reasons for its tactics."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from smelt.cli._console import print_json, say, screen_width
from smelt.cli._file_arguments import FileCommand, InputFile, ModelFile, OutputFile, check_suffix
from smelt.cli._model_options import BuildArguments, build_options, is_model, open_engine
from smelt.cli._option_types import peak_rates
from smelt.cli._options import flag_option, json_option, output_option
from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.inspect import EngineReport, Inspectable, Peaks, Profile


@click.command(
    cls=FileCommand,
    short_help="Show layers, fusions, tactics with their times, and memory over time.",
)
@click.argument("engine_path", metavar="ENGINE", type=ModelFile())
@flag_option("--layers", help="Layers with formats and tactics (the default).")
@flag_option("--passes", help="Fused and folded layers, and why other layers were not fused.")
@flag_option(
    "--tactics", help="The time of every candidate, and why kernel families do not support a layer."
)
@flag_option("--memory", help="The offset of each tensor in the arena, and its lifetime.")
@flag_option("--graph", help="The graph before and after the passes.")
@flag_option("--roofline", help="The work of each layer, and the least time that it can take.")
@flag_option("--kernels", help="The kernels; on GPUs with their registers and memory.")
@flag_option("--source", help="The source of each kernel, in Triton or LLVM IR.")
@flag_option("--packed-weights", "weights_", help="The packed weights.")
@flag_option("--all", "all_sections", help="All of the above except --source.")
@click.option(
    "--profile",
    "profile_path",
    type=InputFile(),
    help="File of layer times, the output of `smelt bench --profile --json`; implies --roofline.",
)
@click.option(
    "--peaks",
    type=peak_rates,
    metavar="FLOP/S,BYTES/S",
    help=(
        "Peak rates of the device for --roofline, such as 790e12,4.3e12.  [default: those of an "
        "H200 if the code is for sm_90, otherwise none]"
    ),
)
@click.option(
    "--html",
    type=OutputFile(),
    help="Write the whole report as an HTML page, with a graph to search and zoom.",
)
@click.option(
    "--svg",
    type=OutputFile(),
    help="Write an SVG image: of the graph with --graph, otherwise of memory over time.",
)
@output_option(help="A tensor to make an output of a MODEL; repeatable.")
@json_option(help="The whole report as JSON on stdout.")
@build_options
def inspect(
    *,
    engine_path: str,
    html: str | None,
    svg: str | None,
    as_json: bool,
    all_sections: bool,
    profile_path: str | None,
    peaks: tuple[float, ...] | None,
    build_arguments: BuildArguments,
    **sections: bool,
) -> None:
    r"""Show the contents of ENGINE; a model instead of an engine is built first.

    No code of the engine runs, so engines from any source and for any machine can be inspected. A
    reference step runs an op's numpy reference, which is slow; --tactics says why no kernel was
    used.

    \b
    Examples:
      smelt inspect model.engine
      smelt inspect model.engine --passes --tactics
      smelt inspect model.engine --html report.html --svg memory.svg
      smelt inspect model.engine --roofline --profile bench.json
      smelt inspect model.engine --kernels --source
      smelt inspect model.engine --json | python -m json.tool
      smelt inspect model.onnx --shape input=1x3x224x224 --tune none --graph
    """
    from smelt.engine import write_atomically
    from smelt.inspect import SECTIONS, report_to_html, report_to_json, report_to_text

    check_suffix(".svg", "a picture in SVG", svg)
    engine = _open(engine_path, build_arguments, quiet=as_json)
    sources = sections["source"] or (html is not None and _has_short_sources(engine))
    report = _report(engine, profile_path, _peaks(peaks), sources=sources)
    if html is not None:
        write_atomically(html, iter([report_to_html(report).encode()]))
    if svg is not None:
        _write_svg(svg, report, graph=sections["graph"])
    if as_json:
        print_json(report_to_json(report))
        return
    wanted = {name.rstrip("_") for name, is_set in sections.items() if is_set}
    if all_sections:
        wanted |= set(SECTIONS) - {"source"}
    if html is not None or svg is not None:
        for path in filter(None, (html, svg)):
            say(f"wrote {path}")
        if not wanted:
            return
    if (profile_path or peaks) and not wanted & {"roofline", "kernels"}:
        wanted.add("roofline")
    shown = [name for name in SECTIONS if name in (wanted or {"layers"})]
    click.echo(report_to_text(report, shown, width=screen_width(sys.stdout)), nl=False)


def _has_short_sources(engine: Inspectable) -> bool:
    """Return whether the kernel sources are short enough for a page that shows everything."""
    from smelt.backends import backend_of
    from smelt.devices import DEVICE_KINDS

    kind = DEVICE_KINDS.get(engine.header.fingerprint.device)
    return kind is not None and backend_of(kind).has_short_sources


def _open(path: str, arguments: BuildArguments, *, quiet: bool) -> Inspectable:
    """Read an engine without loading its code, or build one from a model."""
    from smelt.engine import read_engine

    if is_model(path) or arguments.explicit:
        return open_engine(path, arguments, quiet=quiet, will_run=False)
    return read_engine(path)


def _report(
    engine: Inspectable, profile_path: str | None, peaks: Peaks | None, *, sources: bool
) -> EngineReport:
    """Return the report on an engine, with the layer times of a file if given."""
    from smelt.inspect import report_of

    if profile_path is None:
        return report_of(engine, sources=sources, peaks=peaks)
    file = _ProfileFile.read(profile_path)
    report = report_of(engine, sources=sources, profile=file.profile, peaks=peaks)
    file.check(report)
    return report


@dataclass(frozen=True, slots=True)
class _ProfileFile:
    """File of layer times that `smelt bench --profile --json` writes."""

    path: str
    profile: Profile
    tactics: Mapping[str, str]
    """Tactic of each layer, by the layer's name."""

    @classmethod
    def read(cls, path: str) -> _ProfileFile:
        """Read a file.

        Raises:
            SmeltError: the file cannot be read, or does not have layer times.
        """
        from smelt.inspect import Profile

        data = _json(path)
        try:
            seconds = {str(x["name"]): _seconds(x["milliseconds"]) for x in data["layers"]}
            sizes = {str(name): int(size) for name, size in data["sizes"].items()}
            tactics = {str(x["name"]): str(x["tactic"]) for x in data["layers"] if "tactic" in x}
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            lacks = isinstance(data, dict) and "median_ms" in data and "layers" not in data
            reason = "was made without --profile" if lacks else "has no layer times"
            raise _no_times(path, reason) from error
        return cls(path, Profile(seconds, sizes), tactics)

    def check(self, report: EngineReport) -> None:
        """Warn if layers were measured with other tactics.

        Raises:
            SmeltError: the file has no time of any layer of this engine.
        """
        timed = [layer for plan in report.plans for layer in plan.layers if layer.is_timed]
        if not timed:
            raise SmeltError(
                f"{self.path} has no times for the layers of this engine of {report.network}: "
                + self._difference(report)
            )
        others = [x.name for x in timed if self.tactics.get(x.name, x.tactic) != x.tactic]
        if others:
            say(
                f"warning: {self.path} is from another engine: its tactics differ for "
                f"{len(others)} of {len(timed)} layers, for example {others[0]}"
            )

    def _difference(self, report: EngineReport) -> str:
        """Return why none of the times is for a layer of the engine."""
        from smelt.inspect import format_plan_sizes

        names = {layer.name for plan in report.plans for layer in plan.layers}
        if not names & self.profile.seconds.keys():
            return "the layers in the file have other names"
        sizes = ", ".join(f"{name} = {size}" for name, size in self.profile.sizes.items())
        here = " or ".join(filter(None, map(format_plan_sizes, report.plans))) or "fixed sizes"
        return f"the times were measured at {sizes or 'fixed sizes'}; this engine runs at {here}"


def _json(path: str) -> Any:
    """Read a JSON file of layer times; errors say how to write one."""
    from smelt.types import Limit, parse_json, read_file

    try:
        return parse_json(read_file(path, Limit.MAX_PROFILE_BYTES))
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        raise _no_times(path, "does not exist") from error
    except OSError as error:
        pass_on_handler_error(error)
        raise _no_times(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _no_times(path, "is not JSON") from error


def _no_times(path: str, reason: str) -> SmeltError:
    return SmeltError(
        f"{path} {reason}; write a file of layer times with: smelt bench ENGINE --profile --json > "
        "FILE"
    )


def _seconds(milliseconds: Any) -> float:
    seconds = float(milliseconds) / 1e3
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds * 1000.0} ms is not a valid time")
    return seconds


def _peaks(rates: tuple[float, ...] | None) -> Peaks | None:
    from smelt.inspect import Peaks

    return None if rates is None else Peaks("the given peaks", rates[1], (("any", rates[0]),))


def _write_svg(path: str, report: EngineReport, *, graph: bool) -> None:
    """Write an SVG picture of the first plan: its graph, or its memory over time."""
    from smelt.engine import write_atomically
    from smelt.inspect import graph_to_svg, memory_to_svg

    if not report.plans:  # an engine that is only read has not been verified
        raise SmeltError(f"{report.network} has no plan, so there is nothing to draw")
    plan = report.plans[0]
    text = graph_to_svg(plan, report.bindings) if graph else memory_to_svg(plan)
    write_atomically(path, iter([text.encode()]))

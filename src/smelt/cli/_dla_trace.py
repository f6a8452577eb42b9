"""``smelt dla trace``: replay register traces on the simulated hardware."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from smelt.cli._console import print_table, say, show
from smelt.cli._file_arguments import InputFile
from smelt.cli._option_types import configuration_option
from smelt.cli._options import json_option
from smelt.cli._progress import ProgressLine
from smelt.errors import SmeltError

if TYPE_CHECKING:
    from smelt.nvdla import TraceResult


@click.command(short_help="Replay register traces and check their expected values.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=InputFile())
@configuration_option(
    help="The hardware configuration.  [default: that of the trace, its folder or its format]"
)
@json_option()
@click.pass_context
def trace(
    context: click.Context, *, paths: tuple[str, ...], configuration: str | None, as_json: bool
) -> None:
    r"""Replay register traces: .cfg, .txn, a folder of them, or a tar archive, read in place.

    A trace whose data file is missing is skipped, with the name of the file. The exit code is 1 if
    a trace failed, or if none ran.

    \b
    Examples:
      smelt dla trace verif/tests/trace_tests/nv_small
      smelt dla trace traces.tar.xz --json
      smelt dla trace recorded.cfg --configuration nv_small_256
    """
    from smelt.nvdla import find_traces, run_trace
    from smelt.nvdla.hardware import find_configuration

    hardware = find_configuration(configuration) if configuration else None
    traces = [item for path in paths for item in find_traces(path)]
    if not traces:
        raise SmeltError(f"there is no trace (.cfg or .txn) in {', '.join(paths)}")
    results: list[TraceResult] = []
    with ProgressLine(quiet=as_json) as progress:
        for item in traces:
            results.append(run_trace(item, configuration=hardware))
            progress("traces", len(results), len(traces))
    if as_json:
        click.echo(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        _show(results)
    has_run = any(result.state != "skipped" for result in results)
    if not has_run:
        say("no trace was replayed: all were skipped")
    context.exit(not has_run or any(result.state == "failed" for result in results))


def _show(results: list[TraceResult]) -> None:
    """Print the traces that did not pass, and the counts of all states."""
    rows = [
        (result.name, result.configuration, result.state, result.reason)
        for result in results
        if result.state != "passed"
    ]
    if rows:
        print_table(rows, ("trace", "configuration", "state", "reason"))
    counts = [
        f"{sum(result.state == state for result in results)} {state}"
        for state in ("passed", "failed", "skipped")
    ]
    show(", ".join(counts))

"""``smelt build``: build an engine file from a model."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smelt.cli._console import print_json, say
from smelt.cli._file_arguments import FileCommand, ModelFile, check_writable
from smelt.cli._model_options import BuildArguments, build_engine, build_options, refuse_engine
from smelt.cli._options import QUIET_OPTION, engine_option, json_option, output_option
from smelt.cli._progress import ProgressLine
from smelt.errors import sanitize_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.builder import ProgressCallback
    from smelt.runtime import Engine


def _default_destination() -> str:
    """Return the name of the engine if none is given; `FileCommand` checks it too."""
    model = click.get_current_context().params["model"]
    refuse_engine(model)  # otherwise the message would be that the output is another file
    return f"{Path(model).stem}.engine"


@click.command(cls=FileCommand, short_help="Build an engine from an ONNX or Caffe model.")
@click.argument("model", metavar="MODEL", type=ModelFile())
@engine_option(
    default=_default_destination,
    show_default=False,
    help=(
        "File to write the engine to.  [default: the model's name with .engine, in the current "
        "folder]"
    ),
)
@build_options
@output_option(help="A tensor to make an output, instead of the model's outputs; repeatable.")
@click.option(
    "--retunable",
    is_flag=True,
    help=(
        "Store the network in the engine, so that `smelt retune` can tune it on the machine "
        "where it runs."
    ),
)
@json_option(help="Describe the engine as JSON on stdout.")
@QUIET_OPTION
def build(
    *, model: str, destination: str, build_arguments: BuildArguments, as_json: bool, quiet: bool
) -> None:
    r"""Build an engine from MODEL, an .onnx file or Caffe's deploy.prototxt.

    The engine is one file that contains the optimised plan, packed weights and machine code for
    this processor (or for another --device). It is signed with your key; with `smelt trust`, others
    can trust this key. An interrupted or failed build leaves no file.

    \b
    Examples:
      smelt build model.onnx -o model.engine
      smelt build deploy.prototxt --weights net.caffemodel --max-batch-size 8
      smelt build model.onnx --shape input=1..8x3x224x224 --tune full
      smelt build model.onnx --output features --device cpu:x86-64-v3

    \b
    Two shapes, with a plan for each:
      smelt build model.onnx --shape 1x3x224x224 --shape 1x3x320x320

    \b
    For a GPU, on a machine without one; the second is for `smelt retune`:
      smelt build model.onnx --device cuda:sm_90 --precision float16
      smelt build model.onnx --device cuda:sm_90 --retunable
    """
    make_engine(
        Path(destination),
        partial(build_engine, model, build_arguments),
        as_json=as_json,
        quiet=quiet,
    )


def make_engine(
    path: Path, make: Callable[[ProgressCallback], Engine], *, as_json: bool, quiet: bool
) -> None:
    """Build an engine, save it, and print a summary.

    Args:
        path: file to write.
        make: builds the engine and reports its progress.
        as_json: whether to print the summary as JSON.
        quiet: whether to show neither progress nor the summary.

    Raises:
        SmeltError: the file cannot be written, or the build fails.
    """
    start = time.perf_counter()
    check_writable(path)
    with ProgressLine(quiet=quiet) as progress:
        engine = make(progress)
        progress("write", 0, 1)
        engine.save(path)
        progress("write", 1, 1)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_summary(engine, path, seconds))
    elif not quiet:
        _say_summary(engine, path, seconds)


def _summary(engine: Engine, path: Path, seconds: float) -> dict[str, object]:
    """Return the summary of a build as JSON values."""
    from smelt.inspect import report_of

    header, report = engine.header, report_of(engine)
    return {
        "engine": str(path),
        "network": engine.name,
        "device": engine.device,
        "seconds": round(seconds, 3),
        "size_bytes": path.stat().st_size,
        "layers": len(engine.layers),
        "partitions": [{"device": p.device, "layers": len(p.layers)} for p in engine.partitions],
        "reference_steps": report.reference_steps,
        "reference_ops": list(report.reference_ops),
        "reference_layers": list(report.reference_layers),
        "host_copy_bytes": report.host_copy_bytes,
        "plans": len(header.plans),
        "inputs": [binding_to_json(b) for b in engine.inputs],
        "outputs": [binding_to_json(b) for b in engine.outputs],
    }


def binding_to_json(binding: Any) -> dict[str, object]:
    """Return name, dtype and shape of a binding; symbolic extents are given as text."""
    shape = [d if isinstance(d, int) else str(d) for d in binding.shape]
    return {"name": binding.name, "dtype": binding.dtype.value, "shape": shape}


def _say_summary(engine: Engine, path: Path, seconds: float) -> None:
    """Print the summary of a build as text."""
    from smelt.inspect import format_bytes, format_host_steps, machine_of, report_of
    from smelt.types import counted

    report = report_of(engine)
    say(
        f"{path}: {sanitize_name(engine.name)}, {counted(len(engine.layers), 'layer')} for "
        f"{engine.device} ({machine_of(report)}), "
        f"{format_bytes(path.stat().st_size)}, built in {seconds:.1f} s"
    )
    for direction, bindings in (("in ", engine.inputs), ("out", engine.outputs)):
        for b in bindings:
            shape = ", ".join(map(str, b.shape))
            say(f"  {direction} {sanitize_name(b.name)}: {b.dtype.value}[{shape}]")
    for part in engine.partitions:
        layers = counted(len(part.layers), "layer")
        say(f"  {sanitize_name(part.name)}: {layers} on {part.device}")
    if report.libraries:
        say(f"  the engine needs {', '.join(report.libraries)} on the machine where it runs")
    if host_steps := format_host_steps(report):
        say(f"  {host_steps}. `smelt inspect {path} --tactics` says why")

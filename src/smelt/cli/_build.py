"""``smelt build``: a model becomes an engine file."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smelt.cli._console import print_json, say
from smelt.cli._files import FileCommand, SourceFile, check_writable
from smelt.cli._models import BuildArguments, build_engine, build_options
from smelt.cli._options import QUIET_OPTION, engine_option, json_option, output_option
from smelt.cli._progress import ProgressLine
from smelt.errors import sanitize_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.builder import Progress
    from smelt.runtime import Engine


@click.command(cls=FileCommand, short_help="Build an engine from an ONNX or Caffe model.")
@click.argument("model", metavar="MODEL", type=SourceFile())
@engine_option(
    help="File to write the engine to.  [default: the model's name with .engine, in this folder]",
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
    *,
    model: str,
    destination: str | None,
    build_arguments: BuildArguments,
    output: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    r"""Build an engine from MODEL, an .onnx file or Caffe's deploy.prototxt.

    The engine is one file: optimised plan, packed weights and machine code for this processor (or
    for another --device). It is signed with your key; `smelt trust` lets others run it. An
    interrupted or failed build leaves no file.

    \b
    Examples:
      smelt build model.onnx -o model.engine
      smelt build deploy.prototxt --weights net.caffemodel --max-batch-size 8
      smelt build model.onnx --shape input=1..8x3x224x224 --tune full
      smelt build model.onnx --output features --device cpu:x86-64-v3

    \b
    A plan for each of two shapes:
      smelt build model.onnx --shape 1x3x224x224 --shape 1x3x320x320

    \b
    Without a GPU, and to be timed on one later:
      smelt build model.onnx --device cuda:sm_90 --precision float16
      smelt build model.onnx --device cuda:sm_90 --retunable
    """
    del output  # part of the build's arguments
    path = Path(destination or f"{Path(model).stem}.engine")
    make_engine(path, partial(build_engine, model, build_arguments), as_json=as_json, quiet=quiet)


def make_engine(
    path: Path, make: Callable[[Progress], Engine], *, as_json: bool, quiet: bool
) -> None:
    """Have an engine made, save it, and tell of it."""
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


def _summary(engine: Engine, path: Path, seconds: float) -> dict[str, Any]:
    from smelt.inspect import report_of

    header, report = engine.header, report_of(engine)
    return {
        "engine": str(path),
        "network": engine.name,
        "device": engine.device,
        "seconds": round(seconds, 3),
        "size_bytes": path.stat().st_size,
        "layers": len(engine.layers),
        "reference_steps": report.reference_steps,
        "reference_ops": list(report.reference_ops),
        "reference_layers": list(report.reference_layers),
        "host_copy_bytes": report.host_copy_bytes,
        "plans": len(header.plans),
        "inputs": [binding_to_json(b) for b in engine.inputs],
        "outputs": [binding_to_json(b) for b in engine.outputs],
    }


def binding_to_json(binding: Any) -> dict[str, Any]:
    """Name, dtype and shape; an extent that a run decides is its symbol."""
    shape = [d if isinstance(d, int) else str(d) for d in binding.shape]
    return {"name": binding.name, "dtype": binding.dtype.value, "shape": shape}


def _say_summary(engine: Engine, path: Path, seconds: float) -> None:
    from smelt.inspect import format_bytes, format_host_steps, machine_of, report_of

    report = report_of(engine)
    say(
        f"{path}: {sanitize_name(engine.name)}, {len(engine.layers)} layers for {engine.device} "
        f"({machine_of(report)}), "
        f"{format_bytes(path.stat().st_size)}, built in {seconds:.1f} s"
    )
    for what, bindings in (("in ", engine.inputs), ("out", engine.outputs)):
        for b in bindings:
            say(
                f"  {what} {sanitize_name(b.name)}: {b.dtype.value}[{', '.join(map(str, b.shape))}]"
            )
    if report.libraries:
        say(f"  it needs {', '.join(report.libraries)} wherever it runs")
    if detail := format_host_steps(report):
        say(f"  {detail}. `smelt inspect {path} --tactics` says why")

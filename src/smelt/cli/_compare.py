"""``smelt compare``: is the engine right, and if not, where?"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

import click

from smelt.cli._console import print_json, print_table, say, show
from smelt.cli._files import FileCommand, ResultFile, SourceFile
from smelt.cli._models import BuildArguments, build_options, check_options, open_network
from smelt.cli._option_types import FiniteFloat, pairs_from_texts, shapes_from_texts
from smelt.cli._options import THREADS_OPTION, Count, input_option, json_option, output_option
from smelt.errors import sanitize_name

if TYPE_CHECKING:
    from smelt.compare import Comparison, OutputError
    from smelt.network import NetworkDefinition

_JUDGING: Final = frozenset(
    {
        *("against", "tolerance", "steps", "threads", "device", "precision", "tune"),
        *("max_workspace_bytes", "timing_cache", "libraries", "portable"),
        "rounding_error",
    }
)
"""Options on which it depends whether a part fails."""


@click.command(cls=FileCommand, short_help="Compare an engine's outputs with a reference.")
@click.argument("model", metavar="MODEL", type=SourceFile())
@click.option(
    "--against",
    type=SourceFile(),
    metavar="ORACLE|FILE",
    default="reference",
    show_default=True,
    help=(
        "The reference: reference (smelt's own), onnxruntime, openvino (not for Caffe), another "
        "engine of the same network, or a file of outputs recorded for the given inputs (.npz by "
        "name, or .npy for a single output)."
    ),
)
@click.option(
    "--layers", is_flag=True, help="Compare every layer, and report the first that differs."
)
@click.option(
    "--reduce",
    metavar="OUT.onnx",
    type=ResultFile(beside=".npz"),
    help="Save the smallest part of the network that fails, and its inputs (.npz).",
)
@click.option(
    "--tolerance",
    type=FiniteFloat(0),
    help="Largest error allowed, relative to an output's largest magnitude.  "
    "[default: 1e-4; models or --precision of float16 and half2 3e-3, tf32 1e-2, bfloat16 2e-2]",
)
@click.option(
    "--steps",
    type=Count(0),
    default=2,
    show_default=True,
    help=(
        "Quantisation steps by which a result of quantised tensors may differ, in addition to "
        "the tolerance."
    ),
)
@input_option(
    metavar="NAME=FILE.npy",
    help="An input: a .npy file, random or zeros; inputs that are not given are random.",
)
@click.option(
    "--inputs",
    "archive",
    metavar="FILE.npz",
    type=SourceFile(),
    help="Inputs by name, as written by --reduce or `smelt run --save-inputs`.",
)
@click.option(
    "--seed",
    type=Count(0),
    default=0,
    show_default=True,
    help="Seed of the random inputs.",
)
@THREADS_OPTION
@output_option(help="Compare this tensor; repeatable.")
@json_option()
@build_options
def compare(
    *,
    model: str,
    against: str,
    inputs: tuple[str, ...],
    archive: str | None,
    output: tuple[str, ...],
    as_json: bool,
    build_arguments: BuildArguments,
    **how: Any,
) -> None:
    r"""Build MODEL and compare its outputs with the right ones; exit with 1 when they differ.

    The error of an output is its largest absolute error, by the largest magnitude of the output.
    Results that are not the same in two runs are wrong whatever their error.

    \b
    Examples:
      smelt compare model.onnx
      smelt compare model.onnx --against onnxruntime --layers
      smelt compare model.onnx --against yesterday.engine
      smelt compare model.onnx --against golden.npz --input x=x.npy
      smelt compare deploy.prototxt --weights net.caffemodel --json
      smelt compare model.onnx --shape input=1x3x224x224 --reduce smallest.onnx
      smelt compare smallest.onnx --inputs smallest.npz
    """
    from smelt.cli._progress import ProgressLine
    from smelt.compare import check_oracle

    del output
    check_options(build_arguments)
    check_oracle(against, model, build_arguments.weights, in_parts=how["reduce"] is not None)
    with ProgressLine(quiet=as_json) as progress:
        progress("parse", 0, 1)
        network = open_network(model, build_arguments)
        progress("parse", 1, 1)
        found = _compare(
            model,
            network,
            build_arguments,
            against=against,
            inputs=_load_inputs(network, inputs, archive),
            progress=progress,
            **how,
        )
    if as_json:
        print_json(_to_json(found))
    else:
        _show(found)
        _show_reduction(found, how["reduce"], _judged_as())
    if not found.passed:
        raise SystemExit(1)


def _load_inputs(
    network: NetworkDefinition, texts: tuple[str, ...], archive: str | None
) -> dict[str, Any]:
    from smelt.compare import load_input, load_inputs

    arrays = load_inputs(archive, network.graph) if archive is not None else {}
    given = pairs_from_texts(texts)
    for name in given:
        if name in arrays:
            raise click.UsageError(
                f"--input {name} and --inputs {archive} both give this input; give it once"
            )
    return arrays | {n: load_input(path, n, network.graph) for n, path in given.items()}


def _compare(
    path: str, network: NetworkDefinition, arguments: BuildArguments, **how: Any
) -> Comparison:
    from smelt.compare import compare as compare_model

    is_onnx = arguments.weights is None and path.endswith(".onnx")
    return compare_model(
        path if is_onnx else network,
        outputs=list(arguments.output) or None,
        shapes=shapes_from_texts(arguments.shape, [tensor.name for tensor in network.inputs]),
        max_batch_size=arguments.max_batch_size,
        device=list(arguments.device) or "cpu",
        precision=arguments.precision,
        max_workspace_bytes=arguments.max_workspace_bytes,
        timing_cache=arguments.timing_cache,
        tune=arguments.tune,
        libraries=arguments.libraries,
        portable=arguments.portable,
        rounding_error=arguments.rounding_error,
        **how,
    )


def _to_json(found: Comparison) -> dict[str, Any]:
    first = found.first_difference
    return {
        "network": found.network,
        "against": found.against,
        "passed": found.passed,
        "outputs": [_error(error) for error in found.outputs],
        "layers": [{"layer": layer, **_error(error)} for layer, error in found.layers],
        "first_difference": None
        if first is None
        else {**asdict(first), "error": _error(first.error)},
        "reduction": None if found.reduction is None else asdict(found.reduction),
    }


def _error(error: Any) -> dict[str, Any]:
    return {**asdict(error), "passed": error.passed}


def _show(found: Comparison) -> None:
    counts_steps = any(error.steps is not None for error in found.outputs)
    rows = [
        (
            error.name,
            f"{error.dtype}{list(error.shape)}",
            f"{error.max_abs_error:.3g}",
            f"{error.relative_error:.2e}",
            *([_steps(error)] if counts_steps else []),
            f"{error.tolerance:.0e}",
            "ok" if error.passed else "differs between runs" if error.moves else "DIFFERS",
        )
        for error in found.outputs
    ]
    counted = ["steps"] if counts_steps else []
    heads = ("output", "type", "max error", "relative", *counted, "allowed", "")
    print_table(rows, heads, title=f"{sanitize_name(found.network)} against {found.against}")
    _show_cautions(found)
    if found.layers:
        right = [error for _, error in found.layers if error.passed]
        off = sum(round(error.steps or 0) > 0 for error in right)
        apart = f", {off} of them some quantisation steps apart" if off else ""
        show(f"{len(right)} of {len(found.layers)} intermediate results agree{apart}")
    first = found.first_difference
    if first is not None:
        where = "only where layers are fused" if first.fused_only else "also when it stands alone"
        show(
            f"first difference: layer {sanitize_name(first.layer)} ({first.op}), "
            f"tensor {sanitize_name(first.tensor)}, "
            f"relative error {first.error.relative_error:.2e}, {where}"
        )
    elif found.layers and not found.passed:
        show("no single layer is wrong: small errors add up, or fused layers differ")


def _steps(error: OutputError) -> str:
    """How many quantisation steps it is off, of how many it may be."""
    return "" if error.steps is None else f"{error.steps:.2g} of {error.allowed_steps}"


def _show_cautions(found: Comparison) -> None:
    cautions = [error for error in found.outputs if error.caution]
    for error in cautions:
        show(
            f"the comparison of {sanitize_name(error.name)} is weak on these inputs: "
            f"{error.caution}"
        )
    if cautions:
        show("(--input NAME=FILE.npy gives real inputs, --output NAME another tensor)")


def _judged_as() -> list[str]:
    """The options of this command line on which it depends whether a part fails, as words."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _JUDGING or source is not click.core.ParameterSource.COMMANDLINE:
            continue
        value: object = context.params[name]
        given = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        for each in given:
            words += [parameter.opts[0]] if each is True else [parameter.opts[0], str(each)]
    return words


def _show_reduction(found: Comparison, asked: str | None, options: list[str]) -> None:
    reduction = found.reduction
    if reduction is None:
        if asked is not None:
            say(f"{asked} is not written: nothing fails, so there is nothing to reduce")
        return
    show(f"smallest failing part: {', '.join(map(sanitize_name, reduction.nodes)) or 'none'}")
    if reduction.model_path is None:
        say(f"not saved: {reduction.reason}")
    else:
        say(f"wrote {reduction.model_path} and {reduction.inputs_path}; to repeat it:")
        words = [reduction.model_path, "--inputs", str(reduction.inputs_path), *options]
        say(f"  smelt compare {shlex.join(words)}")

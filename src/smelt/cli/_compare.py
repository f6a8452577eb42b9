"""``smelt compare``: compare an engine with a reference, and find where they differ."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._console import print_json, print_table, say, show
from smelt.cli._file_arguments import FileCommand, InputFile, ModelFile, OutputFile
from smelt.cli._model_options import BuildArguments, build_options, check_options, open_network
from smelt.cli._option_types import FiniteFloat, pairs_from_texts
from smelt.cli._options import THREADS_OPTION, Count, input_option, json_option, output_option
from smelt.errors import sanitize_name
from smelt.types import is_tuple

if TYPE_CHECKING:
    from smelt.compare import Comparison, OutputError
    from smelt.network import NetworkDefinition

_FAILURE_OPTIONS: Final = frozenset(
    {
        *("against", "tolerance", "quantization_steps", "threads", "device", "precision", "tune"),
        *("max_workspace_bytes", "timing_cache", "libraries", "self_contained"),
        "max_rounding_error",
    }
)
"""Options that affect whether a part of the network fails."""


@click.command(cls=FileCommand, short_help="Compare an engine's outputs with a reference.")
@click.argument("model", metavar="MODEL", type=ModelFile())
@click.option(
    "--against",
    type=InputFile(),
    metavar="ORACLE|FILE",
    default="reference",
    help=(
        "Source of the expected outputs: reference (smelt's numpy implementation), onnxruntime, "
        "openvino (not for Caffe), another engine of the same network, or a file of outputs "
        "recorded for the given inputs (.npz by name, or .npy for a single output)."
    ),
)
@click.option(
    "--layers", is_flag=True, help="Compare every layer, and report the first that differs."
)
@click.option(
    "--reduce-to",
    metavar="OUT.onnx",
    type=OutputFile(second_suffix=".npz"),
    help="Save the smallest part of the network that fails, and its inputs (.npz).",
)
@click.option(
    "--tolerance",
    type=FiniteFloat(0),
    help="Largest error allowed, relative to an output's largest magnitude.  "
    "[default: 1e-4 for float32, 3e-3 for float16 and half2, 1e-2 for tf32, 2e-2 for bfloat16]",
)
@click.option(
    "--quantization-steps",
    type=Count(0),
    default=2,
    help=(
        "Number of quantisation steps by which a tensor that depends on quantised tensors may "
        "differ, in addition to the tolerance."
    ),
)
@input_option(
    metavar="NAME=FILE.npy",
    help="An input: a .npy file, random or zeros; inputs that are not given are random.",
)
@click.option(
    "--inputs",
    "inputs_file",
    metavar="FILE.npz",
    type=InputFile(),
    help="Inputs by name, as written by --reduce-to or `smelt run --save-inputs`.",
)
@click.option("--seed", type=Count(0), default=0, help="Seed of the random inputs.")
@THREADS_OPTION
@output_option(help="Compare this tensor; repeatable.")
@json_option()
@build_options
def compare(
    *,
    model: str,
    against: str,
    inputs: tuple[str, ...],
    inputs_file: str | None,
    as_json: bool,
    build_arguments: BuildArguments,
    **how: Any,
) -> None:
    r"""Build MODEL and compare its outputs with a reference; exit with 1 when they differ.

    The error of an output is its largest absolute error, divided by the largest magnitude of the
    output. An output that differs between two runs on the same inputs is wrong, whatever its error.

    \b
    Examples:
      smelt compare model.onnx
      smelt compare model.onnx --against onnxruntime --layers
      smelt compare model.onnx --against yesterday.engine
      smelt compare model.onnx --against golden.npz --input x=x.npy
      smelt compare deploy.prototxt --weights net.caffemodel --json
      smelt compare model.onnx --shape input=1x3x224x224 --reduce-to smallest.onnx
      smelt compare smallest.onnx --inputs smallest.npz
    """
    from smelt.cli._progress import ProgressLine
    from smelt.compare import check_oracle

    check_options(build_arguments)
    check_oracle(against, model, build_arguments.weights, needs_parts=how["reduce_to"] is not None)
    with ProgressLine(quiet=as_json) as progress:
        progress("parse", 0, 1)
        network = open_network(model, build_arguments)
        progress("parse", 1, 1)
        comparison = _compare(
            model,
            network,
            build_arguments,
            against=against,
            inputs=_load_inputs(network, inputs, inputs_file),
            progress=progress,
            **how,
        )
    if as_json:
        print_json(_to_json(comparison))
    else:
        _show(comparison)
        _show_reduction(comparison, how["reduce_to"], _options_to_repeat())
    if not comparison.passed:
        raise SystemExit(1)


def _load_inputs(
    network: NetworkDefinition, texts: tuple[str, ...], inputs_file: str | None
) -> dict[str, Any]:
    """Return the arrays of --inputs and --input by the input's name."""
    from smelt.compare import load_input, load_inputs

    arrays = load_inputs(inputs_file, network.graph) if inputs_file is not None else {}
    paths = pairs_from_texts(texts)
    for name in paths:
        if name in arrays:
            raise click.UsageError(
                f"--input {name} and --inputs {inputs_file} both give this input; give it once"
            )
    return arrays | {n: load_input(path, n, network.graph) for n, path in paths.items()}


def _compare(
    path: str, network: NetworkDefinition, arguments: BuildArguments, **how: Any
) -> Comparison:
    """Compare the network; an ONNX model is passed by its path for external oracles to read."""
    from smelt.compare import compare as compare_model

    is_onnx = arguments.weights is None and path.endswith(".onnx")
    return compare_model(
        path if is_onnx else network,
        outputs=list(arguments.output_names) or None,
        **arguments.keywords(network),
        **how,
    )


def _to_json(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as JSON values."""
    first, reduction = comparison.first_difference, comparison.reduction
    return {
        "network": comparison.network,
        "against": comparison.against,
        "passed": comparison.passed,
        "outputs": [_error(error) for error in comparison.outputs],
        "layers": [{"layer": layer, **_error(error)} for layer, error in comparison.layers],
        "first_difference": None
        if first is None
        else {**asdict(first), "error": _error(first.error)},
        "reduction": None if reduction is None else asdict(reduction),
    }


def _error(error: Any) -> dict[str, object]:
    return {**asdict(error), "passed": error.passed}


def _show(comparison: Comparison) -> None:
    """Print a comparison as text."""
    counts_steps = any(error.steps is not None for error in comparison.outputs)
    rows = [
        (
            error.name,
            f"{error.dtype}{list(error.shape)}",
            f"{error.max_abs_error:.3g}",
            f"{error.relative_error:.2e}",
            *([_steps(error)] if counts_steps else []),
            f"{error.tolerance:.0e}",
            _status(error),
        )
        for error in comparison.outputs
    ]
    step_heads = ["steps"] if counts_steps else []
    heads = ("output", "type", "max error", "relative", *step_heads, "allowed", "")
    title = f"{sanitize_name(comparison.network)} against {comparison.against}"
    print_table(rows, heads, title=title)
    _show_cautions(comparison)
    if comparison.layers:
        passed = [error for _, error in comparison.layers if error.passed]
        off = sum(round(error.steps or 0) > 0 for error in passed)
        apart = f", {off} of them within the allowed quantisation steps" if off else ""
        show(f"{len(passed)} of {len(comparison.layers)} intermediate results agree{apart}")
    first = comparison.first_difference
    if first is not None:
        where = (
            "which disappears if all intermediate results are outputs: the cause is in fused code"
            if first.fused_only
            else "which remains if all intermediate results are outputs"
        )
        show(
            f"first difference: layer {sanitize_name(first.layer)} ({first.op}), "
            f"tensor {sanitize_name(first.tensor)}, "
            f"relative error {first.error.relative_error:.2e}, {where}"
        )
    elif comparison.layers and not comparison.passed:
        show("no single layer is wrong: small errors add up, or fused layers differ")


def _status(error: OutputError) -> str:
    """Return whether an output agrees, as text."""
    if error.passed:
        return "ok"
    return "differs between runs" if error.is_nondeterministic else "DIFFERS"


def _steps(error: OutputError) -> str:
    """Return the error in quantisation steps and the number of allowed steps."""
    return "" if error.steps is None else f"{error.steps:.2g} of {error.allowed_steps}"


def _show_cautions(comparison: Comparison) -> None:
    """Print why the agreement of some outputs proves little, if so."""
    cautions = [error for error in comparison.outputs if error.caution]
    for error in cautions:
        show(
            f"the comparison of {sanitize_name(error.name)} proves little on these inputs: "
            f"{error.caution}"
        )
    if cautions:
        show("(give real inputs with --input NAME=FILE.npy, or another tensor with --output NAME)")


def _options_to_repeat() -> list[str]:
    """Return the words of this command line's options that affect whether a part fails."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _FAILURE_OPTIONS or source is not click.core.ParameterSource.COMMANDLINE:
            continue
        value: object = context.params[name]
        values = value if is_tuple(value) else (value,)
        for item in values:
            words += [parameter.opts[0]] if item is True else [parameter.opts[0], str(item)]
    return words


def _show_reduction(comparison: Comparison, path: str | None, options: list[str]) -> None:
    """Print the smallest failing part, and the command that repeats the failure.

    Args:
        comparison: the comparison.
        path: file of the smallest part, if --reduce-to was given.
        options: words of the options with which it fails.
    """
    reduction = comparison.reduction
    if reduction is None:
        if path is not None:
            say(f"{path} is not written: nothing fails, so there is nothing to reduce")
        return
    show(f"smallest failing part: {', '.join(map(sanitize_name, reduction.nodes)) or 'none'}")
    if reduction.model_path is None:
        say(f"the failing part is not saved: {reduction.reason}")
    else:
        say(f"wrote {reduction.model_path} and {reduction.inputs_path}; to repeat the comparison:")
        words = [reduction.model_path, "--inputs", str(reduction.inputs_path), *options]
        say(f"  smelt compare {shlex.join(words)}")

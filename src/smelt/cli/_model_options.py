"""Build options of the commands, and functions that open a network or an engine from a file."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from smelt.cli._file_arguments import InputFile, OutputFile, is_engine
from smelt.cli._option_types import (
    FiniteFloat,
    byte_count,
    device_text,
    shape_text,
    shapes_from_texts,
    tuning_effort,
)
from smelt.cli._options import Count, error_text, flag_option
from smelt.errors import ModelFormatError, SmeltError
from smelt.signal_errors import pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.builder import ProgressCallback
    from smelt.network import NetworkDefinition
    from smelt.runtime import Engine

F = TypeVar("F", bound="Callable[..., Any]")
_MODEL_SUFFIXES: Final = frozenset((".onnx", ".prototxt", ".pbtxt", ".txt"))


@dataclass(frozen=True, slots=True)
class BuildArguments:
    """Values of the build options of a command line."""

    weights: str | None = None
    device: tuple[str, ...] = ()
    precision: str = "float32"
    max_batch_size: int = 1
    max_workspace_bytes: int = 1 << 30
    shape: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    tune: str | float = "fast"
    timing_cache: str | None = None
    retunable: bool = False
    libraries: bool = False
    self_contained: bool = False
    max_rounding_error: float | None = None
    explicit: frozenset[str] = frozenset()
    """Names of the options that are on the command line, and not defaults."""

    def keywords(self, network: NetworkDefinition) -> dict[str, Any]:
        """Return the options that `smelt.build` and `smelt.compare.compare` have in common."""
        names = ("precision", "max_batch_size", "max_workspace_bytes", "tune", "timing_cache")
        flags = ("libraries", "self_contained", "max_rounding_error")
        return {
            "device": list(self.device) or "cpu",
            "shapes": shapes_from_texts(self.shape, [tensor.name for tensor in network.inputs]),
            **{name: getattr(self, name) for name in (*names, *flags)},
        }


def device_option(default: str) -> Callable[[F], F]:
    """Return the option --device, whose help text names the default."""
    return click.option(
        "--device",
        multiple=True,
        metavar="DEVICE",
        type=device_text,
        help=(
            "cpu, cpu:TARGET (cpu:x86-64-v3 runs on most machines), cuda or cuda:INDEX (a GPU of "
            "this machine), cuda:sm_90 or cuda:sm_80,sm_90 (for GPUs elsewhere), or null; "
            "repeatable, in order of preference: each layer runs on the first that has a kernel "
            f"for it.  [default: {default}]"
        ),
    )


TUNING_OPTIONS: Final = (
    click.option(
        "--tune",
        default="fast",
        metavar="NONE|FAST|FULL|SECONDS",
        type=tuning_effort,
        help=(
            "How long candidates are timed on this machine. For other devices, tactics are "
            "chosen by cost estimates."
        ),
    ),
    click.option(
        "--timing-cache",
        type=OutputFile(must_be_writable=False),
        help=(
            "File of measured times, which is read and extended.  [default: timings.json in the "
            "cache]"
        ),
    ),
)
"""Options of the commands that tune."""
_OPTIONS: Final = (
    click.option("--weights", type=InputFile(), help="Weights (.caffemodel) for a Caffe prototxt."),
    device_option("cpu"),
    click.option(
        "--precision",
        default="float32",
        metavar="DTYPE",
        help=(
            "How float32 is stored between layers: float32, bfloat16 or float16; tf32: GPUs may "
            "round the operands of products to ten mantissa bits; half2: float16, with two "
            "images packed in each element."
        ),
    ),
    click.option(
        "--max-batch-size",
        default=1,
        type=Count(1),
        help=(
            "Largest batch size of a network whose batch is implicit (Caffe) or a symbolic extent "
            "named batch."
        ),
    ),
    click.option(
        "--max-workspace-bytes",
        default=1 << 30,
        show_default=False,
        metavar="SIZE",
        type=byte_count,
        help=(
            "Limit on the scratch memory of each step, and on the memory of the scan outputs of "
            "an unbounded Loop: 64MiB, or a number of bytes.  [default: 1GiB]"
        ),
    ),
    click.option(
        "--shape",
        multiple=True,
        metavar="NAME=1x3x224x224",
        type=shape_text,
        help=(
            "Shape of an input. A range has two or three numbers (smallest..best..largest): "
            "NAME=1..8x3x224x224. If several fixed shapes are given for one input, the engine has "
            "a plan for each."
        ),
    ),
    *TUNING_OPTIONS,
    flag_option(
        "--libraries",
        help=(
            "Also time the kernels of cuBLASLt and cuDNN on a GPU of this machine; an engine "
            "that uses one requires that version of the library."
        ),
    ),
    flag_option(
        "--self-contained",
        help=(
            "Allow only machine code that the engine contains: no libraries and no steps in Python."
        ),
    ),
    click.option(
        "--max-rounding-error",
        type=FiniteFloat(0),
        help=(
            "Allowed error of the outputs from 16-bit storage, relative to their largest "
            "magnitude; layers stay in float32 to meet it; 1 keeps none in float32.  [default: "
            "3e-3 in float16, 2e-2 in bfloat16, for small networks]"
        ),
    ),
)


def build_options(function: F) -> F:
    """Add the build options to a command, which receives them as ``build_arguments``."""

    @functools.wraps(function)
    def collect(**values: Any) -> Any:
        context = click.get_current_context()
        source = context.get_parameter_source
        names = [name for name in BuildArguments.__dataclass_fields__ if name in values]
        explicit = frozenset(
            name for name in names if source(name) is click.core.ParameterSource.COMMANDLINE
        )
        build_values = {name: values.pop(name) for name in names}
        return function(build_arguments=BuildArguments(**build_values, explicit=explicit), **values)

    wrapped: Any = collect
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def is_model(path: str) -> bool:
    """Return whether the path names a model rather than an engine."""
    return Path(path).suffix.lower() in _MODEL_SUFFIXES and not is_engine(path)


def check_options(arguments: BuildArguments) -> None:
    """Check the combination of build options, before any file is read.

    Raises:
        click.UsageError: the options contradict each other.
    """
    from smelt.builder import BuildOptions

    try:
        BuildOptions(
            precision=arguments.precision,
            libraries=arguments.libraries,
            self_contained=arguments.self_contained,
            max_rounding_error=arguments.max_rounding_error,
        )
    except SmeltError as error:
        raise click.UsageError(error_text(error)) from error


def _check_exists(path: str) -> None:
    """Check that a file exists.

    Raises:
        SmeltError: the file does not exist, or its folder cannot be searched.
    """
    try:
        os.stat(path)
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        raise SmeltError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        reason = getattr(error, "strerror", None) or str(error)
        raise SmeltError(f"{path[:200]} cannot be read: {reason}") from error


def refuse_engine(path: str) -> None:
    """Check that a file is not an engine. Raises SmeltError."""
    if is_engine(path):
        raise SmeltError(f"{path} is an engine, not a model; give the model that it was built from")


def open_network(path: str, arguments: BuildArguments) -> NetworkDefinition:
    """Read a model: ONNX, or Caffe's prototxt with its weights.

    Args:
        path: file of the model.
        arguments: build options; only ``weights`` and ``output_names`` are used.

    Raises:
        SmeltError: the file is not a model, or cannot be read.
    """
    from smelt.importers import network_from_caffe, network_from_onnx

    suffix = Path(path).suffix.lower()
    outputs = list(arguments.output_names) or None
    if suffix == ".caffemodel":
        raise SmeltError(
            f"{path} contains only weights; give the network first: smelt build deploy.prototxt "
            f"--weights {path}"
        )
    _check_exists(path)
    refuse_engine(path)
    if suffix == ".onnx" and arguments.weights is not None:
        raise SmeltError(f"{path} contains its weights; --weights is only for Caffe's prototxt")
    if suffix in {".prototxt", ".pbtxt", ".txt"} or arguments.weights is not None:
        return network_from_caffe(Path(path), arguments.weights, outputs=outputs)[0]
    try:
        return network_from_onnx(path, outputs=outputs)
    except ModelFormatError as error:
        if suffix in _MODEL_SUFFIXES:
            raise
        raise SmeltError(
            f"{path} is not a model: it must be an .onnx file or Caffe's deploy.prototxt"
        ) from error


def build_engine(path: str, arguments: BuildArguments, progress: ProgressCallback) -> Engine:
    """Build an engine from a model file.

    Args:
        path: file of the model.
        arguments: build options.
        progress: receives the progress, which includes the reading of the model.

    Raises:
        click.UsageError: the options contradict each other.
        SmeltError: the model cannot be read or built.
    """
    from smelt.builder import build

    check_options(arguments)
    progress("parse", 0, 1)
    network = open_network(path, arguments)
    progress("parse", 1, 1)
    options = arguments.keywords(network)
    return build(network, progress=progress, retunable=arguments.retunable, **options)


def open_engine(
    path: str,
    arguments: BuildArguments,
    *,
    quiet: bool = False,
    will_run: bool = True,
    shared_options: frozenset[str] = frozenset(),
) -> Engine:
    """Load an engine, or build one if the file is a model.

    Args:
        path: file of the engine or the model.
        arguments: build options.
        quiet: whether to show no progress of the build.
        will_run: whether the engine will run, so that a model is built for a device of this
            machine.
        shared_options: names of build options that also apply to the command itself, and may be
            given for an engine.

    Raises:
        click.UsageError: other build options are given for an engine.
        SmeltError: the file cannot be read, or the build fails.
    """
    if is_model(path) or ("weights" in arguments.explicit and not is_engine(path)):
        from smelt.cli._progress import ProgressLine

        check_options(arguments)
        if will_run:
            from smelt.builder import devices_to_run

            devices = devices_to_run(
                list(arguments.device) or "cpu",
                arguments.precision,
                use_libraries=arguments.libraries,
            )
            arguments = replace(arguments, device=tuple(devices))
        with ProgressLine(quiet=quiet) as progress:
            return build_engine(path, arguments, progress)
    useless = sorted(arguments.explicit - shared_options)
    if useless:
        parameters = click.get_current_context().command.params
        names = ", ".join(p.opts[0] for name in useless for p in parameters if p.name == name)
        raise click.UsageError(f"{path} is an engine, already built; {names} cannot change it")
    return _load(path)


def _load(path: str) -> Engine:
    """Load an engine, with the bare runtime if no compiler is installed."""
    try:
        from smelt.builder import load
    except ModuleNotFoundError:
        from smelt.runtime import Engine

        return Engine.load(path)
    return load(path)

"""``smelt run``: run an engine once on a picture or on arrays."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._console import print_report, print_table, say, show
from smelt.cli._file_arguments import FileCommand, InputFile, ModelFile, OutputFile, check_suffix
from smelt.cli._model_options import BuildArguments, build_options, open_engine
from smelt.cli._option_types import crop_text, numbers, pairs_from_texts, resize_text
from smelt.cli._options import THREADS_OPTION, Count, input_option, json_option, output_option
from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Limit, counted, format_number, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smelt.cli._image_preprocessing import ImagePreprocessing
    from smelt.engine import Binding
    from smelt.runtime import Engine

_MAX_VALUES_IN_JSON: Final = 4096
"""Largest number of elements of an output whose values are in the JSON report."""
_MAX_LABELS: Final = 1 << 20
"""Largest number of labels in a numbered list."""
_NUMBERED: Final = re.compile(r"""\{?\s*+(\d{1,9})\s*+:\s*+(['"])(.*)\2\s*+,?\s*+\}?""")
"""A line of a printed Python dictionary, a common format of label files.

The possessive quantifiers keep the match linear in the number of spaces.
"""


@click.command(cls=FileCommand, short_help="Run an engine on a picture or on arrays.")
@click.argument("engine_path", metavar="ENGINE", type=ModelFile())
@click.option("--image", type=InputFile(), help="Image file for the input that expects an image.")
@input_option(
    metavar="NAME=VALUE", help="Array for an input: a .npy file, random or zeros; repeatable."
)
@click.option(
    "--resize",
    default="exact",
    metavar="SIZE",
    type=resize_text,
    help=(
        "New size of the image: exact (that of the input), shorter:256 (of the shorter side; keeps "
        "the aspect ratio), WIDTHxHEIGHT or none."
    ),
)
@click.option(
    "--crop",
    default="auto",
    is_flag=False,
    flag_value="auto",
    metavar="SIZE",
    type=crop_text,
    help=(
        "Size of the centre crop of the image: auto (that of the input), none, 224 (a square) or "
        "WIDTHxHEIGHT."
    ),
)
@click.option(
    "--filter",
    type=click.Choice(["area", "bilinear", "bicubic", "nearest"]),
    default="area",
    help="Interpolation; area is OpenCV's INTER_AREA.",
)
@click.option(
    "--channel-order",
    type=click.Choice(["bgr", "rgb"], case_sensitive=False),
    default="bgr",
    help=(
        "Channel order that the network was trained with: bgr for Caffe and OpenCV, rgb for most "
        "others."
    ),
)
@click.option(
    "--mean",
    metavar="NUMBERS|FILE",
    type=InputFile(),
    help=(
        "Mean to subtract from the pixels (0..255): one number, one for each channel, or a .npy or "
        "binaryproto file."
    ),
)
@click.option(
    "--scale",
    metavar="NUMBERS",
    type=numbers,
    default="1",
    help=(
        "Factor for the pixels, applied after the mean is subtracted: one number, or one for each "
        "channel."
    ),
)
@click.option(
    "--layout",
    type=click.Choice(["auto", "nchw", "nhwc"]),
    default="auto",
    help="Position of the channels in the input's shape.",
)
@click.option("--top", default=5, type=Count(1), help="Number of best classes to show.")
@click.option(
    "--labels",
    type=InputFile(),
    help="File of class names: one per line, or a printed Python dictionary {0: 'name', …}.",
)
@output_option(help="Return only this output; repeatable.")
@click.option(
    "--save", metavar="FILE.npz", type=OutputFile(), help="Write the outputs to a numpy archive."
)
@click.option(
    "--save-inputs",
    metavar="FILE.npz",
    type=OutputFile(),
    help="Write the inputs to a numpy archive for `smelt compare --inputs`.",
)
@THREADS_OPTION
@json_option()
@build_options
def run(
    *,
    engine_path: str,
    image: str | None,
    inputs: tuple[str, ...],
    top: int,
    labels: str | None,
    save: str | None,
    save_inputs: str | None,
    threads: int | None,
    as_json: bool,
    build_arguments: BuildArguments,
    **preparation: Any,
) -> None:
    r"""Run ENGINE once and show its outputs; a model instead of an engine is built first.

    A picture is decoded to 8-bit RGB (grey for an input of one channel) and rotated as its EXIF
    data says. Then: (1) --resize; (2) --crop around the centre; (3) --channel-order; (4) minus
    --mean; (5) times --scale; (6) conversion to the input's axis order and element type. Numbers
    per channel are in the network's channel order; pixel values are 0 to 255. A mean image that is
    larger than the input is cropped around its centre.

    \b
    Examples:
      smelt run net.engine --image cat.jpg --mean 104,117,123 --labels l.txt
      smelt run net.engine --image cat.jpg --channel-order rgb \
          --resize shorter:256 --mean 123.675,116.28,103.53 \
          --scale 1/58.395,1/57.12,1/57.375
      smelt run net.engine --input tokens=tokens.npy --input mask=zeros --json
      smelt run net.onnx --image cat.jpg --scale 1/255 --save out.npz
      smelt run deploy.prototxt --weights net.caffemodel --image digit.png
    """
    prepared = _preparation(image, preparation)
    check_suffix(".npz", "a numpy archive", save, save_inputs)
    names = _read_labels(labels)
    engine = open_engine(
        engine_path, build_arguments, quiet=as_json, shared_options=frozenset({"output_names"})
    )
    selected = _selected_outputs(engine, build_arguments.output_names)
    arrays, target = _arrays(engine, image, inputs, prepared)
    with engine.create_context(threads=threads) as context:
        start = time.perf_counter()
        results = context.run(arrays, selected)
        milliseconds = (time.perf_counter() - start) * 1e3
    _save(save_inputs, arrays)
    _save(save, results)
    report: dict[str, Any] = {
        "engine": engine_path,
        "network": engine.name,
        "image": image,
        "preparation": _describe_applied_preprocessing(arrays, target, prepared),
        "milliseconds": milliseconds,
        "outputs": {name: _describe(array, top, names) for name, array in results.items()},
    }
    _check_labels(labels, len(names), report["outputs"])
    print_report(report, _show, as_json=as_json)


def _preparation(image: str | None, options: Mapping[str, Any]) -> ImagePreprocessing:
    """Return the preprocessing that the options of the command describe.

    Raises:
        click.UsageError: an option is given without --image.
    """
    from smelt.cli._image_preprocessing import ImagePreprocessing

    context = click.get_current_context()
    from_command_line = click.core.ParameterSource.COMMANDLINE
    useless = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in options
        and context.get_parameter_source(parameter.name) is from_command_line
    ]
    if image is None and useless:
        verb = "is" if len(useless) == 1 else "are"
        raise click.UsageError(f"{', '.join(useless)} {verb} only for --image, which is not given")
    return ImagePreprocessing(**options)


def _describe_applied_preprocessing(
    arrays: Mapping[str, NDArray[Any]], target: str | None, preparation: ImagePreprocessing
) -> dict[str, str] | None:
    from smelt.cli._image_preprocessing import describe_preprocessing

    if target is None:
        return None
    return {"input": target, **describe_preprocessing(arrays[target], preparation)}


def _read_labels(path: str | None) -> list[str]:
    """Read class names: one per line, or lines such as ``0: 'name',``."""
    if path is None:
        return []
    try:
        text = read_file(path, Limit.MAX_LABELS_BYTES).decode("utf-8")
    except OSError as error:
        pass_on_handler_error(error)
        raise SmeltError(f"--labels {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SmeltError(f"--labels {path} is not UTF-8 text") from error
    # splitlines would also split a label at U+2028 and similar characters, and shift the classes.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    numbered = [match for line in lines if (match := _NUMBERED.fullmatch(line.strip()))]
    if not numbered or len(numbered) != len([line for line in lines if line.strip()]):
        return lines
    names = {int(match[1]): match[3] for match in numbered}
    return [names.get(i, "") for i in range(min(max(names) + 1, _MAX_LABELS))]


def _check_labels(path: str | None, count: int, outputs: Mapping[str, Any]) -> None:
    """Report fewer names than classes: the file is probably for another network."""
    for name, output in outputs.items():
        classes = max(output["shape"], default=0)
        if path is not None and "top" in output and count < classes:
            say(f"--labels {path} has {counted(count, 'name')}, but {name} has {classes} classes")


def _selected_outputs(engine: Engine, names: tuple[str, ...]) -> list[str]:
    """Return the names of the selected outputs, by default all."""
    known = [binding.name for binding in engine.outputs]
    for name in names:
        if name not in known:
            raise SmeltError(
                f"the engine has no output {name!r}; it has: {', '.join(known)}. To have other "
                "tensors as outputs, build the engine again with smelt build --output NAME"
            )
    return list(names) or known


def _arrays(
    engine: Engine, image: str | None, inputs: tuple[str, ...], preparation: ImagePreprocessing
) -> tuple[dict[str, NDArray[Any]], str | None]:
    """Return an array for each input, and the name of the input that takes the picture, if any."""
    from smelt.cli._inputs import require_array

    sources = pairs_from_texts(inputs)
    bindings = {binding.name: binding for binding in engine.inputs}
    unknown = [name for name in sources if name not in bindings]
    if unknown:
        raise SmeltError(f"the engine has no input {unknown[0]!r}; it has: {', '.join(bindings)}")
    plans = engine.header.plans
    values = {name: 1 if name == "batch" else high for name, high in plans[0].largest.items()}
    arrays = {n: require_array(text, bindings[n], values, plans) for n, text in sources.items()}
    missing = [binding for name, binding in bindings.items() if name not in arrays]
    picture_name: str | None = None
    if image is not None:
        target = _picture_input(missing, [bindings[name] for name in sources])
        arrays[target.name] = _picture(image, target, preparation)
        missing = [binding for binding in missing if binding is not target]
        picture_name = target.name
    if missing:
        names = " ".join(f"--input {b.name}=FILE.npy" for b in missing)
        picture = " (or --image FILE for an image)" if image is None else ""
        verb = "has" if len(missing) == 1 else "have"
        raise SmeltError(
            f"{counted(len(missing), 'input')} {verb} no value: give {names}{picture}; random or "
            "zeros can take the place of FILE.npy"
        )
    return arrays, picture_name


def _picture_input(missing: list[Binding], given: list[Binding]) -> Binding:
    """Return the input that a picture is for.

    Args:
        missing: inputs without an array.
        given: inputs with an array.

    Raises:
        click.UsageError: the only inputs that could take a picture have an array.
        SmeltError: no input, or more than one, can take a picture.
    """
    candidates = [b for b in missing if len(b.shape) == 4]
    candidates = candidates or [b for b in missing if len(b.shape) == 3]
    taken = [b.name for b in given if len(b.shape) in (3, 4)]
    if taken and not candidates:
        raise click.UsageError(
            f"--image and --input {' or '.join(taken)} give the same input; give only one of them"
        )
    if not candidates:
        types = ", ".join(
            f"{b.name} {b.dtype.value}[{', '.join(map(str, b.shape))}]" for b in missing
        )
        raise SmeltError(
            "no input fits an image: the input must have 3 or 4 axes and 1 or 3 channels; "
            f"inputs without an array: {types or 'none'}. Give arrays with --input NAME=FILE.npy"
        )
    if len(candidates) > 1:
        names = ", ".join(b.name for b in candidates)
        raise SmeltError(
            f"the image fits several inputs: {names}. Give arrays for all but one of them with "
            "--input NAME=FILE.npy"
        )
    return candidates[0]


def _picture(path: str, binding: Binding, preparation: ImagePreprocessing) -> NDArray[Any]:
    from smelt.cli._image_preprocessing import image_to_array

    shape = tuple(extent if isinstance(extent, int) else None for extent in binding.shape)
    return image_to_array(path, shape, binding.dtype.numpy, preparation)


def _save(path: str | None, arrays: Mapping[str, NDArray[Any]]) -> None:
    from smelt.engine import write_atomically
    from smelt.types import write_arrays

    if path is not None:
        write_atomically(path, iter([write_arrays(arrays)]))


def _describe(array: NDArray[Any], top: int, labels: list[str]) -> dict[str, Any]:
    """Return an output as JSON values: statistics, best classes and, if small, its elements."""
    import numpy as np

    flat = array.reshape(-1).astype(np.float64)
    described: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if flat.size:
        with np.errstate(invalid="ignore"):  # the mean of both infinities is not a number
            mean = float(flat.mean())
        described |= {
            "min": float(flat.min()),
            "max": float(flat.max()),
            "mean": mean,
            "not_finite": int((~np.isfinite(flat)).sum()),
        }
    # Best classes are shown for a vector of scores: every axis but one is 1.
    if flat.size > 1 and max(array.shape) == flat.size:
        order = np.argsort(-flat, kind="stable")[:top]
        described["top"] = [
            {
                "index": int(i),
                "label": labels[i] if i < len(labels) else None,
                "score": float(flat[i]),
            }
            for i in order
        ]
    if array.size <= _MAX_VALUES_IN_JSON:
        described["values"] = array.tolist()
    return described


def _show(report: Mapping[str, Any]) -> None:
    """Print the result of a run as text."""
    if report["preparation"] is not None:
        steps = ", ".join(f"{k} {v}" for k, v in report["preparation"].items() if k != "input")
        show(f"{report['image']} as {report['preparation']['input']}: {steps}")
    time_ms = format_number(report["milliseconds"], 2)
    show(f"{report['network']}: {time_ms} ms (first run; measure with `smelt bench`)")
    for name, output in report["outputs"].items():
        title = f"{name}  {output['dtype']}{output['shape']}"
        if "top" in output:
            heads = ("", "class", "score", "label")
            rows: list[tuple[object, ...]] = [
                (rank, row["index"], f"{row['score']:.6g}", row["label"] or "")
                for rank, row in enumerate(output["top"], 1)
            ]
            columns = slice(None) if any(row[-1] for row in rows) else slice(-1)
            print_table([row[columns] for row in rows], heads[columns], title=title)
        elif "min" in output:
            text = f"min {output['min']:.6g}, mean {output['mean']:.6g}, max {output['max']:.6g}"
            show(f"{title}: {text}")
        else:
            show(f"{title}: empty")
        if bad := output.get("not_finite"):
            verb = "is" if bad == 1 else "are"
            say(f"{name}: {counted(bad, 'element')} {verb} infinite or NaN")

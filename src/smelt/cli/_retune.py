"""``smelt retune``: build a retunable engine again, with candidates timed on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smelt.cli._build import make_engine
from smelt.cli._file_arguments import FileCommand, InputFile
from smelt.cli._model_options import TUNING_OPTIONS, device_option
from smelt.cli._options import QUIET_OPTION, engine_option, json_option

if TYPE_CHECKING:
    from smelt.builder import ProgressCallback
    from smelt.runtime import Engine

_TUNE, _TIMING_CACHE = TUNING_OPTIONS


@click.command(
    cls=FileCommand, short_help="Build an engine again for this machine, without its model."
)
@click.argument("engine_path", metavar="ENGINE", type=InputFile())
@engine_option(required=True, help="File to write the new engine to.")
@device_option("the device of this machine that ENGINE was built for")
@_TUNE
@_TIMING_CACHE
@click.option("--retunable", is_flag=True, help="Store the network in the new engine, too.")
@json_option(help="Describe the engine as JSON on stdout.")
@QUIET_OPTION
def retune(
    *,
    engine_path: str,
    destination: str,
    device: tuple[str, ...],
    tune: str | float,
    timing_cache: str | None,
    retunable: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    r"""Build ENGINE again on the machine where it will run, with candidates timed there.

    ENGINE must have been built with --retunable; it then contains its network, and the model is not
    needed. Shapes, precision and other build options stay the same; weights are the engine's. The
    new engine is signed with your key. ENGINE itself is not changed, and none of its code runs.

    \b
    Examples, the first on any machine, the others where the GPU is:
      smelt build model.onnx --device cuda:sm_80,sm_90 --retunable
      smelt retune model.engine -o tuned.engine
      smelt retune model.engine -o tuned.engine --tune full --device cuda:1
    """

    def make(progress: ProgressCallback) -> Engine:
        from smelt import builder

        return builder.retune(
            engine_path,
            list(device) or None,
            tune=tune,
            timing_cache=timing_cache,
            progress=progress,
            retunable=retunable,
        )

    make_engine(Path(destination), make, as_json=as_json, quiet=quiet)

"""``retune``: builds an engine again from the network that it contains."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, BinaryIO

from smelt.builder._build import build_graph
from smelt.builder._embedded_network import read_embedded_network
from smelt.engine import check_signature, read_engine, verify_weights
from smelt.runtime import Engine
from smelt.types import enough_memory_for

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from smelt.builder._options import ProgressCallback, TuningEffort
    from smelt.engine import BytesLike, EngineFile


@enough_memory_for("the build")
def retune(
    source: Engine | str | os.PathLike[str] | BytesLike | BinaryIO,
    device: str | Sequence[str] | None = None,
    *,
    tune: str | float | TuningEffort = "fast",
    timing_cache: str | Path | None = None,
    progress: ProgressCallback | None = None,
    retunable: bool = False,
) -> Engine:
    """Build an engine again, for the machine where it will run, from its embedded network.

    Shapes, precision and all other options of the first build are kept, and the weights are those
    of the last refit. No code of the engine runs, and its signature is not required: the network is
    read like a model, and the result is an engine of this user.

    Args:
        source: an engine that was built with ``retunable=True``: a path, bytes, an open binary
            file, or the engine itself. It is not changed.
        device: as for `build`. None selects this machine: its processor, or for GPU engines the GPU
            that the calling thread has selected, or the first one; likewise for its partitions.
        tune: as for `build`.
        timing_cache: as for `build`.
        progress: as for `build`.
        retunable: whether the new engine contains the network, too.

    Raises:
        BuildError: the engine does not contain its network.
        EngineFormatError: the file is damaged or is not an engine.
        SmeltError: any error of `build`.
    """
    file = source.file if isinstance(source, Engine) else _read_verified(source)
    graph, original_options = read_embedded_network(file)
    options = dataclasses.replace(
        original_options, timing_cache=timing_cache, tune=tune, retunable=retunable
    )
    kinds = [part.header.fingerprint.device for part in (file, *file.partitions)]
    target_device = list(dict.fromkeys(kinds)) if device is None else device
    return build_graph(graph, target_device, options, progress, is_retuning=True)


def _read_verified(source: str | os.PathLike[str] | BytesLike | BinaryIO) -> EngineFile:
    """Read and verify an engine's file; any valid signature is accepted."""
    file = read_engine(source)
    if file.signature is not None:
        check_signature(file.signature, file.source)
    # Plans are not used; to verify hostile ones could take minutes.
    verify_weights(
        file.header, weights_bytes=file.weights.size, network_arrays_bytes=file.network_arrays.size
    )
    return file

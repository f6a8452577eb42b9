"""Retuning: an engine that keeps its network is built again where it shall run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, BinaryIO

from smelt.builder._build import build_graph
from smelt.builder._embedded_network import read_embedded_network
from smelt.engine import check_signature, read_engine, verify_plans
from smelt.runtime import Engine
from smelt.types import enough_memory_for

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from smelt.builder._options import Progress, TuningEffort
    from smelt.engine import BytesLike, EngineFile


@enough_memory_for("the build")
def retune(
    source: Engine | str | os.PathLike[str] | BytesLike | BinaryIO,
    device: str | Sequence[str] | None = None,
    *,
    tune: str | float | TuningEffort = "fast",
    timing_cache: str | Path | None = None,
    progress: Progress | None = None,
    retunable: bool = False,
) -> Engine:
    """Build an engine again from the network that it keeps, for the machine where it shall run.

    Shapes, precision and every other option of the first build stay as they were, and weights are
    what they were last refitted to. No code of the engine runs and its signature decides nothing:
    its network is read as a model is, and what is built of it is your own engine.

    Args:
        source: an engine that was built with ``retunable=True``: a path, bytes, an open binary
            file, or the engine itself. It is not changed.
        device: as for `build`. None is this machine: its processor for an engine for processors,
            and for one for GPUs the GPU that the calling thread has selected, or the first.
        tune: as for `build`.
        timing_cache: as for `build`.
        progress: as for `build`.
        retunable: whether the new engine keeps the network, too.

    Raises:
        BuildError: the engine does not keep its network.
        EngineFormatError: the file is damaged, or no engine.
        SmeltError: whatever `build` raises.
    """
    file = source.file if isinstance(source, Engine) else _read_verified(source)
    graph, asked = read_embedded_network(file)
    options = dataclasses.replace(asked, timing_cache=timing_cache, tune=tune, retunable=retunable)
    where = file.header.fingerprint.device if device is None else device
    return build_graph(graph, where, options, progress, is_retuning=True)


def _read_verified(source: str | os.PathLike[str] | BytesLike | BinaryIO) -> EngineFile:
    """Read an engine's file as `Engine` would, whoever signed it."""
    file = read_engine(source)
    if file.signature is not None:
        check_signature(file.signature, file.source)
    verify_plans(
        file.header,
        weights_bytes=file.weights.size,
        code_bytes=len(file.code),
        sources_bytes=file.sources.size,
    )
    return file

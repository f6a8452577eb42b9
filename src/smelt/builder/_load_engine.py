"""``load``: reads engines, and regenerates the code of engines that are not trusted."""

from __future__ import annotations

import dataclasses
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO

from smelt.devices import DEVICE_KINDS, DeviceName
from smelt.engine import check_signature, key_id, read_engine, verify_signature
from smelt.errors import Argument, EngineMismatchError, SmeltError, TrustError
from smelt.runtime import Engine, check_machine
from smelt.types import enough_memory_for, require_bool, require_choice

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from smelt.builder._toolchain import LinkedCode, Toolchain
    from smelt.engine import BytesLike, EngineFile, KernelSpec
    from smelt.runtime import Trust

_LOG = logging.getLogger(__name__)


@enough_memory_for("loading an engine")
def load(
    source: str | os.PathLike[str] | BytesLike | BinaryIO,
    device: str | None = None,
    trust: Trust = "signed",
    *,
    mapped: bool = False,
) -> Engine:
    """Load an engine from a path, from bytes or from an open binary file.

    Args:
        source: the engine.
        device: device that the engine must have been built for; None accepts any.
        trust: ``"signed"`` runs the machine code of an engine only if a key that this user trusts
            has signed it. The code of any other engine is generated again from its plan, which is
            data. ``"always"`` runs the code of any engine; `save` then writes no signature unless
            it is called with ``sign=True``.
        mapped: whether to map the weights of a path into memory instead of copying them. Processes
            then share them, and loading takes less time. Writing to the file changes results, and
            truncating it ends the process, so files that users other than root may write are
            refused.

    Raises:
        EngineFormatError: the file is damaged or is not an engine.
        TrustError: ``mapped`` is set and other users may write to the file.
        EngineMismatchError: the engine was built for another machine, version or device.
        UnsupportedError: the name of the device is not valid.
    """
    require_choice(trust, "trust", SmeltError, ("signed", "always"))
    file = read_engine(source, mapped=require_bool(mapped, "mapped", SmeltError))
    built_for = file.header.fingerprint.device
    if device is not None and DeviceName.from_text(device).kind.name != built_for:
        raise EngineMismatchError(
            f"{file.source} was built for {built_for!r}, not for {device!r}; build it again for "
            f"{device!r}"
        )
    if trust == "always":
        if file.signature is not None:
            check_signature(file.signature, file.source)
        return Engine(file, device=device, is_vouched_for=False)
    try:
        verify_signature(file)
    except TrustError as error:
        kind = DEVICE_KINDS.get(built_for)
        if kind is not None and find_spec(kind.compiler) is None:
            raise
        _LOG.debug("%s", error)
        _LOG.warning("%s", _untrusted_engine_message(file))
        return _regenerate(file, device)
    return Engine(file, device=device)


def _untrusted_engine_message(file: EngineFile) -> str:
    """Return a warning that an engine's code is not used, and how to change that."""
    if file.signature is None:
        reason, remedy = "is not signed", "build it again on a machine that has a signing key"
    else:
        reason = (
            f"is signed by the key {key_id(file.signature.public_key)}, which is not trusted here"
        )
        remedy = "trust the key (`smelt trust add`)"
    return (
        f"{file.source} {reason}, so its machine code is not used and its kernels are compiled "
        f"here. To use its machine code, {remedy}"
    )


def _regenerate(file: EngineFile, device: str | None) -> Engine:
    """Return the engine with regenerated code; only data of the file is used."""
    from smelt.builder._plan_recipe import regenerated_header
    from smelt.builder._toolchain import toolchain_of

    fingerprint = file.header.fingerprint
    if not check_machine(fingerprint).kind.computes and device is None:
        # An unsigned file must not decide that an engine computes nothing: the caller must.
        null = Argument("device", "null")
        raise EngineMismatchError(
            f"{file.source} was built for 'null', which computes nothing, and is not signed by a "
            f"key that you trust; load it with {null} to run it anyway",
            arguments=[null],
        )
    tools = toolchain_of(fingerprint, device)
    regenerated = regenerated_header(file, tools.backend, tools.target)
    kernels = [launch.kernel for plan in regenerated.plans for launch in plan.launches]
    image, runtime = _link(tools, kernels, file.source)
    header = dataclasses.replace(
        regenerated, symbols=image.symbols, runtime_symbols=runtime.symbols
    )
    partitions = tuple(_regenerate(part, None).file for part in file.partitions)
    return Engine.create(
        header,
        file.weights,
        image.code,
        runtime.code,
        file.network_arrays,
        partitions,
        device=device,
    )


def _link(tools: Toolchain, kernels: Sequence[KernelSpec], source: str) -> LinkedCode:
    """Return the code of kernels.

    Raises:
        EngineFormatError: no generator supports the parameters of a kernel.
    """
    from smelt.builder._graph_json import MALFORMED_DATA_ERRORS, malformed_error

    try:
        return tools.link(kernels, lambda _done, _total: None)
    except SmeltError:
        raise
    except MALFORMED_DATA_ERRORS as error:
        raise malformed_error(f"{source}: its program", error) from error

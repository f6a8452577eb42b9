"""Loading engines where the compiler is at hand: what is not trusted is generated anew."""

from __future__ import annotations

import dataclasses
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO

from smelt.engine import Launch, check_signature, key_id, read_engine, verify_signature
from smelt.errors import EngineMismatchError, SmeltError, TrustError
from smelt.runtime import Engine, check_machine
from smelt.types import DeviceName, enough_memory_for, require_bool, require_choice

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from smelt.backends import CodeImage
    from smelt.builder._toolchain import Toolchain
    from smelt.engine import BytesLike, EngineFile, KernelSpec
    from smelt.runtime import Trust

_LOG = logging.getLogger(__name__)
_COMPILERS = {"cuda": "triton"}
"""The package that makes code for a kind of device, where it is not llvmlite."""


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
        device: the device that it must be for; None for whatever it was built for.
        trust: ``"signed"`` runs the code of an engine only when a key that this user trusts has
            signed it; the code of any other engine is generated anew from its plan, which is
            data. ``"always"`` runs whatever code it holds, and is saved without a signature unless
            `save` is told ``sign=True``.
        mapped: map the weights of a path instead of copying them: processes then share them, and
            loading takes less time. Who writes to the file changes answers, and who truncates it
            ends the process; so it is refused where any other user but root may.

    Raises:
        EngineFormatError: the file is damaged or no engine.
        TrustError: it is to be mapped, and others may write to it.
        EngineMismatchError: it was built for another machine, smelt or device.
        UnsupportedError: no device is called so.
    """
    require_choice(trust, "trust", SmeltError, ("signed", "always"))
    file = read_engine(source, mapped=require_bool(mapped, "mapped", SmeltError))
    built_for = file.header.fingerprint.device
    if device is not None and DeviceName.from_text(device).kind != built_for:
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
        if find_spec(_COMPILERS.get(built_for, "llvmlite")) is None:
            raise
        _LOG.debug("%s", error)
        _LOG.warning("%s", _told(file))
        return _regenerate(file, device)
    return Engine(file, device=device)


def _told(file: EngineFile) -> str:
    """What the user should know of an engine of a stranger, or of nobody."""
    if file.signature is None:
        whose, remedy = "is not signed", "build it again on a machine that has a signing key"
    else:
        whose = (
            f"is signed by the key {key_id(file.signature.public_key)}, which is not trusted here"
        )
        remedy = "trust the key (`smelt trust add`)"
    return (
        f"{file.source} {whose}, so its machine code is not used and its kernels are compiled "
        f"here. To use its machine code, {remedy}"
    )


def _regenerate(file: EngineFile, device: str | None) -> Engine:
    """The engine with code of our own making: only data of the file is believed."""
    from smelt.builder._plan_recipe import regenerated_header
    from smelt.builder._toolchain import toolchain_of

    fingerprint = file.header.fingerprint
    if fingerprint.device == "null" and device is None:
        # Nobody's word makes an engine one that leaves its outputs as they are.
        raise EngineMismatchError(
            f"{file.source} was built for 'null', which computes nothing, and no key that you "
            "trust signed it; load it with device='null' to run it anyway"
        )
    check_machine(fingerprint)
    tools = toolchain_of(fingerprint, device)
    made = regenerated_header(file, tools.backend, tools.target)
    steps = (step for plan in made.plans for step in plan.steps)
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    image, runtime = _linked(tools, kernels, file.source)
    fresh = dataclasses.replace(made, symbols=image.symbols, runtime_symbols=runtime.symbols)
    return Engine.create(fresh, file.weights, image.code, runtime.code, file.sources, device=device)


def _linked(
    tools: Toolchain, kernels: Sequence[KernelSpec], source: str
) -> tuple[CodeImage, CodeImage]:
    """The code of kernels. Raises EngineFormatError: no generator is made for what they compute."""
    from smelt.builder._graph_json import MALFORMED_DATA_ERRORS, malformed_error

    try:
        return tools.link(kernels, lambda _done, _total: None)
    except SmeltError:
        raise
    except MALFORMED_DATA_ERRORS as error:
        raise malformed_error(f"{source}: its program", error) from error

"""Loading engines where the compiler is at hand: what is not trusted is generated anew."""

from __future__ import annotations

import dataclasses
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO

from smelt.engine import Launch, key_id, read_engine, verify_signature
from smelt.errors import EngineMismatchError, SmeltError, TrustError
from smelt.runtime import Engine, check_machine
from smelt.types import DeviceName

if TYPE_CHECKING:
    import os

    from smelt.engine import BytesLike, EngineFile
    from smelt.runtime import Trust

_LOG = logging.getLogger(__name__)
_COMPILERS = {"cuda": "triton"}
"""The package that makes code for a kind of device, where it is not llvmlite."""


def load(
    source: str | os.PathLike[str] | BytesLike | BinaryIO,
    device: str | None = None,
    trust: Trust = "signed",
) -> Engine:
    """Load an engine from a path, from bytes or from an open binary file.

    Args:
        source: the engine.
        device: the device that it must be for; None for whatever it was built for.
        trust: ``"signed"`` runs the code of an engine only when a key that this user trusts has
            signed it; the code of any other engine is generated anew from its plan, which is
            data. ``"always"`` runs whatever code it holds.

    Raises:
        EngineFormatError: the file is damaged or no engine.
        EngineMismatchError: it was built for another machine, smelt or device.
        UnsupportedError: no device is called so.
    """
    file = read_engine(source)
    built_for = file.header.fingerprint.device
    if device is not None and DeviceName.from_text(device).kind != built_for:
        raise EngineMismatchError(
            f"{file.source} was built for {built_for!r}, not {device!r}; build it again for that"
        )
    if trust not in ("signed", "always"):
        raise SmeltError(f"trust is 'signed' or 'always', not {trust!r}")
    if trust == "always":
        return Engine(file, device=device)
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
        whose, remedy = "is not signed", "build it again where you have a signing key"
    else:
        whose = f"is signed by the key {key_id(file.signature.public_key)}, which you do not trust"
        remedy = "trust the key (`smelt trust add`)"
    return (
        f"{file.source} {whose}: its machine code is left alone, and code is compiled here from "
        f"its plan. To run it as it was built, {remedy}"
    )


def _regenerate(file: EngineFile, device: str | None) -> Engine:
    """The engine with code of our own making: only data of the file is believed."""
    from smelt.builder._program import reassembled_plans
    from smelt.builder._toolchain import toolchain_of

    header = file.header
    check_machine(header.fingerprint)
    tools = toolchain_of(header.fingerprint, device)
    plans = reassembled_plans(header, tools.backend, tools.target, file.source)
    steps = (step for plan in plans for step in plan.steps)
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    image, runtime = tools.link(kernels, lambda _done, _total: None)
    fresh = dataclasses.replace(header, symbols=image.symbols, runtime_symbols=runtime.symbols)
    return Engine.create(fresh, file.weights, image.code, runtime.code, file.sources, device=device)

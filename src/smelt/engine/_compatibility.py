"""Check of an engine's fingerprint against this machine and this version of smelt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.engine._host import Host, detect_host
from smelt.errors import EngineMismatchError

if TYPE_CHECKING:
    from smelt.engine._plan import Fingerprint

_REBUILD: Final = (
    "Build the engine again from the model: on this machine (`smelt build`), or on another one for "
    "this CPU (`--device cpu:x86-64-v3` suits most x86-64 CPUs)."
)


def check_compatibility(
    fingerprint: Fingerprint, *, runtime_abi: int, runtime_version: str, host: Host | None = None
) -> None:
    """Check that code with a fingerprint can run on a machine.

    Args:
        fingerprint: fingerprint of the engine.
        runtime_abi: version of the device's calling convention.
        runtime_version: version of smelt.
        host: the machine to run on; None for this one.

    Raises:
        EngineMismatchError: it cannot; the message lists each difference and how to rebuild.
    """
    machine = host or detect_host()
    pairs = (
        ("processor architecture", fingerprint.architecture, machine.architecture),
        ("operating system", fingerprint.system, machine.system),
        ("kernel interface", str(fingerprint.abi), str(runtime_abi)),
        ("smelt version", fingerprint.version, runtime_version),
    )
    differences = [
        f"{what}: the engine was built for {built}, but this machine has {here}"
        for what, built, here in pairs
        if built != here
    ]
    lacking = sorted(set(fingerprint.features) - set(machine.features))
    if lacking and fingerprint.architecture == machine.architecture:
        differences.append(f"this processor lacks {', '.join(lacking)}")
    if differences:
        raise EngineMismatchError(
            "this engine was built for another machine or version of smelt:",
            lines=(*(f"- {difference}" for difference in differences), _REBUILD),
        )

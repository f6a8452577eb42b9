"""Whether this machine and this smelt can run an engine's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.engine._host import Host, detect_host
from smelt.errors import EngineMismatchError

if TYPE_CHECKING:
    from smelt.engine._plan import Fingerprint

_REBUILD: Final = (
    "Build it again here from the model (`smelt build`), or there for this processor "
    "(`smelt build --device cpu:x86-64-v3` runs on most)."
)


def check_fingerprint(
    fingerprint: Fingerprint, *, abi: int, version: str, host: Host | None = None
) -> None:
    """Check that code with this fingerprint runs here.

    Args:
        fingerprint: what the engine was built for.
        abi: the version of the calling convention that this device has.
        version: this smelt's version.
        host: the machine to run on; None for this one.

    Raises:
        EngineMismatchError: it does not; the message lists each difference and how to rebuild.
    """
    machine = host or detect_host()
    pairs = (
        ("processor architecture", fingerprint.architecture, machine.architecture),
        ("operating system", fingerprint.system, machine.system),
        ("kernel interface", str(fingerprint.abi), str(abi)),
        ("smelt version", fingerprint.version, version),
    )
    differences = [
        f"{what}: the engine was built for {built}, this is {here}"
        for what, built, here in pairs
        if built != here
    ]
    lacking = sorted(set(fingerprint.features) - set(machine.features))
    if lacking and fingerprint.architecture == machine.architecture:
        differences.append(f"this processor lacks {', '.join(lacking)}")
    if differences:
        raise EngineMismatchError(
            "this engine was built for another machine or smelt:",
            lines=(
                *(f"- {difference}" for difference in differences),
                _REBUILD,
            ),
        )

"""The toolchain of one device, with the options that most tests leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.builder._toolchain import open_toolchains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.builder._toolchain import Toolchain


def open_toolchain(
    device: str | Sequence[str], precision: str = "float32", *, libraries: bool = False
) -> Toolchain:
    """Return the toolchain of the first of several devices that can be built for."""
    return open_toolchains(device, precision, use_libraries=libraries, purpose="run")[0]

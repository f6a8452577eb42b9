"""The loadables of the official regression are read, written and interpreted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.nvdla.loadable import Loadable

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    "BDMA/BDMA_L0_0",
    "CDP/CDP_L0_0",
    "CDP/CDP_L0_0_large",
    "CDP/CDP_L0_0_small",
    "CONV/CONV_D_L0_0",
    "CONV/CONV_D_L0_0_large",
    "CONV/CONV_D_L0_0_small",
    "NN/NN_L0_0",
    "PDP/PDP_L0_0",
    "PDP/PDP_L0_0_large",
    "PDP/PDP_L0_0_small",
    "RBK/RBK_L0_0",
    "SDP/SDP_X1_L0_0",
    "SDP/SDP_X1_L0_0_large",
    "SDP/SDP_X1_L0_0_small",
)


@pytest.mark.requirement("D-8", "DX-11")
@pytest.mark.parametrize("name", NAMES)
def test_a_loadable_survives_a_round_trip(name: str, shared: Path) -> None:
    data = (shared / "nvdla" / "flatbufs" / "kmd" / f"{name}_fbuf").read_bytes()
    loadable = Loadable.from_bytes(data)
    written = loadable.to_bytes()
    assert Loadable.from_bytes(written) == loadable
    assert loadable.has_identifier == (data[4:8] == b"NVDA") == (written[4:8] == b"NVDA")

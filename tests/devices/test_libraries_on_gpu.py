"""Whole engines in which NVIDIA's libraries do what they can, on a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.devices.cuda import LIBRARIES
from smelt.interp import interpret
from tests.support.noise import noise
from tests.support.vendor_library_on_gpu import (
    families,
    keep_apart,
    library_on,
    prefer_families,
)

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.devices.cuda import CudaDevice

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
_RUN_ELSEWHERE = """
import sys
import numpy as np
import smelt.runtime
with smelt.runtime.Engine.load(sys.argv[1]).create_context() as context:
    np.save(sys.argv[3], context.run({"x": np.load(sys.argv[2])})["join"])
assert "triton" not in sys.modules
"""


@pytest.fixture(params=sorted(LIBRARIES))
def library(gpu: CudaDevice, request: pytest.FixtureRequest) -> str:
    return library_on(gpu, str(request.param)).provider


def _network() -> smelt.NetworkDefinition:
    """A residual block, its images halved in front, with nothing that one of them cannot do."""
    net = smelt.NetworkDefinition("block")
    x = net.add_input("x", "float32", (64, 28, 28))
    halved = noise(128, 64, 3, 3) / 24
    y = net.add_convolution(x, 128, 3, halved, noise(128), stride=2, padding=1, name="halve")
    y = net.add_activation(y, "relu", name="relu")
    z = net.add_convolution(y, 64, 1, noise(64, 128, 1, 1) / 11, noise(64), name="narrow")
    z = net.add_activation(z, "relu", name="relu2")
    body = noise(64, 64, 3, 3) / 24
    z = net.add_convolution(z, 64, 3, body, noise(64), padding=1, name="body")
    z = net.add_activation(z, "relu", name="relu3")
    z = net.add_convolution(z, 128, 1, noise(128, 64, 1, 1) / 8, noise(128), name="widen")
    z = net.add_activation(net.add_elementwise(y, z, "sum", name="sum"), "relu", name="relu4")
    net.mark_output(net.add_concatenation([y, z], name="join"))
    return net


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 3e-3), ("float32", 1e-4)])
def test_a_network_in_which_a_library_does_what_it_can_is_right(
    library: str, precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep_apart(monkeypatch)
    prefer_families(monkeypatch, library)
    engine = smelt.build(_network(), "cuda", precision, libraries=True)
    assert library in families(engine)
    engine.save(tmp_path / "m.engine")
    with smelt.load(tmp_path / "m.engine").create_context() as context:
        for seed in range(4):
            x = noise(1, 64, 28, 28, seed=seed)
            (wanted,) = interpret(_network().graph, {"x": x}).values()
            runs: list[Array] = [context.run({"x": x})["join"] for _ in range(4)]
            error = np.abs(runs[0] - wanted).max() / np.abs(wanted).max()
            assert error <= tolerance
            assert all(np.array_equal(runs[0], run) for run in runs)
            np.save(tmp_path / "x.npy", x)
            np.save(tmp_path / "wanted.npy", runs[0])
    places = [str(tmp_path / name) for name in ("m.engine", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", _RUN_ELSEWHERE, *places], check=True, timeout=120)
    assert np.array_equal(np.load(places[-1]), np.load(tmp_path / "wanted.npy"))


def test_in_a_tuned_build_the_libraries_compete(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_apart(monkeypatch)
    engine = smelt.build(_network(), "cuda", "float16", libraries=True, timing_cache=None)
    features = engine.header.fingerprint.features
    called = {name for name in LIBRARIES if any(f.startswith(f"{name}=") for f in features)}
    assert families(engine) & set(LIBRARIES) == called
    assert f"{library}(" in engine.header.report
    with engine.create_context() as context:
        assert np.isfinite(context.run({"x": noise(1, 64, 28, 28)})["join"]).all()

"""What needs more memory than a process can have ends in an error of smelt's."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.engines import affine_engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")

_PREFIX: Final = struct.Struct("<8sIIQQ32x")
_SIGNATURE: Final = struct.Struct("<I32s64s28x")
_SCRIPT: Final = """
import resource, sys
import numpy as np
import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, TensorType

def limit(headroom):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + headroom, resource.RLIM_INFINITY))

def tell(what, call):
    try:
        call()
    except smelt.SmeltError as error:
        assert "memory" in str(error), error
        print(what, "refused")
    else:
        print(what, "done")

def network(rows):
    graph = Graph("large")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 1024)))
    repeats = graph.add_constant(np.array([rows, 1]), "repeats")
    tiled = graph.add(ops.Tile(), x, repeats, name="tile").output
    relu = graph.add(ops.Relu(), tiled, name="relu").output
    graph.outputs.append(graph.add(ops.ReduceMax(), relu, name="max").output)
    return graph

x = np.ones((1, 1024), np.float32)
small = smelt.build(network(2))
small.run({"x": x})
limit(600 << 20)
large = network(1 << 18)  # 1 GiB a tensor
tell("build", lambda: smelt.build(large))
tell("untuned", lambda: smelt.build(large, tune="none").run({"x": x}))
tell("load", lambda: smelt.load(sys.argv[1]))
tell("retune", lambda: smelt.retune(sys.argv[1]))
tell("small", lambda: small.run({"x": x}))
"""


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """An engine file of a few kilobytes that declares weights of 64 GiB."""
    content = affine_engine().serialize(sign=False)
    magic, version, reserved, length, _ = _PREFIX.unpack(content[: _PREFIX.size])
    header = json.loads(content[_PREFIX.size : _PREFIX.size + length])
    room = length + 2000
    at = _PREFIX.size + room + _SIGNATURE.size
    for row in header["sections"]:
        at += -at % 4096
        row |= {"offset": at, "size": 64 << 30 if row["name"] == "weights" else 0}
        at += row["size"]
    text = json.dumps(header).encode().ljust(room)
    path = tmp_path / "sparse.engine"
    path.write_bytes(_PREFIX.pack(magic, version, reserved, room, at) + text + bytes(128))
    os.truncate(path, at)
    return path


@pytest.mark.slow
def test_what_needs_too_much_memory_is_refused_and_the_rest_goes_on(sparse: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(sparse)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    detail = dict(line.split() for line in done.stdout.splitlines())
    assert detail["untuned"] == detail["load"] == detail["retune"] == "refused"
    assert detail["small"] == "done"

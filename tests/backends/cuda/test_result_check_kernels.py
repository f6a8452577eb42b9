"""The kernels by which others are judged judge rightly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = """
import numpy as np
from smelt.backends.cuda import *
from smelt.types import DType
from tests.support.triton_interpreter import interpret

def answer(kernel, *arrays):
    blocks = -(-arrays[0].size // RESULT_CHECK_BLOCK)
    out = np.full(blocks, np.nan, np.float32)
    words = [int(a.ctypes.data) for a in (*arrays, out)]
    interpret(CudaBackend(jobs=1), kernel, words, [arrays[0].size], blocks)
    return out.tolist()

rng = np.random.default_rng(0)
got = rng.standard_normal(5000).astype(np.float16)
wanted = got.astype(np.float32)
error = error_kernel(DType.FLOAT16)
assert answer(error, got, wanted) == [0, 0]
wanted[[7, 4999]] += np.float32([0.25, -2])
assert np.allclose(answer(error, got, wanted), [0.25, 2])
wanted[9], got[9] = np.inf, np.inf
wanted[10], got[10] = np.nan, np.nan
assert np.allclose(answer(error, got, wanted), [0.25, 2])
got[11] = np.nan
assert answer(error, got, wanted)[0] == np.inf
wanted[4998] = np.nan
assert answer(error, got, wanted)[1] == np.inf
words = rng.integers(0, 9, 4097, np.int32)
others = words.copy()
assert answer(mismatch_kernel(), words, others) == [0, 0]
others[4096] += 1
assert answer(mismatch_kernel(), words, others) == [0, 1]
assert np.isnan(answer(cache_flush_kernel(), wanted[:4000])).all()
"""


def test_gauges_see_errors_unwritten_numbers_and_changed_bits() -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", _PROGRAM], cwd=_ROOT, env=environment, check=True)

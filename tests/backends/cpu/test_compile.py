"""Compiling kernels: several at once, and the same whatever else is being compiled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from smelt.backends import StoredTensor
from smelt.backends.cpu import CpuBackend, host_target
from smelt.backends.cpu._compile import compile_ir
from smelt.engine import Launch, Space
from smelt.errors import BuildError
from smelt.types import DType, Layout, TensorFormat, TensorType


def copies(count: int) -> list[str]:
    """Kernels of copies, as LLVM IR."""
    backend, texts = CpuBackend(), list[str]()
    for number in range(count):
        kind = TensorType(DType.FLOAT32, (1, 3 + number, 8, 8))
        views = [
            StoredTensor("x", kind, TensorFormat(kind.dtype, layout), Space.ARENA, buffer=at).view()
            for at, layout in enumerate((Layout.LINEAR, Layout.CHANNELS_LAST))
        ]
        (step,) = backend.reformat(*views)
        assert isinstance(step, Launch)
        texts.append(backend.generate(step.kernel, host_target()))
    return texts


def compiled(text: str) -> bytes:
    return compile_ir(text, host_target())


def test_threads_that_compile_at_once_make_what_one_makes() -> None:
    texts = copies(6)
    alone = list(map(compiled, texts))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(compiled, texts * 3))
    assert together == alone * 3


def test_text_that_is_no_ir_is_refused() -> None:
    with pytest.raises(BuildError, match="not valid"):
        compile_ir("define void @f( {", host_target())


def test_what_was_prepared_is_not_generated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, target = CpuBackend(), host_target()
    kind = TensorType(DType.FLOAT32, (1, 3, 8, 8))
    (source, destination) = [
        StoredTensor("x", kind, TensorFormat(kind.dtype, layout), Space.ARENA, buffer=at).view()
        for at, layout in enumerate((Layout.LINEAR, Layout.CHANNELS_LAST))
    ]
    (step,) = backend.reformat(source, destination)
    assert isinstance(step, Launch)
    backend.precompile([step.kernel], target)
    monkeypatch.setattr(CpuBackend, "generate", None)
    assert backend.compile([step.kernel], target).symbols[0][0] == step.kernel.symbol

"""Kernels for GPUs on random views: none leaves its operands, none reads what is beside them."""

from __future__ import annotations

import pytest

from tests.support.campaigns import detail, run_module

COUNT = 176
FAMILIES = {
    *(
        "attention",
        "conv",
        "conv_sum",
        "deconv",
        "elementwise",
        "gather",
        "gemm",
        "lrn",
        "data_movement",
    ),
    *("pool", "recurrent", "resample", "row_reductions", "stem"),
}
"""Some of their kernels run among so many inputs; longer campaigns reach more families."""


@pytest.mark.slow
def test_no_kernel_for_gpus_leaves_its_operands_or_reads_what_is_around_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module = "tests.property.gpu_kernel_views"
    summary = run_module(module, "--count", str(COUNT), "--seed", "2", "--attempts", "0")
    assert not summary["findings"], detail(summary)
    ran = {name.removeprefix("ran ") for name in summary["done"] if name.startswith("ran ")}
    assert ran >= FAMILIES

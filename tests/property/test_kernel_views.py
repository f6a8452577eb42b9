"""Kernels of every family on random views: none writes beside them, none reads what is beside."""

from __future__ import annotations

import pytest

from smelt.backends.cpu import CpuBackend
from tests.support.campaigns import detail, run_module

COUNT = 1200
WITHOUT_KERNELS = {"partition", "reference", "view"}
"""Families that launch nothing."""


@pytest.mark.slow
def test_no_kernel_leaves_its_views_or_reads_what_is_around_them() -> None:
    summary = run_module("tests.property.kernel_views", "--count", str(COUNT), "--seed", "4")
    assert not summary["findings"], detail(summary)
    ran = {name.removeprefix("ran ") for name in summary["done"] if name.startswith("ran ")}
    families = {family.name for family in CpuBackend(jobs=1).families}
    assert families - ran <= WITHOUT_KERNELS

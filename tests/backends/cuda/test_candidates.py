"""What kernels for GPUs are offered for, whatever its sizes."""

from __future__ import annotations

import pytest

from smelt.backends.cuda import CudaBackend, target_named
from smelt.ops import ALL_OPS, Fused, Op
from tests.support.cuda_op_coverage import WITHOUT_KERNELS
from tests.support.trials import graph_of

_OPS = [op for op in ALL_OPS if op.name not in WITHOUT_KERNELS and op is not Fused]
"""Some fused nodes compute in integers, which no family is asked for."""


@pytest.mark.parametrize("op", _OPS, ids=lambda op: op.name)
def test_a_node_that_no_kernel_computes_is_told_why(op: type[Op]) -> None:
    backend, target = CudaBackend(), target_named("sm_90")
    for case in op.cases():
        for node in graph_of(case).nodes:
            tactics, refusals = backend.candidates(node, target)
            assert refusals or not all(t.is_host_step for t in tactics), (case.name, node)

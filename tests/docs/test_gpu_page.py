"""What the page of GPUs says of ops is so."""

from __future__ import annotations

import re

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ops import ALL_OPS, Op
from smelt.passes import pipeline, run_passes
from tests.conftest import ROOT
from tests.support.cuda_op_coverage import WITHOUT_KERNELS
from tests.support.trials import graph_of


def _is_left_to_the_host(op: type[Op], backend: CudaBackend) -> bool:
    """Whether a build leaves any of the op's cases as it is."""
    passes = pipeline(
        non_fusable_ops=backend.non_fusable_ops,
        supported_composite_ops=backend.supported_composite_ops,
    )
    for graph in map(graph_of, op.cases()):
        run_passes(graph, passes)
        for node in graph.nodes:
            tactics, _ = backend.candidates(node, CudaTarget(90))
            if node.op.name == op.name and all(tactic.is_host_step for tactic in tactics):
                return True
    return False


def test_the_page_lists_the_ops_that_no_kernel_computes() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    _, section = text.split("### Layers that run on the host\n")
    rows = re.findall(r"^\|[^|]*\| ([A-Z].*) \|$", section.split("\n#")[0], re.MULTILINE)
    listed = [name for row in rows for name in row.split(", ")]
    backend = CudaBackend(jobs=1)
    # What is excepted rounds weights: no network has it.
    asked = WITHOUT_KERNELS - {"round_mantissa"}
    left = [op for op in ALL_OPS if op.name in asked and _is_left_to_the_host(op, backend)]
    assert sorted(listed) == sorted(op.__name__ for op in left)

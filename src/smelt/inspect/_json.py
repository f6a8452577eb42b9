"""The report as JSON values. The keys are stable, because scripts use them.

Keys of the top level:

* ``network``, ``device``, ``architecture``, ``features``, ``system``, ``version``,
  ``max_batch_size``, ``weight_bytes``, ``is_retunable``
* ``libraries``: libraries that the engine needs at run time
* ``multiprocessors``: number of those of the GPU that the engine was tuned for; null for processors
* ``tuned_on``: where tactics were timed (the GPU and its driver, or the processor and its threads);
  empty if they were chosen by cost estimates
* ``reference_steps`` (an integer), ``reference_ops`` (names of their ops), ``reference_layers``
  (their layers), ``host_copy_bytes`` (bytes that each run copies for them)
* ``bindings``, ``plans``, ``weights``, ``kernels``: lists
* ``signer``: null for an engine that was not read from a file
* ``peaks``: peak rates; null if they are not known
* ``partitions``: reports on the engines of other devices that run parts of this one; their keys are
  these
* ``no_sources``: why kernel sources were requested but are missing

Keys below have the names of the fields of the values of `smelt.inspect`. A plan's ``layers`` have
tactics, formats, candidates, refusals, launches and work; ``counted_at`` has the sizes for which
the work is counted; ``passes`` has fusions and the reasons against them; ``memory`` has the
lifetime of each tensor. A weight's ``sources`` are the arrays for `refit`; a kernel's ``codes`` are
its resources on each architecture, its ``sources`` its source text.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.inspect._report import EngineReport


def report_to_json(report: EngineReport) -> dict[str, Any]:
    """Return the report as values of JSON's types."""
    fields = asdict(report)
    parts = {name: fields.pop(name) for name in ("bindings", "plans", "weights", "kernels")}
    fields["partitions"] = [report_to_json(part) for part in report.partitions]
    if fields["peaks"] is not None:
        fields["peaks"]["flop_per_second"] = dict(fields["peaks"]["flop_per_second"])
    for kernel in parts["kernels"]:
        kernel["parameters"] = dict(kernel["parameters"])
    for plan in parts["plans"]:
        plan["source_nodes"] = [{"name": n, "op": op} for n, op in plan["source_nodes"]]
        plan["counted_at"] = dict(plan["counted_at"])
        plan["symbols"] = {name: [low, high] for name, low, high in plan["symbols"]}
    return {
        **fields,
        "reference_steps": report.reference_steps,
        "reference_ops": list(report.reference_ops),
        "reference_layers": list(report.reference_layers),
        "host_copy_bytes": report.host_copy_bytes,
        "weight_bytes": report.weight_bytes,
        **parts,
    }

"""The report as JSON values. The keys are stable: scripts rely on them.

Top level: ``network``, ``device``, ``architecture``, ``features``, ``libraries`` (what it calls
wherever it runs), ``multiprocessors`` (of the GPU for which it was tuned; null for processors),
``tuned_on`` (where tactics were timed: the GPU and its driver, the processor and its threads; empty
where they were chosen by estimates), ``system``, ``version``, ``max_batch_size``,
``reference_steps`` (an integer), ``reference_ops`` (a list of op names), ``reference_layers``
(whose they are), ``host_copy_bytes`` (0 where nothing is copied for them), ``weight_bytes``,
``bindings``, ``plans``, ``weights``, ``kernels``, ``signer`` (null for an engine that is not from a
file), ``peaks`` (null where the device is not known), ``no_sources`` (why there are none, where
they were asked for), ``is_retunable``. What lies below has the names of the fields of
`smelt.inspect`'s values; a plan's ``layers`` carry tactics, formats, candidates, refusals, launches
and their work beside the roofline, ``counted_at`` the sizes for which that is told, ``passes`` what
was fused and why not, ``memory`` the life of each tensor, a weight's ``sources`` what `refit` takes
for it, a kernel's ``codes`` what a GPU gives it, and its ``sources`` its text.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.inspect._report import EngineReport


def report_to_json(report: EngineReport) -> dict[str, Any]:
    """The report as values that JSON has."""
    fields = asdict(report)
    parts = {name: fields.pop(name) for name in ("bindings", "plans", "weights", "kernels")}
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

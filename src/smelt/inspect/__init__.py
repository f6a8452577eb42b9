"""Reports on the contents of an engine, as values, text, JSON, HTML and SVG."""

from smelt.inspect._html import report_to_html
from smelt.inspect._json import report_to_json
from smelt.inspect._report import (
    BindingReport,
    CandidateReport,
    CodeReport,
    EngineReport,
    KernelReport,
    LaunchReport,
    LayerReport,
    NodeReport,
    PassNote,
    PassSummary,
    Peaks,
    PlanReport,
    SignerReport,
    SourceReport,
    TensorLifetime,
    WeightReport,
    WorkReport,
)
from smelt.inspect._report_builder import Inspectable, report_of
from smelt.inspect._roofline import H200, Profile
from smelt.inspect._svg_graph import graph_to_svg
from smelt.inspect._svg_memory import memory_to_svg
from smelt.inspect._text import (
    SECTIONS,
    format_bytes,
    format_host_steps,
    format_plan_sizes,
    machine_of,
    report_to_text,
)

__all__ = [
    "H200",
    "SECTIONS",
    "BindingReport",
    "CandidateReport",
    "CodeReport",
    "EngineReport",
    "Inspectable",
    "KernelReport",
    "LaunchReport",
    "LayerReport",
    "NodeReport",
    "PassNote",
    "PassSummary",
    "Peaks",
    "PlanReport",
    "Profile",
    "SignerReport",
    "SourceReport",
    "TensorLifetime",
    "WeightReport",
    "WorkReport",
    "format_bytes",
    "graph_to_svg",
    "machine_of",
    "memory_to_svg",
    "report_of",
    "report_to_html",
    "report_to_json",
    "report_to_text",
    "format_host_steps",
    "format_plan_sizes",
]

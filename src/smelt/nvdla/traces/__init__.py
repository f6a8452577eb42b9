"""Register traces: finding, playing, recording and writing them."""

from smelt.nvdla.traces._player import TraceResult, run_trace
from smelt.nvdla.traces._recorder import TraceRecorder
from smelt.nvdla.traces._trace_files import TraceFile, find_traces

__all__ = ["TraceFile", "TraceRecorder", "TraceResult", "find_traces", "run_trace"]

"""Register traces: played on the machine, found in folders and archives, recorded and written."""

from smelt.nvdla.traces._player import TraceResult, run_trace
from smelt.nvdla.traces._recorder import TraceRecorder
from smelt.nvdla.traces._source import TraceFile, find_traces

__all__ = ["TraceFile", "TraceRecorder", "TraceResult", "find_traces", "run_trace"]

"""Interpreter that runs a graph on the reference of each op: the oracle of all backends."""

from smelt.interp._interpreter import Listener, interpret, run_node

__all__ = ["Listener", "interpret", "run_node"]

"""A graph run node by node on the references of its ops: the oracle of every backend."""

from smelt.interp._interpreter import Listener, interpret, run_node

__all__ = ["Listener", "interpret", "run_node"]

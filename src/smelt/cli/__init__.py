"""The command line: one file a subcommand, each of which parses, calls one function below, prints.

Answers go to standard output, everything else to standard error. Exit codes: 0 done, 1 files or the
machine do not allow it, 2 the command line is wrong whatever these are, 130 interrupted;
docs/commands.md has examples.
"""

from smelt.cli._entry import main

__all__ = ["main"]

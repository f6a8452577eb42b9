"""The command line: one file a subcommand, each of which parses, calls one function below, prints.

Answers go to standard output, everything else to standard error. Exit codes: 0 done, 1 an error in
the input or the machine, 2 a wrong command line (docs/commands.md says
what is one), 130 interrupted.
"""

from smelt.cli._entry import main

__all__ = ["main"]

"""The ``smelt`` command line.

Each subcommand has a file that parses the arguments, calls a function of another subpackage and
prints the result. Results go to standard output, everything else to standard error.

Exit codes: 0 success; 1 an error that depends on files or the machine, or a failed comparison; 2 an
invalid command line; 130 interrupted. docs/commands.md has examples.
"""

from smelt.cli._entry import main

__all__ = ["main"]

"""``python -m smelt``: the command line."""

from smelt.cli import main

if __name__ == "__main__":
    main()

"""Entry point of the ``smelt`` command, which explains how to install missing packages."""

from __future__ import annotations

from typing import Final

from smelt.errors import MissingExtraError

_PACKAGES: Final = ("click", "rich", "pillow")
"""Packages that only the command line needs."""


def main() -> None:
    """Run the command line of this process, and exit."""
    try:
        from smelt.cli._main import main as run
    except ModuleNotFoundError as error:
        package = MissingExtraError.from_import(error).package
        if package not in _PACKAGES:
            raise
        raise SystemExit(
            f"error: the command line needs {package}; run: pip install {' '.join(_PACKAGES)}. "
            f"Python programs can run engines without {package}, with smelt.load; to trust a key "
            "without the command line, set SMELT_TRUSTED_KEYS to a file that contains it"
        ) from error
    except KeyboardInterrupt as error:
        raise SystemExit(130) from error
    run()

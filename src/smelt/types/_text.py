"""Numbers as people read them."""

from __future__ import annotations


def format_number(number: float, digits: int) -> str:
    """A number with so many digits after the point; a small one keeps two that count."""
    return f"{number:.2g}" if 0 < abs(number) < 10 ** (1 - digits) else f"{number:,.{digits}f}"


def format_share(share: float | None, digits: int = 0) -> str:
    """A share in percent; a dash for none."""
    return "-" if share is None else f"{format_number(share * 100, digits)}%"

"""Write numbers, names and times for sentences."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def duration(seconds: float) -> str:
    """Write a time for people: 12 s, 3 min 5 s, 1 h 2 min.

    >>> duration(3725.0)
    '1 h 2 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def listed(names: Collection[Any], most: int = 12) -> str:
    """The first ``most`` names, separated by commas, and the number of the others."""
    shown = [str(name) for name in list(names)[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

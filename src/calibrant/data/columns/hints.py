"""Notes on columns of text that look like numbers or dates: what they look like, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Collection

from calibrant.data.columns.values import is_number

_SAMPLED = 1000
_FEW = 10
"""Columns with at most this many different values are hardly meant as quantities."""
_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}[ .-]*[A-Za-z]{3,9}[ .,-]*\d{2,4}([ T].*)?")
_MARKED = re.compile(r"[+-]?[\d.,'’]+")
_UNIT = re.compile(r"([^\w\s]\s?)?[+-]?\d[\d.,'’]*(\s?[^\w\s]{1,3}|\s\S{1,6}|[a-zµ]{2,6})?")  # not codes such as 12A
_KINDS = (
    (_DATE, 0, "dates", "Pass their format, such as --dates %d.%m.%Y, or write them as 2024-12-31."),
    (_MARKED, 0, "numbers with other marks", "Pass --decimal and --thousands with these marks if they are numbers."),
    (_UNIT, _FEW, "numbers with a unit or other characters", "Write plain numbers in one unit if they are quantities."),
)
"""A pattern, the number of values above which it counts, what it looks like, and the advice."""


def looks_like(name: str, values: Collection[str]) -> str | None:
    """A note on a training column of text, if most of its distinct values look like numbers or dates."""
    sample = [value.strip() for value in list(values)[:_SAMPLED]]
    for pattern, few, kind, advice in _KINDS:
        alike = [value for value in sample if pattern.fullmatch(value)]
        example = next((value for value in alike if not is_number(value)), None)
        if 2 * len(alike) > len(sample) > few and example is not None:
            return f"Column {name!r} is read as text, but looks like {kind} ({example!r}). {advice}"
    others = [value for value in sample if not is_number(value)]
    if len(sample) > _FEW and 0 < 2 * len(others) < len(sample):
        return (
            f"Column {name!r} is read as text, because {others[0]!r} is not a number. Leave it empty if it is missing."
        )
    return None

"""Notes on columns of text that look like numbers or dates: what they look like, and the option to pass."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from itertools import product

from calibrant.data.columns.values import is_number

_SAMPLED = 1000
_FEW = 10
"""Columns with at most this many different values are hardly meant as quantities."""
_COMMAS = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3})+,\d+")
_COMMA_GROUPS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_POINT_GROUPS = re.compile(r"[+-]?\d{1,3}(\.\d{3}){2,}")
_UNIT = re.compile(r"([^\w\s]\s?)?[+-]?\d[\d.,'’]*(\s?[^\w\s]{1,3}|\s\S{1,6}|[a-zµ]{2,6})?")  # not codes such as 12A
_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}[ .-]*[A-Za-z]{3,9}[ .,-]*\d{2,4}([ T].*)?")
_DAYS = ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y")
_MORE_DAYS = ("%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d %b %Y", "%d %B %Y")
_FORMATS = [f"{day}{time}" for time, day in product(("", " %H:%M", " %H:%M:%S"), (*_DAYS, *_MORE_DAYS))]


def looks_like(name: str, values: Collection[str]) -> str | None:
    """A note on a training column of text, if most of its distinct values look like numbers or dates."""
    sample = [value.strip() for value in list(values)[:_SAMPLED]]
    if most := _most(_DATE, sample):
        forms = [form for form in _FORMATS if all(_fits(value, form) for value in most)]
        option = " or ".join(f"--dates {form!r}" for form in forms) or "--dates FORMAT"
        order = ", whichever is meant" if len(forms) > 1 else ""
        return (
            f"Column {name!r} is read as text, but looks like dates ({most[0]!r}). Pass {option}{order}, or write them "
            "as 2024-12-31."
        )
    groups, commas = _most(_COMMA_GROUPS, sample), _most(_COMMAS, sample)
    clear = next((value for value in commas if not _COMMA_GROUPS.fullmatch(value)), None)
    if clear is not None:
        more = " --thousands ." if any("." in value for value in commas) else ""
        return f"{_numbers(name, clear, 'decimal commas')} Pass --decimal ,{more} if they are."
    if groups:
        return f"{_numbers(name, groups[0], 'commas')} Pass --thousands , or --decimal , according to what commas mean."
    if most := _most(_POINT_GROUPS, sample):
        return f"{_numbers(name, most[0], 'points between thousands')} Pass --decimal , --thousands . if they are."
    if len(sample) <= _FEW:
        return None
    plain = [value for value in sample if is_number(value)]
    if 2 * len(plain) > len(sample) > len(plain):
        other = next(value for value in sample if not is_number(value))
        return f"Column {name!r} is read as text, because {other!r} is not a number. Leave it empty if it is missing."
    if most := [value for value in _most(_UNIT, sample) if not is_number(value)]:
        return (
            f"{_numbers(name, most[0], 'a unit or other characters')} Write plain numbers in one unit if they are "
            "quantities."
        )
    return None


def _numbers(name: str, example: str, what: str) -> str:
    return f"Column {name!r} is read as text, but looks like numbers with {what} ({example!r})."


def _most(pattern: re.Pattern[str], values: list[str]) -> list[str]:
    """The values that fit a pattern, if these are most; else none."""
    fitting = [value for value in values if pattern.fullmatch(value)]
    return fitting if 2 * len(fitting) > len(values) else []


def _fits(text: str, form: str) -> bool:
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True

"""Notes on columns of text that look like numbers or dates: what they look like, and the option to pass."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import product

from calibrant.data.columns.column_format import DATES, NUMBERS, ColumnFormat
from calibrant.data.columns.values import is_number

_SAMPLED = 1000
_FEW = 10
"""Columns with at most this many different values are hardly meant as quantities."""
_UNIT = re.compile(r"([^\w\s]\s?)?[+-]?\d[\d.,'’]*(\s?[^\w\s]{1,3}|\s\S{1,6}|[a-zµ]{2,6})?")  # not codes such as 12A
_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}[ .-]*[A-Za-z]{3,9}[ .,-]*\d{2,4}([ T].*)?")
_DAYS = ("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y")
_MORE_DAYS = ("%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d %b %Y", "%d %B %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_DATE_FORMATS = [ColumnFormat(DATES, dates=f"{day}{time}") for time, day in product(_TIMES, (*_DAYS, *_MORE_DAYS))]
_ONE_MARK = [ColumnFormat(NUMBERS, thousands=","), ColumnFormat(NUMBERS, ",")]
_TWO_MARKS = ColumnFormat(NUMBERS, ",", ".")


def looks_like(name: str, values: Collection[str]) -> str | None:
    """A note on a training column of text, if most of its distinct values look like numbers or dates."""
    sample = [value.strip() for value in list(values)[:_SAMPLED]]
    plain = [value for value in sample if is_number(value)]
    if dates := _most([value for value in sample if _DATE.fullmatch(value)], sample):
        forms = [form.options for form in _DATE_FORMATS if form.parse(dates) is not None] or ["--dates FORMAT"]
        order = ", whichever is meant" if len(forms) > 1 else ""
        return (
            f"Column {name!r} is read as text, but looks like dates ({dates[0]!r}). Pass {' or '.join(forms)}{order}, "
            "or write them as 2024-12-31."
        )
    fitting = {form: [v for v in sample if form.parse([v]) is not None] for form in (*_ONE_MARK, _TWO_MARKS)}
    most = max(map(len, fitting.values()))
    if most > max(len(plain), len(sample) / 2):
        formats = [form for form, numbers in fitting.items() if len(numbers) == most]
        formats = [form for form in formats if form != _TWO_MARKS] or formats
        example = next(value for value in fitting[formats[0]] if not is_number(value))
        ending = "according to their meaning" if len(formats) > 1 else "if they are"
        return (
            f"Column {name!r} is read as text, but looks like {formats[0]} ({example!r}). Pass "
            f"{' or '.join(form.options for form in formats)} {ending}."
        )
    if len(sample) <= _FEW:
        return None
    if 2 * len(plain) > len(sample) > len(plain):
        other = next(value for value in sample if not is_number(value))
        return f"Column {name!r} is read as text, because {other!r} is not a number. Leave it empty if it is missing."
    if units := [value for value in _most([v for v in sample if _UNIT.fullmatch(v)], sample) if not is_number(value)]:
        return (
            f"Column {name!r} is read as text, but looks like numbers with a unit or other characters ({units[0]!r}). "
            "Write plain numbers in one unit if they are quantities."
        )
    return None


def _most(values: list[str], sample: list[str]) -> list[str]:
    """The values if they are most of the sample; else none."""
    return values if 2 * len(values) > len(sample) else []

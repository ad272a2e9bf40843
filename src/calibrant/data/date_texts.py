"""Dates in text columns that are not in the ISO format: 26.01.2023, 26/01/2023 and 01/26/2023."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from calibrant.data.columns import is_missing

DOTS, DAY_FIRST, MONTH_FIRST = "day.month.year", "day/month/year", "month/day/year"

_DATE = re.compile(r"\s*(\d{1,2})([./])(\d{1,2})\2(\d{4})(?:[ T](\d{1,2}(?::\d{2}){1,2}))?\s*", re.ASCII)


def date_form(column: Any) -> str | None:
    """How the dates of a text column are written; None if a value is not a date, or if the order is not clear.

    The first number of a date with dots is the day. With slashes, some number above 12 must show which one is the day.
    """
    values = {v for v in set(column) if not is_missing(v)}
    found = [_DATE.fullmatch(v) if isinstance(v, str) else None for v in values]
    matches = [match for match in found if match is not None]
    if not matches or len(matches) < len(found) or len({match[2] for match in matches}) > 1:
        return None
    form = DOTS
    if matches[0][2] == "/":
        first, second = (max(int(match[place]) for match in matches) for place in (1, 3))
        if (first > 12) == (second > 12):
            return None
        form = DAY_FIRST if first > 12 else MONTH_FIRST
    return form if all(iso_date(value, form) for value in values) else None


def is_date(value: Any, form: str) -> bool:
    """Whether a value is a text with the separators of a form, such as 31.02.2023; the date need not exist."""
    match = _DATE.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match[2] == _separator(form)


def iso_date(value: Any, form: str) -> str | None:
    """A date of the given form in the ISO format, such as 2023-01-26 or 2023-01-26 09:30; None for other values."""
    match = _DATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] != _separator(form):
        return None
    day, month = (match[3], match[1]) if form == MONTH_FIRST else (match[1], match[3])
    text = f"{match[4]}-{month:0>2}-{day:0>2}"
    if match[5]:
        hour, _, rest = match[5].partition(":")
        text += f" {hour:0>2}:{rest}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def with_iso_dates(column: Any, form: str) -> Any:
    """A text column with its dates in the ISO format; other values stay."""
    known = {value: iso_date(value, form) or value for value in set(column) if isinstance(value, str)}
    return column.map(lambda value: known.get(value, value))


def _separator(form: str) -> str:
    return "." if form == DOTS else "/"

"""Texts of dates that are not in the ISO format: 26.01.2023, 01/26/23, 3-Nov-2024 and so on.

A form says how the dates of a column are written, such as "day.month.year". In "day.month.year from 1971", years may
have two digits and lie in the hundred years from 1971 on.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

DOTS, DAY_FIRST, MONTH_FIRST = "day.month.year", "day/month/year", "month/day/year"
NAMED = "day month-name year"
ORDERS = {
    ".": (DOTS, "year.month.day"),  # nobody writes the month first with dots
    "/": (DAY_FIRST, MONTH_FIRST, "year/month/day"),
    "-": ("day-month-year", "month-day-year", "year-month-day"),
    " ": (NAMED,),
}
_MARKS = {order: mark for mark, orders in ORDERS.items() for order in orders}

_TIME = r"(?:(?:,?\s+|T)(\d{1,2}):(\d{2}(?::\d{2}(?:\.\d{1,6})?)?)(?:\s?([AaPp])\.?[Mm]\.?)?)?\s*"
_NUMBERS = re.compile(rf"\s*(\d{{4}}|\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}}|\d{{1,2}}){_TIME}", re.ASCII)
_NAME, _DAY = r"([A-Za-zÄä]{3,9})\.?", r"(\d{1,2})(?:st|nd|rd|th|\.)?"
_DAY_NAME = re.compile(rf"\s*{_DAY}[\s/-]?{_NAME}[\s/-]?(\d{{4}}|\d{{2}}){_TIME}", re.ASCII)
_NAME_DAY = re.compile(rf"\s*{_NAME}\s{_DAY},?\s(\d{{4}}){_TIME}", re.ASCII)
_MONTHS = {
    name: str(number)
    for number, names in enumerate(
        (
            "jan january januar jänner",
            "feb february februar",
            "mar march mär mrz märz",
            "apr april",
            "may mai",
            "jun june juni",
            "jul july juli",
            "aug august",
            "sep sept september",
            "oct october okt oktober",
            "nov november",
            "dec december dez dezember",
        ),
        1,
    )
    for name in names.split()
}
"""The number of each month by its English and German names."""


class Written(NamedTuple):
    """The parts of a date as they are written; a month with a name is in the second place."""

    mark: str
    parts: tuple[str, str, str]
    time: str

    @property
    def short(self) -> bool:
        """Whether the year has two digits."""
        return all(len(part) <= 2 for part in self.parts)


def order_of(form: str) -> str:
    """A form without its hundred years, such as "day.month.year"."""
    return form.partition(" from ")[0]


def is_date(value: Any, form: str) -> bool:
    """Whether a value is written like a date of a form, such as 31.02.2023, and not in the ISO format."""
    written = written_date(value)
    return written is not None and written.mark == _MARKS.get(order_of(form)) and not is_iso(value)


def iso_date(value: Any, form: str) -> str | None:
    """A date of the given form in the ISO format, such as 2023-01-26 or 2023-01-26 09:30; None for other values."""
    written, order, first = written_date(value), order_of(form), window(form)
    if written is None or written.mark != _MARKS.get(order):
        return None
    names = re.findall("year|month|day", order)
    found = dict(zip(names, written.parts, strict=True))
    year = found["year"]
    if len(year) == 2 and first is not None:
        year = str(first + (int(year) - first) % 100)
    if len(year) != 4:
        return None
    text = f"{year}-{found['month']:0>2}-{found['day']:0>2}{written.time}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def with_iso_dates(column: Any, form: str) -> Any:
    """A text column with its dates in the ISO format; other values stay."""
    known = {value: iso_date(value, form) or value for value in set(column) if isinstance(value, str)}
    return column.map(lambda value: known.get(value, value))


def written_date(value: Any) -> Written | None:
    """The parts of a text that is written like a date; the date need not exist."""
    if not isinstance(value, str):
        return None
    if match := _NUMBERS.fullmatch(value):
        first, mark, second, third, *time = match.groups()
        return Written(mark, (first, second, third), _time(*time))
    if match := _DAY_NAME.fullmatch(value):
        day, name, year, *time = match.groups()
    elif match := _NAME_DAY.fullmatch(value):
        name, day, year, *time = match.groups()
    else:
        return None
    month = _MONTHS.get(name.lower())
    return None if month is None else Written(" ", (day, month, year), _time(*time))


def _time(hour: str | None, rest: str | None, half: str | None) -> str:
    """The time of a day behind a space, such as " 14:05"; empty without one."""
    if hour is None:
        return ""
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return " 99:00"  # no such time
        hour = str(int(hour) % 12 + 12 * (half.lower() == "p"))
    return f" {hour:0>2}:{rest}"


def is_iso(value: str) -> bool:
    """Whether a text is a date in the ISO format."""
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return True


def window(form: str) -> int | None:
    """The first of the hundred years of a form; None if its years have four digits."""
    first = form.partition(" from ")[2]
    return int(first) if first else None

"""Dates in text columns that are not in the ISO format: 26.01.2023, 01/26/23, 3-Nov-2024 and so on.

A form says how the dates of a column are written, such as "day.month.year". In "day.month.year from 1971", years may
have two digits and lie in the hundred years from 1971 on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from calibrant.data.columns import is_missing

DOTS, DAY_FIRST, MONTH_FIRST = "day.month.year", "day/month/year", "month/day/year"
NAMED = "day month-name year"
_ORDERS = {
    ".": (DOTS, "year.month.day"),  # nobody writes the month first with dots
    "/": (DAY_FIRST, MONTH_FIRST, "year/month/day"),
    "-": ("day-month-year", "month-day-year", "year-month-day"),
    " ": (NAMED,),
}
_MARKS = {order: mark for mark, orders in _ORDERS.items() for order in orders}
_LATEST = 2049
"""Years of two digits in a training table are not later than this."""

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


class _Written(NamedTuple):
    """The parts of a date as they are written; a month with a name is in the second place."""

    mark: str
    parts: tuple[str, str, str]
    time: str

    @property
    def short(self) -> bool:
        """Whether the year has two digits."""
        return all(len(part) <= 2 for part in self.parts)


def date_forms(column: Iterable[Any]) -> list[str]:
    """The forms in which all values of a text column are dates: one if it is clear, and none if they are not dates.

    The whole column decides. The first number of a date with dots is the day, or a year of four digits. With slashes
    and dashes, some number above 12 must show which one is the day. If years have two digits, the numbers of the day
    reach 29 or more, or have more different values than those of the year.
    """
    values: list[str] = []
    found: list[_Written] = []
    for value in {v for v in set(column) if not is_missing(v)}:
        written = _written(value)
        if written is None or (found and written.mark != found[0].mark):
            return []
        values.append(value)
        found.append(written)
    if not found or all(map(_is_iso, values)) or _like_codes(found):
        return []
    years_first = {order: order.startswith("year") for order in _ORDERS[found[0].mark]}
    forms = []
    for order, first in years_first.items():
        years = {int(written.parts[0 if first else 2]) for written in found if written.short}
        form = f"{order} from {_first_year(years)}" if years else order
        if all(iso_date(value, form) for value in values):
            forms.append(form)
    place = _year_place(found) if all(written.short for written in found) else None
    wanted = [form for form in forms if place is None or years_first[order_of(form)] == (place == 0)]
    return wanted or forms


def date_note(form: str) -> str | None:
    """How the dates of a column are read, for the user; None if no other reading is possible."""
    order, first = order_of(form), _window(form)
    either = order in (*_ORDERS["/"][:2], *_ORDERS["-"][:2])
    if first is None and not either:
        return None
    note = f"are read as {order}" + (", because some numbers are above 12." if either else ".")
    return note if first is None else f"{note} Years of two digits are read as {first} to {first + 99}."


def order_of(form: str) -> str:
    """A form without its hundred years, such as "day.month.year"."""
    return form.partition(" from ")[0]


def is_date(value: Any, form: str) -> bool:
    """Whether a value is written like a date of a form, such as 31.02.2023, and not in the ISO format."""
    written = _written(value)
    return written is not None and written.mark == _MARKS.get(order_of(form)) and not _is_iso(value)


def iso_date(value: Any, form: str) -> str | None:
    """A date of the given form in the ISO format, such as 2023-01-26 or 2023-01-26 09:30; None for other values."""
    written, order, first = _written(value), order_of(form), _window(form)
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


def _written(value: Any) -> _Written | None:
    """The parts of a text that is written like a date; the date need not exist."""
    if not isinstance(value, str):
        return None
    if match := _NUMBERS.fullmatch(value):
        first, mark, second, third, *time = match.groups()
        return _Written(mark, (first, second, third), _time(*time))
    if match := _DAY_NAME.fullmatch(value):
        day, name, year, *time = match.groups()
    elif match := _NAME_DAY.fullmatch(value):
        name, day, year, *time = match.groups()
    else:
        return None
    month = _MONTHS.get(name.lower())
    return None if month is None else _Written(" ", (day, month, year), _time(*time))


def _time(hour: str | None, rest: str | None, half: str | None) -> str:
    """The time of a day behind a space, such as " 14:05"; empty without one."""
    if hour is None:
        return ""
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return " 99:00"  # no such time
        hour = str(int(hour) % 12 + 12 * (half.lower() == "p"))
    return f" {hour:0>2}:{rest}"


def _is_iso(value: Any) -> bool:
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return True


def _window(form: str) -> int | None:
    """The first of the hundred years of a form; None if its years have four digits."""
    first = form.partition(" from ")[2]
    return int(first) if first else None


def _first_year(years: Collection[int]) -> int:
    """The first of the hundred years that hold years of two digits.

    The longest run of years that do not occur, such as 25 to 17 for the years 18 to 24, is where they begin and end.
    """
    ordered = sorted(years)
    ends = []
    for last, following in zip(ordered, [*ordered[1:], ordered[0] + 100], strict=True):
        unused = following - last - 1
        ends.append((unused, 2000 + last if 2000 + last <= _LATEST else 1900 + last))
    unused, year = max(ends)
    return year + unused // 2 - 99


def _like_codes(found: Collection[_Written]) -> bool:
    """Whether numbers with dots or dashes may be versions (3.11.10) or other codes: no year has four digits.

    Dates of this kind are written with leading zeros (03.11.10).
    """
    if any(not written.short or written.mark not in ".-" for written in found):
        return False
    padded = all(len(part) == 2 for written in found for part in written.parts)
    return not padded or not any(part[0] == "0" for written in found for part in written.parts[:2])


def _year_place(found: Collection[_Written]) -> int | None:
    """The place of years of two digits: 0, 2, or None if it is not clear. Days reach 31, and years vary less."""
    first, last = ({int(written.parts[place]) for written in found} for place in (0, 2))
    days_last, days_first = max(last) > 28, max(first) > 28
    if days_last != days_first:
        return 0 if days_last else 2
    if 1 < len(last) <= len(first) / 2:
        return 2
    if 1 < len(first) <= len(last) / 2:
        return 0
    return 2 if next(iter(found)).mark in ". " else None

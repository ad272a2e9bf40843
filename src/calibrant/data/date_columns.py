"""The form of the dates in a text column, which the whole column decides; see :mod:`calibrant.data.date_texts`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from calibrant.data.columns import is_missing
from calibrant.data.date_texts import ORDERS, Written, is_date, is_iso, iso_date, order_of, window, written_date

_LATEST = 2049
"""Years of two digits in a training table are not later than this."""
_FEWEST_DAYS = 8
"""Fewer different numbers at the end of dates, such as 29 to 31, may be years."""
_EITHER = (*ORDERS["/"][:2], *ORDERS["-"][:2])
"""Orders that another order of day and month resembles."""


def date_forms(column: Iterable[Any]) -> list[str]:
    """The forms in which all values of a text column are dates: one if it is clear, and none if they are not dates.

    The whole column decides. The first number of a date with dots is the day, or a year of four digits. With slashes
    and dashes, some number above 12 must show which one is the day. If years have two digits, they are last unless
    the numbers show that they are first, or that both are possible.
    """
    values: list[str] = []
    found: list[Written] = []
    for value in {v for v in set(column) if not is_missing(v)}:
        written = written_date(value)
        if written is None or (found and written.mark != found[0].mark):
            return []
        values.append(value)
        found.append(written)
    if not found or all(map(is_iso, values)) or _like_codes(found):
        return []
    years_first = {order: order.startswith("year") for order in ORDERS[found[0].mark]}
    forms = []
    for order, first in years_first.items():
        years = {int(written.parts[0 if first else 2]) for written in found if written.short}
        form = f"{order} from {_first_year(years)}" if years else order
        if all(iso_date(value, form) for value in values):
            forms.append(form)
    place = _year_place(found) if all(written.short for written in found) else None
    wanted = [form for form in forms if place is None or years_first[order_of(form)] == (place == 0)]
    return wanted or forms


def form_of_dates(name: str, column: Iterable[Any]) -> tuple[str | None, str | None]:
    """The form of the dates of a column, None without dates or if it is not clear, and a note for the user, or None."""
    values = list(column)
    forms = date_forms(values)
    if len(forms) > 1:
        example = next(v for v in values if not is_missing(v))
        return None, (
            f"Dates in column {name!r} stay text, because their order is not clear: {example!r} may be "
            f"{' or '.join(map(order_of, forms))}. Write them as 2024-12-31."
        )
    return (forms[0], _note(name, forms[0])) if forms else (None, None)


def check_dates(name: str, column: Iterable[Any], form: str, file: str) -> None:
    """Raise an error if a date of a new file is not in the form of the training table."""
    wrong = next((v for v in column if is_date(v, form) and iso_date(v, form) is None), None)
    if wrong is not None:
        raise ValueError(
            f"Column {name!r} of {file} must hold dates as in the training table ({order_of(form)}); got {wrong!r}. "
            "Correct it, or leave it empty."
        )


def _note(name: str, form: str) -> str | None:
    """How the dates of a column are read; None if no other reading is possible."""
    order, first = order_of(form), window(form)
    either = order in _EITHER
    if first is None and not either:
        return None
    note = f"Dates in column {name!r} are read as {order}"
    note += ", because some numbers are above 12." if either else "."
    return note if first is None else f"{note} Years of two digits are read as {first} to {first + 99}."


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


def _like_codes(found: Collection[Written]) -> bool:
    """Whether numbers with dots or dashes may be versions (3.11.10) or other codes: no year has four digits.

    Dates of this kind are written with leading zeros (03.11.10).
    """
    if any(not written.short or written.mark not in ".-" for written in found):
        return False
    padded = all(len(part) == 2 for written in found for part in written.parts)
    return not padded or not any(part[0] == "0" for written in found for part in written.parts[:2])


def _year_place(found: Collection[Written]) -> int | None:
    """The place of years of two digits: 0, 2, or None if it is not clear.

    With dots and with names of months, the year is last. Otherwise days reach 31, and years are few and without gaps.
    That days are few is no evidence, as payments may all be on the first day of a month.
    """
    if next(iter(found)).mark in ". ":
        return 2
    first, last = ({int(written.parts[place]) for written in found} for place in (0, 2))
    years_last = _without_gaps(last) and 2 * len(last) <= len(first) and last not in ({1}, {15})
    if max(last) <= 28 and (max(first) > 28 or years_last):
        return 2
    if max(first) <= 28 < max(last) and len(last) >= _FEWEST_DAYS and _without_gaps(first):
        return 0
    return None


def _without_gaps(numbers: Collection[int]) -> bool:
    return max(numbers) - min(numbers) + 1 == len(numbers)

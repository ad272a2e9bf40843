"""Dates outside the range that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from calibrant.base.words import count
from calibrant.data.columns import Columns, days
from calibrant.tables.reading import dates_of, time_text


def date_ranges(columns: Columns, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the earliest and the latest date of columns, in days since 1970; durations have no range."""
    values = {name: days(columns[name], name) for name in names if columns[name].dtype.kind != "m"}
    return {name: (float(np.nanmin(column)), float(np.nanmax(column))) for name, column in values.items()}


def outside_dates(columns: Columns, ranges: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """Count the dates of each column that are outside its range."""
    values = {name: days(columns[name], name) for name in ranges}
    return {name: int(((values[name] < low) | (values[name] > high)).sum()) for name, (low, high) in ranges.items()}


def date_notes(
    outside: Mapping[str, int], ranges: Mapping[str, tuple[float, float]], rows: int, noun: str
) -> list[str]:
    """Return a note for each column that has dates outside its range."""
    notes = []
    for name, number in outside.items():
        low, high = map(time_text, dates_of(ranges[name]))
        if number:
            notes.append(
                f"Column {name!r} has a date outside the training rows' range ({low} to {high}) in {number:,} of "
                f"{count(rows, noun)}. The model has seen no such dates, so its confidence there may be wrong."
            )
    return notes

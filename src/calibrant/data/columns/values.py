"""Columns of tables: what their values are, and reading them as numbers, dates or text.

A column is a NumPy array of numbers, dates, or objects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]

LARGEST = 1e100  # squares of smaller numbers are finite
_WHOLE = re.compile(r"[+-]?\d+\.0*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")
TRUTH = {"true": 1.0, "false": 0.0}
_WORDS = {**TRUTH, "nan": math.nan}


class Code(str):
    """Text of a category that may look like a number (01234), in a column of categories."""

    __slots__ = ()


def is_numeric(column: np.ndarray) -> bool:
    """Whether all values that are not missing are numbers (truth values are 0 and 1)."""
    if column.dtype.kind != "O":
        return column.dtype.kind in "biuf"
    present = [v for v in set_of(column) if not is_missing(v)]
    return bool(present) and all(isinstance(v, int | float | np.number | np.bool_ | Decimal) for v in present)


def numbers(column: np.ndarray, name: str) -> np.ndarray:
    """The column as float64, missing values as NaN; text is read as a number."""
    if column.dtype.kind in "biuf":
        values = column.astype(float)
    elif column.dtype.kind in "Mm":
        raise ValueError(f"Column {name!r} is numeric, but here it holds dates or durations. Give numbers.")
    else:
        values = _converted(column, _read, f"Column {name!r} must hold numbers")
    if np.any(np.abs(values) > LARGEST):
        raise ValueError(
            f"Column {name!r} holds an infinite number or one beyond {LARGEST:g}; correct it or leave it empty."
        )
    return values


def are_codes(values: Iterable[str]) -> bool:
    """Whether some texts begin with a zero like codes (007), and none has a point or a sign like a quantity."""
    distinct = {value.strip() for value in set(values)}
    if not any(v[:1] == "0" and v[1:].isdigit() for v in distinct):
        return False
    return all(v.isdigit() for v in distinct if _NUMBER.fullmatch(v))


def holds_codes(column: np.ndarray) -> bool:
    """Whether the texts of a column are codes of categories: all marked as such, or some with leading zeros."""
    values = [v for v in set_of(column) if isinstance(v, str)] if column.dtype.kind in "OU" else []
    return bool(values) and (all(isinstance(v, Code) for v in values) or are_codes(values))


def is_number(text: str) -> bool:
    """Whether a text is a number with a decimal point or none."""
    return _NUMBER.fullmatch(text.strip()) is not None


def is_iso_date(text: str) -> bool:
    """Whether a text is a date in the ISO format, with a time or without."""
    return _ISO.fullmatch(text.strip()) is not None and _day(text) is not None


def days(column: np.ndarray, name: str) -> np.ndarray:
    """Dates as days since 1970 (durations as days), missing ones as NaN; text is read in the ISO format."""
    if column.dtype.kind in "Mm":
        whole = column.astype(column.dtype.str[:2] + "8[us]")
        return np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 86_400e6)
    return _converted(column, _day, f"Column {name!r} must hold dates such as 2024-12-31")


def _converted(column: np.ndarray, convert: Callable[[Any], float | None], rule: str) -> np.ndarray:
    """The values as floats, missing ones as NaN; the ``rule`` begins the error for a value that cannot be converted."""
    values = each(lambda v: math.nan if is_missing(v) else convert(v), column)
    if None in values:
        row = values.index(None)
        raise ValueError(f"{rule}; got {column.tolist()[row]!r} in row {row}. Correct it, or leave it empty.")
    return np.array(values, dtype=float)


def texts(column: np.ndarray) -> list[str | None]:
    """The column as text, missing values as None. Whole numbers of any type are written without a point."""
    return each(lambda v: None if is_missing(v) else _text(v), column)


def is_missing(value: Any) -> bool:
    """None, NaN, blank text, and the missing values of pandas."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def missing_count(column: np.ndarray) -> int:
    """The number of missing values of a column."""
    if column.dtype.kind in "Mm":
        return int(np.isnat(column).sum())
    return sum(each(is_missing, column))


def each(function: Callable[[Any], Any], column: np.ndarray) -> list[Any]:
    """Apply a function to each value, calling it once for each distinct value."""
    values = column.tolist()
    keys = _keys(values)
    try:
        table = {key: function(value) for key, value in dict(zip(keys, values, strict=True)).items()}
    except TypeError:  # lists and other values without a hash
        return [function(value) for value in values]
    return [table[key] for key in keys]


def set_of(column: np.ndarray) -> list[Any]:
    """The distinct values of a column; values without a hash are repeated."""
    values = column.tolist()
    try:
        return list(dict(zip(_keys(values), values, strict=True)).values())
    except TypeError:
        return values


def _keys(values: list[Any]) -> list[Any]:
    """Keys that distinguish 1, 1.0 and True, which Python counts as equal."""
    return [v if type(v) is str else (type(v), v) for v in values]


def objects(values: list[Any]) -> np.ndarray:
    """A column of any values, which NumPy does not convert."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _read(value: Any) -> float | None:
    """The number that a value is, or that its text represents; None for anything else."""
    if isinstance(value, str):
        text = value.strip().lower()
        return _WORDS[text] if text in _WORDS else float(text) if _NUMBER.fullmatch(text) else None
    try:
        return None if isinstance(value, np.datetime64) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _day(value: Any) -> float | None:
    """A date as days since 1970; None for anything else."""
    try:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()  # in nanoseconds it would be a whole number
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if isinstance(moment, date) and not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / 86_400
    except (AttributeError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, str | Decimal):
        value = str(value).strip()
        return value.partition(".")[0] if _WHOLE.fullmatch(value) else value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

"""Tables as named columns: arrays, dictionaries and data frames in one plain form.

A column is a NumPy array of numbers, dates, or objects. Nothing here imports pandas; a data frame is recognised by its
methods.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from sklearn.utils import check_array

Columns = dict[str, np.ndarray]

LARGEST = 1e100  # squares of smaller numbers are finite
NEARLY = 0.95  # from this share of numbers on, text among them counts as a typing error
_WHOLE = re.compile(r"[+-]?\d+\.0*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
TRUTH = {"true": 1.0, "false": 0.0}
_WORDS = {**TRUTH, "nan": math.nan}


class Code(str):
    """Text of a category that may look like a number (01234), in a column of categories."""

    __slots__ = ()


def as_columns(data: Any) -> Columns:
    """The columns of a data frame, of a mapping from names to values, or of a two-dimensional array (x0, x1, …)."""
    data = readable(data)
    names = column_names(data)
    if names is None:
        array = check_array(_as_array(data), dtype=None, ensure_all_finite=False)
        return {f"x{k}": array[:, k] for k in range(array.shape[1])}
    check_names(names)
    source = _named(data)
    columns = {str(name): _column(source[name]) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of a table must have the same length; got {lengths}.")
    return columns


def column_names(data: Any) -> list[Any] | None:
    """The names of a table's columns; None for an array."""
    if _is_arrow(data):
        return list(data.column_names)  # its attribute columns holds arrays without names
    source = _named(data)
    return None if source is None else list(source if isinstance(source, Mapping) else source.columns)


def check_names(names: Iterable[Any]) -> None:
    """Raise an error if two columns have the same name."""
    if twice := sorted(name for name, count in Counter(map(str, names)).items() if count > 1):
        raise ValueError(f"Column names must differ, since columns are matched by name; got {', '.join(twice)} twice.")


def readable(data: Any) -> Any:
    """Return a PyArrow table as a data frame, and a masked array with missing values; anything else unchanged."""
    if _is_arrow(data):
        return data.to_pandas()
    return _unmasked(data) if np.ma.isMaskedArray(data) else data


def _is_arrow(data: Any) -> bool:
    """Whether the data are a PyArrow table. The class is asked, as a data frame has its columns as attributes."""
    return hasattr(type(data), "column_names") and hasattr(type(data), "to_pandas")


def _unmasked(values: np.ma.MaskedArray) -> np.ndarray:
    """A plain array: masked entries are NaN, NaT or None."""
    found = np.ma.getdata(values)
    if not np.ma.is_masked(values):
        return found
    kind = found.dtype.kind
    missing = np.array("NaT", dtype=found.dtype) if kind in "Mm" else np.nan if kind in "biuf" else None
    found = found.astype(float if kind in "biu" else found.dtype if kind in "Mmf" else object)
    found[np.ma.getmaskarray(values)] = missing
    return found


def _named(data: Any) -> Any:
    """The mapping of a Table, a mapping, or a data frame, which give columns by name; None for anything else."""
    if isinstance(getattr(data, "columns", None), Mapping):
        return data.columns
    return data if isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "__getitem__")) else None


def _as_array(data: Any) -> Any:
    """The data; as objects if rows mix text and numbers, which NumPy would turn into text."""
    if hasattr(data, "dtype") or not isinstance(data, Sequence):
        return data
    array = np.asarray(data)
    return np.array(data, dtype=object) if array.dtype.kind in "US" else array


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
        values = np.array(each(lambda v: _number(v, name), column), dtype=float)
    if np.any(np.abs(values) > LARGEST):
        raise ValueError(
            f"Column {name!r} holds an infinite number or one beyond {LARGEST:g}; correct it or leave it empty."
        )
    return values


def strays(column: np.ndarray) -> list[str] | None:
    """Distinct non-numeric values of a text column that is at least 95 % numeric; None for other columns."""
    present = len(column) - missing_count(column) if column.dtype.kind in "OU" else 0
    if not present:
        return None
    others = others_than_numbers(column)
    words = sum(each(_is_word, column))  # words such as inf and nan do not make a column numeric
    if len(others) + words > (1 - NEARLY) * present + 1e-9 or holds_codes(column):
        return None
    return list(dict.fromkeys(others))


def others_than_numbers(column: np.ndarray) -> list[str]:
    """Values that are neither missing nor numbers, as text, in order."""
    if column.dtype.kind not in "OU":
        return []
    found = each(lambda v: None if is_missing(v) or _is_number(v) else str(v).strip(), column)
    return [text for text in found if text is not None]


def without_strays(column: np.ndarray) -> np.ndarray:
    """The column with None for every value that is not a number."""
    if column.dtype.kind not in "OU":
        return column
    return _objects(each(lambda v: v if _is_number(v) else None, column))


def are_codes(values: Iterable[str]) -> bool:
    """Whether some texts begin with a zero like codes (007), and none has a point or a sign like a quantity."""
    numbers = [v for v in {value.strip() for value in set(values)} if _NUMBER.fullmatch(v)]
    return any(len(v) > 1 and v[0] == "0" and v.isdigit() for v in numbers) and all(map(str.isdigit, numbers))


def holds_codes(column: np.ndarray) -> bool:
    """Whether a column holds categories: marked as such, or with leading zeros."""
    values = [v for v in set_of(column) if isinstance(v, str)] if column.dtype.kind in "OU" else []
    return any(isinstance(v, Code) for v in values) or are_codes(values)


def days(column: np.ndarray, name: str) -> np.ndarray:
    """Dates as days since 1970 (durations as days), missing ones as NaN; text is read in the ISO format."""
    if column.dtype.kind in "Mm":
        whole = column.astype(column.dtype.str[:2] + "8[us]")
        return np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 86_400e6)
    return np.array(each(lambda v: _day(v, name), column), dtype=float)


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


def _objects(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _column(values: Any) -> np.ndarray:
    values = readable(values)
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", None) == "c":
        raise ValueError("Complex data not supported: give real and imaginary parts as separate columns.")
    if str(dtype).startswith("period"):
        values = getattr(values, "dt", values).to_timestamp()  # a series has dt, an index has not
        dtype = values.dtype
    if str(dtype).startswith(
        ("category", "Categorical", "Enum")
    ):  # a category stays one, even if its names are numbers
        return _as_codes(_objects(texts(_objects(list(values)))))
    if not hasattr(values, "to_numpy") or not hasattr(values, "isna"):
        column = np.asarray(values)
        if column.ndim == 1 and column.dtype.kind in "US" and not isinstance(values, np.ndarray):
            column = np.array(list(values), dtype=object)  # NumPy turns numbers beside text into text
        if column.ndim != 1:
            raise ValueError(f"A column must have one dimension; got shape {column.shape}.")
        return _marked(column)
    kind = getattr(dtype, "kind", "O")
    if kind in "biuf":
        return values.to_numpy(dtype=float, na_value=np.nan) if values.isna().any() else values.to_numpy()
    if kind == "M":
        times = getattr(values, "dt", values)
        plain = times.tz_convert("UTC") if getattr(times, "tz", None) else values
        return plain.to_numpy(dtype="datetime64[ns]")
    return _marked(values.to_numpy(dtype="timedelta64[ns]" if kind == "m" else object))


def _marked(column: np.ndarray) -> np.ndarray:
    """The column, with texts marked as codes if they are, so that a subset without leading zeros keeps the mark."""
    values = set_of(column) if column.dtype.kind == "O" else []
    if any(isinstance(v, Code) for v in values):
        return column
    return _as_codes(column) if are_codes(v for v in values if isinstance(v, str)) else column


def _as_codes(column: np.ndarray) -> np.ndarray:
    return _objects(each(lambda v: Code(v) if isinstance(v, str) else v, column))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in _WORDS


def _is_number(value: Any) -> bool:
    """Whether ``numbers`` can read a value; text beyond the largest number does not count."""
    number = _read(value)
    return number is not None and not (isinstance(value, str) and abs(number) > LARGEST)


def _number(value: Any, name: str) -> float:
    if is_missing(value):
        return math.nan
    number = _read(value)
    if number is None:
        raise ValueError(f"Column {name!r} is numeric, but {value!r} is not a number. Correct it, or leave it empty.")
    return number


def _read(value: Any) -> float | None:
    """The number that a value is, or that its text represents; None for anything else."""
    if isinstance(value, str):
        text = value.strip().lower()
        return _WORDS[text] if text in _WORDS else float(text) if _NUMBER.fullmatch(text) else None
    try:
        return None if isinstance(value, np.datetime64) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _day(value: Any, name: str) -> float:
    if is_missing(value):
        return math.nan
    try:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()  # in nanoseconds it would be a whole number
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if isinstance(moment, date) and not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / 86_400
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"Column {name!r} must hold dates such as 2024-12-31; got {value!r}.") from None


def _text(value: Any) -> str:
    if isinstance(value, str | Decimal):
        value = str(value).strip()
        return value.partition(".")[0] if _WHOLE.fullmatch(value) else value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

"""Tables in any form as named columns: arrays, dictionaries, data frames and PyArrow tables.

Nothing here imports pandas; a data frame is recognised by its methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from calibrant.data.columns.values import Code, Columns, are_codes, each, objects, set_of, texts


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
    data = np.ma.getdata(values)
    if not np.ma.is_masked(values):
        return data
    kind = data.dtype.kind
    missing = np.array("NaT", dtype=data.dtype) if kind in "Mm" else np.nan if kind in "biuf" else None
    data = data.astype(float if kind in "biu" else data.dtype if kind in "Mmf" else object)
    data[np.ma.getmaskarray(values)] = missing
    return data


def _named(data: Any) -> Any:
    """A mapping or a data frame, which give columns by name; None for anything else."""
    if sparse.issparse(data):  # SciPy's matrices in dictionary-of-keys form are mappings
        return None
    return data if isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "__getitem__")) else None


def _as_array(data: Any) -> Any:
    """The data; as objects if rows mix text and numbers, which NumPy would turn into text."""
    if hasattr(data, "dtype") or not isinstance(data, Sequence):
        return data
    array = np.asarray(data)
    return np.array(data, dtype=object) if array.dtype.kind in "US" else array


def _column(values: Any) -> np.ndarray:
    values = readable(values)
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "kind", None) == "c":
        raise ValueError("Complex data not supported: give real and imaginary parts as separate columns.")
    if str(dtype).startswith("period"):
        values = getattr(values, "dt", values).to_timestamp()  # a series has dt, an index has not
        dtype = values.dtype
    if str(dtype).startswith(("category", "Categorical", "Enum")):
        # a category stays one, even if its names are numbers
        return _as_codes(objects(texts(objects(list(values)))))
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
    return objects(each(lambda v: Code(v) if isinstance(v, str) else v, column))

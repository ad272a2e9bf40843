"""Reading labels: text, whole numbers or truth values, none missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.data.columns.forms import as_columns
from calibrant.data.columns.values import is_numeric, missing_count, numbers, texts


def as_labels(values: Any, *, name: str = "labels") -> np.ndarray:
    """One-dimensional labels: whole numbers (also 1.0) as int64, truth values as bool, everything else as text.

    Labels of several kinds (1 and "one") are text. Missing ones and fractions are errors.
    """
    column = as_columns({name: values})[name]
    if absent := missing_count(column):
        raise ValueError(
            f"{absent} of the {len(column)} labels in {name!r} are missing (empty, NA, None and ? count as missing). "
            "Remove these rows, or name the missing class."
        )
    if not is_numeric(column):
        return np.array(texts(column), dtype=str)
    if all(isinstance(v, bool) for v in column.tolist()):
        return column.astype(bool)
    if column.dtype.kind in "iu":
        return column.astype(np.int64)
    numeric = numbers(column, name)
    unfit = numeric[(numeric != np.rint(numeric)) | (np.abs(numeric) >= 2**53)]
    if unfit.size:
        raise ValueError(
            f"{name!r} must hold classes; got {unfit.size} values that are not whole numbers, such as {unfit[0]:g}. "
            "Name another column, or turn this one into classes."
        )
    return numeric.astype(np.int64)

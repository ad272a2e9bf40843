"""Labels as the user gave them: none missing, all of one kind."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from calibrant.data.columns.values import is_missing


def as_targets(y: Any) -> Any:
    """Check labels before scikit-learn's checks, whose messages about these mistakes are hard to understand.

    Missing labels and a mixture of text and numbers are errors. Objects that are all numbers or truth values become an
    array of these, because scikit-learn refuses them. Anything else is returned unchanged.
    """
    if np.ma.is_masked(y):
        raise ValueError(_missing(int(np.ma.getmaskarray(y).sum()), np.ma.size(y)))
    try:
        labels = np.asarray(y)
    except ValueError:  # rows of unequal length: scikit-learn's checks explain it
        return y
    if labels.ndim != 1 or labels.dtype.kind != "O":
        # scikit-learn turns integers of pandas' own type into floats
        return labels if labels.dtype.kind in "biu" else y
    values = labels.tolist()
    if absent := sum(map(is_absent, values)):
        raise ValueError(_missing(absent, len(values)))
    if all(isinstance(value, Real | np.bool_) for value in values):
        return np.array(values)
    kinds = {"str" if isinstance(value, str) else type(value).__name__ for value in values}  # np.str_ is text too
    if len(kinds) > 1 and "str" in kinds:
        raise ValueError(
            f"y must hold labels of one kind; got {', '.join(sorted(kinds))}. Convert all of them to text, for example "
            "with [str(label) for label in y]."
        )
    return y


def is_absent(value: Any) -> bool:
    """None, NaN, and the missing values of pandas; empty text is a label."""
    return not isinstance(value, str) and is_missing(value)


def _missing(absent: int, rows: int) -> str:
    return f"y must not have missing labels; {absent} of its {rows} entries are missing. Remove these rows."

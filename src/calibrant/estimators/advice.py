"""Error hints for tables that another library's classifier cannot read."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import get_tags

from calibrant.data import TableEncoder
from calibrant.estimators.reading import is_plain, needs_encoder


def advice_for(X: Any, estimator: Any, error: Exception) -> str:
    """Return advice on encoding ``X`` for an estimator whose ``fit`` failed; empty if that would not help.

    It would not help if the estimator accepts all columns as they are, if the error is about a parameter, or if the
    estimator is a pipeline with an encoder.
    """
    name = type(estimator).__name__
    if sparse.issparse(X):
        return f"{name} cannot take this sparse matrix: give X.toarray(), or use calibrant.SelfCalibratedClassifier."
    steps = [step for _, step in getattr(estimator, "steps", [])]
    encoded = any(isinstance(step, TableEncoder) for step in steps)
    wrong_setting = type(error).__name__ == "InvalidParameterError"  # a private class of scikit-learn
    if encoded or wrong_setting or getattr(X, "ndim", 2) != 2:
        return ""
    dtypes = dict(getattr(X, "dtypes", {}))
    columns = [repr(str(column)) for column, dtype in dtypes.items() if not is_plain(dtype)]
    if columns:
        several = f"column{'s' if columns[1:] else ''} {', '.join(columns[:5])}{', …' if columns[5:] else ''}"
        content = f"the {several}, which {'are' if columns[1:] else 'is'} not numeric"
    elif any(str(dtype).startswith("Sparse") for dtype in dtypes.values()):
        content = "the sparse columns of a data frame"
    elif needs_encoder(X):
        content = "text or dates"
    elif _has_gaps(X) and not _takes_gaps(estimator):
        content = "missing values"
    else:
        return ""
    return (
        f"{name} cannot take {content}. Encode the table first, make_pipeline(calibrant.data.TableEncoder(), "
        f"{name}(…)), or use calibrant.SelfCalibratedClassifier, which encodes tables itself."
    )


def _has_gaps(X: Any) -> bool:
    if hasattr(X, "isna"):
        return bool(np.asarray(X.isna()).any())
    values = np.asarray(X)
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def _takes_gaps(estimator: Any) -> bool:
    """Whether an estimator says that it accepts missing values; one without tags does not say it."""
    return hasattr(estimator, "__sklearn_tags__") and bool(get_tags(estimator).input_tags.allow_nan)

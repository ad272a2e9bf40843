"""The models of ``CrossCalibrated``: clones of one classifier, each fitted to the training rows of a fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _check_method_params, _num_samples

from calibrant.data import TableEncoder
from calibrant.estimators.folds import Splits
from calibrant.estimators.reading import has_fill_values, is_plain, needs_encoder


def default_trees() -> HistGradientBoostingClassifier:
    """Return the boosted trees that ``CrossCalibrated`` uses if no estimator is given."""
    return HistGradientBoostingClassifier(learning_rate=0.03, max_iter=1000, early_stopping=True, random_state=0)


def suited_trees(trees: HistGradientBoostingClassifier, labels: np.ndarray) -> HistGradientBoostingClassifier:
    """Return :func:`default_trees` for rows with these labels.

    Early stopping holds out a tenth of the rows, with every class in both parts. If there are too few rows for this,
    scikit-learn raises an error. The trees then use its default instead: 100 iterations.
    """
    counts = np.unique(labels, return_counts=True)[1]
    if counts.min() >= 2 and np.ceil(trees.validation_fraction * len(labels)) >= len(counts):
        return trees
    return trees.set_params(early_stopping=False, max_iter=100)


def fit_model(estimator: Any, X: Any, y: np.ndarray, rows: np.ndarray, params: dict[str, Any]) -> Any:
    """Fit a clone to some of the rows; if they have only one class, return a classifier that always predicts it."""
    inputs, labels = _safe_indexing(X, rows), y[rows]
    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="prior").fit(inputs, labels)
    if isinstance(estimator, HistGradientBoostingClassifier):
        inputs = _without_empty_columns(inputs)
    try:
        return estimator.fit(inputs, labels, **_check_method_params(X, params=params, indices=rows))
    except (ValueError, TypeError) as error:
        if advice := advice_for(inputs, estimator, error):
            reason = " ".join(str(error).split()).split(". ")[0][:200].rstrip(".")
            raise ValueError(f"{advice} The model itself reports: {reason}.") from error
        raise


def _without_empty_columns(X: Any) -> Any:
    """Return numbers with zeros in columns that have no value, which boosted trees cannot bin.

    A column may have values in the table but not in the rows of a fold. Trees never split a constant column, so other
    values in it have no effect later.
    """
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        return np.where(np.isnan(X).all(axis=0), 0.0, X).astype(X.dtype, copy=False)
    if hasattr(X, "isna") and hasattr(X, "iloc"):
        empty = np.asarray(X.isna().all()) & np.array([is_plain(dtype) for dtype in X.dtypes])
        if empty.any():
            X = X.copy()
            X[X.columns[empty]] = 0.0
    return X


def model_scores(model: Any, X: Any, classes: np.ndarray, size: int) -> np.ndarray:
    """Return the log-probabilities or decision values of one model, (n, C).

    Classes that are missing from its ``size`` training rows get the probability of half a row.
    """
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            output = np.log(np.asarray(model.predict_proba(X), dtype=np.float64))
        missing = np.log(0.5 / max(size, 1))
    elif not hasattr(model, "decision_function"):
        raise ValueError(
            f"estimator must be a classifier with predict_proba or decision_function; got {type(model).__name__}, "
            "which has neither."
        )
    else:
        output = np.asarray(model.decision_function(X), dtype=np.float64)
        if output.ndim == 1:
            output = np.stack([np.zeros_like(output), output], axis=1)
        missing = output.min()
    columns = np.searchsorted(classes, model.classes_)
    if output.shape[1] != len(columns):
        raise ValueError(
            f"{type(model).__name__} must give one score for each of the {len(columns)} classes; got {output.shape[1]} "
            "columns. Use decision_function_shape='ovr' in support vector machines."
        )
    scores = np.full((len(output), len(classes)), missing)
    scores[:, columns] = output
    return scores


def held_out_scores(
    models: Sequence[Any], sizes: Sequence[int], X: Any, splits: Splits, classes: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the mean score of each row by the models that were not trained on it, and the smallest allowed score.

    Rows that every model was trained on have NaN. A probability of 0 becomes half of the smallest positive one, because
    a classifier such as a forest of 100 trees cannot distinguish smaller ones.
    """
    rows = _num_samples(X)
    total, count = np.zeros((rows, len(classes))), np.zeros((rows, 1))
    judged = [(m, n, held) for m, n, (_, held) in zip(models, sizes, splits, strict=True) if len(held)]
    each = [model_scores(m, _safe_indexing(X, held), classes, n) for m, n, held in judged]
    least = min(float(s[np.isfinite(s)].min()) for s in each) - np.log(2)
    for scores, (_, _, held) in zip(each, judged, strict=True):
        total[held] += np.maximum(scores, least)
        count[held] += 1
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0), least


def mean_scores(models: Sequence[Any], sizes: Sequence[int], X: Any, classes: np.ndarray, least: float) -> np.ndarray:
    """Return the models' mean scores of new rows, (n, C); each score counts as at least ``least``."""
    total = np.zeros((_num_samples(X), len(classes)))
    for model, size in zip(models, sizes, strict=True):
        total += np.maximum(model_scores(model, X, classes, size), least) / len(models)
    return total


def advice_for(X: Any, estimator: Any, error: Exception) -> str:
    """Return advice on encoding ``X`` for an estimator whose ``fit`` failed; empty if that would not help.

    It would not help if the estimator accepts all columns as they are, if the error is about a parameter, or if the
    estimator is a pipeline with an encoder.
    """
    name = type(estimator).__name__
    if sparse.issparse(X):
        return f"{name} cannot take this sparse matrix: give X.toarray(), or use calibrant.SelfCalibratedClassifier."
    encoded = any(isinstance(step, TableEncoder) for _, step in getattr(estimator, "steps", []))
    wrong_setting = type(error).__name__ == "InvalidParameterError"  # a private class of scikit-learn
    if encoded or wrong_setting or getattr(X, "ndim", 2) != 2:
        return ""
    if needs_encoder(X):
        content = "columns that are not numeric"
    elif has_fill_values(X):
        content = "sparse columns with a fill value other than 0"
    elif _has_gaps(X) and not (hasattr(estimator, "__sklearn_tags__") and get_tags(estimator).input_tags.allow_nan):
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

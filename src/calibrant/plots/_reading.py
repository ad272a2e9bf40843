"""Reading the input of plots: predictions as for the metrics, or a fitted estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.base.inputs import as_tensor
from calibrant.base.labels import class_columns, class_names


def from_fitted(estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Return (probs, labels) of a fitted classifier, with labels as column numbers of `predict_proba`."""
    probs = predict_proba_of(estimator)(X)
    classes = getattr(estimator, "classes_", None)
    return probs, class_names(y) if classes is None else class_columns(y, classes)


def predict_proba_of(estimator: Any) -> Callable[[Any], Any]:
    """Return the method of that name; an error if there is none."""
    if not hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"estimator must have predict_proba; got {type(estimator).__name__}. "
            "Wrap it in calibrant.posthoc.CalibratedModel, or use from_predictions."
        )
    method: Callable[[Any], Any] = estimator.predict_proba
    return method


def finite_array(values: Any, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return finite `values` as float64 of the given shape (None: any length); an error otherwise."""
    array = as_tensor(values, name).double().cpu().numpy()
    expected = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
    fits = array.ndim == len(shape) and all(size in (None, have) for size, have in zip(shape, array.shape, strict=True))
    if not fits:
        raise ValueError(f"{name} must have shape {expected}; got {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty; got shape {array.shape} instead of {expected}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinite values.")
    return array

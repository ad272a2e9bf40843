"""How the plots read their input: as the metrics do, or from a fitted estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant._inputs import as_tensor, class_columns, class_names


def from_fitted(estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """Return (probs, labels) of a fitted classifier, with labels as column numbers of `predict_proba`."""
    probs = predict_proba_of(estimator)(X)
    classes = getattr(estimator, "classes_", None)
    return probs, class_names(y) if classes is None else class_columns(y, classes)


def predict_proba_of(estimator: Any) -> Callable[[Any], Any]:
    """Return the method of that name, or say what is needed."""
    if not hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"{type(estimator).__name__} has no predict_proba: expected a fitted probabilistic classifier. "
            "Join a calibrator to it with calibrant.posthoc.CalibratedModel, or give its predictions themselves."
        )
    method: Callable[[Any], Any] = estimator.predict_proba
    return method


def finite_array(values: Any, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return `values` as float64 of the given shape (None: any length), all finite; else say what is wrong."""
    array = as_tensor(values, name).double().cpu().numpy()
    wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
    fits = array.ndim == len(shape) and all(size in (None, have) for size, have in zip(shape, array.shape, strict=True))
    if not fits:
        raise ValueError(f"{name} must have shape {wanted}; got {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty: expected shape {wanted}; got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinite values: nothing can be drawn for these.")
    return array


def flags(values: Any, name: str, n: int) -> np.ndarray:
    """Return `values` as n booleans; 0 and 1 are read as such."""
    array = as_tensor(values, name).cpu().numpy()
    if array.shape != (n,):
        raise ValueError(f"{name} must be 1-D with {n} entries, one per sample; got shape {array.shape}.")
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must hold only True/False or 0/1.")
    return array.astype(bool)

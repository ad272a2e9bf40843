"""The reject option of ``predict``: which label stands for "I don't know", and where it goes."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np


def reject(
    predicted: np.ndarray, confidence: np.ndarray, classes: np.ndarray, *, below: float, label: Any
) -> np.ndarray:
    """``predicted``, with ``label`` where ``confidence < below``.

    ``label=None`` chooses one by the kind of the classes: −1 for whole numbers, NaN for other numbers, and None (in an
    array of objects) for text and truth values. A label that is a class raises: rejections could not be told apart.
    """
    if not isinstance(below, Real) or isinstance(below, bool) or not 0 <= below <= 1:
        raise ValueError(f"reject_below must be a confidence between 0 and 1, got {below!r}.")
    chosen = label is None
    if chosen:
        label = {"i": -1, "u": -1, "f": np.nan}.get(classes.dtype.kind)
    if any(label == c for c in classes.tolist()):
        raise ValueError(
            f"reject_label={label!r} is one of the classes, so rejected rows could not be told from that class. "
            + ("Name another with reject_label." if chosen else "Choose a label that is none of classes_.")
        )
    result = predicted.astype(_common_dtype(classes, label))
    result[confidence < below] = label
    return result


def _common_dtype(classes: np.ndarray, label: Any) -> np.dtype:
    """A dtype for classes and label alike: the classes' own kind where the label is of it, else objects."""
    own, other = classes.dtype, np.asarray(label).dtype
    numbers = own.kind in "iuf" and other.kind in "iuf"
    if np.ndim(label) == 0 and (numbers or (own.kind == other.kind and own.kind != "O")):
        return np.result_type(own, other)
    return np.dtype(object)

"""Which rows each fold trains on and holds out: groups, exact copies and scikit-learn's splitters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import check_cv
from sklearn.utils import check_consistent_length, column_or_1d

from calibrant._inputs import shown
from calibrant.data.copies import copy_groups, joined, near_copies, near_copy_groups
from calibrant.methods.crossfit import deal

Splits = tuple[tuple[np.ndarray, np.ndarray], ...]


def group_numbers(groups: Any, X: Any) -> np.ndarray | None:
    """The user's groups as whole numbers, one for each row."""
    if groups is None:
        return None
    groups = column_or_1d(groups)
    check_consistent_length(X, groups)
    found: np.ndarray = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    if found.max() == 0:
        raise ValueError(
            "groups holds one value only, so that no row can be held out while others train; leave it out."
        )
    return found


def dealt_splits(
    X: Any, codes: np.ndarray, number: int, *, seed: int, groups: np.ndarray | None = None
) -> tuple[Splits, np.ndarray | None]:
    """Stratified folds that keep groups and exact copies together, and what they keep together.

    Parameters
    ----------
    X : rows as the user gave them, or encoded
    codes : class indices
    number : how many folds; fewer where there are fewer rows or groups
    groups : one whole number per row, optional

    Returns
    -------
    splits : training rows and held-out rows of each fold
    together : one number for each row, equal for rows of a group and for exact copies; None where there are neither
    """
    together = joined(groups, copy_groups(X))
    folds = deal(torch.as_tensor(codes), number, seed=seed, groups=together)
    return tuple((fold.train.numpy(), fold.held.numpy()) for fold in folds), together


def named_splits(cv: Any, X: Any, y: np.ndarray, groups: Any = None, **params: Any) -> Splits:
    """The splits of a scikit-learn splitter, or of an iterable of them, as they are."""
    if isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        raise ValueError(
            f"cv must be a number of folds, a scikit-learn splitter, or an iterable of (train, test) rows; got {cv!r}."
        )
    splitter = check_cv(cv, y, classifier=True)
    pairs = splitter.split(X, y, **({"groups": groups} if groups is not None else {}), **params)
    found = tuple((np.asarray(train), np.asarray(held)) for train, held in pairs)
    for train, held in found:
        if np.intersect1d(train, held).size:
            raise ValueError(
                "cv gave a fold that trains on rows that it holds out; training and test rows must differ."
            )
    if len(found) < 2:
        raise ValueError(f"cv must give at least two folds; got {len(found)}.")
    return found


def fold_count(cv: Any, name: str = "cv") -> int:
    """A number of folds, at least two."""
    if not isinstance(cv, Integral) or isinstance(cv, bool) or cv < 2:
        raise ValueError(f"{name} must be at least 2 folds; got {shown(cv)}.")
    return int(cv)


def near_groups(values: Any, groups: Any, *, seed: int = 0, stacklevel: int = 3) -> np.ndarray | None:
    """Groups of near copies, with a warning, where many rows have one and nobody said which rows belong together.

    Parameters
    ----------
    values : standardised numbers, (n, d); rows of another kind are not looked at
    groups : the user's, which are taken as they are
    """
    if groups is not None or not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        return None
    values = np.nan_to_num(np.asarray(values, dtype=np.float32))
    suspicion = near_copies(values, seed=seed)
    if suspicion is None or not suspicion.suspicious:
        return None
    found = near_copy_groups(values)
    done = "They are held out together" if found is not None else "The probabilities may be overconfident"
    warnings.warn(
        f"{suspicion.share:.0%} of the rows looked at have a near copy among the others, and {suspicion.expected:.0%} "
        f"would be expected. {done}. If rows belong to one patient, place or recording, pass groups=; if they are "
        "separate samples, pass a splitter as cv=.",
        UserWarning,
        stacklevel=stacklevel,
    )
    return found

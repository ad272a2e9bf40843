"""Folds: training and held-out rows, from groups, exact copies or scikit-learn's splitters."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.model_selection import check_cv
from sklearn.utils import check_consistent_length, column_or_1d

from calibrant.base.settings import shown
from calibrant.base.warning import warn
from calibrant.data.columns.forms import column_names
from calibrant.data.scaling import fit_scaling
from calibrant.data.splits.exact_copies import copy_groups, joined
from calibrant.data.splits.near_copies import near_copies, near_copy_groups
from calibrant.estimators.reading import is_absent
from calibrant.methods.crossfit.folds import deal

Splits = tuple[tuple[np.ndarray, np.ndarray], ...]


def group_numbers(groups: Any, X: Any) -> np.ndarray | None:
    """Return the user's groups as integers, one per row."""
    if groups is None:
        return None
    groups = column_or_1d(groups)
    check_consistent_length(X, groups)
    if absent := sum(map(is_absent, groups.tolist())):
        raise ValueError(
            f"groups must not have missing values; {absent} of its {len(groups)} entries are missing. Give rows "
            "without a group a value of their own."
        )
    numbers: np.ndarray = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    if numbers.max() == 0:
        raise ValueError(
            "groups must hold at least two values, so that some rows can be held out; got only one. Omit groups."
        )
    return numbers


def dealt_splits(
    X: Any, codes: np.ndarray, number: int, *, seed: int, groups: np.ndarray | None = None
) -> tuple[Splits, np.ndarray | None]:
    """Make stratified folds that keep groups and exact copies together.

    Parameters
    ----------
    X : rows as the user gave them, or encoded
    codes : class indices
    number : how many folds; fewer if there are fewer rows or groups
    groups : one integer per row, optional

    Returns
    -------
    splits : training rows and held-out rows of each fold
    together : one number per row, equal for rows of a group and for exact copies; None if there are neither
    """
    together = joined(groups, copy_groups(X))
    folds = deal(torch.as_tensor(codes, device="cpu"), number, seed=seed, groups=together)
    return tuple((fold.train.numpy(), fold.held.numpy()) for fold in folds), together


def named_splits(cv: Any, X: Any, y: np.ndarray, groups: Any = None, *, used: np.ndarray) -> Splits:
    """Return the splits of a scikit-learn splitter or of an iterable, without the rows that are not ``used``.

    Splits that then have no rows to train on or none to hold out are left out.
    """
    if isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        raise ValueError(
            f"cv must be a number of folds, a scikit-learn splitter, or an iterable of (train, test) rows; got {cv!r}."
        )
    splitter = check_cv(cv, y, classifier=True)
    pairs = splitter.split(X, y, **({"groups": groups} if groups is not None else {}))
    splits = [(_row_numbers(train, len(y)), _row_numbers(held, len(y))) for train, held in pairs]
    for train, held in splits:
        if np.intersect1d(train, held).size:
            raise ValueError(
                "cv must give folds whose training and test rows differ; got a fold that trains on rows it holds out."
            )
    splits = [(train[used[train]], held[used[held]]) for train, held in splits]
    splits = [(train, held) for train, held in splits if len(train) and len(held)]
    if len(splits) < 2:
        raise ValueError(
            f"cv must give at least two folds with rows to train on and rows to hold out; got {len(splits)}."
        )
    return tuple(splits)


def _row_numbers(rows: Any, n: int) -> np.ndarray:
    """Return the rows of a fold as numbers; a mask of n truth values selects rows too."""
    fold = np.asarray(rows)
    if fold.dtype == bool and fold.shape == (n,):
        return np.flatnonzero(fold)
    if fold.ndim != 1 or (fold.size and (fold.dtype.kind not in "iu" or fold.min() < 0 or fold.max() >= n)):
        raise ValueError(f"cv must give folds as row numbers from 0 to {n - 1}, or as masks; got {shown(fold)[:80]}.")
    return fold.astype(np.int64)


def fold_count(cv: Any, name: str = "cv") -> int:
    """Check a number of folds, which must be at least two."""
    if not isinstance(cv, Integral) or isinstance(cv, bool) or cv < 2:
        raise ValueError(f"{name} must be at least 2 folds; got {shown(cv)}.")
    return int(cv)


def near_groups(values: Any, groups: Any, *, seed: int = 0) -> np.ndarray | None:
    """Group near copies, with a warning, if many rows have one and the user gave no groups.

    Parameters
    ----------
    values : standardised numbers, (n, d); None is not searched
    groups : the user's groups; if given, nothing is searched
    """
    if groups is not None or values is None:
        return None
    values = np.nan_to_num(np.asarray(values, dtype=np.float32))
    suspicion = near_copies(values, seed=seed)
    if suspicion is None or not suspicion.suspicious:
        return None
    near = near_copy_groups(values)
    done = "They are held out together" if near is not None else "The probabilities may be overconfident"
    warn(
        f"{suspicion.share:.0%} of the inspected rows have a near copy among the other rows; {suspicion.expected:.0%} "
        f"would be expected by chance. {done}. If rows belong to one patient, place or recording, say so with groups= "
        "(--groups on the command line); if they are separate samples, pass a splitter as cv=."
    )
    return near


def standardised(X: Any) -> np.ndarray | None:
    """Return numeric inputs as an array for :func:`near_groups`; None for other inputs."""
    if issparse(X) or column_names(X) is not None or hasattr(X, "iloc"):
        return None
    values = np.asarray(X)
    if values.dtype.kind not in "fiu" or values.ndim != 2 or not np.isfinite(values).all():
        return None
    return fit_scaling(values.astype(np.float64)).apply(values).numpy()

"""Labels, weights and held-out rows, as the classifiers take them from scikit-learn's checks."""

from __future__ import annotations

import hashlib
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight

from calibrant.data.splits import group_folds, split_indices
from calibrant.estimators.scaling import Scaling
from calibrant.methods import Part


class Samples(NamedTuple):
    """Checked rows: raw inputs, column numbers of classes, weights (None where all are equal), numbers of groups."""

    inputs: np.ndarray
    codes: np.ndarray
    weights: np.ndarray | None
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: np.ndarray) -> Samples:
        """Some of the rows."""
        return Samples(*(None if values is None else values[rows] for values in self))  # type: ignore[arg-type]

    def part(self, scaling: Scaling) -> Part:
        """The samples as a method takes them."""
        weights, groups = (None if v is None else torch.from_numpy(v) for v in (self.weights, self.groups))
        return Part(scaling.apply(self.inputs), torch.from_numpy(self.codes), weights, groups=groups)


def as_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray | None:
    """Weights in float64; None where all are equal, which is the same as none at all."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("All sample weights are zero, so there is nothing to learn from: some must be positive.")
    return None if np.all(weights == weights[0]) else weights


def encode(y: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and each row's class as a column number. Rows of positive weight must show two classes or more."""
    classes, codes = np.unique(y, return_inverse=True)
    present = codes if weights is None else codes[weights > 0]
    if np.all(present == present[0]):
        raise ValueError(
            f"y holds one class only, {classes[present[0]]!r} (n_samples={len(present)}"
            + (", not counting rows of weight zero" if len(present) < len(y) else "")
            + "); a classifier needs samples of at least two classes."
        )
    return classes, codes.astype(np.int64)


_PIECES = 20
"""Groups are dealt to so many pieces, some of which are held out."""


def hold_out(
    codes: np.ndarray, share: float, *, seed: int, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation rows: each class in proportion, a rare class in training first, neither part empty.

    With ``groups``, rows of one group are in one part, and proportions are as even as that allows.
    """
    if not isinstance(share, Real) or not 0 < share < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1; got {share!r}.")
    if groups is not None:
        number = min(_PIECES, len(np.unique(groups)))
        apart = group_folds(groups, number, seed=seed, stratify=codes) < min(max(1, round(share * number)), number - 1)
        return np.flatnonzero(~apart), np.flatnonzero(apart)
    held = min(max(1, round(share * len(codes))), len(codes) - 1)
    train, val = split_indices(len(codes), (len(codes) - held, held), seed=seed, stratify=codes)
    return np.sort(train), np.sort(val)


def digest(X: np.ndarray, codes: np.ndarray) -> str:
    """A fingerprint of data, by which they are known again."""
    found = hashlib.blake2b(np.ascontiguousarray(X, dtype=np.float64).data, digest_size=16)
    found.update(np.ascontiguousarray(codes, dtype=np.int64).data)
    return found.hexdigest()

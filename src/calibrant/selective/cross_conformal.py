"""Prediction sets from cross-validation (CV+): every row trains models and judges one; no rows are set aside.

There are K models, each trained without one fold. s_i is the score of y_i by the model trained without row i, and 1 − α
is the requested coverage. A class c is in the set of x if fewer than (1 − α)(n + 1) rows have a lower score than c,
each row compared by its own model (Barber et al. 2021; for classification Romano, Sesia & Candès 2020)::

    C(x) = {c : #{i : s_i < s(x, c; model without i)} < (1 − α)(n + 1)}

**Guarantee.** Suppose that rows are exchangeable, and that all models are trained by one procedure that ignores the
order of its rows and uses nothing that was fitted to all folds. Then with folds of n/K rows ::

    P(y ∈ C(x)) ≥ 1 − 2α − min{2(1 − 1/K)/(n/K + 1), (1 − K/n)/(K + 1)}     (Barber et al. 2021, Theorem 4).

The factor 2 is the price of the worst case. For models that change little when a fold is left out, the coverage is
about 1 − α (Section 5 there).

**With one final classifier.** The mean of the fold models, or one model trained on all rows, can be used with the rule
of `conformal_rule` for the out-of-fold probabilities. A guarantee then needs an assumption, stability: the scores
s(x, y) of the final classifier and of the fold models differ by at most ε, except with a small probability ν. Then
{c : s(x, c) ≤ q + ε} has coverage 1 − α up to a term of order √ν (Section 5 there, for leave-one-out). The command
`python -m studies.guarantees` measures the coverage with q itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.base.inputs import check_probs
from calibrant.base.labels import check_labels, class_names, column_names
from calibrant.base.settings import check_fraction
from calibrant.selective.conformal import (
    Seed,
    blocks,
    check_columns,
    columns_by_class,
    order_statistic,
    plain_set_fields,
    set_fields,
    true_scores,
    with_top,
)
from calibrant.selective.rule import JsonRule
from calibrant.selective.set_scores import SetScore, as_probs, draw, find_score, rank_classes


@dataclass(frozen=True)
class CrossSetRule(JsonRule):
    """Which classes are in a cross-conformal prediction set, from the scores of the true classes of the training rows.

    Each score is computed by the model that was trained without the row; see the module's docstring.

    Attributes
    ----------
    score : SetScore
        The score of classes.
    coverage : float
        1 − α.
    scores, folds, labels : tuples with one entry per row
        For each row the score of its true class, the number 0..K−1 of its fold, and its class.
    n_classes : int
        Number of classes.
    by_class : bool
        Whether each class is compared with rows of that class only.
    allow_empty : bool
        Whether sets may be empty; otherwise they hold at least the most probable class of the mean of the fold models.
    columns : tuple or None
        With `by_class`, the column names of the data frame that the rule was fitted on, if it was one.
    """

    score: SetScore
    coverage: float
    scores: tuple[float, ...]
    folds: tuple[int, ...]
    labels: tuple[int, ...]
    n_classes: int
    by_class: bool = False
    allow_empty: bool = False
    columns: tuple[Any, ...] | None = None

    _FORMAT: ClassVar[str] = "calibrant.cross-set-rule/1"

    @property
    def n_folds(self) -> int:
        """K, the number of folds."""
        return max(self.folds) + 1

    def apply(self, fold_probs: Any, *, seed: Seed = None) -> np.ndarray:
        """Return the sets of new rows: bool, (n, C), from the probabilities of all fold models, (K, n, C).

        `seed` is for randomised scores only. A rule by class that was fitted on a data frame needs the same columns in
        the same order.
        """
        if len(fold_probs) != self.n_folds:
            raise ValueError(f"fold_probs must be of {self.n_folds} models, one for each fold; got {len(fold_probs)}.")
        probs = np.stack([as_probs(check_columns(p, self.n_classes, self.columns)) for p in fold_probs])
        u = draw(self.score, probs.shape[1], seed)
        result = np.empty(probs.shape[1:], dtype=bool)
        for rows in blocks(probs.shape[1:]):
            noise = u[rows, None] if self.score.randomised else 0.0
            beaten = sum(self._beaten(k, self.score(rank_classes(p[rows]), noise)) for k, p in enumerate(probs))
            sets = beaten < self._needed  # count < (1 − α)(n + 1) is count < ⌈…⌉ for whole numbers
            top = rank_classes(probs[:, rows].mean(axis=0)).rank
            result[rows] = sets if self.allow_empty else with_top(sets, top)
        return result

    @cached_property
    def _needed(self) -> np.ndarray:
        """⌈(1 − α)(n + 1)⌉, for all rows or for those of each class."""
        sizes = np.bincount(self.labels, minlength=self.n_classes) if self.by_class else [len(self.scores)]
        return np.array([order_statistic(int(n), self.coverage) for n in sizes])

    @cached_property
    def _sorted(self) -> list[list[np.ndarray]]:
        """Sorted scores of each fold: of all its rows, or by class."""
        scores, folds, labels = np.array(self.scores), np.array(self.folds), np.array(self.labels)
        parts = [labels == c for c in range(self.n_classes)] if self.by_class else [np.ones(len(labels), bool)]
        return [[np.sort(scores[(folds == k) & part]) for part in parts] for k in range(self.n_folds)]

    def _beaten(self, fold: int, scores: np.ndarray) -> np.ndarray:
        """How many rows of a fold have a lower score than each new (row, class)."""
        fold_scores = self._sorted[fold]
        if not self.by_class:
            return np.searchsorted(fold_scores[0], scores)
        return np.stack([np.searchsorted(fold_scores[c], scores[:, c]) for c in range(self.n_classes)], axis=1)

    def _to_fields(self) -> dict[str, Any]:
        return plain_set_fields(self)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        lists = {name: tuple(fields[name]) for name in ("scores", "folds", "labels")}
        return cls(**set_fields(fields) | lists)


def cross_conformal_rule(
    oof_probs: Any,
    labels: Any,
    folds: Any,
    coverage: float = 0.9,
    *,
    score: str | SetScore = "aps",
    by_class: bool = False,
    allow_empty: bool = False,
    seed: Seed = None,
) -> CrossSetRule:
    """Fit prediction sets on out-of-fold probabilities (guarantee in the module's docstring).

    Parameters
    ----------
    oof_probs, labels, folds : arrays or tensors of shape (n, C), (n,) and (n,)
        For each row: its probabilities by the model trained without its fold, (n, C); its class; and the number of its
        fold, 0..K−1, in the order of the models that are given to `apply`.
    coverage, score, by_class, allow_empty, seed
        As in `conformal_rule`.

    Returns
    -------
    CrossSetRule
        ``rule.apply(fold_probs)`` gives the sets of new rows, from the probabilities of all fold models.
    """
    checked = check_probs(oof_probs)
    codes = check_labels(labels, *checked.shape, columns=column_names(oof_probs)).cpu().numpy()
    numbers = class_names(folds, "folds")
    if numbers.shape != codes.shape or numbers.dtype.kind not in "iu" or (len(numbers) and numbers.min() < 0):
        raise ValueError(
            f"folds must hold a whole number from 0 for each of {len(codes)} rows; "
            f"got shape {numbers.shape} of {numbers.dtype}."
        )
    coverage, chosen = check_fraction(coverage, "coverage"), find_score(score)
    values = as_probs(checked)
    scores = true_scores(chosen, values, codes, seed)
    score_of, fold_of, class_of = (tuple(array.tolist()) for array in (scores, numbers, codes))
    columns = columns_by_class(oof_probs, by_class)
    return CrossSetRule(chosen, coverage, score_of, fold_of, class_of, values.shape[1], by_class, allow_empty, columns)

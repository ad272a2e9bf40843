"""Prediction sets that hold the true class with a stated probability: split conformal prediction.

**Guarantee.** Let (x_i, y_i), i = 1..n, and a new (x, y) be exchangeable (for example, independent draws from one
distribution), and let the model not depend on any of them. With s_i the score of y_i, and q the k-th smallest of
s_1..s_n, ::

    k = ⌈(n + 1)·coverage⌉,      C(x) = {c : s(x, c) ≤ q},      P(y ∈ C(x)) ≥ coverage.

*Proof.* The rank of the new score among all n + 1 is uniform, up to ties; s > q needs a rank above k, and
P(rank ≤ k) ≥ k/(n + 1) ≥ coverage. ∎ Without ties the probability is at most coverage + 1/(n + 1). If k > n, then
q = ∞, and all classes are in the set.

The probability is over the sample and the new row together. For one given sample the coverage on new data varies around
it, as Beta(k, n + 1 − k) without ties. With `level`, k is the smallest number with P(Bin(n, coverage) < k) ≥ level.
Then the coverage on new data is at least `coverage` for a share `level` of all samples (Vovk 2012).

**By class** (Mondrian). With `by_class=True` each class has its own q from the rows of that class, and the guarantee
holds for each class: P(y ∈ C(x) | y = c) ≥ coverage. A class with fewer than about 1/(1 − coverage) rows is in every
set.

**Empty sets.** By default a row whose set would be empty gets its most probable class. That can only raise the
coverage. `allow_empty=True` leaves such sets empty; they mark rows that fit no class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import binom

from calibrant.base.inputs import Logits, as_tensor, check_probs
from calibrant.base.labels import check_labels, column_names
from calibrant.base.settings import check_fraction
from calibrant.base.words import listed
from calibrant.selective.rule import JsonRule, plain_number
from calibrant.selective.set_scores import (
    SetScore,
    as_probs,
    draw,
    find_score,
    rank_classes,
    score_from_dict,
    score_to_dict,
)

_ENTRIES_AT_ONCE = 2**22
Seed = int | np.random.Generator | None


@dataclass(frozen=True)
class SetRule(JsonRule):
    """Which classes are in a prediction set: those with a score of at most `quantile`.

    Attributes
    ----------
    score : SetScore
        The score of classes, see `calibrant.selective.set_scores`.
    coverage, level : float, and float or None
        The requested coverage, and the probability of reaching it; None if it holds on average over samples.
    quantile : tuple of float
        q: one number, or one for each class with `by_class`; inf puts a class into all sets.
    n, n_classes : int
        Number of rows that the rule was fitted on, and number of classes.
    by_class : bool
        Whether the coverage holds for each class separately.
    allow_empty : bool
        Whether sets may be empty; otherwise they hold at least the most probable class.
    columns : tuple or None
        With `by_class`, the column names of the data frame that the rule was fitted on, if it was one.
    """

    score: SetScore
    coverage: float
    quantile: tuple[float, ...]
    n: int
    n_classes: int
    level: float | None = None
    by_class: bool = False
    allow_empty: bool = False
    columns: tuple[Any, ...] | None = None

    _FORMAT: ClassVar[str] = "calibrant.set-rule/1"

    def apply(self, probs: Any, *, seed: Seed = None) -> np.ndarray:
        """Return the sets of new rows: bool, (n, C), True where the class belongs to the row's set.

        `seed` is for randomised scores only. A rule by class that was fitted on a data frame needs the same columns in
        the same order.
        """
        probs = as_probs(check_columns(probs, self.n_classes, self.columns))
        u = draw(self.score, len(probs), seed)
        result = np.empty(probs.shape, dtype=bool)
        for rows in blocks(probs.shape):
            classes = rank_classes(probs[rows])
            sets = self.score(classes, u[rows, None] if self.score.randomised else 0.0) <= self.quantile
            result[rows] = sets if self.allow_empty else with_top(sets, classes.rank)
        return result

    def summary(self) -> str:
        """Describe the rule in one or two sentences."""
        reach = f"with confidence {self.level:g}" if self.level is not None else "on average"
        per_class = " of each class" if self.by_class else ""
        text = (
            f"Prediction sets that hold the true class for {self.coverage:.1%} of new rows{per_class} {reach} "
            f"({self.score.name}, fitted on {self.n} rows)."
        )
        full = sum(map(math.isinf, self.quantile))
        if full:
            classes = "All classes are" if full == len(self.quantile) else f"{full} of {self.n_classes} classes are"
            text += f" {classes} in every set: there are too few rows to leave them out."
        return text

    __str__ = summary

    def _to_fields(self) -> dict[str, Any]:
        return plain_set_fields(self) | {"quantile": [plain_number(q) for q in self.quantile]}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**set_fields(fields) | {"quantile": tuple(map(float, fields["quantile"]))})


def conformal_rule(
    probs: Any,
    labels: Any,
    coverage: float = 0.9,
    *,
    score: str | SetScore = "aps",
    level: float | None = None,
    by_class: bool = False,
    allow_empty: bool = False,
    seed: Seed = None,
) -> SetRule:
    """Fit prediction sets on a sample that the model has not seen (guarantee and proof in the module's docstring).

    Parameters
    ----------
    probs, labels : arrays or tensors of shape (n, C) and (n,)
        Class probabilities (n, C) and true classes (n,) of rows that were not used to train or calibrate the model.
    coverage : float
        The probability with which a set must hold the true class.
    score : str or SetScore
        "lac", "aps", "raps", or a value such as `RAPS(k_reg=2, penalty=0.1)` or `APS(randomised=True)`.
    level : float, optional
        Reach the coverage with this probability over samples, instead of on average.
    by_class : bool
        Reach the coverage within each class.
    allow_empty : bool
        Leave a set empty if no class fits.
    seed : int, optional
        For randomised scores only.

    Returns
    -------
    SetRule
        ``rule.apply(probs)`` gives the sets of new rows.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.selective import conformal_rule
    >>> probs = np.random.default_rng(0).dirichlet([1, 1, 1], size=500)
    >>> labels = np.array([np.random.default_rng(k).choice(3, p=p) for k, p in enumerate(probs)])
    >>> rule = conformal_rule(probs[:400], labels[:400], coverage=0.9)
    >>> sets = rule.apply(probs[400:])
    >>> sets.shape, bool(sets[np.arange(100), labels[400:]].mean() > 0.8)
    ((100, 3), True)
    """
    checked = check_probs(probs)
    codes = check_labels(labels, *checked.shape, columns=column_names(probs)).cpu().numpy()
    values = as_probs(checked)
    coverage, chosen = check_fraction(coverage, "coverage"), find_score(score)
    level = None if level is None else check_fraction(level, "level")
    scores, n_classes = true_scores(chosen, values, codes, seed), values.shape[1]
    groups = [scores[codes == c] for c in range(n_classes)] if by_class else [scores]
    quantile = tuple(conformal_quantile(group_scores, coverage, level) for group_scores in groups)
    columns = columns_by_class(probs, by_class)
    return SetRule(chosen, coverage, quantile, len(codes), n_classes, level, by_class, allow_empty, columns)


def true_scores(score: SetScore, probs: np.ndarray, labels: np.ndarray, seed: Seed) -> np.ndarray:
    """The score of each row's true class."""
    u = draw(score, len(labels), seed)
    parts = [
        score(rank_classes(probs[rows]).at(labels[rows]), u[rows] if score.randomised else u)
        for rows in blocks(probs.shape)
    ]
    return np.concatenate(parts)


def conformal_quantile(scores: np.ndarray, coverage: float, level: float | None = None) -> float:
    """Return the k-th smallest score, with k as in the module's docstring; inf if k exceeds their number."""
    k = order_statistic(len(scores), coverage, level)
    return float(np.partition(scores, k - 1)[k - 1]) if k <= len(scores) else math.inf


def order_statistic(n: int, coverage: float, level: float | None = None) -> int:
    """Return k: the smallest number for which the k-th smallest of n scores gives the coverage."""
    if level is None:
        return math.ceil((n + 1) * coverage * (1 - 1e-12))  # 0.7·10 must give 7 despite rounding
    return int(binom.ppf(level, n, coverage)) + 1


def with_top(sets: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Put the most probable class into sets that are empty."""
    return sets | (~sets.any(axis=1, keepdims=True) & (rank == 1))


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Divide rows into blocks, so that sorting needs little memory."""
    size = _ENTRIES_AT_ONCE // shape[1] + 1
    for start in range(0, shape[0], size):
        yield slice(start, start + size)


def plain_set_fields(rule: Any) -> dict[str, Any]:
    """The fields of a set rule as plain values."""
    return asdict(rule) | {"score": score_to_dict(rule.score)}


def set_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a set rule from JSON, with its score and the names of columns as values."""
    columns = fields["columns"]
    return fields | {"score": score_from_dict(fields["score"]), "columns": None if columns is None else tuple(columns)}


def check_columns(probs: Any, n_classes: int, columns: Sequence[Any] | None = None) -> Any:
    """Return `probs`; an error for another number of columns, or for a data frame without these columns in order."""
    values = probs.values if isinstance(probs, Logits) else probs
    shape = as_tensor(values, "probs").shape
    if len(shape) == 2 and shape[1] != n_classes:
        raise ValueError(
            f"probs must have {n_classes} columns, one for each class that the rule was fitted with; got {shape[1]}."
        )
    names = column_names(probs)
    # Names of another type, such as the numbers of a frame made from an array, are not the names of classes.
    if columns and names and type(names[0]) is type(columns[0]) and names != list(columns):
        raise ValueError(
            f"probs must have the columns {listed(columns)} in this order, because the rule has a limit for each "
            f"class; got {listed(names)}. Select the columns in the order of the rule first."
        )
    return probs


def columns_by_class(probs: Any, by_class: bool) -> tuple[Any, ...] | None:
    """The names of a data frame's columns, which a rule by class must find again; None for a rule of all classes."""
    names = column_names(probs) if by_class else None
    return None if names is None else tuple(names)

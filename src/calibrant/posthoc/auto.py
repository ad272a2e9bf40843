"""Choosing a calibrator by cross-validated log-loss, or none if none is clearly better."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.posthoc._base import Calibrator, Floats
from calibrant.posthoc._comparison import RAW, Row, choose, format_rows, pattern_left, table_rows
from calibrant.posthoc.registry import CALIBRATORS, make_calibrator

# Second stages: they keep the class and change the confidence.
_CONFIDENCE = ("temperature", "ensemble-temperature", "order-preserving-isotonic", "isotonic-confidence")
# Calibrators that are fitted only if the others leave a pattern in the errors, because fitting takes long.
_EXPENSIVE = ("neural",)
# Number of the best single calibrators that get a second stage.
_FIRST_STAGES = 3
# The smallest normal number; zeros are replaced by it before logarithms are taken.
_TINY = np.finfo(float).tiny


class Auto(Calibrator):
    """Choose a calibrator by cross-validated log-loss, among all of them, pairs of them, and the raw scores.

    Every calibrator of `CALIBRATORS` is fitted on all folds but one and scored on the remaining fold. "neural", which
    takes the longest, is fitted only if the held-out errors of the best other calibrator still depend on the
    log-probabilities, by a score test at the level of about 4 %. The three best,
    and temperature scaling, are then tried with a second stage on the confidence. It is fitted on predictions of the
    first stage for rows that the first stage did not see. Let d be the paired difference of two log-losses per row, and
    s its standard error.

    1. The raw scores stay unless the best candidate is better by more than ``margin`` · s. The best of thirty
       candidates looks better than it is, so this rule protects models that are already calibrated.
    2. Otherwise the choice is the simplest candidate that is within one s of the best and is itself better than the raw
       scores by more than ``margin`` · s. (This is the one-standard-error rule of Breiman, Friedman, Olshen and Stone
       1984, with the paired s, which is smaller than that of the losses themselves.)

    The chosen stages are then fitted to all rows.

    Parameters
    ----------
    candidates : sequence of str, optional
        Names of the calibrators to compare; None for all.
    stages : {1, 2}
        1 for single calibrators only, 2 for pairs as well.
    folds : int
        Number of folds. With fewer than 4 rows per fold nothing is compared, and the raw scores stay.
    margin : float
        By how many standard errors a calibrator must be better than the raw scores.
    random_state : int
        Seed of the folds.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    stages_ : list
        The fitted calibrators, applied in this order; empty if the raw scores stay.
    choice_ : str
        The name of the choice, such as "raw", "temperature" or "matrix, isotonic-confidence".
    comparison_ : list of dict
        One dict per candidate, best first: name, nll, difference to the raw scores, standard_error of that difference,
        seconds, chosen, note. `summary` returns it as text.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.posthoc import Auto
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> Auto(candidates=["temperature", "vector"]).fit(3 * logits, labels).choice_
    'temperature'
    """

    can_change_prediction = True
    can_fall_below_chance = True

    def __init__(
        self,
        candidates: Sequence[str] | None = None,
        stages: int = 2,
        folds: int = 5,
        margin: float = 2.0,
        random_state: int = 0,
        *,
        from_probs: bool = False,
    ) -> None:
        self.candidates = candidates
        self.stages = stages
        self.folds = folds
        self.margin = margin
        self.random_state = random_state
        self.from_probs = from_probs

    def summary(self) -> str:
        """Return the comparison as a text table."""
        check_is_fitted(self)
        return format_rows(self.comparison_, self.margin)

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        names = self._check()
        self.stages_: list[Calibrator] = []
        if len(labels) < 4 * self.folds:
            note = f"fewer than {4 * self.folds} rows: too few to compare"
            rows = [Row(RAW, (), -scores[np.arange(len(labels)), labels], 0.0, note)]
        else:
            rows = self._compare(names, scores, labels, weights)
        chosen = choose(rows, weights, self.margin)
        self.choice_ = chosen.name
        self.comparison_ = table_rows(rows, weights, chosen.name)
        if chosen.stages:
            first = self._fitted(chosen.stages[0], scores, labels, weights)
            self.stages_ = [first]
            for name in chosen.stages[1:]:
                assert chosen.first_scores is not None
                self.stages_.append(self._fitted(name, chosen.first_scores, labels, weights))

    def _check(self) -> list[str]:
        if isinstance(self.candidates, str):
            raise ValueError(
                f"candidates must be a list; got the text {self.candidates!r}. Pass [{self.candidates!r}]."
            )
        names = list(CALIBRATORS) if self.candidates is None else list(self.candidates)
        for name in names:
            make_calibrator(name)  # an unknown name raises an error that lists the names
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        if self.stages not in (1, 2):
            raise ValueError(f"stages must be 1 or 2; got {self.stages}.")
        if not (np.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"margin must be a finite number, 0 or above; got {self.margin}.")
        return names

    def _compare(self, names: Sequence[str], scores: Floats, labels: np.ndarray, weights: Floats) -> list[Row]:
        fold = _stratified_folds(labels, self.folds, self.random_state)
        rows = [Row(RAW, (), -scores[np.arange(len(labels)), labels], 0.0, "", scores)]
        for name in sorted(names, key=_EXPENSIVE.__contains__):
            if name in _EXPENSIVE:
                best = min(rows, key=lambda row: row.mean(weights)).scores
                if best is not None and not pattern_left(best, labels, weights, self.random_state):
                    rows.append(Row(name, (name,), None, 0.0, "not tried: the errors of the best have no pattern"))
                    continue
            rows.append(self._score((name,), name, scores, labels, weights, fold))
        if self.stages == 1:
            return rows
        single = sorted((row for row in rows[1:] if row.usable), key=lambda row: row.mean(weights))
        first_stages = [row for i, row in enumerate(single) if i < _FIRST_STAGES or row.name == "temperature"]
        for first in first_stages:
            for second in _CONFIDENCE:
                if second in names and second != first.name and first.scores is not None:
                    stages = (first.name, second)
                    rows.append(self._score(stages, second, first.scores, labels, weights, fold))
        return rows

    def _score(
        self, stages: tuple[str, ...], name: str, scores: Floats, labels: np.ndarray, weights: Floats, fold: np.ndarray
    ) -> Row:
        """Log-loss of each row under a calibrator that was fitted without the row's fold."""
        begin = time.perf_counter()
        out = np.empty_like(scores)
        shared: dict[str, Any] = {}
        try:
            for k in range(self.folds):
                inside, outside = fold != k, fold == k
                calibrator = self._fitted(name, scores[inside], labels[inside], weights[inside], **shared)
                if hasattr(calibrator, "odir_"):
                    shared = {"odir": calibrator.odir_}  # one strength for all folds, since the search is slow
                out[outside] = _log(calibrator.predict_proba(scores[outside]))
        except ValueError as error:
            return Row(", ".join(stages), stages, None, time.perf_counter() - begin, str(error))
        losses = -out[np.arange(len(labels)), labels]
        first_scores = scores if len(stages) == 2 else None
        return Row(", ".join(stages), stages, losses, time.perf_counter() - begin, "", out, first_scores)

    @staticmethod
    def _fitted(name: str, scores: Floats, labels: np.ndarray, weights: Floats, **params: Any) -> Calibrator:
        with warnings.catch_warnings():
            # The held-out loss shows whether a candidate failed to converge.
            warnings.simplefilter("ignore")
            return make_calibrator(name, **params).fit(scores, labels, weights)

    def _answer(self, scores: Floats, top: np.ndarray) -> tuple[np.ndarray, Floats]:
        probs = np.exp(scores)
        for stage in self.stages_:
            top, probs = stage._top_and_probs(scores)
            top, scores = stage._decide(top, probs), _log(probs)
        return top, probs

    def _decide(self, top: np.ndarray, probs: Floats) -> np.ndarray:
        # The last stage may keep a class although another has a larger probability.
        return top


def _log(probs: Floats) -> Floats:
    return np.log(np.maximum(probs, _TINY))


def _stratified_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row; every class, even a rare one, is spread as evenly as possible."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(len(labels), dtype=int)
    fold[order] = np.arange(len(labels)) % folds
    return fold

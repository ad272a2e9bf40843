"""The base classes of all calibrators, and of those that map each class against the others."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from calibrant.base.classes import logsumexp_of_others
from calibrant.base.inputs import Logits, check_logits, check_probs, check_weights, like, two_columns
from calibrant.base.labels import check_labels, column_names, encode_names
from calibrant.base.words import listed

Floats = np.ndarray
Map: TypeAlias = dict[str, np.ndarray]

# A logit this far below the top has a probability of exactly 0 in float64.
_UNDERFLOW_GAP = 745.0
# A logit with probability 0 that is this many times further from the top than any other logit is a mask, not a score.
_MASK_RATIO = 100.0
# Squares of larger numbers come close to the limit of float64.
_LARGEST_GAP = 1e100


class Calibrator(ClassifierMixin, BaseEstimator):
    """A map from the logits of a trained model to calibrated probabilities.

    A subclass defines ``_fit(scores, labels, weights)`` and ``_predict(scores)``. Both receive finite log-probabilities
    in float64, one row per sample. Logits matter only up to a constant per row, so the log-softmax loses nothing, and
    logits and probabilities of a model give the same calibration. Every calibrator has the parameter ``from_probs``:
    True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    An exact zero (a logit of -inf, a probability of 0) has no logarithm. It is replaced by half the smallest ratio to
    the top class in the calibration set, and by at most ``1 / (2 (n + 1))``, which n samples can resolve. Numbers that
    represent -inf in masked logits (-1e9, the least float32) are read as -inf. These are logits whose probability is
    exactly 0 in float64 and that lie 100 times further below the top of their row than any other logit of the
    calibration set.

    Attributes
    ----------
    can_change_prediction : bool
        Whether ``predict`` may differ from the class that the logits rank first (the first one, if several are equal).
        It is the same for all objects of a class.
    can_fall_below_chance : bool
        Whether ``confidence``, the probability of the class that ``predict`` returns, may be below 1/C. This happens
        only if the class is kept although its probability is no longer the largest.
    """

    can_change_prediction: ClassVar[bool] = True
    can_fall_below_chance: ClassVar[bool] = False

    def __init__(self, *, from_probs: bool = False) -> None:
        self.from_probs = from_probs

    def fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Fit on held-out predictions.

        Parameters
        ----------
        logits : array or tensor of shape (n, C) or (n,)
            Logits of C ≥ 2 classes; probabilities if the calibrator was made with ``from_probs=True``. For two classes
            also (n,): the logit, or the probability, of class 1.
        labels : array or tensor of shape (n,)
            Integers, the column of the true class; or text that names every class. Columns are then in the sorted order
            of the names. If ``logits`` is a data frame whose columns have the labels as names, text or integers, these
            are matched by name. ``predict`` returns names.
        sample_weight : array or tensor of shape (n,), optional
            Weights, not negative; an integer weight counts as that many equal rows.
        """
        raw, top = self._raw(logits)
        n, n_classes = raw.shape
        if n_classes < 2:
            raise ValueError(
                "logits must have at least two columns, one per class; got one. Give one binary logit per row as a "
                "1-D array: logits[:, 0]."
            )
        columns = column_names(logits)
        labels, names = encode_names(labels, n_classes, columns)
        y = check_labels(labels, n, n_classes).cpu().numpy()
        if sample_weight is None:
            weights = np.ones(n)
        else:
            weights = check_weights(sample_weight, n).cpu().numpy()
        rows = weights > 0  # rows of weight zero must not move bin edges or splits
        raw, top, y, weights = raw[rows], top[rows], y[rows], weights[rows]
        self.classes_ = np.arange(n_classes) if names is None else names
        self.n_features_in_ = n_classes
        if columns is not None:
            self.feature_names_in_ = np.array(columns)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.mask_gap_ = _mask_gap(raw)
        raw = _unmask(raw, self.mask_gap_)
        self.zero_gap_ = _zero_gap(raw)
        self._fit(_finite_log_probs(raw, top, self.zero_gap_), y, weights)
        return self

    def predict_proba(self, logits: Any) -> Any:
        """Calibrated probabilities in float64, (n, C): an array for an array, a tensor for a tensor."""
        return self._like(torch.from_numpy(self._top_and_probs(logits)[1]), logits)

    def predict(self, logits: Any) -> Any:
        """The class of each row; the model's own class where ``can_change_prediction`` is False."""
        top, probs = self._top_and_probs(logits)
        chosen = self.classes_[self._decide(top, probs)]
        return self._like(torch.from_numpy(chosen), logits) if chosen.dtype.kind in "iu" else chosen

    def confidence(self, logits: Any) -> Any:
        """The probability of the class that ``predict`` returns."""
        top, probs = self._top_and_probs(logits)
        predicted = self._decide(top, probs)
        return self._like(torch.from_numpy(probs[np.arange(len(probs)), predicted]), logits)

    def _top_and_probs(self, logits: Any) -> tuple[np.ndarray, Floats]:
        check_is_fitted(self)
        raw, top = self._raw(self._in_order(logits))
        if raw.shape[1] != self.n_features_in_:
            raise ValueError(
                f"logits must have {self.n_features_in_} columns, as in fit of {type(self).__name__}; got "
                f"{raw.shape[1]}. Use the model that it was fitted for, or fit it again."
            )
        return self._answer(_finite_log_probs(_unmask(raw, self.mask_gap_), top, self.zero_gap_), top)

    def _in_order(self, logits: Any) -> Any:
        """The columns of a data frame in the order of ``fit``."""
        expected, names = getattr(self, "feature_names_in_", None), column_names(logits)
        if expected is None or names is None or np.array(names).dtype.kind != np.asarray(expected).dtype.kind:
            return logits
        if sorted(names) != sorted(expected):
            raise ValueError(f"logits must have the columns {listed(expected)}, as in fit; got {listed(names)}.")
        values = logits.values if isinstance(logits, Logits) else logits
        return np.asarray(values)[:, [names.index(name) for name in expected]]

    def _answer(self, scores: Floats, top: np.ndarray) -> tuple[np.ndarray, Floats]:
        """The input of `_decide`, and the calibrated probabilities."""
        probs = self._predict(scores)
        if not (self.can_change_prediction or self.can_fall_below_chance):
            probs = _keep_top(probs, top)
        return top, probs

    def _decide(self, top: np.ndarray, probs: Floats) -> np.ndarray:
        return probs.argmax(axis=1) if self.can_change_prediction else top

    def _raw(self, logits: Any) -> tuple[Floats, np.ndarray]:
        """The input as log scores in float64, -inf for an exact zero, and the class that it ranks first."""
        scores = two_columns(logits, logits=not self.from_probs)
        checked = check_probs(scores) if self.from_probs else check_logits(scores)
        values = checked.double().cpu().numpy()
        top = values.argmax(axis=1)
        if self.from_probs:
            with np.errstate(divide="ignore"):
                values = np.log(values)
        return values, top

    @staticmethod
    def _like(result: torch.Tensor, logits: Any) -> Any:
        values = logits.values if isinstance(logits, Logits) else logits
        return like(result.to(values.device) if isinstance(values, torch.Tensor) else result, values)

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        raise NotImplementedError

    def _predict(self, scores: Floats) -> Floats:
        raise NotImplementedError


def _mask_gap(raw: Floats) -> float:
    """Distance to the top of a row, in nats, beyond which a logit is a mask."""
    gaps = raw.max(axis=1, keepdims=True) - raw
    large_gaps = np.sort(gaps[np.isfinite(gaps) & (gaps > _UNDERFLOW_GAP)])
    before = np.concatenate([[gaps[gaps <= _UNDERFLOW_GAP].max()], large_gaps])
    jumps = np.flatnonzero((before[:-1] > 0) & (before[:-1] <= large_gaps / _MASK_RATIO))
    largest = before[jumps[0] if len(jumps) else -1]
    if largest > _LARGEST_GAP:
        raise ValueError(
            f"logits must differ by less than {_LARGEST_GAP:.0e} within a row; got {largest:.1e}. "
            "Divide them by their scale, or use -inf for classes that are ruled out."
        )
    return float(max(_MASK_RATIO * largest, _UNDERFLOW_GAP))


def _unmask(raw: Floats, mask_gap: float) -> Floats:
    """Replace every mask by -inf."""
    masked = raw.max(axis=1, keepdims=True) - raw >= mask_gap
    return np.where(masked, -np.inf, raw) if masked.any() else raw


def _zero_gap(raw: Floats) -> float:
    """Distance, in nats, at which an exact zero is placed below the top of its row."""
    gaps = raw.max(axis=1, keepdims=True) - raw
    largest = gaps[np.isfinite(gaps)].max()
    return float(max(largest, np.log(len(raw) + 1)) + np.log(2))


def _finite_log_probs(raw: Floats, top: np.ndarray, zero_gap: float) -> Floats:
    """Log-softmax of each row, with -inf moved to `zero_gap` below the top and never above another entry."""
    zero = np.isneginf(raw)
    if zero.any():
        highest = raw.max(axis=1, keepdims=True)
        lowest = np.where(zero, np.inf, raw).min(axis=1, keepdims=True)
        raw = np.where(zero, np.minimum(highest - zero_gap, lowest), raw)
    scores = log_softmax(raw, axis=1)
    # Rounding can make different inputs equal: the class that the input ranks first stays first.
    reordered = np.flatnonzero(scores.argmax(axis=1) != top)
    scores[reordered, top[reordered]] = np.nextafter(scores[reordered].max(axis=1), 0.0)
    return scores


def _keep_top(probs: Floats, top: np.ndarray) -> Floats:
    """Undo rounding that put another class above `top` by swapping the two values."""
    rows = np.flatnonzero(probs[np.arange(len(probs)), top] < probs.max(axis=1))
    if len(rows):
        probs = probs.copy()
        best = probs[rows].argmax(axis=1)
        probs[rows, best], probs[rows, top[rows]] = probs[rows, top[rows]], probs[rows, best]
    return probs


def normalise(probs: Floats) -> Floats:
    """Divide rows by their sum; a row of zeros carries no information and becomes uniform."""
    total = probs.sum(axis=1, keepdims=True)
    return np.where(total > 0, probs / np.where(total > 0, total, 1.0), 1.0 / probs.shape[1])


def mix_uniform(probs: Floats, n: float) -> Floats:
    """Mix probabilities with one uniform sample, as in the rule of succession: (n p + 1/C)/(n + 1).

    It keeps the ranking. The log-loss of maps that are estimated by counting becomes finite.
    """
    return (n * probs + 1.0 / probs.shape[1]) / (n + 1.0)


def log_complement(log_p: Floats) -> Floats:
    """log(1 - p) for rows of log-probabilities; accurate even if p rounds to 1."""
    result: Floats = logsumexp_of_others(torch.from_numpy(log_p)).numpy()
    return result


def log_odds(log_p: Floats) -> Floats:
    """log(p / (1 - p)) of every class against all the others, without cancellation."""
    return log_p - log_complement(log_p)


def check_strength(name: str, value: float) -> None:
    """Raise an error for a strength that is negative or not finite."""
    if not (np.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number, 0 or above; got {value}.")


class OneVsRest(Calibrator):
    """Fit a map for each class against the others, and divide by the sum (Zadrozny and Elkan, KDD 2002).

    With two classes there is one map, for class 1, and class 0 gets the rest; nothing is normalised. A subclass defines
    ``_fit_map`` and ``_apply_map`` for one column of scores. By default these are the log-odds of the class, which stay
    distinct even if p rounds to 1.
    """

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        columns = self._columns(scores)
        self.maps_ = [
            self._fit_map(columns[:, k], (labels == k).astype(float), weights) for k in _mapped_classes(scores.shape[1])
        ]

    def _predict(self, scores: Floats) -> Floats:
        columns = self._columns(scores)
        classes = _mapped_classes(scores.shape[1])
        mapped = [self._apply_map(m, columns[:, k]) for m, k in zip(self.maps_, classes, strict=True)]
        if len(mapped) == 1:
            return np.column_stack([1.0 - mapped[0], mapped[0]])
        return normalise(np.column_stack(mapped))

    def _columns(self, scores: Floats) -> Floats:
        return log_odds(scores)

    def _fit_map(self, column: Floats, target: Floats, weights: Floats) -> Map:
        raise NotImplementedError

    def _apply_map(self, fitted: Map, column: Floats) -> Floats:
        raise NotImplementedError


def _mapped_classes(n_classes: int) -> list[int]:
    return [1] if n_classes == 2 else list(range(n_classes))

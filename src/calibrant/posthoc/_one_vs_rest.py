"""One binary map per class, joined into a probability vector."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from calibrant.base.warning import warn
from calibrant.posthoc._base import Calibrator, Floats, normalise
from calibrant.posthoc._odds import log_odds

Map: TypeAlias = dict[str, np.ndarray]


class OneVsRest(Calibrator):
    """Fit a map for each class against the others, and divide by the sum (Zadrozny and Elkan, KDD 2002).

    With two classes there is one map, for class 1, and class 0 gets the rest; nothing is normalised. A subclass defines
    ``_fit_map`` and ``_apply_map`` for one column of scores. By default these are the log-odds of the class, which stay
    distinct even if p rounds to 1.
    """

    can_change_prediction = True
    can_fall_below_chance = False

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


def platt_scores(scores: Floats) -> Floats:
    """The input of Platt scaling: log-odds for two classes, log-probabilities for more."""
    return log_odds(scores) if scores.shape[1] == 2 else scores


def fit_platt(column: Floats, target: Floats, weights: Floats) -> Floats:
    """(a, b) of σ(a s + b), by the log-loss against Platt's targets.

    Platt ("Probabilistic Outputs for Support Vector Machines", 1999) replaces the labels 1 and 0 by (N₊ +
    1)/(N₊ + 2) and 1/(N₋ + 2). The optimum is then finite even if the classes are separated or one of them is absent.
    """
    positives, total = float(weights @ target), float(weights.sum())
    soft = np.where(target > 0, (positives + 1) / (positives + 2), 1 / (total - positives + 2))
    share = weights / total
    scale = float(np.sqrt(share @ column**2)) or 1.0
    design = np.column_stack([column / scale, np.ones_like(column)])

    def loss(c: Floats) -> tuple[float, Floats]:
        eta = design @ c
        value = share @ (np.logaddexp(0.0, eta) - soft * eta)
        return float(value), design.T @ (share * (expit(eta) - soft))

    options = {"maxiter": 1000, "ftol": 0.0, "gtol": 1e-9}
    optimum = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", options=options)
    gradient = np.abs(loss(optimum.x)[1]).max()
    if gradient > 1e-6:
        warn(
            f"Platt scaling did not converge: the largest entry of the gradient is {gradient:.1e} instead of at "
            "most 1e-06. Use more calibration samples.",
            ConvergenceWarning,
        )
    return optimum.x / np.array([scale, 1.0])

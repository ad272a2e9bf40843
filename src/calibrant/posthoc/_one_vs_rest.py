"""One binary map per class, joined into a probability vector."""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from calibrant.posthoc._base import Calibrator, Floats, normalise
from calibrant.posthoc._odds import log_odds

Map: TypeAlias = dict[str, np.ndarray]


class OneVsRest(Calibrator):
    """Fit a map for each class against the others, and divide by the sum (Zadrozny and Elkan, KDD 2002).

    With two classes there is one map, for class 1, and class 0 gets the rest: nothing is normalised. A
    subclass writes ``_fit_map`` and ``_apply_map`` on the log-odds of the class, log p/(1-p), which keep
    apart what p rounds to 1.
    """

    can_change_prediction = True
    can_fall_below_chance = False

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        odds = log_odds(scores)
        self.maps_ = [
            self._fit_map(odds[:, k], (labels == k).astype(float), weights)
            for k in _mapped_classes(scores.shape[1])
        ]

    def _predict(self, scores: Floats) -> Floats:
        odds = log_odds(scores)
        classes = _mapped_classes(scores.shape[1])
        columns = [self._apply_map(m, odds[:, k]) for m, k in zip(self.maps_, classes, strict=True)]
        return join(columns)

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        raise NotImplementedError

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        raise NotImplementedError


def _mapped_classes(n_classes: int) -> list[int]:
    return [1] if n_classes == 2 else list(range(n_classes))


def join(columns: list[Floats]) -> Floats:
    """Probabilities from one column per class, or from that of class 1 alone."""
    if len(columns) == 1:
        return np.column_stack([1.0 - columns[0], columns[0]])
    return normalise(np.column_stack(columns))


def fit_logistic(
    features: Floats, target: Floats, weights: Floats, lower: tuple[float | None, ...], name: str
) -> Floats:
    """Coefficients of σ(features @ c) with c ≥ lower, by the log-loss against Platt's targets.

    Platt ("Probabilistic Outputs for Support Vector Machines", 1999) replaces the labels 1 and 0 by (N₊ +
    1)/(N₊ + 2) and 1/(N₋ + 2): the optimum stays finite where the classes are separated or one of them is
    absent.
    """
    positives, total = float(weights @ target), float(weights.sum())
    soft = np.where(target > 0, (positives + 1) / (positives + 2), 1 / (total - positives + 2))
    share = weights / total
    scale = np.sqrt(share @ features**2)
    scale[scale == 0] = 1.0
    design = features / scale
    bounds = [(None if low is None else low * s, None) for low, s in zip(lower, scale, strict=True)]

    def loss(c: Floats) -> tuple[float, Floats]:
        eta = design @ c
        value = share @ (np.logaddexp(0.0, eta) - soft * eta)
        return float(value), design.T @ (share * (expit(eta) - soft))

    start = np.array([0.0 if low is None else max(low, 0.0) for low, _ in bounds])
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 1000, "ftol": 0.0, "gtol": 1e-9},
    )
    c = found.x
    gradient = loss(c)[1]
    at_bound = np.array([low is not None and x <= low for x, (low, _) in zip(c, bounds, strict=True)])
    # At a bound only a gradient that points inwards is a failure.
    residual = np.abs(np.where(at_bound, np.minimum(gradient, 0.0), gradient)).max()
    if residual > 1e-5:
        warnings.warn(
            f"{name} did not converge: the largest entry of the gradient is {residual:.1e}, expected at most "
            "1e-05. Use more calibration samples.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return c / scale

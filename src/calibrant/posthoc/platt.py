"""Parametric maps of one score: Platt scaling and beta calibration."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from calibrant.posthoc._base import Floats
from calibrant.posthoc._one_vs_rest import Map, OneVsRest, fit_logistic


class Platt(OneVsRest):
    """Platt scaling: p = σ(a s + b) for each class against the rest, with s its log-odds.

    Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood
    Methods", 1999, with his targets (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2). Deviations: s is the log-odds of the
    model's probability, not the margin of a support vector machine, and a is not kept positive, as in the
    original: a model that is worse than guessing is turned round.

    Attributes
    ----------
    maps_ : one dict per class (for two classes: class 1 alone) with "coefficients", (a, b).
    """

    def __init__(self, *, from_probs: bool = False) -> None:
        self.from_probs = from_probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        features = np.column_stack([odds, np.ones_like(odds)])
        return {"coefficients": fit_logistic(features, target, weights, (None, None), "Platt scaling")}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        a, b = fitted["coefficients"]
        return expit(a * odds + b)


class Beta(OneVsRest):
    """Beta calibration: p = σ(a ln q - b ln(1 - q) + c) with a, b ≥ 0, for each class against the rest.

    Kull, Silva Filho and Flach, "Beta calibration: a well-founded and easily implemented improvement on
    logistic calibration for binary classifiers", AISTATS 2017, Eq. (6). a, b ≥ 0 keeps each map monotone.
    Deviations: the paper drops a feature whose coefficient came out negative and fits again, here the
    constrained problem is solved itself, which is never worse; and Platt's targets keep the optimum finite
    on separated labels.

    Attributes
    ----------
    maps_ : one dict per class (for two classes: class 1 alone) with "coefficients", (a, b, c).
    """

    def __init__(self, *, from_probs: bool = False) -> None:
        self.from_probs = from_probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        coefficients = fit_logistic(
            _beta_features(odds), target, weights, (0.0, 0.0, None), "Beta calibration"
        )
        return {"coefficients": coefficients}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        return expit(_beta_features(odds) @ fitted["coefficients"])


def _beta_features(odds: Floats) -> Floats:
    # ln q = -log(1 + e^-s) and -ln(1 - q) = log(1 + e^s), both finite for every finite s.
    return np.column_stack([-np.logaddexp(0.0, -odds), np.logaddexp(0.0, odds), np.ones_like(odds)])

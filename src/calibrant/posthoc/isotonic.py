"""Isotonic regression in three forms: per class, on the confidence, and order-preserving."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax
from sklearn.isotonic import isotonic_regression

from calibrant.posthoc._base import Calibrator, Floats, Map, OneVsRest, log_odds, mix_uniform, normalise


class Isotonic(OneVsRest):
    """Isotonic regression of each class against the rest, on its log-odds.

    Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates", KDD
    2002; Section 2.3 of Sanguin et al. 2024. The map is linear in the log-odds between the steps of the fit, and
    constant outside them. Deviation: the fitted value is mixed with one uniform sample, (n p + 1/C)/(n + 1), since
    steps at exactly 0 make the log-loss of unseen samples infinite. ``smoothing=False`` leaves the steps as they are.

    It can change the predicted class; `OrderPreservingIsotonic` cannot.

    Parameters
    ----------
    smoothing : bool
        Mix the fitted values with one uniform sample.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with the corners "x" and "y" of the map.
    """

    def __init__(self, smoothing: bool = True, *, from_probs: bool = False) -> None:
        self.smoothing = smoothing
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        self.n_samples_ = float(weights.sum())
        super()._fit(scores, labels, weights)

    def _predict(self, scores: Floats) -> Floats:
        probs = super()._predict(scores)
        return mix_uniform(probs, self.n_samples_) if self.smoothing else probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        x, y = fit_isotonic(odds, target, weights)
        return {"x": x, "y": y}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        return np.interp(odds, fitted["x"], fitted["y"])


class IsotonicConfidence(Calibrator):
    """Isotonic regression of "was the prediction right" on the confidence, as in Sanguin et al. 2024.

    The predicted class k gets the fitted confidence c = f(q_k). The other classes share 1 - c in proportion to their
    probabilities: p_j = (1 - c) q_j / (1 - q_k).

    c can fall below 1/C, which the first paper criticises. Another class may then have a larger probability; `predict`
    still returns k, and `confidence` returns c. The low value is not clipped, since it shows that the model should not
    be trusted there. Deviation: c is mixed with one uniform sample, (n c + 1/C)/(n + 1), so that no probability is
    exactly 0. ``smoothing=False`` leaves the steps as they are.

    Parameters
    ----------
    smoothing : bool
        Mix the fitted confidence with one uniform sample.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    x_, y_ : arrays
        Corners of f, on the log-odds of the confidence.
    """

    can_change_prediction = False
    can_fall_below_chance = True

    def __init__(self, smoothing: bool = True, *, from_probs: bool = False) -> None:
        self.smoothing = smoothing
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        top = scores.argmax(axis=1)
        odds = log_odds(scores)[np.arange(len(top)), top]
        self.n_samples_ = float(weights.sum())
        self.x_, self.y_ = fit_isotonic(odds, (top == labels).astype(float), weights)

    def _predict(self, scores: Floats) -> Floats:
        rows = np.arange(len(scores))
        top = scores.argmax(axis=1)
        confidence = np.interp(log_odds(scores)[rows, top], self.x_, self.y_)
        others = scores.copy()
        others[rows, top] = -np.inf
        # q_j / (1 - q_k) is the softmax over the others; accurate even if q_k rounds to 1.
        probs = (1.0 - confidence)[:, None] * softmax(others, axis=1)
        probs[rows, top] = confidence
        return mix_uniform(probs, self.n_samples_) if self.smoothing else probs


class OrderPreservingIsotonic(Calibrator):
    """Isotonic regression that keeps the order of the classes: one monotone map f for all of them.

    IRM, "accuracy-preserving isotonic regression" of Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020: f
    is fitted to all n·C pairs (q_k, [y = k]) at once and made strictly increasing, p_k ∝ f(q_k) + ε q_k. Since f is
    shared, the order of the classes is kept. Deviations: ε is 1/(n + 1) instead of a tiny constant, which keeps the
    log-loss of unseen samples finite; n samples cannot distinguish this mass from zero. The map is linear in the
    log-odds between its steps.

    Parameters
    ----------
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    x_, y_ : arrays
        Corners of f, on the log-odds of q_k.
    """

    can_change_prediction = False

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        n_classes = scores.shape[1]
        hit = (np.arange(n_classes) == labels[:, None]).astype(float)
        self.n_samples_ = float(weights.sum())
        self.x_, self.y_ = fit_isotonic(log_odds(scores).ravel(), hit.ravel(), np.repeat(weights, n_classes))

    def _predict(self, scores: Floats) -> Floats:
        mapped = np.interp(log_odds(scores), self.x_, self.y_)
        return normalise(mapped + np.exp(scores) / (self.n_samples_ + 1.0))


def fit_isotonic(x: Floats, target: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Corners (x, y) of the non-decreasing least-squares fit; samples of equal x count as one."""
    values, group = np.unique(x, return_inverse=True)
    mass = np.bincount(group, weights)
    mean = np.bincount(group, weights * target) / mass
    y = np.clip(isotonic_regression(mean, sample_weight=mass), 0.0, 1.0)
    # Inside a step the map is constant, so its two ends describe it.
    corner = np.ones(len(y), dtype=bool)
    corner[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    return values[corner], y[corner]

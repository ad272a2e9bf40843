"""Temperature scaling and two of its extensions: one to four numbers for the whole model."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning

from calibrant.base.warning import warn
from calibrant.posthoc._base import Calibrator, Floats, log_complement

# The search covers the mean logit gap times e^-16 to e^16: 1e-7 to 9e6.
_LOG_RANGE = 16.0


class Temperature(Calibrator):
    """Temperature scaling: p = softmax(z / T) with the T > 0 that minimises the log-loss.

    Eq. (9) of Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    The log-loss is convex in 1/T, so its derivative has at most one zero. Brent's method on log T finds it in float64,
    between bounds that follow the scale of the logits. Deviation: the paper's public code uses L-BFGS on T itself,
    which can stop far from the minimum and can become negative.

    Parameters
    ----------
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        T. Above 1, the model was over-confident.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.posthoc import Temperature
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> calibrator = Temperature().fit(2 * logits, labels)
    >>> round(calibrator.temperature_)
    2
    >>> calibrator.predict_proba(2 * logits).shape
    (2000, 3)
    """

    can_change_prediction = False

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        self.temperature_ = fit_temperature(scores, labels, weights)

    def _predict(self, scores: Floats) -> Floats:
        return softmax(scores / self.temperature_, axis=1)


class EnsembleTemperature(Calibrator):
    """Ensemble temperature scaling: p = w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, w on the simplex.

    Zhang, Kailkhura and Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in
    Deep Learning", ICML 2020. T is that of `Temperature`; the weights then minimise the log-loss, which is convex in
    them. Deviation: the paper also offers the squared error. Only the log-loss is used here, so that the ensemble is
    never worse than `Temperature` on the calibration set.

    Parameters
    ----------
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        The temperature T.
    weights_ : array of shape (3,)
        The weights w.
    """

    can_change_prediction = False

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        self.temperature_ = fit_temperature(scores, labels, weights)
        rows = np.arange(len(labels))
        true_class = np.stack([part[rows, labels] for part in self._parts(scores)], axis=1)
        self.weights_ = _fit_mixture(true_class, weights / weights.sum())

    def _parts(self, scores: Floats) -> list[Floats]:
        scaled = softmax(scores / self.temperature_, axis=1)
        return [scaled, np.exp(scores), np.full_like(scores, 1.0 / scores.shape[1])]

    def _predict(self, scores: Floats) -> Floats:
        return sum(w * part for w, part in zip(self.weights_, self._parts(scores), strict=True))


class AttendedTemperature(Calibrator):
    """Attended temperature scaling, for calibration labels that are few or noisy.

    Mozafari, Gomes, Leão, Janny and Gagné, "Attended Temperature Scaling: A Practical Approach for
    Calibrating Deep Neural Networks", arXiv:1810.11586. With S = softmax(z / T), class k learns from its own samples
    and from samples of other classes that look like it: those with S_k above a threshold θ at T = 1. By Bayes' rule
    such a borrowed sample has the factor S_k / (1 - S_k). The loss, as in the authors' code, is ::

        L = - Σ_k [ Σ_{i: y_i = k} log S_k(x_i) + Σ_{i: y_i ≠ k, S_k > θ} log( S_k(x_i)² / (1 - S_k(x_i)) ) ].

    A confident prediction with a wrong label raises T through the first sum and lowers it through the second, so wrong
    labels change T little. However, L is not a proper score. Every borrowed class with a small S_k raises T, so T grows
    with the number of borrowed classes, which is at most 1 / θ per sample. If no label is wrong, `Temperature` is
    better.

    Deviations: θ defaults to 0.03. The 1e-5 of the authors' code borrows nearly every class, so that T is far too large
    for an ordinary network with ten classes. A θ that shrinks as 1 / C ruins the probabilities of a model with 100
    classes, since there are then ten times more borrowed terms than labels. L need not be convex, so it is scanned over
    log T before Brent's method refines it.

    Parameters
    ----------
    threshold : float
        θ, between 0 and 1.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        The temperature T.
    """

    can_change_prediction = False

    def __init__(self, threshold: float = 0.03, *, from_probs: bool = False) -> None:
        self.threshold = threshold
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        n_classes = scores.shape[1]
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1; got {self.threshold}.")
        is_label = np.arange(n_classes) == labels[:, None]
        borrowed = ~is_label & (np.exp(scores) > self.threshold)
        share = weights[:, None] / weights.sum()

        def loss(log_temperature: float) -> float:
            log_s = log_softmax(scores / np.exp(log_temperature), axis=1)
            terms = np.where(is_label, -log_s, 0.0) + np.where(borrowed, log_complement(log_s) - 2 * log_s, 0.0)
            return float((share * terms).sum())

        self.temperature_ = _scan_log_temperature(loss, scores)

    def _predict(self, scores: Floats) -> Floats:
        return softmax(scores / self.temperature_, axis=1)


def fit_temperature(scores: Floats, labels: np.ndarray, weights: Floats) -> float:
    """The T that minimises the weighted log-loss of softmax(scores / T)."""
    gaps = scores - scores.max(axis=1, keepdims=True)
    scale = _mean_gap(scores)
    if scale == 0:
        return 1.0  # every row is uniform at any temperature
    share = weights / weights.sum()
    target = share @ gaps[np.arange(len(labels)), labels]

    def slope(log_temperature: float) -> float:
        # d loss / d(1/T) = E[Σ_k S_k z_k - z_y]: it falls as T grows.
        s = softmax(gaps / (scale * np.exp(log_temperature)), axis=1)
        return float(share @ (s * gaps).sum(axis=1) - target)

    low, high = slope(-_LOG_RANGE), slope(_LOG_RANGE)
    if low <= 0:
        _warn(
            "Every calibration sample is classified correctly, so the log-loss keeps falling as T goes to 0",
            "low",
        )
        return float(scale * np.exp(-_LOG_RANGE))
    if high >= 0:
        _warn("The logits carry no information about the labels, so the log-loss falls as T grows", "high")
        return float(scale * np.exp(_LOG_RANGE))
    return float(scale * np.exp(brentq(slope, -_LOG_RANGE, _LOG_RANGE, xtol=1e-13, rtol=1e-14)))


def bounded_temperature(scores: Floats, labels: np.ndarray, weights: Floats) -> float:
    """`fit_temperature` as a first step: without a warning, and within a factor of 50 of the mean gap.

    The map that is fitted afterwards can exist even if the temperature alone has no optimum. It needs moderate numbers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        temperature = fit_temperature(scores, labels, weights)
    scale = _mean_gap(scores)
    return temperature if scale == 0 else float(np.clip(temperature, scale / 50.0, scale * 50.0))


def _mean_gap(scores: Floats) -> float:
    return float((scores.max(axis=1, keepdims=True) - scores).mean())


def _warn(reason: str, end: str) -> None:
    warn(
        f"{reason}; T stays at the {end} end of the search range. Use more calibration samples, or samples that "
        "the model was not trained on.",
        ConvergenceWarning,
    )


def _scan_log_temperature(loss: Callable[[float], float], scores: Floats) -> float:
    """Minimise a smooth function of log T: a grid of quarter steps, then Brent's method around the best."""
    scale = _mean_gap(scores)
    if scale == 0:
        return 1.0
    # Beyond these ends, mean gaps of 400 T and of T / 1,100, the softmax is nearly one-hot or uniform.
    grid = np.log(scale) + np.arange(-6.0, 7.01, 0.25)
    values = [loss(u) for u in grid]
    best = int(np.argmin(values))
    if best in (0, len(grid) - 1):
        _warn("The attended loss falls towards the end of its range", "low" if best == 0 else "high")
        return float(np.exp(grid[best]))
    optimum = minimize_scalar(loss, bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-10})
    return float(np.exp(optimum.x))


def _fit_mixture(parts: Floats, share: Floats) -> Floats:
    """Weights on the simplex that maximise Σ share · log(parts @ w).

    The KKT conditions hold at the solution: no part has Σ share · part / mixture above 1.
    """
    n_parts = parts.shape[1]
    start = np.full(n_parts, 1.0 / n_parts)
    tiny = np.finfo(float).tiny

    def loss(w: Floats) -> tuple[float, Floats]:
        mixture = np.maximum(parts @ w, tiny)
        return -float(share @ np.log(mixture)), -(share / mixture) @ parts

    optimum = minimize(
        loss,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_parts,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0, "jac": lambda w: np.ones(n_parts)},
        options={"ftol": 1e-14, "maxiter": 200},
    )
    w = np.clip(optimum.x, 1e-9, None)  # expectation-maximisation cannot leave exactly zero
    w = w / w.sum()
    for _ in range(2000):  # expectation-maximisation never makes the fit worse
        ratio = -loss(w)[1]
        if ratio.max() <= 1 + 1e-9:
            return w
        w = w * ratio
        w = w / w.sum()
    if ratio.max() > 1 + 1e-4:
        warn(
            "The weights of the temperature ensemble did not converge "
            f"(optimality gap {ratio.max() - 1:.1e}). Use more calibration samples.",
            ConvergenceWarning,
        )
    return w

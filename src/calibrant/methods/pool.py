"""The log-linear pool: classifiers of several kinds combined by weights that held-out labels choose.

With log-probabilities ``ℓ_m(x)`` of M members, class frequencies π, weights ``w_m ≥ 0``, biases b and a lapse rate λ::

    p(x) = (1 − λ)·softmax(log π + Σ_m w_m·(ℓ_m(x) − log π) + b) + λ/C

This is the logarithmic opinion pool (Genest & Zidek 1986) in the form that starts from a common prior π (Bordley 1982).
Where the weights sum to 1, π cancels; where all of them are 0, the pool answers with the class frequencies. The sum of
the weights is an inverse temperature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit

from calibrant.data.copies import independent_size

FLOOR = -23.0
"""Log-probabilities below are raised to it (1e-10): one member's rounding to zero must not outvote all others."""
_RARE = -6.0
"""The log-odds of a lapse before any label is seen: 0.25 %."""

_ODDS = 10.0
"""For one table with nothing to learn there are ten with something."""
_LEAST_TRUST = 0.5
_OFTEN = -1.5
"""The log-odds of a lapse from which the search for wrong labels starts: 18 %."""


class Pool(NamedTuple):
    """A fitted pool of M members and C classes."""

    weights: np.ndarray
    """w, (M,), none negative. Members of weight 0 are left out."""
    bias: np.ndarray
    """``b + (1 − Σ w)·log π``, (C,): all that is added to the weighted log-probabilities."""
    lapse: float
    """λ."""

    @property
    def temperature(self) -> float:
        """1/Σw; infinite where the pool answers with class frequencies alone."""
        total = float(self.weights.sum())
        return 1 / total if total > 0 else float("inf")

    def probs(self, log_probs: np.ndarray) -> np.ndarray:
        """Probabilities, (n, C), from the members' log-probabilities, (M, n, C)."""
        return pooled(log_probs, self.weights, self.bias, self.lapse)


def pooled(log_probs: np.ndarray, weights: np.ndarray, bias: np.ndarray, lapse: float) -> np.ndarray:
    """``(1 − λ)·softmax(Σ_m w_m·ℓ_m + bias) + λ/C`` of log-probabilities, (M, n, C)."""
    scores = np.tensordot(weights, bounded(log_probs), axes=1) + bias
    return (1 - lapse) * np.exp(log_softmax(scores, axis=1)) + lapse / len(bias)


def bounded(log_probs: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64, none below FLOOR."""
    return np.maximum(np.asarray(log_probs, dtype=np.float64), FLOOR)


def class_shares(labels: np.ndarray, classes: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The classes' shares of the weight, after one further sample that is spread over all classes."""
    counts = np.bincount(labels, weights, minlength=classes) + 1 / classes
    return counts / counts.sum()


def least_lapse(size: float, classes: int) -> float:
    """The least lapse rate that so many held-out samples allow.

    Of a classifier that was right n times out of n, the rule of succession (Laplace 1774: a uniform prior for its
    accuracy) expects an error with probability ``1/(n + 2)`` the next time. Confidence is at most ``1 − λ + λ/C``, and
    ``λ·(1 − 1/C) ≥ 1/(n + 2)`` keeps it from going beyond: two samples support 75 %, and 1,000 support 99.9 %.
    """
    return classes / ((classes - 1) * (size + 2))


def fit_pool(
    log_probs: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
    doubt: bool = True,
    spread: float = 0.5,
    bias_spread: float = 0.5,
    lapse_spread: float = 2.0,
) -> Pool:
    """Weights, biases and lapse rate of greatest posterior density, in float64 by L-BFGS-B.

    The prior draws the weights towards 1/M each. With their sum s, the penalty is::

        (M·h(s)·Σ_m (w_m − s/M)² + t(s)²)/(2·spread²),   h(s) = 2/(1 + s²),   t(s) = s − 1 up to 1, log s above

    It costs some likelihood to leave members out or to give up all of them. h keeps the cost of relying on one member
    from growing with the inverse temperature s. Each b_c comes from N(0, bias_spread²), and λ's log-odds from
    N(−6, lapse_spread²).

    λ is at least :func:`least_lapse`, so that no confidence exceeds what so many samples can support.

    With ``doubt``, weights and biases are then multiplied by the posterior probability that the members know more than
    the class frequencies (:meth:`Objective.trust`): where there is nothing to learn, small weights that fit noise would
    still cost a little.

    Labels that are wrong at random can be described by small weights, or by large weights and a lapse. Both are local
    optima, so the search starts from either and keeps the better one.

    Parameters
    ----------
    log_probs : (M, n, C)
        Log-probabilities of each member for samples that it was not trained on.
    labels : (n,)
        Class indices.
    weights : (n,), optional
        Sample weights; their scale does not matter.
    groups : (n,), optional
        Numbers of samples that are copies of one another or belong together. They count as fewer samples against the
        prior, by :func:`calibrant.data.copies.independent_size`.
    doubt : bool
        Whether the class frequencies are a rival. Without it, few samples leave the weights near those of the prior.
    """
    values, labels = bounded(log_probs), np.asarray(labels)
    if values.ndim != 3 or not len(values) or values.shape[1] != len(labels):
        raise ValueError(
            f"log_probs must have the shape (members, {len(labels)}, classes), with a row for each label; got "
            f"{np.shape(log_probs)}."
        )
    if np.isnan(values).any():
        raise ValueError("log_probs must not be NaN; leave out samples that a member has no prediction for.")
    members, _, classes = values.shape
    share = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    size = independent_size(labels, np.exp(values).mean(0), groups)
    share = share * (size / share.sum())
    prior = np.log(class_shares(labels, classes, share))
    evidence = values - prior
    objective = Objective(evidence, prior, labels, share, (spread, bias_spread, lapse_spread))
    lowest = logit(least_lapse(size, classes))
    bounds = [(0.0, 20.0)] * members + [(lowest, 3.0)] + [(-5.0, 5.0)] * classes
    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-7}
    both = [
        minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        for start in (objective.centre, objective.lapsing)
    ]
    found = min(both, key=lambda one: float(one.fun)).x
    lapse, trust = float(expit(found[members])), objective.trust(found) if doubt else 1.0
    own, bias = trust * found[:members], trust * found[members + 1 :]
    return Pool(own, bias + (1 - own.sum()) * prior, lapse)


class Objective:
    """Minus the log-posterior of ``(w, log-odds of λ, b)`` and its gradient."""

    def __init__(
        self,
        evidence: np.ndarray,
        prior: np.ndarray,
        labels: np.ndarray,
        share: np.ndarray,
        spreads: tuple[float, float, float],
    ) -> None:
        members, _, classes = evidence.shape
        self.evidence, self.prior, self.labels, self.share = evidence, prior, labels, share
        self.rows = np.arange(len(labels))
        self.centre = np.concatenate([np.full(members, 1 / members), np.full(1, _RARE), np.zeros(classes)])
        each, bias, lapse = spreads
        scales = np.full(members, each / np.sqrt(members)), np.full(1, lapse), np.full(classes, bias)
        self.scale = np.concatenate(scales)

    @property
    def lapsing(self) -> np.ndarray:
        """A start with large weights and many lapses."""
        members = len(self.evidence)
        return np.concatenate([2 * self.centre[:members], np.full(1, _OFTEN), self.centre[members + 1 :]])

    def penalty(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the prior says against the weights and against the rest, and the gradient of both together."""
        members = len(self.evidence)
        away = (values - self.centre) / self.scale
        gradient = away / self.scale
        total = values[:members].sum()
        between = (values[:members] - total / members) / self.scale[0]
        factor, slope = 2 / (1 + total**2), -4 * total / (1 + total**2) ** 2
        apart, spread = 0.5 * between @ between, self.scale[0] * np.sqrt(members)
        scale, steep = (total - 1, 1.0) if total < 1 else (np.log(total), 1 / total)
        gradient[:members] = factor * between / self.scale[0] + slope * apart + scale * steep / spread**2
        rest = 0.5 * away[members:] @ away[members:]
        return np.array([factor * apart + 0.5 * (scale / spread) ** 2, rest]), gradient

    def trust(self, values: np.ndarray) -> float:
        """The posterior probability that the members know more than the class frequencies; 0 if it is below ½.

        The evidence for the pool is Laplace's approximation at its mode (MacKay 2003, chapter 27): log-likelihood, less
        what the prior says against the weights, less the Occam factor ``½·log det(1 + H/precision)`` with the curvature
        H of the log-likelihood in w. A further ``½·log n`` pays for what the members chose by the same labels, as one
        parameter does in the Bayesian information criterion (Schwarz 1978). The class frequencies have nothing to pay
        for. Beforehand the odds are 10 to 1 for the members.
        """
        members = len(self.evidence)
        against = self.penalty(values)[0]
        pool = against.sum() - self(values)[0]
        frequencies = float(self.share @ self.prior[self.labels])
        scores = np.tensordot(values[:members], self.evidence, axes=1) + self.prior + values[members + 1 :]
        probs = np.exp(log_softmax(scores, axis=1))
        mean = (probs * self.evidence).sum(2)
        centred = (self.evidence - mean[:, :, None]) * np.sqrt(probs * self.share[:, None])
        flat = centred.reshape(members, -1) * self.scale[:members, None]
        occam = 0.5 * float(np.linalg.slogdet(np.eye(members) + flat @ flat.T)[1])
        chosen = 0.5 * np.log(max(float(self.share.sum()), 1.0))
        gain = pool - frequencies - against[0] - occam - chosen
        found = float(expit(gain + np.log(_ODDS)))
        return found if found >= _LEAST_TRUST else 0.0

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        members, _, classes = self.evidence.shape
        lapse = expit(values[members])
        scores = np.tensordot(values[:members], self.evidence, axes=1) + self.prior + values[members + 1 :]
        probs = np.exp(log_softmax(scores, axis=1))
        own = probs[self.rows, self.labels]
        mixed = (1 - lapse) * own + lapse / classes
        slope = probs  # d(−log p)/d scores, row by row
        slope[self.rows, self.labels] -= 1
        slope *= (self.share * (1 - lapse) * own / mixed)[:, None]
        to_weights = np.tensordot(self.evidence, slope, axes=([1, 2], [0, 1]))
        to_lapse = -lapse * (1 - lapse) * (self.share @ ((1 / classes - own) / mixed))
        against, gradient = self.penalty(values)
        cost = against.sum() - self.share @ np.log(mixed)
        return float(cost), gradient + np.concatenate([to_weights, [to_lapse], slope.sum(0)])

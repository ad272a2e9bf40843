"""The log-linear pool: classifiers of several kinds, combined with weights fitted to held-out labels.

With log-probabilities ``ℓ_m(x)`` of M members, class frequencies π, weights ``w_m ≥ 0``, biases b and a lapse rate λ::

    p(x) = (1 − λ)·softmax(log π + Σ_m w_m·(ℓ_m(x) − log π) + b) + λ/C

This is the logarithmic opinion pool (Genest & Zidek 1986) with a common prior π (Bordley 1982). If the weights sum to
1, π cancels. If all weights are 0, the pool predicts the class frequencies. The sum of the weights is an inverse
temperature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit

from calibrant.data.splits.exact_copies import independent_size

FLOOR = -23.0
"""Lower bound for log-probabilities (1e-10): one member that rounds to zero must not outweigh all others."""
RARE = -6.0
"""Prior log-odds of a lapse: 0.25 %."""

_ODDS = 10.0
"""Prior odds that a table has something to learn: 10 to 1."""
_LEAST_TRUST = 0.5
_OFTEN = -1.5
"""Log-odds of a lapse at which the search for wrong labels starts: 18 %."""


class Pool(NamedTuple):
    """A fitted pool of M members and C classes."""

    weights: np.ndarray
    """w, (M,), non-negative. A member with weight 0 has no influence."""
    bias: np.ndarray
    """``b + (1 − Σ w)·log π``, (C,): the sum of all terms that are added to the weighted log-probabilities."""
    lapse: float
    """λ."""

    @property
    def temperature(self) -> float:
        """1/Σw; infinite if the pool predicts the class frequencies alone."""
        total = float(self.weights.sum())
        return 1 / total if total > 0 else float("inf")

    def probs(self, log_probs: np.ndarray) -> np.ndarray:
        """``(1 − λ)·softmax(Σ_m w_m·ℓ_m + bias) + λ/C``, (n, C), from the members' log-probabilities, (M, n, C)."""
        scores = np.tensordot(self.weights, bounded(log_probs), axes=1) + self.bias
        return (1 - self.lapse) * np.exp(log_softmax(scores, axis=1)) + self.lapse / len(self.bias)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """``exp(log_softmax(scores))``, written into ``scores``. For many classes, new arrays take longer than the sums."""
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return np.exp(scores, out=scores)


def lapsing_loss(
    scores: np.ndarray, labels: np.ndarray, share: np.ndarray, lapse: float
) -> tuple[float, np.ndarray, float]:
    """``−Σ share·log q_label`` for ``q = (1 − λ)·softmax(scores) + λ/C``, and its slopes.

    The slopes are those in the scores, (n, C), which are written over, and in the log-odds of λ.
    """
    rows, classes = np.arange(len(labels)), scores.shape[1]
    probs = probabilities(scores)
    label_probs = probs[rows, labels]
    mixed = (1 - lapse) * label_probs + lapse / classes
    slope = probs  # d(−log softmax)/d scores, row by row
    slope[rows, labels] -= 1
    slope *= (share * (1 - lapse) * label_probs / mixed)[:, None]
    to_lapse = -lapse * (1 - lapse) * (share @ ((1 / classes - label_probs) / mixed))
    return -float(share @ np.log(mixed)), slope, to_lapse


def bounded(log_probs: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64, at least FLOOR."""
    return np.maximum(np.asarray(log_probs, dtype=np.float64), FLOOR)


def class_shares(labels: np.ndarray, n_classes: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The share of each class in the total weight, smoothed by one extra sample spread evenly over all classes."""
    counts = np.bincount(labels, weights, minlength=n_classes) + 1 / n_classes
    return counts / counts.sum()


def even_share(weights: np.ndarray) -> float:
    """The effective number of samples with these weights, per sample: ``(Σ w)²/(n·Σ w²)`` (Kish 1965)."""
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def least_lapse(size: float, n_classes: int) -> float:
    """The smallest lapse rate that ``size`` held-out samples allow.

    If a classifier was right n times out of n, the rule of succession (Laplace 1774: a uniform prior for its accuracy)
    gives the probability ``1/(n + 2)`` for an error on the next sample. Confidence is at most ``1 − λ + λ/C``, so
    ``λ·(1 − 1/C) ≥ 1/(n + 2)`` keeps it within what the samples support: 75 % for two samples, 99.9 % for 1,000.
    """
    return n_classes / ((n_classes - 1) * (size + 2))


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
    """Weights, biases and lapse rate with the largest posterior density, found by L-BFGS-B in float64.

    The prior pulls each weight towards 1/M. With s the sum of the weights, the penalty is::

        (M·h(s)·Σ_m (w_m − s/M)² + t(s)²)/(2·spread²),   h(s) = 2/(1 + s²),   t(s) = s − 1 up to 1, log s above

    It penalises leaving out some or all members. Because of h, the penalty for relying on one member does not grow with
    the inverse temperature s. The priors are N(0, bias_spread²) for each b_c, and N(−6, lapse_spread²) for the log-odds
    of λ.

    λ is at least :func:`least_lapse`, so that no confidence exceeds what this number of samples supports.

    With ``doubt``, weights and biases are then multiplied by the posterior probability that the members predict better
    than the class frequencies (:meth:`Objective.trust`). Otherwise, if there is nothing to learn, small weights that
    fit noise would increase the loss slightly.

    Randomly wrong labels can be described by small weights, or by large weights and a lapse rate. Both are local
    optima, so the search runs from both starting points and keeps the better result.

    Parameters
    ----------
    log_probs : (M, n, C)
        Log-probabilities of each member for samples that it was not trained on.
    labels : (n,)
        Class indices.
    weights : (n,), optional
        Sample weights; their scale does not matter. The more they differ, the fewer samples they count as.
    groups : (n,), optional
        A group number per sample. Samples of one group are copies or belong together, and count as fewer independent
        samples relative to the prior (:func:`calibrant.data.splits.exact_copies.independent_size`).
    doubt : bool
        Whether to compare the members with the class frequencies. If False, the weights stay close to their prior when
        there are few samples.
    spread, bias_spread, lapse_spread : float
        Standard deviations of the priors.
    """
    values, labels = bounded(log_probs), np.asarray(labels)
    if values.ndim != 3 or not len(values) or values.shape[1] != len(labels):
        raise ValueError(
            f"log_probs must have the shape (members, {len(labels)}, classes), with one row per label; got "
            f"{np.shape(log_probs)}."
        )
    if np.isnan(values).any():
        raise ValueError("log_probs must not contain NaN; leave out samples without a prediction from every member.")
    members, _, classes = values.shape
    share = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    size = independent_size(labels, np.exp(values).mean(0), groups) * even_share(share)
    share = share * (size / share.sum())
    prior = np.log(class_shares(labels, classes, share))
    evidence = np.ascontiguousarray(values - prior)  # rows taken from the middle axis are not contiguous
    objective = Objective(evidence, prior, labels, share, (spread, bias_spread, lapse_spread))
    lowest = logit(least_lapse(size, classes))
    bounds = [(0.0, 20.0)] * members + [(lowest, 3.0)] + [(-5.0, 5.0)] * classes
    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-7}
    lapsing = objective.centre.copy()
    lapsing[:members] *= 2
    lapsing[members] = _OFTEN
    both = [
        minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        for start in (objective.centre, lapsing)
    ]
    optimum = min(both, key=lambda one: float(one.fun)).x
    lapse, trust = float(expit(optimum[members])), objective.trust(optimum) if doubt else 1.0
    pool_weights, bias = trust * optimum[:members], trust * optimum[members + 1 :]
    return Pool(pool_weights, bias + (1 - pool_weights.sum()) * prior, lapse)


class Objective:
    """The negative log-posterior of ``(w, log-odds of λ, b)`` and its gradient."""

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
        self.centre = np.concatenate([np.full(members, 1 / members), np.full(1, RARE), np.zeros(classes)])
        each, bias, lapse = spreads
        scales = np.full(members, each / np.sqrt(members)), np.full(1, lapse), np.full(classes, bias)
        self.scale = np.concatenate(scales)

    def penalty(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The prior's penalties for the weights and for the other values, and the gradient of their sum."""
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
        """The posterior probability that the members predict better than the class frequencies; 0 if it is below ½.

        The evidence for the pool is Laplace's approximation at its mode (MacKay 2003, chapter 27): the log-likelihood,
        minus the prior's penalty for the weights, minus the Occam factor ``½·log det(1 + H/precision)``, where H is the
        curvature of the log-likelihood in w. A further ``½·log n`` is subtracted because the members were selected with
        the same labels; this is the cost of one parameter in the Bayesian information criterion (Schwarz 1978). Nothing
        is subtracted for the class frequencies. The prior odds are 10 to 1 for the members.
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
        trusted = float(expit(gain + np.log(_ODDS)))
        return trusted if trusted >= _LEAST_TRUST else 0.0

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        members = len(self.evidence)
        scores = np.tensordot(values[:members], self.evidence, axes=1)
        scores += self.prior
        scores += values[members + 1 :]
        loss, slope, to_lapse = lapsing_loss(scores, self.labels, self.share, expit(values[members]))
        to_weights = np.tensordot(self.evidence, slope, axes=([1, 2], [0, 1]))
        against, gradient = self.penalty(values)
        return float(against.sum() + loss), gradient + np.concatenate([to_weights, [to_lapse], slope.sum(0)])

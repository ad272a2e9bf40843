"""Risk against coverage, and the areas under that curve.

A selective classifier answers where its confidence reaches a threshold t and is silent elsewhere. With
c the confidence and e = 1 for a wrong prediction, ::

    coverage(t) = P(c ≥ t)          risk(t) = P(e = 1 | c ≥ t)          generalised risk(t) = P(e = 1, c ≥ t)

Ties: no threshold can separate equal confidences, so on the curve they enter *together*. The areas, which
compare orderings, need a value at every number of accepted samples; inside a tie they take the *expectation*
over its random orders, so that no result depends on the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.selective._arrays import accepted_counts, as_pair, check_fraction


@dataclass(frozen=True)
class RiskCoverageCurve:
    """One point for each distinct confidence, from the highest threshold (least coverage) to the lowest.

    Attributes
    ----------
    threshold
        The distinct confidences of the sample, descending; a prediction is accepted where c ≥ threshold.
    coverage, risk
        Share of the sample accepted, and share of errors among the accepted.
    n_accepted, n_errors
        The counts behind these shares.
    n
        Size of the sample.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray
    n_accepted: np.ndarray
    n_errors: np.ndarray
    n: int

    @property
    def generalised_risk(self) -> np.ndarray:
        """Share of the whole sample that is both accepted and wrong (Traub et al. 2024)."""
        return self.n_errors / self.n


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold and what it does on the sample; `threshold=inf` accepts nothing, its risk is NaN."""

    threshold: float
    coverage: float
    risk: float


def risk_coverage_curve(confidence: Any, correct: Any) -> RiskCoverageCurve:
    """Compute the risk–coverage curve of a sample (El-Yaniv & Wiener 2010).

    Parameters
    ----------
    confidence
        Confidence in [0, 1], shape (n,); array or tensor. Only its order matters here: map a score of another
        range into [0, 1] by any increasing function.
    correct
        Whether each prediction was right, shape (n,).
    """
    conf, hits = as_pair(confidence, correct)
    threshold, accepted, errors = accepted_counts(conf, hits)
    n = len(conf)
    return RiskCoverageCurve(threshold, accepted / n, errors / accepted, accepted, errors, n)


def _expected_errors(confidence: Any, correct: Any) -> np.ndarray:
    """Expected errors among the k most confident samples, k = 0..n, over random orders of ties."""
    conf, hits = as_pair(confidence, correct)
    _, accepted, errors = accepted_counts(conf, hits)
    return np.interp(np.arange(len(conf) + 1), np.append(0, accepted), np.append(0, errors))


def aurc(confidence: Any, correct: Any) -> float:
    """Area under the risk–coverage curve: the mean over k = 1..n of the risk of the k most confident samples.

    AURC = 1/n Σ_k E_k / k, with E_k the errors among the k most confident (Geifman, Uziel & El-Yaniv 2019);
    in expectation over the order of ties. 0 is perfect. It weights the errors at low coverage heavily; see
    `augrc`.
    """
    errors = _expected_errors(confidence, correct)[1:]
    return float(np.mean(errors / np.arange(1, len(errors) + 1)))


def excess_aurc(confidence: Any, correct: Any) -> float:
    """AURC less the AURC of the best ordering of the same predictions (Geifman, Uziel & El-Yaniv 2019).

    The best ordering puts all errors last: 1/n Σ_k max(0, k − (n − E)) / k with E errors in all, computed
    by that sum and not by its limit r + (1 − r) ln(1 − r), which is off by O(1/n) and can make the excess
    negative.
    """
    errors = _expected_errors(confidence, correct)
    n = len(errors) - 1
    accepted = np.arange(1, n + 1)
    best = np.maximum(0, accepted - (n - errors[-1]))
    return float(np.mean((errors[1:] - best) / accepted))


def augrc(confidence: Any, correct: Any) -> float:
    """Area under the generalised-risk–coverage curve (Traub et al. 2024, "Overcoming common flaws ...").

    The integral over coverage of P(e = 1, accepted), linear between neighbouring points: the average risk
    of an undetected error. It equals (1 − AUROC)·a·(1 − a) + (1 − a)²/2 with a the accuracy and AUROC that
    of the confidence as a detector of correct predictions, exactly and with ties counted half.
    """
    errors = _expected_errors(confidence, correct)
    n = len(errors) - 1
    return float((errors.sum() - errors[-1] / 2) / n**2)


def risk_at_coverage(confidence: Any, correct: Any, coverage: float) -> OperatingPoint:
    """Return the highest threshold that accepts at least `coverage` of the sample, and its risk.

    The coverage returned can exceed the one asked for, since equal confidences enter together.
    """
    coverage = check_fraction(coverage, "coverage", closed=True)
    curve = risk_coverage_curve(confidence, correct)
    # Counts, not ratios: 0.7 of 10 samples is 7, though 0.7 * 10 rounds to 7.000000000000001 elsewhere.
    enough = int(np.searchsorted(curve.n_accepted, coverage * curve.n * (1 - 1e-12)))
    return OperatingPoint(float(curve.threshold[enough]), float(curve.coverage[enough]), float(curve.risk[enough]))


def coverage_at_risk(confidence: Any, correct: Any, risk: float) -> OperatingPoint:
    """Return the threshold with the largest coverage whose risk on this sample is at most `risk`.

    Coverage 0 and threshold inf where no threshold does. This describes the sample; the risk on new data is
    bounded by `threshold_for_risk` only.
    """
    risk = check_fraction(risk, "risk", closed=True)
    curve = risk_coverage_curve(confidence, correct)
    allowed = np.flatnonzero(curve.risk <= risk * (1 + 1e-12))
    if not len(allowed):
        return OperatingPoint(np.inf, 0.0, np.nan)
    best = allowed[-1]
    return OperatingPoint(float(curve.threshold[best]), float(curve.coverage[best]), float(curve.risk[best]))

"""Risk against coverage, and the areas under that curve.

A selective classifier answers if its confidence reaches a threshold t, and abstains otherwise. With c the confidence
and e = 1 for a wrong prediction, ::

    coverage(t) = P(c ≥ t)          risk(t) = P(e = 1 | c ≥ t)          generalised risk(t) = P(e = 1, c ≥ t)

Ties: no threshold can separate equal confidences, so they enter the curve *together*. The areas compare orderings and
need a value at every number of accepted samples. Inside a tie they use the *expectation* over random orders, so that no
result depends on the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.base.inputs import check_confidence
from calibrant.base.settings import check_fraction


@dataclass(frozen=True)
class RiskCoverageCurve:
    """One point for each distinct confidence, from the highest threshold (least coverage) to the lowest.

    Attributes
    ----------
    threshold : array
        The distinct confidences of the sample, descending; a prediction is accepted if c ≥ threshold.
    coverage, risk : arrays
        Share of the sample accepted, and share of errors among the accepted.
    n_accepted, n_errors : arrays
        The counts behind these shares.
    n : int
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
    """One threshold with its coverage and risk on the sample; `threshold=inf` accepts nothing and has risk NaN."""

    threshold: float
    coverage: float
    risk: float


def as_pair(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return validated (confidence, correct) as float64 and bool arrays on the CPU.

    float64 represents every float16, bfloat16 and float32 exactly, so a threshold taken from the sample divides the
    sample as before.
    """
    conf, hits = check_confidence(confidence, correct)
    return conf.double().cpu().numpy(), hits.cpu().numpy()


def accepted_counts(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct confidences from high to low, and how many samples and errors lie at or above each."""
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    errors = np.cumsum(~correct[order])
    last_of_tie = np.append(np.flatnonzero(np.diff(sorted_confidence)), len(sorted_confidence) - 1)
    return sorted_confidence[last_of_tie], last_of_tie + 1, errors[last_of_tie]


def risk_coverage_curve(confidence: Any, correct: Any) -> RiskCoverageCurve:
    """Compute the risk–coverage curve of a sample (El-Yaniv & Wiener 2010).

    Parameters
    ----------
    confidence : array or tensor of shape (n,)
        Confidence in [0, 1]. Only the order matters: map a score of another range into [0, 1] by any increasing
        function.
    correct : array or tensor of shape (n,)
        Whether each prediction was right.
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

    AURC = 1/n Σ_k E_k / k, with E_k the errors among the k most confident (Geifman, Uziel & El-Yaniv 2019), in
    expectation over the order of ties. 0 is perfect. Errors at low coverage have a large weight; see `augrc`.
    """
    errors = _expected_errors(confidence, correct)[1:]
    return float(np.mean(errors / np.arange(1, len(errors) + 1)))


def excess_aurc(confidence: Any, correct: Any) -> float:
    """AURC minus the AURC of the best ordering of the same predictions (Geifman, Uziel & El-Yaniv 2019).

    The best ordering puts all E errors last: 1/n Σ_k max(0, k − (n − E)) / k. This sum is computed exactly. Its limit
    r + (1 − r) ln(1 − r) is off by O(1/n) and can make the excess negative.
    """
    errors = _expected_errors(confidence, correct)
    n = len(errors) - 1
    accepted = np.arange(1, n + 1)
    best = np.maximum(0, accepted - (n - errors[-1]))
    return float(np.mean((errors[1:] - best) / accepted))


def augrc(confidence: Any, correct: Any) -> float:
    """Area under the generalised-risk–coverage curve (Traub et al. 2024, "Overcoming common flaws ...").

    The integral over coverage of P(e = 1, accepted), linear between neighbouring points: the average risk of an
    undetected error. It equals (1 − AUROC)·a·(1 − a) + (1 − a)²/2 exactly, where a is the accuracy, AUROC that of the
    confidence as a detector of correct predictions, and ties count half.
    """
    errors = _expected_errors(confidence, correct)
    n = len(errors) - 1
    return float((errors.sum() - errors[-1] / 2) / n**2)


def risk_at_coverage(confidence: Any, correct: Any, coverage: float) -> OperatingPoint:
    """Return the highest threshold that accepts at least `coverage` of the sample, and its risk.

    The coverage can exceed the requested one, since equal confidences enter together. This describes the sample only;
    `threshold_for_coverage` can guarantee the coverage on new data.
    """
    coverage = check_fraction(coverage, "coverage", closed=True)
    curve = risk_coverage_curve(confidence, correct)
    # Use counts, not ratios: 0.7 of 10 samples is 7, although 0.7 * 10 may round to 7.000000000000001.
    enough = int(np.searchsorted(curve.n_accepted, coverage * curve.n * (1 - 1e-12)))
    return OperatingPoint(float(curve.threshold[enough]), float(curve.coverage[enough]), float(curve.risk[enough]))


def coverage_at_risk(confidence: Any, correct: Any, risk: float) -> OperatingPoint:
    """Return the threshold with the largest coverage whose risk on this sample is at most `risk`.

    Coverage is 0 and the threshold inf if no threshold meets the target. This describes the sample only;
    `threshold_for_risk` bounds the risk on new data.
    """
    risk = check_fraction(risk, "risk", closed=True)
    curve = risk_coverage_curve(confidence, correct)
    allowed = np.flatnonzero(curve.risk <= risk * (1 + 1e-12))
    if not len(allowed):
        return OperatingPoint(np.inf, 0.0, np.nan)
    best = allowed[-1]
    return OperatingPoint(float(curve.threshold[best]), float(curve.coverage[best]), float(curve.risk[best]))

"""Calibration errors and proper scores, each with its noise floor, interval and test.

Every metric takes `(probs, labels)` or `(confidence=, correct=)`, numpy arrays or torch tensors, sample
weights and groups; `ece` documents these keywords once for all.
"""

from calibrant._inputs import Logits
from calibrant.metrics._predictions import Grouped
from calibrant.metrics.binned import ace, classwise_ece, ece, mce, overconfidence, underconfidence
from calibrant.metrics.kernel import kde_ece, sece
from calibrant.metrics.reliability import ReliabilityBins, reliability_bins
from calibrant.metrics.scores import (
    BrierDecomposition,
    accuracy,
    brier,
    brier_decomposition,
    confidence_gap,
    nll,
    share_below_chance,
)
from calibrant.metrics.smooth import smooth_ece

__all__ = [
    "BrierDecomposition",
    "Grouped",
    "Logits",
    "ReliabilityBins",
    "accuracy",
    "ace",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "confidence_gap",
    "ece",
    "kde_ece",
    "mce",
    "nll",
    "overconfidence",
    "reliability_bins",
    "sece",
    "share_below_chance",
    "smooth_ece",
    "underconfidence",
]

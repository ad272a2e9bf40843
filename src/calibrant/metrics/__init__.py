"""Calibration errors and proper scores, with noise floors, intervals and tests.

Every metric takes `(probs, labels)` or `(confidence=, correct=)` as numpy arrays or torch tensors, and optional sample
weights and groups. The docstring of `ece` describes these keywords for all metrics.
"""

from calibrant.base.inputs import Logits
from calibrant.metrics.binned import ReliabilityBins, ace, ece, mce, overconfidence, reliability_bins, underconfidence
from calibrant.metrics.classwise import classwise_ece
from calibrant.metrics.comparison import Comparison, compare
from calibrant.metrics.intervals import Estimate, asymptotic_interval, bootstrap_interval
from calibrant.metrics.kernel import kde_ece, mmce, sece
from calibrant.metrics.noise import CalibrationTest, NoiseFloor, calibration_test, noise_floor
from calibrant.metrics.paired import excludes_zero, mean_interval, paired_difference, ratio_of_means
from calibrant.metrics.predictions import Grouped
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
from calibrant.metrics.streaming import StreamingClasswiseECE, StreamingECE, StreamingMCE
from calibrant.metrics.truth import true_ece

__all__ = [
    "BrierDecomposition",
    "CalibrationTest",
    "Comparison",
    "Estimate",
    "Grouped",
    "Logits",
    "NoiseFloor",
    "ReliabilityBins",
    "StreamingClasswiseECE",
    "StreamingECE",
    "StreamingMCE",
    "accuracy",
    "ace",
    "asymptotic_interval",
    "bootstrap_interval",
    "brier",
    "brier_decomposition",
    "calibration_test",
    "classwise_ece",
    "compare",
    "confidence_gap",
    "ece",
    "excludes_zero",
    "kde_ece",
    "mce",
    "mean_interval",
    "mmce",
    "nll",
    "noise_floor",
    "overconfidence",
    "paired_difference",
    "ratio_of_means",
    "reliability_bins",
    "sece",
    "share_below_chance",
    "smooth_ece",
    "true_ece",
    "underconfidence",
]

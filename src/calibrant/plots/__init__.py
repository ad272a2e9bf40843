"""Figures in two steps: a `prepare_...` function computes the numbers, a display draws them.

Displays follow scikit-learn: `from_predictions` and `from_estimator` compute and draw, `.plot(ax=...)` draws into given
axes. `ax_` (`axes_` if there are several) and `figure_` are the axes and the figure. Predictions are given as for
`calibrant.metrics.ece`, and every number comes from `calibrant.metrics` or `calibrant.selective`. Matplotlib is
imported only for drawing.
"""

from calibrant.plots.bin_sweep import BinSweep, BinSweepDisplay, prepare_bin_sweep
from calibrant.plots.confidence_map import ConfidenceMap, ConfidenceMapDisplay, prepare_confidence_map
from calibrant.plots.histogram import (
    ConfidenceHistogram,
    ConfidenceHistogramDisplay,
    prepare_confidence_histogram,
)
from calibrant.plots.models import ModelsDisplay
from calibrant.plots.reliability import Reliability, ReliabilityDisplay, prepare_reliability
from calibrant.plots.risk_coverage import RiskCoverage, RiskCoverageDisplay, prepare_risk_coverage
from calibrant.plots.smooth import SmoothReliability, SmoothReliabilityDisplay, prepare_smooth_reliability
from calibrant.plots.style import save_figure

__all__ = [
    "BinSweep",
    "BinSweepDisplay",
    "ConfidenceHistogram",
    "ConfidenceHistogramDisplay",
    "ConfidenceMap",
    "ConfidenceMapDisplay",
    "ModelsDisplay",
    "Reliability",
    "ReliabilityDisplay",
    "RiskCoverage",
    "RiskCoverageDisplay",
    "SmoothReliability",
    "SmoothReliabilityDisplay",
    "prepare_bin_sweep",
    "prepare_confidence_histogram",
    "prepare_confidence_map",
    "prepare_reliability",
    "prepare_risk_coverage",
    "prepare_smooth_reliability",
    "save_figure",
]

"""The reject option: when to withhold a prediction, and what is guaranteed about the others.

Functions take `confidence` in [0, 1] and `correct` (was the prediction right) as numpy arrays or torch tensors, from a
sample that the model has not seen. `risk_coverage_curve` and the areas describe that sample. `threshold_for_risk` and
`uniform_risk_bound` make statements about new data, with proofs in the docstrings of their modules. The result is a
`RejectionRule`.

Prediction sets take class probabilities and labels. `conformal_rule` uses a sample that the model has not seen and
returns a `SetRule`. `cross_conformal_rule` uses out-of-fold probabilities and returns a `CrossSetRule`. Their method
`apply` returns a bool array.
"""

from calibrant.selective.choose import chow_threshold, threshold_for_cost, threshold_for_coverage
from calibrant.selective.conformal import SetRule, conformal_rule
from calibrant.selective.cross_conformal import CrossSetRule, cross_conformal_rule
from calibrant.selective.curve import (
    OperatingPoint,
    RiskCoverageCurve,
    augrc,
    aurc,
    coverage_at_risk,
    excess_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from calibrant.selective.rule import RejectionRule, Window
from calibrant.selective.set_scores import APS, LAC, RAPS
from calibrant.selective.target_risk import threshold_for_risk
from calibrant.selective.uniform import UniformRiskBound, uniform_risk_bound

__all__ = [
    "APS",
    "LAC",
    "RAPS",
    "CrossSetRule",
    "OperatingPoint",
    "RejectionRule",
    "RiskCoverageCurve",
    "SetRule",
    "UniformRiskBound",
    "Window",
    "augrc",
    "aurc",
    "chow_threshold",
    "conformal_rule",
    "coverage_at_risk",
    "cross_conformal_rule",
    "excess_aurc",
    "risk_at_coverage",
    "risk_coverage_curve",
    "threshold_for_cost",
    "threshold_for_coverage",
    "threshold_for_risk",
    "uniform_risk_bound",
]

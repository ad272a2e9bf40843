"""Per-sample classification losses and differentiable calibration losses."""

from calibrant.losses.calibration import dece, sece, soft_accuracy
from calibrant.losses.classification import brier, cross_entropy, focal, nll, smoothed_cross_entropy
from calibrant.losses.confidence import confidence_bce, smooth_max

__all__ = [
    "brier",
    "confidence_bce",
    "cross_entropy",
    "dece",
    "focal",
    "nll",
    "sece",
    "smooth_max",
    "smoothed_cross_entropy",
    "soft_accuracy",
]

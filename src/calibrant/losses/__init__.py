"""Losses for classification, and differentiable calibration errors.

Functions take logits of shape (n, C) and class indices of shape (n,); those with an argument ``targets`` also take soft
targets of shape (n, C). Classification losses and penalties return one value for each sample. Calibration errors
(`sece`, `dece`, `soft_binned_ece`, `mmce`, `mdca`, `avuc`, `soft_binned_avuc`) return one value for the batch.
:data:`LOSSES` has the training losses by name.
"""

from calibrant.losses.calibration import dece, sece, soft_accuracy
from calibrant.losses.classification import (
    brier,
    confidence_bce,
    cross_entropy,
    dual_focal,
    flsd,
    focal,
    focal_gamma,
    focal_slope,
    nll,
    smooth_max,
    smoothed_cross_entropy,
)
from calibrant.losses.regularisers import (
    binary_discrimination,
    binary_exclusion,
    entropy,
    logit_margin,
    negative_entropy,
)
from calibrant.losses.table import LOSSES, Loss
from calibrant.losses.trainable import avuc, mdca, mmce, soft_binned_avuc, soft_binned_ece

__all__ = [
    "LOSSES",
    "Loss",
    "avuc",
    "binary_discrimination",
    "binary_exclusion",
    "brier",
    "confidence_bce",
    "cross_entropy",
    "dece",
    "dual_focal",
    "entropy",
    "flsd",
    "focal",
    "focal_gamma",
    "focal_slope",
    "logit_margin",
    "mdca",
    "mmce",
    "negative_entropy",
    "nll",
    "sece",
    "smooth_max",
    "smoothed_cross_entropy",
    "soft_accuracy",
    "soft_binned_avuc",
    "soft_binned_ece",
]

"""Per-sample classification losses and differentiable calibration losses."""

from calibrant.losses.classification import cross_entropy
from calibrant.losses.confidence import confidence_bce, smooth_max

__all__ = ["confidence_bce", "cross_entropy", "smooth_max"]

"""Variants of the focal loss, per sample, and the γ for a given confidence."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import lambertw
from torch import Tensor

from calibrant._classes import log_of_others, loss_inputs, one_hot
from calibrant.losses.classification import cross_entropy, focal


def flsd(logits: Tensor, labels: Tensor, *, threshold: float = 0.2, low: float = 5.0, high: float = 3.0) -> Tensor:
    """Focal loss with a sample-dependent γ (Mukhoti et al. 2020): FLSD-53 with the default values.

    γ is `low` if ``p_y < threshold``, otherwise `high`. It is treated as a constant in differentiation.
    """
    logits, labels = loss_inputs(logits, labels)
    below = cross_entropy(logits, labels) > -np.log(threshold)  # p_y < threshold
    return focal(logits, labels, torch.where(below, low, high).to(logits.dtype))


def dual_focal(logits: Tensor, labels: Tensor, gamma: float | Tensor = 5.0) -> Tensor:
    """``−(1 − p_y + p_j)^γ log p_y`` (Tao et al. 2023, Eq. (5)), with p_j the largest probability below p_y.

    p_j is 0 if no class has a smaller probability than the label's. The power is computed in log space, as in
    :func:`calibrant.losses.focal`.
    """
    logits, labels = loss_inputs(logits, labels)
    log_probs = torch.log_softmax(logits, dim=-1)
    own = (log_probs * one_hot(labels, logits.shape[-1], logits.dtype)).sum(-1, keepdim=True)
    never = torch.finfo(logits.dtype).min / 4  # finite, so that no slope is inf − inf
    runner_up = log_probs.masked_fill(log_probs >= own, never).amax(-1)
    # log(1 − p_y + p_j); logaddexp has no second derivative where its arguments are far apart
    base = torch.logsumexp(torch.stack([log_of_others(logits, labels), runner_up], dim=-1), dim=-1)
    return torch.exp(gamma * base) * cross_entropy(logits, labels)


def focal_gamma(confidence: float | np.ndarray) -> float | np.ndarray:
    """Focal γ whose slope is smaller than cross-entropy's above the confidence p0 (Mukhoti et al. 2020). ::

        γ = a/b + W₋₁(−a^(1 − a/b)·log(a)/b)/log(a),   a = 1 − p0,  b = p0·log p0

    W₋₁ is the lower branch of Lambert's function. By their Proposition 1, with this γ the gradients of both losses have
    the same norm at p_y = p0, and that of the focal loss is smaller for p_y > p0. Such a γ > 0 exists for 0 < p0 < ½.
    """
    p0 = np.asarray(confidence, dtype=float)
    if not np.all((p0 > 0) & (p0 < 0.5)):
        raise ValueError(f"confidence must lie strictly between 0 and 0.5; got {confidence}.")
    a, b = 1 - p0, p0 * np.log(p0)
    gamma = a / b + lambertw(-(a ** (1 - a / b)) * np.log(a) / b, -1).real / np.log(a)
    return gamma if isinstance(confidence, np.ndarray) else float(gamma)


def focal_slope(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """The gradient of the focal loss in the logits, as a multiple of cross-entropy's gradient; 1 for γ = 0.

    ``(1 − p)^γ·(1 − γ·p·log p/(1 − p))`` with p = p_y. The fraction is between −1 and 0, also where p rounds to 1.
    """
    others, ce = log_of_others(logits, labels), cross_entropy(logits, labels)
    fraction = (ce * torch.exp((-ce - others).clamp_max(80.0))).clamp_max(1.0)
    return torch.exp(gamma * others) * (1 + gamma * fraction)

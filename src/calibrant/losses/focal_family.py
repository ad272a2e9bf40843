"""Variants of the focal loss, per sample, and the γ for a given confidence."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import lambertw
from torch import Tensor

from calibrant.base.classes import log_of_others
from calibrant.losses.classification import cross_entropy, focal
from calibrant.losses.inputs import for_each_sample, number_below_one, sample_inputs


def flsd(logits: Tensor, labels: Tensor, *, threshold: float = 0.2, low: float = 5.0, high: float = 3.0) -> Tensor:
    """Focal loss with a sample-dependent γ (Mukhoti et al. 2020): FLSD-53 with the default values.

    γ is `low` if ``p_y < threshold``, otherwise `high`. It is treated as a constant in differentiation.
    """
    number_below_one("threshold", threshold)
    logits, labels = sample_inputs(logits, labels)
    below = cross_entropy(logits, labels) > -math.log(threshold)  # p_y < threshold
    return focal(logits, labels, torch.where(below, logits.new_full((), low), logits.new_full((), high)))


def dual_focal(logits: Tensor, labels: Tensor, gamma: float | Tensor = 5.0) -> Tensor:
    """``−(1 − p_y + p_j)^γ log p_y`` (Tao et al. 2023, Eq. (5)), with p_j the largest probability below p_y.

    p_j is 0 if no class has a smaller probability than the label's. The power is computed in log space, as in
    :func:`calibrant.losses.focal`.
    """
    logits, labels = sample_inputs(logits, labels)
    gamma = for_each_sample("gamma", gamma, labels)
    ce = cross_entropy(logits, labels)
    log_probs = torch.log_softmax(logits, dim=-1)
    label_log_probs = log_probs.gather(-1, labels.unsqueeze(-1))
    lowest = torch.finfo(logits.dtype).min / 4  # finite, so that no slope is inf − inf
    runner_up = log_probs.masked_fill(log_probs >= label_log_probs, lowest).amax(-1)
    # log(1 − p_y + p_j); logaddexp has no second derivative where its arguments are far apart
    base = torch.logsumexp(torch.stack([log_of_others(logits, labels), runner_up], dim=-1), dim=-1)
    return torch.exp(gamma * base) * ce


def focal_gamma(confidence: ArrayLike) -> float | np.ndarray:
    """Focal γ whose slope is smaller than cross-entropy's above the confidence p0 (Mukhoti et al. 2020). ::

        γ = a/b + W₋₁(−a^(1 − a/b)·log(a)/b)/log(a),   a = 1 − p0,  b = p0·log p0

    W₋₁ is the lower branch of Lambert's function. By their Proposition 1, with this γ the gradients of both losses have
    the same norm at p_y = p0, and that of the focal loss is smaller for p_y > p0. Such a γ > 0 exists for 0 < p0 < ½.
    The result is a float, or an array for several confidences.
    """
    p0 = np.asarray(confidence, dtype=float)
    if not np.all((p0 > 0) & (p0 < 0.5)):
        raise ValueError(f"confidence must lie strictly between 0 and 0.5; got {confidence!r}.")
    a, b, log_a = 1 - p0, p0 * np.log(p0), np.log1p(-p0)
    gamma = a / b + lambertw(-np.exp((1 - a / b) * log_a) * log_a / b, -1).real / log_a
    return gamma if gamma.ndim else float(gamma)


def focal_slope(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """The gradient of the focal loss in the logits, as a multiple of cross-entropy's gradient; 1 for γ = 0.

    ``(1 − p)^γ·(1 − γ·p·log p/(1 − p))`` with p = p_y. The fraction is between −1 and 0, also where p rounds to 1.
    """
    logits, labels = sample_inputs(logits, labels)
    gamma = for_each_sample("gamma", gamma, labels)
    log_others, ce = log_of_others(logits, labels), cross_entropy(logits, labels)
    # −log p is computed from q = 1 − p if p is large: cross-entropy itself rounds to 0 there.
    q = torch.exp(log_others).clamp(torch.finfo(log_others.dtype).tiny, 0.5)
    likely = -torch.log1p(-q) * (1 - q) / q
    unlikely = ce * torch.exp((-ce - log_others).clamp_max(0.0))
    fraction = torch.where(log_others < -math.log(2), likely, unlikely)
    return torch.exp(gamma * log_others) * (1 + gamma * fraction)

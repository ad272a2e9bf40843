"""Per-sample classification losses: ``loss(logits, targets)`` returns one value for each sample, without reduction.

All losses work on logits in log space. Their values and slopes are finite for every confidence. Logits in half
precision are converted to float32, so the values are float32. Classes are the last axis of the logits. Labels are class
indices; a label that is not a class is an error.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from scipy.special import lambertw
from torch import Tensor

from calibrant.base.classes import log_of_others, loss_inputs, sum_of_others
from calibrant.losses.inputs import (
    class_shares,
    correctness,
    for_each_sample,
    known_labels,
    number_below_one,
    positive_number,
)

# No label is ignored. By default torch gives a label of −100 a loss of 0.
_IGNORED = -(1 << 62)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``−Σ_c t_c log softmax(logits)_c`` (Eq. (11), Sanguin et al. 2024), for class indices or soft targets.

    The paper's "final logit for class c" must be read as the probability.
    """
    logits, targets = loss_inputs(logits, targets, soft=True)
    if logits.dim() > 2:  # torch expects classes on the second axis
        logits = logits.movedim(-1, 1)
        targets = targets.movedim(-1, 1) if targets.is_floating_point() else targets
    with known_labels(logits.shape[1 if logits.dim() > 1 else 0]):
        return F.cross_entropy(logits, targets, reduction="none", ignore_index=_IGNORED)


nll = cross_entropy
"""The negative log-likelihood of the label: another name for :func:`cross_entropy`.

:func:`calibrant.metrics.nll` is the metric.
"""


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float | Tensor) -> Tensor:
    """Cross-entropy with the target ``(1 − ε)·onehot + ε/C`` (Szegedy et al. 2016); ε is a number or one per sample."""
    logits, labels = loss_inputs(logits, labels, soft=True)
    epsilon = for_each_sample("epsilon", epsilon, logits[..., 0], largest=1.0)
    uniform = -torch.log_softmax(logits, dim=-1).mean(-1)
    return (1 - epsilon) * cross_entropy(logits, labels) + epsilon * uniform


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """``Σ_c (p_c − t_c)²`` (Brier 1950), between 0 and 2, for class indices or soft targets.

    :func:`calibrant.metrics.brier` is the metric.
    """
    logits, targets = loss_inputs(logits, targets, soft=True)
    return (torch.softmax(logits, dim=-1) - class_shares(targets, logits)).square().sum(-1)


def focal(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """``−(1 − p_y)^γ log p_y`` (Lin et al. 2017), with γ ≥ 0: one number, or one for each sample.

    γ = 0 is cross-entropy. The loss is at least ``KL(q‖p) + H(q) − γ·H(p)``, with q the one-hot label: Eq. (1) of
    "Towards Unbiased Calibration using Meta-Regularization".

    ``(1 − p_y)^γ`` is computed as ``exp(γ·log(1 − p_y))``, with the logarithm from the logits of the other classes
    (``log_of_others``). If p rounds to 1, the power ``(1 − p)^γ`` has an infinite slope in p for γ < 1, and its
    slope in γ is ``0·(−∞)``.
    """
    logits, labels = loss_inputs(logits, labels)
    gamma = for_each_sample("gamma", gamma, labels)
    return torch.exp(gamma * log_of_others(logits, labels)) * cross_entropy(logits, labels)


def flsd(logits: Tensor, labels: Tensor, *, threshold: float = 0.2, low: float = 5.0, high: float = 3.0) -> Tensor:
    """Focal loss with a sample-dependent γ (Mukhoti et al. 2020): FLSD-53 with the default values.

    γ is `low` if ``p_y < threshold``, otherwise `high`. It is treated as a constant in differentiation.
    """
    number_below_one("threshold", threshold)
    logits, labels = loss_inputs(logits, labels)
    below = cross_entropy(logits, labels) > -math.log(threshold)  # p_y < threshold
    return focal(logits, labels, torch.where(below, logits.new_full((), low), logits.new_full((), high)))


def dual_focal(logits: Tensor, labels: Tensor, gamma: float | Tensor = 5.0) -> Tensor:
    """``−(1 − p_y + p_j)^γ log p_y`` (Tao et al. 2023, Eq. (5)), with p_j the largest probability below p_y.

    p_j is 0 if no class has a smaller probability than the label's. The power is computed in log space, as in
    :func:`calibrant.losses.focal`.
    """
    logits, labels = loss_inputs(logits, labels)
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
    logits, labels = loss_inputs(logits, labels)
    gamma = for_each_sample("gamma", gamma, labels)
    log_others, ce = log_of_others(logits, labels), cross_entropy(logits, labels)
    # −log p is computed from q = 1 − p if p is large: cross-entropy itself rounds to 0 there.
    q = torch.exp(log_others).clamp(torch.finfo(log_others.dtype).tiny, 0.5)
    likely = -torch.log1p(-q) * (1 - q) / q
    unlikely = ce * torch.exp((-ce - log_others).clamp_max(0.0))
    fraction = torch.where(log_others < -math.log(2), likely, unlikely)
    return torch.exp(gamma * log_others) * (1 + gamma * fraction)


def smooth_max(probs: Tensor, alpha: float | Tensor) -> Tensor:
    """The Boltzmann operator ``Σ_c p_c·softmax(α·p)_c`` (Asadi & Littman 2017), a smooth maximum over classes.

    It is below the maximum by at most ``W((C−1)/e)/α``, with W Lambert's function. Use α ≥ 30, and more for many
    classes.
    """
    return (probs * torch.softmax(alpha * probs, dim=-1)).sum(-1)


def confidence_bce(logits: Tensor, labels: Tensor, alpha: float | Tensor = 30.0) -> Tensor:
    """``−[y^B log p̂ + (1 − y^B) log(1 − p̂)]`` per sample (Eq. (13), Sanguin et al. 2024).

    ``p̂`` is the smooth maximum of the probabilities. ``y^B`` says whether the prediction is right; it is a constant in
    differentiation. ``1 − p̂ = Σ_c (1 − p_c)·softmax(α·p)_c`` is computed from the complements, so that neither
    logarithm loses precision if the confidence is close to 1. α limits the loss: ``1 − p̂`` is never below about
    ``e^−α``, so a wrong prediction costs at most about α, and its gradient vanishes there.
    """
    alpha = positive_number("alpha", alpha)
    logits, labels = loss_inputs(logits, labels)
    probs = torch.softmax(logits, dim=-1)
    share = torch.softmax(alpha * probs, dim=-1)
    correct = correctness(logits, labels) > 0
    of_the_outcome = torch.where(correct.unsqueeze(-1), probs, _complements(probs))
    return -(of_the_outcome * share).sum(-1).clamp_min(torch.finfo(probs.dtype).tiny).log()


def _complements(probs: Tensor) -> Tensor:
    """``1 − p``, by a matrix product that autocast must not compute in half precision."""
    device = probs.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return sum_of_others(probs)
    with torch.autocast(device, enabled=False):
        return sum_of_others(probs)

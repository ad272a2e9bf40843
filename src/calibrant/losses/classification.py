"""Per-sample classification losses: ``loss(logits, targets)`` returns one value for each sample, without reduction.

All losses work on logits in log space. Their values and slopes are finite for every confidence. Logits in half
precision are converted to float32, so the values are float32. Classes are the last axis of the logits. Labels are class
indices; a label that is not a class is an error.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.base.classes import log_of_others
from calibrant.losses.inputs import class_shares, for_each_sample, known_labels, sample_inputs

# No label is ignored. By default torch gives a label of −100 a loss of 0.
_IGNORED = -(1 << 62)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``−Σ_c t_c log softmax(logits)_c`` (Eq. (11), Sanguin et al. 2024), for class indices or soft targets.

    The paper's "final logit for class c" must be read as the probability.
    """
    logits, targets = sample_inputs(logits, targets, soft=True)
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
    logits, labels = sample_inputs(logits, labels, soft=True)
    epsilon = for_each_sample("epsilon", epsilon, logits[..., 0], largest=1.0)
    uniform = -torch.log_softmax(logits, dim=-1).mean(-1)
    return (1 - epsilon) * cross_entropy(logits, labels) + epsilon * uniform


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """``Σ_c (p_c − t_c)²`` (Brier 1950), between 0 and 2, for class indices or soft targets.

    :func:`calibrant.metrics.brier` is the metric.
    """
    logits, targets = sample_inputs(logits, targets, soft=True)
    return (torch.softmax(logits, dim=-1) - class_shares(targets, logits)).square().sum(-1)


def focal(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """``−(1 − p_y)^γ log p_y`` (Lin et al. 2017), with γ ≥ 0: one number, or one for each sample.

    γ = 0 is cross-entropy. The loss is at least ``KL(q‖p) + H(q) − γ·H(p)``, with q the one-hot label: Eq. (1) of
    "Towards Unbiased Calibration using Meta-Regularization".

    ``(1 − p_y)^γ`` is computed as ``exp(γ·log(1 − p_y))``, with the logarithm from the logits of the other classes
    (``log_of_others``). If p rounds to 1, the power ``(1 − p)^γ`` has an infinite slope in p for γ < 1, and its
    slope in γ is ``0·(−∞)``.
    """
    logits, labels = sample_inputs(logits, labels)
    gamma = for_each_sample("gamma", gamma, labels)
    return torch.exp(gamma * log_of_others(logits, labels)) * cross_entropy(logits, labels)

"""Per-sample classification losses: ``loss(logits, targets)`` returns one value for each sample, without reduction.

All losses work on logits in log space. Their values and slopes are finite for every confidence. Logits in half
precision are converted to float32, so the values are float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant._classes import log_of_others, loss_inputs, one_hot


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``−Σ_c t_c log softmax(logits)_c`` (Eq. (11), Sanguin et al. 2024), for class indices or soft targets.

    The paper's "final logit for class c" must be read as the probability.
    """
    return F.cross_entropy(*loss_inputs(logits, targets, soft=True), reduction="none")


nll = cross_entropy
"""The negative log-likelihood of the label: another name for :func:`cross_entropy`."""


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float | Tensor) -> Tensor:
    """Cross-entropy with the target ``(1 − ε)·onehot + ε/C`` (Szegedy et al. 2016); ε is a number or one per sample."""
    logits, labels = loss_inputs(logits, labels, soft=True)
    uniform = -torch.log_softmax(logits, dim=-1).mean(-1)
    return (1 - epsilon) * cross_entropy(logits, labels) + epsilon * uniform


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """``Σ_c (p_c − t_c)²`` (Brier 1950), between 0 and 2, for class indices or soft targets."""
    logits, targets = loss_inputs(logits, targets, soft=True)
    hard = one_hot(targets, logits.shape[-1], logits.dtype) if targets.dim() < logits.dim() else targets
    return (torch.softmax(logits, dim=-1) - hard).square().sum(-1)


def focal(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """``−(1 − p_y)^γ log p_y`` (Lin et al. 2017), with γ ≥ 0: one number, or one for each sample.

    γ = 0 is cross-entropy. The loss is at least ``KL(q‖p) + H(q) − γ·H(p)``, with q the one-hot label: Eq. (1) of
    "Towards Unbiased Calibration using Meta-Regularization".

    ``(1 − p_y)^γ`` is computed as ``exp(γ·log(1 − p_y))``, with the logarithm from the logits of the other classes
    (``log_of_others``). If p rounds to 1, the power ``(1 − p)^γ`` has an infinite slope in p for γ < 1, and its
    slope in γ is ``0·(−∞)``.
    """
    return torch.exp(gamma * log_of_others(logits, labels)) * cross_entropy(logits, labels)

"""The first paper's outer loss: binary cross-entropy of a smooth confidence against "was it right"."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.base.classes import sum_of_others
from calibrant.losses.inputs import correctness, positive_number, sample_inputs


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
    logits, labels = sample_inputs(logits, labels)
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

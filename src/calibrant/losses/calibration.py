"""Differentiable calibration errors: one value for a whole batch, to be minimised together with a proper loss.

Alone, a calibration error is smallest for a network that has learned nothing (all confidences 1/C, and right that
often). An outer loss therefore adds the cross-entropy: see :data:`calibrant.bilevel.OUTER_LOSSES`. On small batches
these errors are mostly noise: a *calibrated* batch of 128 whose confidences are spread out has a SECE of about 0.1 at a
bandwidth of 0.01.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from calibrant.base.classes import loss_inputs
from calibrant.base.settings import check_choice, check_whole
from calibrant.losses.inputs import batch_inputs, correctness, known_labels, positive_number, sample_weights
from calibrant.losses.kernel_means import kernel_means

Accuracy = Literal["soft", "hard"]


def sece(
    logits: Tensor,
    labels: Tensor,
    *,
    bandwidth: float | Tensor = 0.01,
    accuracy: Accuracy = "soft",
    sample_weight: Tensor | None = None,
    order: int = 1,
    rows: int = 1024,
) -> Tensor:
    """Smooth expected calibration error of "Towards Unbiased Calibration using Meta-Regularization". ::

        SECE = (1/n) Σ_i |π̂(z_i) − z_i|^order                                  Eq. (7), order = 1
        π̂(z) = Σ_j π_j K(z, z_j) / Σ_j K(z, z_j)                               Eq. (12)
        K(z, z') = exp(−(z − z')² / 2h²),  h = `bandwidth`                      Eq. (6)

    z is the confidence (the largest probability), and π says whether the prediction was right. Eq. (5) as printed has
    π(x_i) instead of π(x_j) and is not normalised, so this is the form of Eq. (12), with its self term.
    ``accuracy="soft"`` is the paper's (:func:`soft_accuracy`). ``"hard"`` uses 0 or 1 as a constant, so that the
    gradient changes confidences only. ``order=2`` is the squared form, without a root: its gradient shrinks with
    the error, and that of the absolute value does not.

    `sample_weight` has one weight ≥ 0 for each sample. It multiplies K in Eq. (12) and the terms of Eq. (7), so that a
    weight of 2 counts a sample twice. The scale of the weights does not matter. The error is 0 if all weights are 0,
    and NaN if one is negative.

    As h → 0 only a sample's own accuracy remains: with ``order=2`` and hard accuracy this is the Brier score of the
    confidence. Time is O(n²), memory is not: with more than `rows` samples, pairs are computed in blocks of at most
    `rows` rows, for the value and its gradient. Forward-mode differentiation needs `rows` of at least the number of
    samples. The metric of the same name is :func:`calibrant.metrics.sece`.
    """
    bandwidth, rows = positive_number("bandwidth", bandwidth), check_whole("rows", rows)
    check_choice("order", order, (1, 2))
    confidence, right = _confidence_and_accuracy(logits, labels, accuracy)
    weights = None if sample_weight is None else sample_weights(sample_weight, confidence)
    gap = kernel_means(confidence, right, bandwidth, weights, rows=rows) - confidence
    return _mean(gap.abs() if order == 1 else gap.square(), weights)  # Eq. (7)


def dece(
    logits: Tensor,
    labels: Tensor,
    *,
    bins: int = 15,
    temperature: float | Tensor = 0.01,
    accuracy: Accuracy = "soft",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Differentiable expected calibration error (Bohdal et al. 2021): ECE with soft bins. ::

        DECE = Σ_m (Σ_i s_im / n)·|acc_m − conf_m| = (1/n) Σ_m |Σ_i s_im (π_i − z_i)|
        s_i = softmax((z_i·W + b)/τ),  W = (1, …, M),  b_m = −Σ_{k<m} k/M,  τ = `temperature`

    The second form does not divide by the mass of a bin, so empty bins need no special case. The authors' code adds
    1e-6 to every s_im before it divides, which changes the value by at most about M·1e-6. As τ → 0 a bin becomes
    [(m − 1)/M, m/M]. z, π, `accuracy` and `sample_weight` are as in :func:`sece`.
    """
    bins, temperature = check_whole("bins", bins), positive_number("temperature", temperature)
    confidence, right = _confidence_and_accuracy(logits, labels, accuracy)
    weights = None if sample_weight is None else sample_weights(sample_weight, confidence)
    slopes = torch.arange(1, bins + 1, dtype=confidence.dtype, device=confidence.device)
    offsets = -torch.cumsum((slopes - 1) / bins, dim=0)
    share = torch.softmax((confidence.unsqueeze(-1) * slopes + offsets) / temperature, dim=-1)
    return _mean(share * (right - confidence).unsqueeze(-1), weights).abs().sum()


def soft_accuracy(probs: Tensor, labels: Tensor, steepness: float = 100.0) -> Tensor:
    """A smooth substitute for "was it right": the rank of the label's class (Qin et al. 2010; Bohdal et al. 2021).

    ``relu(2 − rank)`` with ``rank = ½ + Σ_j σ(100·(p_j − p_y))``, where j runs over all classes including y. It is 1 if
    the label has the largest probability by a margin, and ½ in a tie of two.
    """
    probs, labels = loss_inputs(probs, labels)
    with known_labels(probs.shape[-1]):
        label_probs = probs.gather(-1, labels.unsqueeze(-1))
    rank = 0.5 + torch.sigmoid(steepness * (probs - label_probs)).sum(-1)
    return torch.relu(2 - rank)


def _confidence_and_accuracy(logits: Tensor, labels: Tensor, accuracy: Accuracy) -> tuple[Tensor, Tensor]:
    check_choice("accuracy", accuracy, ("soft", "hard"))
    logits, labels = batch_inputs(logits, labels)
    probs = torch.softmax(logits, dim=-1)
    return probs.amax(-1), soft_accuracy(probs, labels) if accuracy == "soft" else correctness(logits, labels)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over samples, the first axis; 0 if all weights are 0."""
    if weights is None:
        return values.mean(0)
    total = weights.sum()
    by_row = weights.unsqueeze(-1) if values.dim() > 1 else weights
    return (by_row * values).sum(0) / torch.where(total > 0, total, 1)

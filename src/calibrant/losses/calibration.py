"""Differentiable calibration errors: one value for a whole batch, to be minimised together with a proper loss.

Alone, a calibration error is smallest for a network that has learned nothing (all confidences 1/C, and right that
often). An outer loss therefore adds the cross-entropy: see :data:`calibrant.bilevel.OUTER_LOSSES`. On small batches
these errors are mostly noise: a *calibrated* batch of 128 has a SECE of about 0.08 at a bandwidth of 0.01.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from calibrant._classes import batch_inputs, one_hot
from calibrant._renamed import renamed_arguments
from calibrant.losses.kernel_means import kernel_means
from calibrant.metrics.kernel import nadaraya_watson

Accuracy = Literal["soft", "hard"]


@renamed_arguments(weights="sample_weight")
def sece(
    logits: Tensor,
    labels: Tensor,
    *,
    bandwidth: float = 0.01,
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
    gradient changes confidences only. ``order=2`` is the squared form, without a root: the gradient of the absolute
    value does not shrink with the error, that of the square does.

    Time is O(n²). With more than `rows` samples, pairs are computed in blocks of `rows` rows, and memory is O(rows·n)
    for the value and its gradient. The metric of the same name is :func:`calibrant.metrics.sece`.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be positive; got {bandwidth}.")
    if order not in (1, 2) or rows < 1:
        raise ValueError(f"order must be 1 or 2 and rows at least 1; got {order} and {rows}.")
    confidence, right = _confidence_and_accuracy(logits, labels, accuracy)
    if confidence.shape[0] <= rows:
        means = nadaraya_watson(confidence, right, bandwidth, weight=sample_weight)  # Eq. (12)
    else:
        log_weights = torch.zeros_like(confidence) if sample_weight is None else sample_weight.log()
        means = kernel_means(confidence, right, bandwidth, log_weights, rows)
    gap = means - confidence
    return _mean(gap.abs() if order == 1 else gap.square(), sample_weight)  # Eq. (7)


@renamed_arguments(weights="sample_weight")
def dece(
    logits: Tensor,
    labels: Tensor,
    *,
    bins: int = 15,
    temperature: float = 0.01,
    accuracy: Accuracy = "soft",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Differentiable expected calibration error (Bohdal et al. 2021): ECE with soft bins. ::

        DECE = Σ_m (Σ_i s_im / n)·|acc_m − conf_m| = (1/n) Σ_m |Σ_i s_im (π_i − z_i)|
        s_i = softmax((z_i·W + b)/τ),  W = (1, …, M),  b_m = −Σ_{k<m} k/M,  τ = `temperature`

    The second form does not divide by the mass of a bin, so empty bins need no special case. As τ → 0 a bin becomes
    [(m − 1)/M, m/M]. z, π, `accuracy` and `sample_weight` are as in :func:`sece`.
    """
    if bins < 1 or not temperature > 0:
        raise ValueError(f"bins must be at least 1 and temperature positive; got {bins} and {temperature}.")
    confidence, right = _confidence_and_accuracy(logits, labels, accuracy)
    slopes = torch.arange(1, bins + 1, dtype=confidence.dtype, device=confidence.device)
    offsets = -torch.cumsum((slopes - 1) / bins, dim=0)
    share = torch.softmax((confidence.unsqueeze(-1) * slopes + offsets) / temperature, dim=-1)
    return _mean(share * (right - confidence).unsqueeze(-1), sample_weight).abs().sum()


def soft_accuracy(probs: Tensor, labels: Tensor, steepness: float = 100.0) -> Tensor:
    """Smooth "was it right" by the all-pairs rank of the label's class (Qin et al. 2010; Bohdal et al. 2021).

    ``relu(2 − rank)`` with ``rank = ½ + Σ_j σ(100·(p_j − p_y))``, where j runs over all classes including y. It is 1 if
    the label has the largest probability by a margin, and ½ in a tie of two.
    """
    own = (probs * one_hot(labels, probs.shape[-1], probs.dtype)).sum(-1, keepdim=True)
    rank = 0.5 + torch.sigmoid(steepness * (probs - own)).sum(-1)
    return torch.relu(2 - rank)


def _confidence_and_accuracy(logits: Tensor, labels: Tensor, accuracy: Accuracy) -> tuple[Tensor, Tensor]:
    logits, labels = batch_inputs(logits, labels)
    probs = torch.softmax(logits, dim=-1)
    if accuracy == "soft":
        right = soft_accuracy(probs, labels)
    elif accuracy == "hard":
        right = (probs.argmax(-1) == labels).to(probs.dtype)
    else:
        raise ValueError(f"accuracy must be 'soft' or 'hard'; got {accuracy!r}.")
    return probs.amax(-1), right


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over samples, the first axis."""
    if weights is None:
        return values.mean(0)
    return torch.tensordot(weights, values, dims=1) / weights.sum()

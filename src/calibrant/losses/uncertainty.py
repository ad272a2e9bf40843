"""Accuracy versus uncertainty: AvUC and its soft-binned form, one number for a batch.

A good prediction is right and certain, or wrong and uncertain. Both losses are ``log(1 + (n_AU + n_IC)/(n_AC + n_IU))``
with soft counts of accurate (A) or inaccurate (I) and certain (C) or uncertain (U) predictions. The counts are
increased by 1e-10, so that the losses are finite. They have almost no gradient if the good counts are smaller than
that, as in a batch of sure and wrong predictions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.losses.inputs import number_below_one, positive_number
from calibrant.losses.regularisers import entropy
from calibrant.losses.trainable import confidence_and_right

_SMALL = 1e-10


def avuc(logits: Tensor, labels: Tensor, *, threshold: float | Tensor | None = None) -> Tensor:
    """AvUC (Krishnan & Tickoo 2020, Eq. (2) and Eq. (3)) with the entropy u of a prediction as its uncertainty. ::

        n_AC = Σ p·(1 − tanh u)         n_AU = Σ p·tanh u          p the confidence
        n_IC = Σ (1 − p)·(1 − tanh u)   n_IU = Σ (1 − p)·tanh u

    Each sum is over the predictions of its kind: right (A) or wrong (I), and certain (C) or uncertain (U). A prediction
    is uncertain if u exceeds `threshold`, in nats. None uses the middle between the mean u of the right
    and of the wrong predictions in the batch; the authors compute that middle on the training set after some epochs.
    The decision is a step, so no gradient passes through the threshold.
    """
    confidence, right = confidence_and_right(logits, labels)
    u = entropy(logits)
    limit = _middle(u, right) if threshold is None else positive_number("threshold", threshold, zero=True)
    uncertain = (u > limit).to(u.dtype)
    return _log_ratio(right, uncertain, torch.tanh(u), confidence, 1 - confidence)


def soft_binned_avuc(
    logits: Tensor, labels: Tensor, *, threshold: float | Tensor = 0.5, temperature: float | Tensor = 0.1
) -> Tensor:
    """SB-AvUC (Karandikar et al. 2021, Eq. (15)): AvUC with a soft decision between certain and uncertain. ::

        t(v) = σ((logit v − logit κ)/T),   v = u/log C,  κ = `threshold` in (0, 1),  T = `temperature`
        n_AU = Σ t·tanh u,  n_AC = Σ (1 − t)·(1 − tanh u) over right predictions; n_IU, n_IC likewise over wrong ones

    As in their equation, the counts have no factor of confidence. The authors choose κ and T by search.
    """
    threshold, temperature = number_below_one("threshold", threshold), positive_number("temperature", temperature)
    _, right = confidence_and_right(logits, labels)
    u = entropy(logits)
    share = (u / math.log(max(2, logits.shape[-1]))).clamp(1e-6, 1 - 1e-6)
    limit = torch.logit(threshold if isinstance(threshold, Tensor) else u.new_full((), threshold))
    uncertain = torch.sigmoid((torch.logit(share) - limit) / temperature)
    ones = torch.ones_like(u)
    return _log_ratio(right, uncertain, torch.tanh(u), ones, ones)


def _middle(u: Tensor, right: Tensor) -> Tensor:
    """The middle between the mean u of right and of wrong predictions; one of the means if the other group is empty.

    It is rounded up, so that equal predictions are all certain.
    """
    counts = torch.stack([right.sum(-1), (1 - right).sum(-1)])
    means = torch.stack([(right * u).sum(-1), ((1 - right) * u).sum(-1)]) / counts.clamp_min(1)
    occupied = (counts > 0).to(u.dtype)
    return (means * occupied).sum(0) / occupied.sum(0) * (1 + 64 * torch.finfo(u.dtype).eps)


def _log_ratio(right: Tensor, uncertain: Tensor, spread: Tensor, if_right: Tensor, if_wrong: Tensor) -> Tensor:
    wrong = 1 - right
    bad = right * if_right * uncertain * spread + wrong * if_wrong * (1 - uncertain) * (1 - spread)
    good = right * if_right * (1 - uncertain) * (1 - spread) + wrong * if_wrong * uncertain * spread
    return torch.log(good.sum(-1) + bad.sum(-1) + _SMALL) - torch.log(good.sum(-1) + _SMALL)

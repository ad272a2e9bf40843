"""Errors of a batch that were designed for training: MMCE, MDCA, soft-binned ECE, and accuracy versus uncertainty.

Each is one number for the whole batch, to be added to a classification loss. Whether a prediction is right is a
constant 0 or 1 in differentiation, so the gradient changes confidences only.

AvUC compares accuracy with uncertainty: a good prediction is right and certain, or wrong and uncertain. It and its
soft-binned form are ``log(1 + (n_AU + n_IC)/(n_AC + n_IU))`` with soft counts of accurate (A) or inaccurate (I) and
certain (C) or uncertain (U) predictions. The counts are increased by 1e-10, so that the losses are finite. They have
almost no gradient if the good counts are smaller than that, as in a batch of sure and wrong predictions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.base.settings import check_choice, check_whole
from calibrant.losses.inputs import batch_inputs, class_shares, correctness, number_below_one, positive_number
from calibrant.losses.regularisers import entropy

# A bin with a smaller share of the samples counts too little, by at most this share. The cube of this number is still a
# float32, so that second derivatives are finite.
_SMALLEST_MASS = 1e-12


def mmce(logits: Tensor, labels: Tensor, *, width: float | Tensor = 0.4, weighted: bool = False) -> Tensor:
    """Maximum mean calibration error (Kumar et al. 2018) with the kernel ``k(r, r') = exp(−|r − r'|/width)``. ::

        MMCE² = Σ_ij a_i a_j k(r_i, r_j),   a_i = (c_i − r_i)/m

    r is the confidence, c says whether the prediction is right, and m is the number of samples. ``weighted=True`` is
    their MMCE_w, which gives right and wrong predictions the same total weight: a_i = (1 − r_i)/n for the n right ones
    and −r_i/(m − n) for the wrong ones. If all predictions are right, or all are wrong, the empty group adds 0.

    The value is the root, as in the authors' training objective. It has slope 0 at an error of 0. Widely used code
    differs: it leaves out the root of the plain form, divides twice by the sizes of the groups in the weighted form,
    and makes the weighted form 0 if a group is empty.
    """
    width = positive_number("width", width)
    confidence, right = confidence_and_right(logits, labels)
    if weighted:
        share = right / right.sum().clamp_min(1) + (1 - right) / (1 - right).sum().clamp_min(1)
    else:
        share = torch.full_like(right, 1 / right.shape[0])
    gap = share * (right - confidence)
    kernel = torch.exp(-(confidence.unsqueeze(-1) - confidence.unsqueeze(-2)).abs() / width)
    # a sum instead of matrix products, which autocast would compute in half precision
    return _root((gap.unsqueeze(-1) * kernel * gap).sum())


def mdca(logits: Tensor, targets: Tensor) -> Tensor:
    """``(1/C) Σ_c |mean_i p_ic − mean_i t_ic|`` (Hebbalaguppe et al. 2022): class frequencies against mean confidence.

    `targets` are class indices or class probabilities.
    """
    logits, targets = batch_inputs(logits, targets, soft=True)
    return (torch.softmax(logits, dim=-1) - class_shares(targets, logits)).mean(-2).abs().mean(-1)


def soft_binned_ece(
    logits: Tensor, labels: Tensor, *, bins: int = 15, temperature: float | Tensor = 0.01, order: int = 2
) -> Tensor:
    """SB-ECE (Karandikar et al. 2021): ``(Σ_m S_m/n·|A_m − C_m|^order)^(1/order)`` with soft bins. ::

        u_m(c) = softmax_m(−(c − ξ_m)²/T),  ξ_m the centre of bin m of `bins` equal ones,  T = `temperature`

    S_m, A_m and C_m are the mass, accuracy and confidence of a soft bin. `order` is 1 or 2; the authors use 2.
    """
    temperature, bins = positive_number("temperature", temperature), check_whole("bins", bins)
    check_choice("order", order, (1, 2))
    confidence, right = confidence_and_right(logits, labels)
    centres = (torch.arange(bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / bins
    member = torch.softmax(-(confidence.unsqueeze(-1) - centres).square() / temperature, dim=-1)
    gap = (member * (right - confidence).unsqueeze(-1)).mean(-2)  # S_m/n·(A_m − C_m)
    if order == 1:
        return gap.abs().sum(-1)
    return _root((gap.square() / member.mean(-2).clamp_min(_SMALLEST_MASS)).sum(-1))


def confidence_and_right(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability, and whether its class is the label, as 0 or 1."""
    logits, labels = batch_inputs(logits, labels)
    return torch.softmax(logits, dim=-1).amax(-1), correctness(logits, labels)


def _root(square: Tensor) -> Tensor:
    """``√x`` with slope 0 if x is 0 or, by rounding, negative."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1).sqrt(), 0)


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
    return _log_ratio(right, uncertain, torch.tanh(u), 1.0, 1.0)


def _middle(u: Tensor, right: Tensor) -> Tensor:
    """The middle between the mean u of right and of wrong predictions; one of the means if the other group is empty.

    It is rounded up, so that equal predictions are all certain.
    """
    counts = torch.stack([right.sum(-1), (1 - right).sum(-1)])
    means = torch.stack([(right * u).sum(-1), ((1 - right) * u).sum(-1)]) / counts.clamp_min(1)
    occupied = (counts > 0).to(u.dtype)
    return (means * occupied).sum(0) / occupied.sum(0) * (1 + 64 * torch.finfo(u.dtype).eps)


def _log_ratio(
    right: Tensor, uncertain: Tensor, spread: Tensor, if_right: Tensor | float, if_wrong: Tensor | float
) -> Tensor:
    wrong = 1 - right
    bad = right * if_right * uncertain * spread + wrong * if_wrong * (1 - uncertain) * (1 - spread)
    good = right * if_right * (1 - uncertain) * (1 - spread) + wrong * if_wrong * uncertain * spread
    return torch.log(good.sum(-1) + bad.sum(-1) + _SMALL) - torch.log(good.sum(-1) + _SMALL)

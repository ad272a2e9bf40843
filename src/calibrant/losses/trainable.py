"""Calibration errors of a batch that were designed for training: MMCE, MDCA and soft-binned ECE.

Each is one number for the whole batch, to be added to a classification loss. Whether a prediction is right is a
constant 0 or 1 in differentiation, so the gradient changes confidences only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.base.settings import check_choice
from calibrant.losses.inputs import batch_inputs, class_shares, correctness, positive_number, whole_number

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
    temperature, bins = positive_number("temperature", temperature), whole_number("bins", bins)
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

"""Penalties on single predictions, one value for each sample, to be added to a classification loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.base.classes import full_precision, loss_inputs
from calibrant.losses.inputs import indicators, known_labels, positive_number


def negative_entropy(logits: Tensor, targets: Tensor | None = None) -> Tensor:
    """``Σ_c p_c log p_c`` = −H(p), the confidence penalty of Pereyra et al. (2017); it rewards entropy."""
    return -entropy(logits)


def entropy(logits: Tensor) -> Tensor:
    """``H(p) = −Σ_c p_c log p_c`` of each prediction, in nats. A class of probability 0 adds 0, even at logit −∞."""
    log_probs = torch.log_softmax(full_precision(logits), dim=-1)
    finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min / 4)
    return -(log_probs.exp() * finite).sum(-1)


def logit_margin(logits: Tensor, targets: Tensor | None = None, *, margin: float | Tensor = 10.0) -> Tensor:
    """``(1/C) Σ_k max(0, max_j l_j − l_k − m)``: margin-based label smoothing (Liu et al. 2022, Eq. (10)).

    Their equation has a sum over classes. Their code, with its weight of 0.1, takes the mean, and so does this
    function. Margin 0 is their form without a margin. If the label has the largest logit, cross-entropy plus ε times
    this form has the gradient of label smoothing with ε.
    """
    margin, logits = positive_number("margin", margin, zero=True), full_precision(logits)
    distance = logits.amax(-1, keepdim=True) - logits
    return torch.relu(distance - margin).mean(-1)


def binary_discrimination(logits: Tensor, labels: Tensor) -> Tensor:
    """``−1/(C − 1) Σ_{j≠y} log σ(l_y − l_j)``: BDC of Cheng & Vasconcelos (2022): the label against each class."""
    logits, labels = loss_inputs(logits, labels)
    with known_labels(logits.shape[-1]):
        differences = logits.gather(-1, labels.unsqueeze(-1)) - logits
    others = 1 - indicators(labels, logits)
    return -(F.logsigmoid(differences) * others).sum(-1) / max(1, logits.shape[-1] - 1)


def binary_exclusion(logits: Tensor, labels: Tensor) -> Tensor:
    """BEC of Cheng & Vasconcelos (2022): classes other than the label should be equally probable. ::

        −1/((C − 1)(C − 2)) Σ_{i≠j; i,j≠y} ½ log σ(l_i − l_j)

    Each pair occurs twice, so this is half the mean cross-entropy between (½, ½) and the pair's two-class prediction.
    It is 0 for two classes, which have no such pair. Memory is O(n·C²). Public code also sums the terms i = j, which
    adds the constant ``log 2 / (2(C − 2))`` and no gradient.
    """
    logits, labels = loss_inputs(logits, labels)
    classes = logits.shape[-1]
    others = 1 - indicators(labels, logits)
    pairs = others.unsqueeze(-1) * others.unsqueeze(-2)
    pairs = pairs * (1 - torch.eye(classes, dtype=logits.dtype, device=logits.device))
    values = F.logsigmoid(logits.unsqueeze(-1) - logits.unsqueeze(-2))
    return -0.5 * (values * pairs).sum((-2, -1)) / max(1, (classes - 1) * (classes - 2))

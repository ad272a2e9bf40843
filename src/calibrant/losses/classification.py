"""Per-sample classification losses: ``loss(logits, targets) -> one value a sample``, no reduction."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``−Σ_c t_c log softmax(logits)_c`` (Eq. 11, Sanguin et al. 2024), for class indices or soft targets.

    The paper's "final logit for class c" must be read as the probability.
    """
    return F.cross_entropy(logits, targets, reduction="none")

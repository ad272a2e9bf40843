"""Indicators of classes, and sums over all classes but one: 1 − p and log(1 − p) without cancellation."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(logits: Tensor) -> Tensor:
    """Logits in single or double precision. Half precision cannot hold the small probabilities in losses."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def loss_inputs(logits: Tensor, targets: Tensor, *, soft: bool = False) -> tuple[Tensor, Tensor]:
    """The inputs of a loss: logits in single or double precision, and one class index for each row, as int64.

    With ``soft``, targets may also be class probabilities, with the shape of the logits. Shapes and types are checked.
    Values are not, because that would stop a GPU and is impossible while a step is recorded.
    """
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point numbers; got {logits.dtype}.")
    logits = full_precision(logits)
    if soft and targets.shape == logits.shape and targets.is_floating_point():
        return logits, targets
    if targets.shape != logits.shape[:-1] or targets.is_floating_point() or targets.is_complex():
        also = ", or class probabilities with the shape of the logits" if soft else ""
        raise ValueError(
            f"labels must be one class index (a whole number) for each row of logits{also}; got {targets.dtype} of "
            f"shape {tuple(targets.shape)} for logits of shape {tuple(logits.shape)}."
        )
    return logits, targets.long()


def one_hot(labels: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """Indicator vectors by a comparison, which works under ``vmap`` and tracing; all zeros for labels out of range."""
    return (labels.unsqueeze(-1) == torch.arange(n_classes, device=labels.device)).to(dtype)


def sum_of_others(probs: Tensor) -> Tensor:
    """``1 − p_c`` for each class c, as a sum over the other classes; accurate even if p_c rounds to 1."""
    mask = 1 - torch.eye(probs.shape[-1], dtype=probs.dtype, device=probs.device)
    return probs @ mask


def log_of_others(logits: Tensor, labels: Tensor) -> Tensor:
    """``log(1 − p_y)``, computed from the other classes; exact even if p_y rounds to 1."""
    logits, labels = loss_inputs(logits, labels)
    own = one_hot(labels, logits.shape[-1], torch.bool)
    return torch.logsumexp(logits.masked_fill(own, -torch.inf), dim=-1) - torch.logsumexp(logits, dim=-1)


def logsumexp_of_others(x: Tensor) -> Tensor:
    """``log Σ_{c≠y} e^{x_c}`` for each y, in linear time; ``log(1 − p_y)`` if x are log-probabilities.

    ``log(Σ − e^{x_y})`` is inaccurate only if y is the largest entry. For that entry the others are summed directly.
    """
    largest = one_hot(x.detach().argmax(-1), x.shape[-1], torch.bool)
    total = torch.logsumexp(x, dim=-1, keepdim=True)
    share = (x - total).masked_fill(largest, -torch.inf)  # at most log ½ for the other entries
    rest = torch.logsumexp(x.masked_fill(largest, -torch.inf), dim=-1, keepdim=True)
    return torch.where(largest, rest, total + torch.log1p(-torch.exp(share)))

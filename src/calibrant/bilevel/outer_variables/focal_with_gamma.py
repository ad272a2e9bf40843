"""The training loss of the second paper: focal, with γ from an outer variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from calibrant._classes import log_of_others, one_hot
from calibrant.bilevel.detached import constant
from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Batch
from calibrant.losses.classification import focal
from calibrant.losses.focal_family import focal_slope


class HeadedNetwork(Protocol):
    """A network that consists of a body and a head."""

    def features(self, inputs: Any) -> Tensor: ...

    def head(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class FocalWithGamma:
    """The inner loss of the second paper: the mean focal loss with γ from the outer module (Eq. (2)).

    ``outer`` is a :class:`GammaNet`, a :class:`ConstantGamma`, or any module that maps features to one γ per sample.
    Its features are detached, so the classifier is not trained to change γ. Hypergradients over several steps still
    differentiate γ with respect to the features (:mod:`calibrant.bilevel.detached`). An :class:`OuterVariable` can also
    change the logits that the loss sees (``outputs``).

    Parameters
    ----------
    rescaled : bool
        Multiply the loss of a batch by a factor, so that its gradient in the logits has the mean size of
        cross-entropy's. Otherwise a larger γ also shortens every training step. The factor is a constant for gradients
        and for hypergradients, so a hypergradient does not see that γ changes it.
    body_share : float
        The share of the focal loss in the loss that trains the body, between 0 and 1. The rest is cross-entropy. With
        0, γ acts on the head only: the focal loss trains the head, and cross-entropy the features.
    """

    rescaled: bool = False
    body_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.body_share <= 1:
            raise ValueError(f"body_share must be between 0 and 1; got {self.body_share}.")

    def __call__(self, net: HeadedNetwork, outer: Any, batch: Batch) -> Tensor:
        def logits_of(features: Tensor) -> Tensor:
            found = net.head(features)
            return outer.outputs(found, batch) if isinstance(outer, OuterVariable) else found

        features = net.features(batch.inputs)
        gamma, logits = outer(features.detach()), logits_of(features)
        if self.body_share == 1:
            losses = focal(logits, batch.targets, gamma)
        else:
            losses = _apart(logits, logits_of(features.detach()), batch.targets, gamma, self.body_share)
        loss = batch.weighted(losses).mean()
        return loss / mean_slope(logits, batch.targets, gamma) if self.rescaled else loss


def _apart(logits: Tensor, of_head: Tensor, labels: Tensor, gamma: Tensor, share: float) -> Tensor:
    """Focal losses whose gradient in the body is `share` times their own plus the rest of cross-entropy's.

    `of_head` are the logits of detached features. They add to the gradient of the head only. All factors are detached,
    so hypergradients differentiate through them (:mod:`calibrant.bilevel.detached`).
    """
    of_cross_entropy = torch.softmax(logits, -1) - one_hot(labels, logits.shape[-1], logits.dtype)
    slope = focal_slope(logits, labels, gamma)
    mixed = share * slope + (1 - share)
    of_body = (mixed.unsqueeze(-1) * of_cross_entropy).detach()
    rest = ((slope - mixed).unsqueeze(-1) * of_cross_entropy).detach()
    found = (of_body * logits + rest * of_head).sum(-1)
    return found - found.detach() + focal(logits.detach(), labels, gamma)


def mean_slope(logits: Tensor, labels: Tensor, gamma: Tensor) -> Tensor:
    """:func:`focal_slope` averaged over a batch with the weights 1 − p_y, the sizes of cross-entropy's gradients."""
    logits, gamma = constant(logits), constant(gamma)
    size = torch.exp(log_of_others(logits, labels))
    smallest = torch.finfo(size.dtype).tiny
    return ((focal_slope(logits, labels, gamma) * size).mean() / size.mean().clamp_min(smallest)).clamp_min(1e-3)

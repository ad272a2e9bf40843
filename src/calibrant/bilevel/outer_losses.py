"""Outer losses by name: ``OUTER_LOSSES[name](**settings)`` is an ``outer_loss`` for Bilevel.

Each one is a value: equal settings give equal losses, as the members of a population need them, and all can be pickled.
Every loss adds the outer variable's prior and uses the data's sample weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.objectives import DEFAULT_OUTER_LOSS, UserLoss, averaged
from calibrant.bilevel.outer_variables import add_prior
from calibrant.data.batch import Batch
from calibrant.losses.calibration import Accuracy, dece, sece
from calibrant.losses.classification import brier, cross_entropy
from calibrant.losses.confidence import confidence_bce
from calibrant.models.network import Network


def bce_loss(*, alpha: float = 30.0) -> UserLoss:
    """BCE of the smooth confidence against "was it right" (Eq. 12–13, Sanguin et al. 2024), the first paper's F.

    ``batch.hyper["alpha"]`` takes the place of `alpha` where it is given, so that members may differ in it.
    """
    return ConfidenceBCE(float(alpha))


def nll_loss() -> UserLoss:
    """Cross-entropy: what Bilevel takes when it is told nothing."""
    return DEFAULT_OUTER_LOSS


def brier_loss() -> UserLoss:
    """The Brier score, ``Σ_c (p_c − t_c)²``."""
    return _BRIER


def sece_loss(
    *, strength: float | None = 1.0, bandwidth: float = 0.01, accuracy: Accuracy = "soft", order: int = 1
) -> UserLoss:
    """``CE + strength·SECE``; None: SECE alone, as the second paper prints it. ``order=2`` is the squared form.

    Alone it is smallest for a network that knows nothing: it may serve where training itself keeps the accuracy up, and
    to show what happens where it does not.
    """
    settings = (("bandwidth", float(bandwidth)), ("accuracy", accuracy), ("order", order))
    return BesideCrossEntropy(sece, _strength(strength), settings)


def dece_loss(
    *, strength: float | None = 1.0, bins: int = 15, temperature: float = 0.01, accuracy: Accuracy = "soft"
) -> UserLoss:
    """``CE + strength·DECE`` (Bohdal et al. 2021, who take 0.5); None: DECE alone, as in :func:`sece_loss`."""
    settings = (("bins", bins), ("temperature", float(temperature)), ("accuracy", accuracy))
    return BesideCrossEntropy(dece, _strength(strength), settings)


def variance_loss(*, strength: float = 1.0, draws: int = 5) -> UserLoss:
    """``CE + strength·variance`` over so many passes with dropout: right, and the same each time.

    The idea is Jain & Shenoy's (2022). The cross-entropy is the passes' mean; the variance is that of the probabilities
    over them, summed over classes. The network needs ``nn.Dropout`` and the problem ``outer_mode="train"``; every outer
    step has masks of its own. It is not among ``OUTER_LOSSES``, which serve any network.
    """
    if draws < 2:
        raise ValueError(f"a variance needs at least 2 draws; got {draws}.")
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be at least 0 and finite; got {strength}.")
    return DropoutVariance(float(strength), draws)


def confidence_gap_loss() -> UserLoss:
    """Mean confidence minus accuracy, with its sign: what :class:`calibrant.bilevel.Feedback` brings to zero."""
    return ConfidenceGap()


OUTER_LOSSES: dict[str, Callable[..., UserLoss]] = {
    "bce": bce_loss,
    "nll": nll_loss,
    "brier": brier_loss,
    "sece": sece_loss,
    "dece": dece_loss,
}

_BRIER = averaged(brier)


@dataclass(frozen=True)
class ConfidenceBCE:
    """See :func:`bce_loss`."""

    alpha: float

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        alpha = batch.hyper.get("alpha", self.alpha)
        losses = confidence_bce(net.logits(batch.inputs), batch.targets, alpha)
        return add_prior(batch.weighted(losses).mean(), variables)


@dataclass(frozen=True)
class ConfidenceGap:
    """See :func:`confidence_gap_loss`."""

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        confidence, predicted = net.logits(batch.inputs).softmax(-1).max(-1)
        return batch.weighted(confidence - (predicted == batch.targets).to(confidence.dtype)).mean()


@dataclass(frozen=True)
class DropoutVariance:
    """See :func:`variance_loss`."""

    strength: float
    draws: int

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        logits = torch.stack([net.logits(batch.inputs) for _ in range(self.draws)])
        losses = torch.stack([cross_entropy(own, batch.targets) for own in logits.unbind()]).mean(0)
        variance = logits.softmax(-1).var(0).sum(-1)
        return add_prior(batch.weighted(losses + self.strength * variance).mean(), variables)


@dataclass(frozen=True)
class BesideCrossEntropy:
    """``CE + strength·error(logits, targets)``; without a strength the error alone."""

    error: Callable[..., Tensor]
    strength: float | None
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        logits = net.logits(batch.inputs)
        value = self.error(logits, batch.targets, weights=batch.weights, **dict(self.settings))
        if self.strength is not None:
            value = batch.weighted(cross_entropy(logits, batch.targets)).mean() + self.strength * value
        return add_prior(value, variables)


def _strength(value: float | None) -> float | None:
    if value is not None and not value >= 0:
        raise ValueError(f"strength must be at least 0, or None for the calibration error alone; got {value}.")
    return None if value is None else float(value)

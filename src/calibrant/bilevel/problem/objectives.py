"""The objectives of the two levels: the usual ones, and outer losses by name.

Outer losses by name: ``OUTER_LOSSES[name](**settings)`` is an ``outer_loss`` for Bilevel. Equal settings give equal
losses, which populations require. All losses can be pickled, add the outer variable's prior, and use the data's sample
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.base.settings import check_choice, check_whole
from calibrant.bilevel.variables.base import OuterVariable, add_prior, one_number
from calibrant.data.streams.batch import Batch
from calibrant.losses.calibration import Accuracy, dece, sece
from calibrant.losses.classification import brier, confidence_bce, cross_entropy
from calibrant.losses.inputs import positive_number
from calibrant.losses.trainable import confidence_and_right
from calibrant.models.functional.network import Network

UserLoss = Callable[[Network, Any, Batch], Tensor]


@dataclass(frozen=True)
class composed:
    """The usual inner objective: a per-sample loss, averaged, with the hooks of an :class:`OuterVariable`."""

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def __call__(self, net: Network, outer: OuterVariable, batch: Batch) -> Tensor:
        logits = net.logits(batch.inputs)
        targets = outer.targets(batch.targets, batch, logits.shape[-1])
        losses = batch.weighted(self.loss(outer.outputs(logits, batch), targets))
        weighed = outer.weigh(losses, batch)
        if weighed.dim() > 0 and weighed.shape != losses.shape:  # a column of weights would give a table of losses
            raise ValueError(
                f"{type(outer).__name__}.weigh must return one loss per sample, of shape {tuple(losses.shape)}; got "
                f"shape {tuple(weighed.shape)}. Weights of a network with one output need squeeze(-1)."
            )
        penalty = one_number(outer.penalty(net.params), f"{type(outer).__name__}.penalty")
        return weighed.mean() + penalty if isinstance(penalty, Tensor) else weighed.mean()


@dataclass(frozen=True)
class averaged:
    """The usual outer objective: a per-sample loss, averaged, plus the outer variable's prior."""

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        losses = self.loss(net.logits(batch.inputs), batch.targets)
        return add_prior(batch.weighted(losses).mean(), variables)


DEFAULT_INNER_LOSS = composed()
DEFAULT_OUTER_LOSS = averaged()


def bce_loss(*, alpha: float = 30.0) -> UserLoss:
    """The first paper's F: binary cross-entropy of the smooth confidence (Eq. (12) and Eq. (13), Sanguin et al. 2024).

    Its target is whether the prediction is correct. ``batch.hyper["alpha"]`` overrides `alpha`, so the members of a
    population may have different values.
    """
    return ConfidenceBCE(float(positive_number("alpha", alpha)))


def nll_loss() -> UserLoss:
    """Cross-entropy, the default of Bilevel."""
    return DEFAULT_OUTER_LOSS


def brier_loss() -> UserLoss:
    """The Brier score, ``Σ_c (p_c − t_c)²``."""
    return averaged(brier)


def sece_loss(
    *, strength: float | None = 1.0, bandwidth: float = 0.01, accuracy: Accuracy = "soft", order: int = 1
) -> UserLoss:
    """``CE + strength·SECE``. ``order=2`` is the squared form.

    ``strength=None`` gives SECE alone, as the second paper prints it. SECE alone is smallest for a network that has
    learned nothing, so use it only if training itself keeps the accuracy high.
    """
    check_choice("accuracy", accuracy, ("soft", "hard"))
    check_choice("order", order, (1, 2))
    width = float(positive_number("bandwidth", bandwidth))
    settings = (("bandwidth", width), ("accuracy", accuracy), ("order", order))
    return BesideCrossEntropy(sece, _strength(strength), settings)


def dece_loss(
    *, strength: float | None = 1.0, bins: int = 15, temperature: float = 0.01, accuracy: Accuracy = "soft"
) -> UserLoss:
    """``CE + strength·DECE`` (Bohdal et al. 2021, who use 0.5). None gives DECE alone, as in :func:`sece_loss`."""
    check_choice("accuracy", accuracy, ("soft", "hard"))
    bins, sharpness = check_whole("bins", bins), float(positive_number("temperature", temperature))
    settings = (("bins", bins), ("temperature", sharpness), ("accuracy", accuracy))
    return BesideCrossEntropy(dece, _strength(strength), settings)


OUTER_LOSSES: dict[str, Callable[..., UserLoss]] = {
    "bce": bce_loss,
    "nll": nll_loss,
    "brier": brier_loss,
    "sece": sece_loss,
    "dece": dece_loss,
}


@dataclass(frozen=True)
class ConfidenceBCE:
    """See :func:`bce_loss`."""

    alpha: float

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        alpha = batch.hyper.get("alpha", self.alpha)
        losses = confidence_bce(net.logits(batch.inputs), batch.targets, alpha)
        return add_prior(batch.weighted(losses).mean(), variables)


@dataclass(frozen=True)
class confidence_gap_loss:
    """Mean confidence minus accuracy, with its sign, for :class:`calibrant.bilevel.Feedback`."""

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        confidence, right = confidence_and_right(net.logits(batch.inputs), batch.targets)
        return batch.weighted(confidence - right).mean()


@dataclass(frozen=True)
class BesideCrossEntropy:
    """``CE + strength·error(logits, targets)``, or the error alone if ``strength`` is None."""

    error: Callable[..., Tensor]
    strength: float | None
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, net: Network, variables: Any, batch: Batch) -> Tensor:
        logits = net.logits(batch.inputs)
        value = self.error(logits, batch.targets, sample_weight=batch.sample_weight, **dict(self.settings))
        if self.strength is not None:
            value = batch.weighted(cross_entropy(logits, batch.targets)).mean() + self.strength * value
        return add_prior(value, variables)


def _strength(value: float | None) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(
            f"strength must be at least 0 and finite, or None for the calibration error alone; got {value}."
        )
    return None if value is None else float(value)

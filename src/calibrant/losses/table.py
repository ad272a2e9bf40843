"""Training losses by name: ``LOSSES[name](**settings)`` gives a loss ``(logits, targets) -> one value per sample``.

Losses are values: equal settings give equal losses, and they can be hashed and pickled. A term of the whole batch
(MMCE, MDCA, soft-binned ECE, AvUC) is added to the loss of every sample, so that the mean over samples contains it
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.base.settings import check_whole
from calibrant.losses.classification import brier, cross_entropy, dual_focal, flsd, focal, smoothed_cross_entropy
from calibrant.losses.inputs import number_below_one, positive_number
from calibrant.losses.regularisers import binary_discrimination, binary_exclusion, logit_margin, negative_entropy
from calibrant.losses.trainable import avuc, mdca, mmce, soft_binned_avuc, soft_binned_ece

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Loss:
    """``function(logits, targets, **settings)`` plus ``strength`` times each further term."""

    function: Function
    settings: tuple[tuple[str, Any], ...] = ()
    terms: tuple[tuple[float, Loss], ...] = ()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        value = self.function(logits, targets, **dict(self.settings))
        for strength, term in self.terms:
            value = value + strength * term(logits, targets)
        return value

    def plus(self, strength: float, function: Function, **settings: Any) -> Loss:
        """The sum of this loss and one more term."""
        factor = float(positive_number("strength", strength, zero=True))
        return Loss(self.function, self.settings, (*self.terms, (factor, loss(function, **settings))))


def loss(function: Function, **settings: Any) -> Loss:
    """A function of logits and targets with these settings, as a value."""
    return Loss(function, tuple(settings.items()))


def label_smoothing_loss(*, epsilon: float = 0.05) -> Loss:
    """Cross-entropy with smoothed targets (Szegedy et al. 2016); the second paper uses ε = 0.05 and 0.1."""
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be between 0 and 1; got {epsilon}.")
    return loss(smoothed_cross_entropy, epsilon=float(epsilon))


def focal_loss(*, gamma: float = 1.0) -> Loss:
    """Focal loss with one γ (Lin et al. 2017); the second paper uses 1."""
    return loss(focal, gamma=float(positive_number("gamma", gamma, zero=True)))


def dual_focal_loss(*, gamma: float = 5.0) -> Loss:
    """Dual focal loss (Tao et al. 2023)."""
    return loss(dual_focal, gamma=float(positive_number("gamma", gamma, zero=True)))


def confidence_penalty_loss(*, strength: float = 0.1) -> Loss:
    """``CE − strength·H(p)`` (Pereyra et al. 2017)."""
    return loss(cross_entropy).plus(strength, negative_entropy)


def margin_loss(*, margin: float = 10.0, strength: float = 0.1) -> Loss:
    """Margin-based label smoothing (Liu et al. 2022); margin 0 is their form without a margin."""
    margin = float(positive_number("margin", margin, zero=True))
    return loss(cross_entropy).plus(strength, logit_margin, margin=margin)


def pairwise_loss(*, discrimination: float = 1.0, exclusion: float = 1.0) -> Loss:
    """CPC (Cheng & Vasconcelos 2022): cross-entropy with BDC and BEC, each with its weight."""
    return loss(cross_entropy).plus(discrimination, binary_discrimination).plus(exclusion, binary_exclusion)


def mmce_loss(*, strength: float = 1.0, width: float = 0.4, weighted: bool = False) -> Loss:
    """``CE + strength·MMCE`` (Kumar et al. 2018), plain or weighted."""
    width = float(positive_number("width", width))
    return loss(cross_entropy).plus(strength, mmce, width=width, weighted=bool(weighted))


def mdca_loss(*, strength: float = 1.0, gamma: float = 0.0) -> Loss:
    """``focal + strength·MDCA`` (Hebbalaguppe et al. 2022); γ = 0 is cross-entropy."""
    return _base(gamma).plus(strength, mdca)


def soft_binned_ece_loss(
    *, strength: float = 1.0, gamma: float = 0.0, bins: int = 15, temperature: float = 0.01
) -> Loss:
    """``focal + strength·SB-ECE`` (Karandikar et al. 2021, who choose the strength by search)."""
    bins, temperature = check_whole("bins", bins), float(positive_number("temperature", temperature))
    return _base(gamma).plus(strength, soft_binned_ece, bins=bins, temperature=temperature)


def avuc_loss(*, strength: float = 3.0, threshold: float | None = None) -> Loss:
    """``CE + strength·AvUC`` (Krishnan & Tickoo 2020), for a network that has been trained for some epochs.

    In the first epochs most predictions are wrong, and this loss would make them uncertain instead of right.
    """
    limit = None if threshold is None else float(positive_number("threshold", threshold, zero=True))
    return loss(cross_entropy).plus(strength, avuc, threshold=limit)


def soft_binned_avuc_loss(
    *, strength: float = 1.0, gamma: float = 0.0, threshold: float = 0.5, temperature: float = 0.1
) -> Loss:
    """``focal + strength·SB-AvUC`` (Karandikar et al. 2021)."""
    threshold = float(number_below_one("threshold", threshold))
    temperature = float(positive_number("temperature", temperature))
    return _base(gamma).plus(strength, soft_binned_avuc, threshold=threshold, temperature=temperature)


LOSSES: dict[str, Callable[..., Loss]] = {
    "cross-entropy": lambda: loss(cross_entropy),  # also for soft targets (mixup)
    "brier": lambda: loss(brier),
    "label-smoothing": label_smoothing_loss,
    "focal": focal_loss,
    "flsd": lambda: loss(flsd),  # FLSD-53
    "dual-focal": dual_focal_loss,
    "confidence-penalty": confidence_penalty_loss,
    "mbls": margin_loss,
    "cpc": pairwise_loss,
    "mmce": mmce_loss,
    "mdca": mdca_loss,
    "sb-ece": soft_binned_ece_loss,
    "avuc": avuc_loss,
    "sb-avuc": soft_binned_avuc_loss,
}


def _base(gamma: float) -> Loss:
    return focal_loss(gamma=gamma) if gamma else loss(cross_entropy)

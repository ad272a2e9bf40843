"""Detection of wrong training labels by comparison with trusted labels: whether there are any, how many, and which."""

from __future__ import annotations

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.bilevel import LabelNoise
from calibrant.methods.crossfit import CrossFit

_LEAST = 1e-300
_LARGEST = 0.99


def labels_differ(fit: CrossFit, train: int, *, significance: float = 2.5) -> bool:
    """Whether held-out training labels are predicted less accurately than validation labels.

    The difference in error rates must exceed ``significance`` standard errors. Error rates are compared instead of
    losses, because their variance is much smaller and flipped labels raise them directly. The standard error assumes
    equal error rates, because zero errors among few validation samples do not prove an error rate of zero.
    """
    rows = fit.rows("held")
    wrong = (fit.held_out_logits[rows].argmax(1) != fit.data.labels[rows]).double()
    weights = torch.ones_like(wrong) if fit.data.sample_weight is None else fit.data.sample_weight[rows].double()
    own, other = rows < train, rows >= train
    if not (weights[own].sum() > 0 and weights[other].sum() > 0):
        return False

    def share(chosen: Tensor) -> Tensor:
        return (weights * wrong)[chosen].sum() / weights[chosen].sum()

    def precision(chosen: Tensor) -> Tensor:
        return weights[chosen].square().sum() / weights[chosen].sum().square()  # 1/n for equal weights

    pooled = share(own | other)
    error = (pooled * (1 - pooled) * (precision(own) + precision(other))).sqrt()
    return bool(share(own) - share(other) > significance * error)


def flip_rate(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The maximum-likelihood estimate of the rate ε at which labels were flipped to another class.

    ``probs`` (n, C) are a classifier's probabilities of the *true* label. The observed label y then has the probability
    ``(1 − ε)·p_y + ε/(C − 1)·(1 − p_y)``. The rate that training learns (:class:`calibrant.bilevel.LabelNoise`) helps
    to train such a classifier, but it is not an estimate: it is often far above the share of wrong labels.
    """
    own = probs.double().gather(1, labels.unsqueeze(1)).squeeze(1)
    share = torch.ones_like(own) if weights is None else weights.to(own) / weights.to(own).mean()

    def cost(rate: float) -> float:
        observed = (1 - rate) * own + rate / (probs.shape[1] - 1) * (1 - own)
        return -float(share @ observed.clamp_min(_LEAST).log())

    return float(minimize_scalar(cost, bounds=(0.0, _LARGEST), method="bounded").x)


def wrong_label(probs: Tensor, labels: Tensor, rate: float) -> Tensor:
    """The posterior probability that each label is wrong, if labels were flipped at this rate."""
    rate = min(max(rate, 1e-9), _LARGEST - 1e-3)
    noise = LabelNoise(probs.shape[1], initial=rate, largest=_LARGEST).double()
    with torch.no_grad():
        return noise.suspicion(probs.double().clamp_min(_LEAST).log(), labels)

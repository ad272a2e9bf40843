"""Training labels against labels that are trusted: whether some are wrong, how many, and which."""

from __future__ import annotations

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.methods.crossfit import CrossFit


def labels_differ(fit: CrossFit, train: int, *, significance: float = 2.5) -> bool:
    """Whether held-out training labels are met less often than validation labels, by so many standard errors.

    Errors are counted, not losses: their variance is the smaller by far, and flipped labels show in them at once. The
    standard error is that of equal shares, because none at all among few validation samples is no certainty.
    """
    rows = fit.rows("held")
    wrong = (fit.held_out_logits[rows].argmax(1) != fit.data.labels[rows]).double()
    weights = torch.ones_like(wrong) if fit.data.weights is None else fit.data.weights[rows].double()
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


def flip_rate(own: Tensor, classes: int, weights: Tensor | None = None) -> float:
    """The rate ε at which labels were flipped to any other class, of greatest likelihood.

    ``own`` are probabilities p of the observed labels by a classifier of the *true* label: each label is observed with
    probability ``(1 − ε)·p + ε/(C − 1)·(1 − p)``. The rate that training learns
    (:class:`calibrant.bilevel.LabelNoise`) is a means to such a classifier, and no estimate: a few unrolled steps gain
    by raising it beyond the share of wrong labels, because it sharpens networks that are yet unfinished.
    """
    share = torch.ones_like(own) if weights is None else weights.to(own) / weights.to(own).mean()

    def cost(rate: float) -> float:
        observed = (1 - rate) * own + rate / (classes - 1) * (1 - own)
        return -float(share @ observed.clamp_min(1e-300).log())

    return float(minimize_scalar(cost, bounds=(0.0, 0.99), method="bounded").x)


def wrong_label(own: Tensor, classes: int, rate: float) -> Tensor:
    """The posterior probability that a label is wrong, by Bayes' rule, for labels flipped at this rate."""
    flipped = rate / (classes - 1) * (1 - own)
    return flipped / ((1 - rate) * own + flipped).clamp_min(1e-300)

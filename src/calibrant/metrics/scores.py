"""Accuracy, proper scores, and the difference between mean confidence and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from sklearn.isotonic import isotonic_regression
from torch import Tensor

from calibrant.base.inputs import check_confidence, check_probs, check_weights
from calibrant.base.settings import check_whole
from calibrant.metrics.predictions import Grouped, InputKeywords, MetricKeywords, Predictions, evaluate, metric, read


@metric(predicted_only=True)
def accuracy(probs: Any = None, labels: Any = None, **keywords: Unpack[MetricKeywords]) -> float | Grouped:
    """Share of right predictions. Keywords are as in `ece`, but `binary` cannot be "positive"."""
    return evaluate(lambda p: p.mean(p.correct), probs, labels, **keywords)


@metric(top_label=True, signed=True)
def confidence_gap(probs: Any = None, labels: Any = None, **keywords: Unpack[MetricKeywords]) -> float | Grouped:
    """Mean confidence minus accuracy: positive for an over-confident model, Eq. (2) of Sanguin et al. 2024.

    It equals `overconfidence − underconfidence` for any bins, and its size is at most ECE. Keywords are as in `ece`.
    """
    return evaluate(lambda p: p.mean(signed_gaps(p)), probs, labels, **keywords)


def share_below_chance(
    probs: Any = None,
    *,
    confidence: Any = None,
    n_classes: int | None = None,
    from_logits: bool = False,
    sample_weight: Any = None,
) -> float:
    """Share of predictions with a confidence below 1/C. A maximum of C probabilities is never below it.

    Give (n, C) `probs`, or `confidence=` with `n_classes=`. A calibrator that changes the confidence alone can make it
    fall below 1/C (Sanguin et al. 2024, Section 4, on isotonic regression).
    """
    if (probs is None) == (confidence is None):
        raise ValueError("Give either probs, or confidence= with n_classes=.")
    if probs is not None:
        matrix = check_probs(probs, from_logits=from_logits)
        values, chance = matrix.amax(dim=1), 1 / matrix.shape[1]
    else:
        values = check_confidence(confidence, np.zeros(np.shape(confidence), dtype=bool))[0]
        chance = 1 / check_whole("n_classes", n_classes)
    below = values.double() < chance * (1 - 1e-6)  # a rounded 1/C is not below 1/C
    weight = None if sample_weight is None else check_weights(sample_weight, len(values), values.device)
    return Predictions(values, below, weight).mean(below)


@metric()
def nll(probs: Any = None, labels: Any = None, **keywords: Unpack[MetricKeywords]) -> float | Grouped:
    """Negative log-likelihood, −mean log p_y, in nats.

    For pairs, and with `binary`, the terms are −log(c) for right and −log(1 − c) for wrong predictions. The result is
    infinite if an observed outcome had a probability of exactly 0; logits (`from_logits=True`) avoid this. Keywords are
    as in `ece`.
    """
    return evaluate(lambda p: p.mean(nll_terms(p)), probs, labels, **keywords)


@metric()
def brier(probs: Any = None, labels: Any = None, **keywords: Unpack[MetricKeywords]) -> float | Grouped:
    """Brier score, mean Σ_c (p_c − 1[y = c])², in [0, 2]: Brier's multi-class form.

    For pairs, and with `binary`, it is mean (c − correct)², in [0, 1]; for two classes this is half of the value for
    two columns.
    `brier_decomposition` splits it into calibration and refinement. Keywords are as in `ece`.
    """
    return evaluate(lambda p: p.mean(brier_terms(p)), probs, labels, **keywords)


def signed_gaps(p: Predictions) -> Tensor:
    """Confidence minus correctness of each prediction."""
    return p.confidence.double() - p.correct.double()


def nll_terms(p: Predictions) -> Tensor:
    """−log of the probability of the observed outcome, per prediction."""
    if p.logits is not None and p.labels is not None:
        return torch.nn.functional.cross_entropy(p.logits, p.labels, reduction="none")
    if p.probs is not None and p.labels is not None:
        return -p.probs.gather(1, p.labels[:, None])[:, 0].double().log()
    if p.logits is not None:
        wrong_log_odds = torch.where(p.correct, -p.logits, p.logits)
        return torch.logaddexp(wrong_log_odds, torch.zeros_like(wrong_log_odds))
    c = p.confidence.double()
    return -torch.where(p.correct, c.log(), torch.log1p(-c))


def brier_terms(p: Predictions) -> Tensor:
    """Squared error per prediction."""
    if p.probs is None or p.labels is None:
        return signed_gaps(p) ** 2
    matrix = p.probs.double()
    at_label = matrix.gather(1, p.labels[:, None])[:, 0]
    return (matrix**2).sum(dim=1) - 2 * at_label + 1


@dataclass(frozen=True)
class BrierDecomposition:
    """score = calibration + refinement, and refinement = uncertainty − resolution, exactly."""

    score: float
    calibration: float
    refinement: float
    resolution: float
    uncertainty: float

    def __repr__(self) -> str:
        return (
            f"BrierDecomposition({self.score:.4g} = calibration {self.calibration:.4g} + refinement "
            f"{self.refinement:.4g}; resolution {self.resolution:.4g}, uncertainty {self.uncertainty:.4g})"
        )


def brier_decomposition(probs: Any = None, labels: Any = None, **keywords: Unpack[InputKeywords]) -> BrierDecomposition:
    """Split the Brier score into calibration, which recalibration can improve, and refinement, the rest.

    With q the recalibrated forecast and ȳ the base rate, per class and summed over the classes::

        uncertainty = E(ȳ − y)²
        resolution  = uncertainty − E(q − y)²
        calibration = E(p − y)² − E(q − y)²

    q is the isotonic fit of y on p (CORP, Dimitriadis, Gneiting & Jordan 2021). There are no bins, and no part is
    negative. On small samples the fit is a little too flexible.

    Keywords are as in `ece`, except `groups`.
    """
    p = read(probs, labels, **keywords)
    if p.probs is None or p.labels is None:
        columns = [p]
    else:
        columns = [
            Predictions(column.contiguous(), p.labels == c, p.weight) for c, column in enumerate(p.probs.unbind(dim=1))
        ]
    calibration, resolution, uncertainty = np.sum([_parts(column) for column in columns], 0).tolist()
    score = p.mean(brier_terms(p))
    return BrierDecomposition(score, calibration, score - calibration, resolution, uncertainty)


def _parts(p: Predictions) -> tuple[float, float, float]:
    y = p.correct.double()
    best = p.mean((isotonic_fit(p).to(y.device) - y) ** 2)
    rate = p.mean(y)
    return p.mean(signed_gaps(p) ** 2) - best, rate * (1 - rate) - best, rate * (1 - rate)


def isotonic_fit(p: Predictions) -> Tensor:
    """The non-decreasing function of the confidence nearest to the outcomes, at each prediction."""
    confidence, index = np.unique(p.confidence.double().cpu().numpy(), return_inverse=True)
    weight = np.ones(len(p)) if p.weight is None else p.weight.cpu().numpy()
    # Equal confidences share one value, so they enter as one point. A point without weight gets a negligible one.
    mass = np.bincount(index, weights=weight, minlength=len(confidence))
    hits = np.bincount(index, weights=weight * p.correct.cpu().numpy(), minlength=len(confidence))
    rate = np.divide(hits, mass, out=np.zeros_like(hits), where=mass > 0)
    fit = isotonic_regression(rate, sample_weight=np.maximum(mass, 1e-300), y_min=0.0, y_max=1.0)
    return torch.from_numpy(np.asarray(fit, dtype=np.float64)[index])

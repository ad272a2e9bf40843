"""Calling a metric on resampled predictions: shared by the noise floor, the intervals and the tests."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from calibrant.base.inputs import Logits
from calibrant.base.settings import check_number, shown
from calibrant.metrics.predictions import Predictions, read, without_zero_weights

Metric = Callable[..., Any]


def marked(metric: Metric, name: str) -> bool | None:
    """A mark set by `predictions.metric`, also inside functools.partial; None for a user's function."""
    while isinstance(metric, functools.partial):
        metric = metric.func
    return getattr(metric, name, None)


def unwrapped(metric: Metric, arguments: dict[str, Any]) -> tuple[Metric, dict[str, Any]]:
    """The metric inside functools.partial, and the merged keywords."""
    while isinstance(metric, functools.partial) and not metric.args:
        arguments = {**metric.keywords, **arguments}
        metric = metric.func
    return metric, arguments


def read_for(metric: Metric, probs: Any, labels: Any, *pair: Any, **keywords: Any) -> Predictions:
    """Read predictions for resampling by this metric.

    The matrix is dropped if the metric does not use it, so that n numbers are resampled instead of n × C. Rows of
    weight zero are dropped because a resample could consist of them alone.
    """
    if keywords.get("binary") == "positive" and marked(metric, "predicted_only"):
        raise ValueError("binary must be 'predicted' for this metric of the predicted class; got 'positive'.")
    p = without_zero_weights(read(probs, labels, *pair, **keywords))
    return replace(p, probs=None, labels=None, logits=None) if marked(metric, "top_label") else p


def call(metric: Metric, p: Predictions, arguments: dict[str, Any]) -> float:
    """Evaluate the metric on predictions as a user would."""
    if p.weight is not None:
        arguments = {**arguments, "sample_weight": p.weight}
    if p.probs is None and p.logits is not None and marked(metric, "predicted_only") is False:
        value = metric(Logits(p.logits), p.correct, binary="positive", **arguments)
    elif p.probs is None:
        value = metric(confidence=p.confidence, correct=p.correct, **arguments)
    else:
        value = metric(p.probs if p.logits is None else Logits(p.logits), p.labels, **arguments)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"metric must return one number; got {type(value).__name__}. Leave out groups and per-class options."
        ) from None


def draw_outcomes(p: Predictions, generator: torch.Generator) -> Predictions:
    """Return the predictions with outcomes drawn from them, as if they were calibrated.

    Labels are drawn from the rows of `probs`. For pairs, "correct" is drawn with probability `confidence`. Both are
    exactly the null hypothesis P(correct | confidence) = confidence, Eq. (3) of Sanguin et al. 2024.
    """
    u = torch.rand(len(p), generator=generator, dtype=torch.float64, device=p.confidence.device)
    if p.probs is None:
        return replace(p, correct=u < p.confidence)
    cumulative = p.probs.double().cumsum(dim=1)
    # Rows sum to 1 only approximately: scale the draw instead of the row.
    labels = ((u * cumulative[:, -1])[:, None] >= cumulative).sum(dim=1).clamp_(max=p.probs.shape[1] - 1)
    return replace(p, labels=labels, correct=p.probs.argmax(dim=1) == labels)


def draw_rows(n: int, generator: torch.Generator) -> Tensor:
    """Row numbers of one bootstrap sample."""
    return torch.randint(n, (n,), generator=generator, device=generator.device)


def new_generator(seed: int, device: torch.device) -> torch.Generator:
    """Return a generator on the device of the data, so that draws are not copied between devices."""
    return torch.Generator(device=device).manual_seed(int(seed))


def check_level(level: float, n_resamples: int) -> None:
    """Raise an error for a level outside (0, 1), or for fewer resamples than the level needs."""
    if not 0 < check_number("level", level) < 1:
        raise ValueError(f"level must lie strictly between 0 and 1; got {level}. Use 0.95 for 95 %.")
    needed = math.ceil(2 / (1 - level) - 1e-9)
    if not isinstance(n_resamples, Integral) or n_resamples < needed:
        raise ValueError(
            f"n_resamples must be a whole number of at least {needed} for level {level}; got {shown(n_resamples)}."
        )


def quantiles(values: Tensor, level: float) -> tuple[float, float]:
    """Both ends of the central interval that holds a share `level` of the values."""
    tail = (1 - level) / 2
    ends = torch.quantile(values, values.new_tensor([tail, 1 - tail]))
    return ends[0].item(), ends[1].item()


def tail_p_value(draws: Tensor, observed: float) -> float:
    """(1 + #{draw ≥ observed}) / (1 + R): a valid p-value for any number of draws R (Davison & Hinkley 1997).

    Draws equal to the observed value up to rounding count as equal, which can only raise the p-value.
    """
    slack = 1e-12 * max(1.0, abs(observed))
    return (1 + int((draws >= observed - slack).sum())) / (1 + len(draws))
